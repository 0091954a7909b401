"""Rates, bounds and conditions that follow from the times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.readers.results import parse_result
from hpcprof.workloads.schema import Figures
from hpcprof.workloads.sequence_parallel.efficiency import (
    LINKS,
    Bound,
    alone_bound_ns,
    beyond_bound,
    hidden_interval,
    mode_figures,
    no_overlap,
    overlapped,
    part_rates,
    peak_tflops,
    step_bound,
)
from hpcprof.workloads.sequence_parallel.parameters import PointParameters

SHAPE = PointParameters(8192, 8192, dtype="bfloat16")
DATA = Path(__file__).parents[4] / "docs" / "data"


def exactly(time: int, rounds: int = 21) -> Bound:
    """Return a bound that was the same in every round."""
    return Bound([time] * rounds, {"matmuls forward": time})


def test_alone_both_directions_take_the_sum_of_each_ones_larger_part() -> None:
    forward = {"allgather": 5, "matmul_1": 1, "matmul_2": 2, "reduce_scatter": 4}
    backward = {"grad_allgather": 1, "grad_matmul_2": 10, "weight_matmul_1": 20, "grad_reduce_scatter": 2}
    assert alone_bound_ns(forward) == 9
    assert alone_bound_ns(backward) == 30
    assert alone_bound_ns(forward | backward) == 39


def test_the_figures_are_those_of_a_calculation_by_hand() -> None:
    # Two ranks and four steps: each takes 4 ms on the slower rank and 3 ms on the other.
    ranks = [[4_000_000] * 4, [3_000_000] * 4]
    found = mode_figures(
        ranks,
        SHAPE,
        device="NVIDIA H200",
        backend="nccl",
        bound=exactly(3_000_000, 4),
        alone=3_200_000,
        serial_ns=[5_000_000] * 4,
        marks_pct=0.1,
    )
    flops = 4 * 8192 * 8192 * 32768 / 2
    assert found.tflops == pytest.approx(flops / 4e-3 / 1e12)
    assert found.of_peak_pct == pytest.approx(100 * found.tflops / 989)
    # All-gather and reduce-scatter each move the half of the rows that the other rank has.
    assert found.bus_gbps == pytest.approx(2 * 8192 * 8192 * 2 / 2 / 4e-3 / 1e9)
    assert (found.of_bound_pct, found.of_alone_pct, found.hidden_pct) == (75.0, 80.0, 50.0)
    assert (found.of_bound_low_pct, found.of_bound_high_pct) == (75.0, 75.0)
    assert (found.skew_p50_ns, found.spread_pct, found.step.n) == (1_000_000, 0.0, 4)


def test_the_bound_is_the_larger_of_the_fastest_matmuls_and_of_the_bytes_over_the_links() -> None:
    serial = {"allgather": 10, "matmul_1": 1, "matmul_2": 1, "reduce_scatter": 30}
    moved = {"allgather": 100, "reduce_scatter": 200}
    probes = {
        "matmuls forward, grouping 0": [50, 60, 70],
        "matmuls forward, grouping 1": [20, 25, 90],
        LINKS: [8, 9, 10],
    }
    # The fastest grouping by its median; in one round the links take longer: 9 ns for 100 of the 300 bytes.
    found = step_bound(probes, serial, moved)
    assert found.rounds_ns == [27, 27, 90]
    assert found.parts_ns == {"matmuls forward": 25, "links forward": 27}
    assert found.p50_ns == 27
    # Where no plain copy can be measured, or NCCL is faster than it, the collectives alone count.
    del probes[LINKS]
    assert step_bound(probes, serial, moved).parts_ns["links forward"] == 40
    assert step_bound({**probes, LINKS: [20] * 3}, serial, moved).parts_ns["links forward"] == 40


def test_the_bound_of_both_directions_is_the_sum_of_theirs() -> None:
    names = ("grad_allgather", "input_allgather", "grad_reduce_scatter")
    moved = dict.fromkeys(("allgather", "reduce_scatter", *names), 100)
    probes = {
        "matmuls forward, grouping 0": [10, 10],
        "matmuls backward, grouping 0": [50, 20],
        LINKS: [10, 10],
    }
    # Two collectives forward and three backward, of 10 ns each.
    found = step_bound(probes, dict.fromkeys(moved, 1000), moved)
    assert found.rounds_ns == [20 + 50, 20 + 30]
    assert found.parts_ns["links backward"] == 30


def test_a_mode_that_beats_the_bound_beyond_its_interval_is_a_warning() -> None:
    def said(steps: list[int]) -> str | None:
        bound = exactly(3_000_000, len(steps))
        shape = {"device": "NVIDIA H200", "backend": "nccl", "serial_ns": None, "marks_pct": 0.0}
        return beyond_bound("copy-engine", mode_figures([steps], SHAPE, bound=bound, **shape))  # type: ignore[arg-type]

    assert said([3_100_000] * 21) is None
    # Faster in most steps, but not in enough of them to be sure.
    assert said([2_990_000] * 11 + [3_010_000] * 10) is None
    found = said([2_900_000] * 21)
    assert found is not None and "copy-engine is faster than the bound, at 103.4 to 103.4 %" in found


def judged(shares: list[float], **changes: Any) -> Figures:
    """Return the figures of steps of 4 ms that hide these shares of the 1 ms that can be hidden."""
    # The serial mode becomes slower and slower, so each step must be compared with its own round.
    serial = [4_000_000 + 100_000 * (index - len(shares) // 2) for index in range(len(shares))]
    steps = [whole - round(share * 1_000_000) for whole, share in zip(serial, shares, strict=True)]
    bound = exactly(3_000_000, len(shares))
    given = {"device": "NVIDIA H200", "bound": bound, "serial_ns": serial, "ranks": 2, **changes}
    ranks = [steps] * given.pop("ranks")
    return mode_figures(ranks, SHAPE, backend="nccl", marks_pct=0.0, **given)


def test_a_mode_overlaps_if_it_hides_communication_beyond_what_chance_gives() -> None:
    assert judged([0.6, 0.7, 0.8] * 7).overlapped is True
    # One step is ten times as slow.
    assert judged([0.6, 0.7, 0.8] * 7 + [-40.0]).overlapped is True
    for shares in ([0.0] * 21, [-0.2, 0.1, 0.2] * 7, [-1.0, 1.0] * 20, [0.04] * 21, [-0.3] * 21):
        found = judged(shares)
        assert found.overlapped is False
        said = no_overlap("symmetric", found)
        assert said is not None and said.startswith(
            "symmetric did not overlap here, or gained nothing from it: "
        )
    assert "hides -30 to -30 % (95 % interval) of the communication that" in (said or "")
    assert no_overlap("symmetric", judged([0.7] * 9)) is None


def test_whether_a_mode_overlaps_is_not_told_where_it_cannot_be_known() -> None:
    nothing: list[dict[str, Any]] = [
        {"ranks": 1},
        {"device": "cpu"},
        {"serial_ns": None},
        {"bound": None},
        # The serial mode itself, hardly any communication, and none at all.
        {"overlaps": False},
        {"bound": exactly(3_900_000)},
        {"bound": exactly(4_100_000)},
    ]
    for change in nothing:
        found = judged([0.0] * 21, **change)
        assert found.overlapped is None
        assert no_overlap("symmetric", found) is None


@given(st.integers(1, 400))
def test_the_interval_of_the_hidden_share_holds_the_median_in_95_of_100_runs(count: int) -> None:
    low, high = hidden_interval([-index for index in range(count)], [0] * count, -100) or (0.0, 0.0)
    # Shares of 0 to count - 1 percent: by the binomial distribution of how many lie below the median.
    assert low + high == count - 1
    outside = round(low)
    coverage = 1 - 2 * sum(math.comb(count, below) for below in range(outside + 1)) / 2**count
    # For few steps the interval spans all of them, which covers less with fewer than six.
    assert coverage > 0.945 or count < 6
    assert coverage < 0.99 or count < 20


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_the_published_runs_did_overlap_where_they_are_faster_than_serial(path: Path) -> None:
    result = parse_result(path.read_text())
    serial = result.modes["serial"]
    assert serial.figures is not None
    for name in result.modes.keys() - {"serial", "serial (eager)"}:
        mode = result.modes[name]
        assert mode.figures is not None and result.bound_ns is not None
        interval = hidden_interval(mode.latency_ns, serial.latency_ns, result.bound_ns)
        assert interval is not None and mode.figures.hidden_pct is not None
        assert interval[0] - 4 < mode.figures.hidden_pct < interval[1] + 4
        did = overlapped(
            interval,
            serial=serial.figures.step.p50_ns,
            bound=result.bound_ns,
            device=result.device,
            ranks=result.world_size,
        )
        if did is None:
            # Uneven steps of one session do not tell it, and only where the interval is wide.
            assert interval[1] - interval[0] > 30
            continue
        faster = mode.figures.step.p50_ns < serial.figures.step.p50_ns * 0.99
        assert did is (True if name in ("symmetric", "copy-engine") else faster)


def test_gloo_is_given_no_bandwidth() -> None:
    parts = {"allgather": 100, "matmul_1": 200, "reduce_scatter": 100}
    assert list(part_rates(parts, SHAPE, 2, "gloo")) == ["matmul_1"]
    assert list(part_rates(parts, SHAPE, 2, "nccl")) == ["matmul_1", "allgather", "reduce_scatter"]


def test_a_gpu_that_is_not_known_has_no_peak() -> None:
    assert peak_tflops("NVIDIA H200", "float8") == 1979
    assert peak_tflops("NVIDIA A100-SXM4-80GB", "float8") is None
    assert peak_tflops("cpu", "float32") is None
