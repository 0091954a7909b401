"""Ranks in data, tensor and pipeline groups: clocks that drift, and who is late."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.collectives.clock_alignment import AlignedClocks
from hpcprof.analysis.collectives.common_clock import connect
from hpcprof.analysis.collectives.pair_matching import align_pairs
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.discovery import read_profile
from tests.data.many_ranks import write_program
from tests.data.parallel_program import Program
from tests.unit.analysis.over_all_ranks import align_clocks, match_pairs, matched, skew_summary

ALLOWED_NS = 5_000


class Profiled(NamedTuple):
    """A program, what the analyses over its ranks read, and how long it ran."""

    program: Program
    results: dict[str, pd.DataFrame]
    end: float


PROGRAMS = {
    "all groups": Program(
        16, 1500, tensor=2, pipeline=2, slow={5: 4.0}, stalled={10: 3.0}, missing=frozenset({3})
    ),
    "data": Program(8, 1000, slow={2: 4.0}, stalled={7: 3.0}, seed=2),
    "four stages, nobody late": Program(16, 1500, tensor=2, pipeline=4, seed=3),
}


@pytest.fixture(scope="module", params=list(PROGRAMS))
def profiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """The collectives and steps in the exports of a program."""
    program: Program = PROGRAMS[request.param]
    folder = tmp_path_factory.mktemp("ranks")
    simulation = write_program(folder, program)
    names = ("rank_collectives", "step_times", "step_parts", "exposed_communication")
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in names}
    for path in sorted(folder.iterdir()):
        profile = read_profile(path)
        assert profile.origin.rank is not None
        for name in names:
            parts[name].append(analyze_rank(ANALYSES[name], profile, profile.origin.rank).frame)
    results = {name: pd.concat(rows, ignore_index=True) for name, rows in parts.items()}
    return Profiled(program, results, max(times.end.max() for times in simulation.times))


def moments(profiled: Profiled, ranks: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the same moments of the whole capture on the clock of each rank."""
    ahead, fast = profiled.program.clocks()
    true = np.linspace(0, profiled.end, 100)[:, np.newaxis]
    return np.rint(ahead[ranks] + true * fast[ranks]).astype(np.int64)


def excess(profiled: Profiled, clock: AlignedClocks, ranks: list[int]) -> float:
    """Return by how much the clocks of a group are wrong beyond their uncertainty, in ns."""
    common = clock.aligned(moments(profiled, ranks))
    reference = np.median(common, axis=1, keepdims=True) if len(ranks) > 2 else common[:, :1]
    return float((np.abs(common - reference) - clock.uncertainty).max())


def test_clocks_that_drift_are_wrong_by_no_more_than_is_said(profiled: Profiled) -> None:
    rows = profiled.results["rank_collectives"]
    by_group = {key[1]: clock for key, clock in align_clocks(rows).items()}
    by_pair = {np.array(ranks).tobytes(): clock for ranks, clock in align_pairs(match_pairs(rows)[0]).items()}
    for ranks, clock in [*by_group.items(), *by_pair.items()]:
        assert excess(profiled, clock, np.frombuffer(ranks, np.int64).tolist()) < ALLOWED_NS
        assert clock.uncertainty.max() < 10_000


def test_groups_that_overlap_give_all_ranks_one_clock_with_its_uncertainty(profiled: Profiled) -> None:
    whole, *apart = connect(matched(profiled.results["rank_collectives"]).aligned)
    ranks = [rank for rank in range(profiled.program.ranks) if rank not in profiled.program.missing]
    assert (sorted(whole.clocks), apart) == (ranks, [])
    own = moments(profiled, ranks)
    common = np.column_stack(
        [whole.clocks[rank].to_common(stamps) for rank, stamps in zip(ranks, own.T, strict=True)]
    )
    error = np.abs(common - np.median(common, axis=1, keepdims=True)).max(axis=0)
    said = np.array([whole.uncertainty[rank] for rank in ranks])
    assert np.all(error < said + ALLOWED_NS)
    assert said.max() < 30_000


def test_each_late_rank_is_found_with_what_it_costs_and_nobody_else(profiled: Profiled) -> None:
    rows = skew_summary(profiled.results).frame.set_index("rank")
    planted = {**profiled.program.slow, **profiled.program.stalled}
    late = rows[rows["verdict"].isin(["late", "straggler"])]["lateness_p50_ns"]
    assert sorted(late.index) == sorted(planted)
    for rank, ms in planted.items():
        assert late[rank] == pytest.approx(ms * 1e6, rel=0.1)
    assert set(rows.drop(list(planted))["verdict"]) == {"even"}
