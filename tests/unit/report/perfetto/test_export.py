"""A trace of a run has its chosen ranks and steps on one clock."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.report.perfetto import export
from hpcprof.report.perfetto.export import TRACE, export_trace
from hpcprof.report.trace_events import MERGED, export_timelines
from hpcprof.results.collect import update_run
from hpcprof.results.over_ranks import run_communication
from hpcprof.results.store.store import Store
from hpcprof.results.timelines import find_timelines
from hpcprof.results.windows import RunWindows
from hpcprof.submit.runs.directory import Run
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program
from tests.unit.report.perfetto.decoded import Decoded, decode

PROGRAM = Program(4, 800, slow={2: 3.0}, step_ms=20.0)
Stored = tuple[Run, Store]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("trace")
    store, _ = store_program(folder, PROGRAM)
    update_run(RUN, store)
    return Run(RUN, folder / "profiles"), store


def _export(
    stored: Stored, folder: Path, ranks: list[int], steps: tuple[int, int] | None
) -> tuple[Decoded, list[str]]:
    told: list[Path] = []
    done = export_trace(*stored, folder, told.append, ranks=ranks, steps=steps)
    assert done.written == told == [folder / TRACE]
    return decode(gzip.decompress((folder / TRACE).read_bytes())), done.notes


def test_ranks_and_steps_that_were_chosen_are_in_the_trace(stored: Stored, tmp_path: Path) -> None:
    found, notes = _export(stored, tmp_path / "new", [0, 2, 3], (2, 3))
    assert sorted(found.tracks) == ["rank 0", "rank 2", "rank 3"]
    for rank in ("rank 0", "rank 2", "rank 3"):
        own = [one for one in found.slices if one.process == rank]
        assert [one.name for one in own if one.category == "step"] == ["step 2", "step 3"]
        assert sum(one.category == "kernel" for one in own) == 200
    assert len(found.arrows) == 600
    assert notes == [run_communication(*stored).clocks.note()]


def test_all_ranks_end_a_collective_together_and_an_arrow_connects_them(
    stored: Stored, tmp_path: Path
) -> None:
    found, _ = _export(stored, tmp_path, [0, 1, 2, 3], None)
    assert len(found.together) == PROGRAM.steps
    clocks = run_communication(*stored).clocks
    error = sum(clocks.uncertainty_ns(rank) or 0 for rank in range(4)) + 5_000
    for slices in found.together.values():
        assert sorted(one.process for one in slices) == [f"rank {rank}" for rank in range(4)]
        # The slow rank, which begins last, is the last that the arrows reach.
        assert slices[-1].process == "rank 2"
        ends = [one.end for one in slices]
        assert max(ends) - min(ends) <= error
    assert found.utc is not None
    starts = np.array([one.start for one in found.slices])
    assert abs(starts.min() - found.utc) < 200 * 10**9


def test_a_trace_without_utc_times_begins_at_zero(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_communication(*stored)
    found.clocks = replace(found.clocks, start_utc_ns=None)
    monkeypatch.setattr(export, "run_communication", lambda *run: found)
    for steps in ((2, 2), None):
        written, _ = _export(stored, tmp_path, [0, 1], steps)
        assert (min(one.start for one in written.slices), written.utc) == (0, None)


def test_a_chrome_trace_of_all_ranks_has_the_same_clock(stored: Stored, tmp_path: Path) -> None:
    communication = run_communication(*stored)
    done = export_timelines(find_timelines(stored[0]), tmp_path, lambda path: None, communication)
    assert done.notes == [f"{MERGED}: {communication.clocks.note()}"]
    trace = json.loads(gzip.decompress((tmp_path / MERGED).read_bytes()))
    perfetto, _ = _export(stored, tmp_path, [0, 1, 2, 3], None)
    wanted = sorted((one.process, one.start) for one in perfetto.slices if one.category == "kernel")
    base = trace["baseTimeNanoseconds"]
    found = [
        (f"rank {event['pid']}", base + round(event["ts"] * 1000))
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel"
    ]
    assert sorted(found) == wanted


def test_the_same_run_gives_the_same_bytes(stored: Stored, tmp_path: Path) -> None:
    for name in ("one", "two"):
        _export(stored, tmp_path / name, [1], (4, 4))
    assert (tmp_path / "one" / TRACE).read_bytes() == (tmp_path / "two" / TRACE).read_bytes()


def test_steps_that_no_rank_has_are_one_sentence_and_no_folder(stored: Stored, tmp_path: Path) -> None:
    sentence = (
        r"nothing written: rank 0 of run has no step 90: its steps are 0 to 7\. So it is with 1 other rank"
    )
    with pytest.raises(HpcprofError, match=sentence):
        _export(stored, tmp_path / "none", [0, 1], (90, 90))
    assert not (tmp_path / "none").exists()


def test_a_rank_whose_profile_is_gone_is_left_out_with_a_note(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = RunWindows.read_steps

    def without_rank_0(self: RunWindows, rank: int, first: int, last: int) -> object:
        if rank == 0:
            raise HpcprofError("the profile of rank 0 is no longer there.")
        return read(self, rank, first, last)

    monkeypatch.setattr(RunWindows, "read_steps", without_rank_0)
    found, notes = _export(stored, tmp_path, [0, 1], (1, 1))
    assert sorted(found.tracks) == ["rank 1"]
    assert notes[0] == "the profile of rank 0 is no longer there."


def test_an_arrow_connects_a_send_with_its_receive(tmp_path: Path) -> None:
    store, _ = store_program(tmp_path, Program(2, 200, pipeline=2))
    update_run(RUN, store)
    found, _ = _export((Run(RUN, tmp_path / "profiles"), store), tmp_path / "new", [0, 1], None)
    ends = [sorted(one.process for one in slices) for slices in found.together.values()]
    assert ends and all(one == ["rank 0", "rank 1"] for one in ends)
    assert len(ends) == len(store.read(RUN, "point_to_point").rows)
