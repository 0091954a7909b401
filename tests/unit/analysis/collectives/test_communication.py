"""Communication of tables of operations: one clock, and steps that the program numbers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hpcprof.analysis.collectives.communication import communication
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.readers.discovery import read_profile, several_ranks


def test_a_rank_of_a_table_that_ended_early_meets_the_others_in_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "timers.csv"
    steps = {0: range(3), 1: range(2)}
    rows = [
        (rank, step, name, kind, 100 * step + start + 10 * rank, length - 10 * rank)
        for rank, numbers in steps.items()
        for step in numbers
        for name, kind, start, length in (("forward", "compute", 0, 30), ("reduce", "collective", 40, 50))
    ]
    columns = ["rank", "step", "name", "kind", "start_ns", "duration_ns"]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    ranks = several_ranks(path)
    assert ranks is not None
    profiles = [read_profile(path, ProfilePart(ranks, place)) for place in range(2)]
    outcomes = [
        analyze_rank(ANALYSES["rank_collectives"], profile, rank) for rank, profile in enumerate(profiles)
    ]
    batch = pd.concat([outcome.frame for outcome in outcomes], ignore_index=True)
    shares_clock = communication([batch], shares_clock=True)
    assert [operation.step.tolist() for operation in shares_clock.collectives] == [[[0, 0], [1, 1]]]
    (clocks,) = shares_clock.clocks.values()
    assert clocks.aligned(shares_clock.collectives[0].start).tolist() == [[40, 50], [140, 150]]
    # The first step of a profile may be numbered by its place in the capture.
    assert communication([batch]).problems
