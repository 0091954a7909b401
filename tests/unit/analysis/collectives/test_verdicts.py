"""The cost of a late rank and the verdict on it."""

import pytest

from hpcprof.analysis.collectives.verdicts import hidden_lateness, with_cost, with_hidden_lateness


@pytest.mark.parametrize(
    ("interval", "saving_ns", "cost", "verdict"),
    [
        ((0, 900), None, (500, 0.5), "even"),
        ((0, 90_000), None, (500, 0.5), "unknown"),
        ((100, 90_000), None, (500, 0.5), "late"),
        ((0, 90_000), 25_900, (25_900, 25.9), "straggler"),
        ((0, 900), 4_000, (4_000, 4.0), "late"),
        ((None, None), 25_900, (25_900, 25.9), "straggler"),
        ((None, None), None, (None, None), "unknown"),
    ],
)
def test_the_saving_of_a_finding_is_the_cost_of_a_late_rank_and_no_verdict_falls_behind_it(
    interval: tuple[int | None, int | None],
    saving_ns: int | None,
    cost: tuple[int | None, float | None],
    verdict: str,
) -> None:
    low, high = interval
    row = {"lateness_p50_ns": None if low is None else 500, "lateness_low_ns": low}
    found = with_cost(row | {"lateness_high_ns": high, "elapsed_ns": 100_000}, saving_ns)
    assert ((found["cost_ns"], found["cost_pct"]), found["verdict"]) == (cost, verdict)
    unknown = with_cost(row | {"lateness_high_ns": high, "elapsed_ns": None}, saving_ns)
    assert (unknown["cost_ns"], unknown["verdict"]) == (None, "unknown")


def test_a_rank_that_a_finding_calls_late_hides_no_lateness_any_more() -> None:
    row = {"elapsed_ns": 100_000, "uncertainty_ns": 10, "verdict": "unknown"}
    late, other = row | {"lateness_high_ns": 170_000}, row | {"lateness_high_ns": 27_000}
    before = f"few steps; {hidden_lateness([late, other])}; no names"
    assert before.startswith("few steps; any lateness may be hidden by chance")
    after = with_hidden_lateness(before, [late | {"verdict": "straggler"}, other])
    assert after.startswith("few steps; a lateness of up to 27.0 % of a step may be") and "any" not in after
    assert with_hidden_lateness(before, [late | {"verdict": "late"}]) == "few steps; no names"
