"""The column right: the fault is named if it costs enough, and nothing is if it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import Explanation, Finding, StepSummary
from hpcprof.study.validation_table import COLUMNS, Cost, Validation, summary
from hpcprof.workloads.ddp.faults import parse_fault

MS = 1_000_000


def finding(cause: str, ranks: tuple[int, ...], where: str, saving: int | None) -> Finding:
    return Finding(Cause(cause), ranks, where, saving, saving, saving, None, (), "", "high")


def validation(fault: str, cost: tuple[int, int, int], *findings: Finding) -> Validation:
    explanation = Explanation(findings, (), (), StepSummary(100 * MS, 10, 2, 10, 0.1))
    value, low, high = (figure * MS for figure in cost)
    return Validation(parse_fault(fault), Cost(100 * MS, value, low, high), explanation, 2)


LATE = finding("late_rank_host", (1,), "iteration/data", 12 * MS)
HOST = finding("host_work", (0, 1), "data", 12 * MS)
SPIKES = finding("step_spikes", (0, 1), "steps 2, 7", 12 * MS)


@pytest.mark.parametrize(
    ("fault", "cost", "findings", "right"),
    [
        ("late_rank_host", (13, 12, 14), [LATE], True),
        ("late_rank_host", (13, 12, 14), [], False),
        ("late_rank_host", (13, 12, 14), [HOST], False),
        ("late_rank_host:rank=0", (13, 12, 14), [LATE], False),
        ("host_work", (13, 12, 14), [HOST], True),
        ("host_work", (13, 12, 14), [finding("host_work", (0, 1), "forward", 12 * MS)], False),
        ("host_work", (13, 12, 14), [finding("host_work", (0,), "data", 12 * MS)], False),
        # The first one counts; one without an estimate is no prediction.
        ("host_work", (13, 12, 14), [finding("slow_math", (0, 1), "", 9 * MS), HOST], False),
        ("host_work", (13, 12, 14), [finding("capture_incomplete", (0, 1), "", None), HOST], True),
        # Its cause may explain what single steps take longer, and nothing else.
        ("step_spikes", (13, 12, 14), [replace(HOST, alternatives=(SPIKES,))], True),
        ("step_spikes", (13, 12, 14), [HOST], False),
        ("host_work", (13, 12, 14), [replace(SPIKES, alternatives=(HOST,))], False),
        # It costs less than what is shown: nothing is to be found, or the fault if the interval allows it.
        ("gc", (0, -1, 1), [], True),
        ("gc", (0, -1, 1), [HOST], False),
        ("gc", (3, 1, 5), [], True),
        ("gc", (3, 1, 5), [HOST], True),
        ("gc", (3, 1, 5), [LATE], False),
        ("none", (9, 8, 10), [], True),
        ("none", (9, 8, 10), [HOST], False),
    ],
)
def test_a_first_finding_is_right_or_not(
    fault: str, cost: tuple[int, int, int], findings: list[Finding], right: bool
) -> None:
    assert validation(fault, cost, *findings).right is right


def test_a_finding_below_the_bar_is_no_finding() -> None:
    assert validation("none", (0, 0, 0), finding("host_work", (0, 1), "data", 2 * MS)).right


def test_a_row_says_what_was_injected_what_it_costs_and_what_was_found() -> None:
    row = validation("late_rank_host:ms=9", (13, 12, 14), LATE).row()
    assert list(row) == [column.name for column in COLUMNS]
    assert row == {
        "fault": "late_rank_host:ms=9,rank=1", "clean_step_ns": 100 * MS,
        "cost_ns": 13 * MS, "cost_low_ns": 12 * MS, "cost_high_ns": 14 * MS,
        "expected": "late_rank_host", "expected_range": "data", "expected_ranks": "1",
        "first_finding": "late_rank_host", "finding_range": "iteration/data", "finding_ranks": "1",
        "saving_ns": 12 * MS, "saving_low_ns": 12 * MS, "saving_high_ns": 12 * MS,
        "error_ns": -MS, "right": "yes",
    }  # fmt: skip


def test_what_is_hidden_is_expected_to_stay_unnamed() -> None:
    row = validation("gc", (0, -1, 1)).row()
    assert (row["expected"], row["first_finding"], row["error_ns"], row["right"]) == (
        "none",
        "none",
        None,
        "yes",
    )


def test_a_run_that_cannot_be_explained_is_not_right() -> None:
    found = Validation(parse_fault("none"), Cost(100 * MS, 0, 0, 0), None, 2)
    assert (found.right, found.row()["first_finding"]) == (False, "no explanation")


def test_the_sentence_has_the_hits_and_the_median_error() -> None:
    found = [
        validation("late_rank_host", (10, 9, 11), LATE),
        validation("host_work", (16, 15, 17), HOST),
        validation("none", (0, 0, 0), HOST),
    ]
    said = summary(found)
    assert said == "2 of 3 first findings are right; the predicted savings are off by 22 % (median of 2)."
    assert summary(found[2:]) == "0 of 1 first finding is right."
