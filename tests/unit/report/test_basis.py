"""What a report says that an analysis stands on."""

from __future__ import annotations

import pytest

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.report.basis import basis
from hpcprof.results.store.store import Row, Stored

# Columns that tell how many samples a row is of, or what single thing it is.
COUNTS = {
    *("instances", "count", "num_calls", "steps", "overlapped_n", "collectives", "ranks"),
    *("id", "seq", "latency_ns", "runs", "n_a"),
}
# What the device can do, not what it did; and kernels that ncu measured one by one.
OF_NO_SAMPLES = {"ncu_peaks", "roofline"}


def stored(rows: list[Row]) -> Stored:
    return Stored({name: [row[name] for row in rows] for name in (rows[0] if rows else ())}, {})


def test_operations_steps_and_ranks_are_those_of_the_ranks_in_the_rows() -> None:
    analyses = {
        "breakdown": stored([{"rank": 0}, {"rank": 1}]),
        "kernels": stored([{"rank": r, "instances": n} for r, n in ((0, 1000), (0, 20), (1, 980), (7, 5))]),
        "memops": stored([{"rank": 1, "count": 1}]),
        "step_times": stored([{"rank": r} for r in (0, 0, 1, 1, 7)]),
    }
    assert basis("breakdown", analyses) == "n: 2,000 kernels, 1 memory operation and 4 steps of 2 ranks"
    assert basis("steps", analyses) == "n: 3 ranks"


def test_without_rows_there_is_nothing_to_stand_on() -> None:
    empty = {name: stored([]) for name in ANALYSES}
    assert {basis(name, empty) for name in ANALYSES} == {""}


@pytest.mark.parametrize("name", ANALYSES)
def test_the_rows_of_every_analysis_or_a_line_below_tell_what_it_stands_on(name: str) -> None:
    rows = {name: stored([{"rank": 0, "instances": 1, "count": 1}]) for name in ANALYSES}
    told = COUNTS & {column.name for column in ANALYSES[name].columns}
    assert told or basis(name, rows) or name in OF_NO_SAMPLES
