"""The generator of exports of many ranks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline
from tests.data.many_ranks import main, write_program
from tests.data.parallel_program import Program

PROGRAM = Program(
    8, 200, tensor=2, pipeline=2, slow={1: 3.0}, missing=frozenset({6}), dropped={5: 0.1}, drift_ppm=50
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exports of a program in groups of two."""
    made = tmp_path_factory.mktemp("ranks")
    write_program(made, PROGRAM)
    return made


def timeline(folder: Path, rank: int) -> Timeline:
    found = read_profile(folder / f"rank{rank:05d}.sqlite")
    assert isinstance(found, Timeline)
    return found


def test_the_exports_are_sound_databases_of_the_ranks_that_are_not_missing(folder: Path) -> None:
    assert [path.name for path in sorted(folder.iterdir())] == [
        f"rank{rank:05d}.sqlite" for rank in range(8) if rank != 6
    ]
    with closing(sqlite3.connect(folder / "rank00003.sqlite")) as export:
        assert export.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    origin = timeline(folder, 3).origin
    assert (origin.rank, origin.world_size, origin.host) == (3, 8, "node-00000")


def test_a_rank_shares_each_of_its_communicators_with_the_ranks_of_that_group(folder: Path) -> None:
    groups: dict[str | None, list[int]] = {}
    for rank in (0, 1, 2, 3, 4, 5, 7):
        of_rank = timeline(folder, rank)
        names = of_rank.names(of_rank.collectives.communicator)
        for name, size in {*zip(names, of_rank.collectives.ranks.tolist(), strict=True)}:
            assert size == 2
            groups.setdefault(name, []).append(rank)
    tensor, data, pipeline = [[0, 1], [2, 3], [4, 5], [7]], [[0, 2], [1, 3], [4], [5, 7]], [[0, 4], [1, 5]]
    assert sorted(groups.values()) == sorted([*tensor, *data, *pipeline, [2], [3, 7]])


def test_the_program_waits_for_the_late_rank_and_the_clocks_drift(folder: Path) -> None:
    ahead, fast = PROGRAM.clocks()
    times = write_program(folder, PROGRAM).times[0]
    reduced = [one.kind for one in PROGRAM.operations(0)].index("data")
    late = times.begin[:, reduced] - times.begin[:, reduced].min(axis=1, keepdims=True)
    assert np.all(late[:, 0] > 2.0e6) and np.all(late[:, 1] < 1.0e6)
    kernels = timeline(folder, 4).kernels
    own = (np.sort(kernels.start) - ahead[4]) / fast[4]
    assert abs(fast[4] - 1) > 1e-6 and 0 < own[0] < 100e6


def test_lost_kernels_are_missing_and_the_profiler_warns(folder: Path) -> None:
    whole, lost = timeline(folder, 4), timeline(folder, 5)
    assert len(whole.kernels) == 200 and 170 < len(lost.kernels) < 190
    (warning,) = lost.origin.losses
    assert warning.detail == "Not all CUDA events might have been collected."


def test_the_same_program_makes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        main([str(tmp_path / name), "4", "100", "--tensor", "2", "--slow", "1=2", "--missing", "3"])
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("a", "b"))
    assert len(first) == 3
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_ranks_that_do_not_fill_the_groups_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "6", "100", "--tensor", "4"])
    assert "6 ranks do not fill groups of 4 x 1" in capsys.readouterr().err
