"""A window of a rank has what the whole timeline has in that window."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import ParquetFile

from hpcprof.analysis.steps.streams import NO_CALL, launch_calls
from hpcprof.common.errors import HpcprofError
from hpcprof.profiles import timeline_parquet
from hpcprof.profiles.event_columns import TEXTS, timeline_tables
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Table, Timeline
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.ask.windows import RunWindows, cut
from hpcprof.results.collect.kept_events import keep_timeline
from hpcprof.runs.directory import Run
from tests.data import generated_exports
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program

DATA = Path(__file__).parents[3] / "data"
PROGRAM = Program(4, 1000, step_ms=5.0)
RANK = 2


def _timeline(path: Path) -> Timeline:
    profile = read_profile(path)
    assert isinstance(profile, Timeline)
    return profile


def _rows(timeline: Timeline, field: str) -> dict[str, object]:
    """Return the columns of a table with texts in the place of their numbers."""
    table: Table = getattr(timeline, field)
    columns = {f.name: getattr(table, f.name) for f in fields(table)}
    return {n: timeline.names(c) if n in TEXTS else c.tolist() for n, c in columns.items()}


def _assert_same_events(found: Timeline | None, expected: Timeline) -> None:
    assert found is not None and found.origin == expected.origin
    for field in timeline_tables():
        assert _rows(found, field) == _rows(expected, field), field


def _kept(folder: Path, timeline: Timeline) -> RankEvents:
    events = RankEvents(folder, RUN, 0, "f00d")
    keep_timeline(events, timeline)
    events.finish(timeline, {})
    return events


Kept = tuple[RankEvents, Timeline]


@pytest.fixture(scope="module", params=["nsys", "torch", "memory", "generated"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """The events of a profile in many groups of rows, and its timeline."""
    folder = tmp_path_factory.mktemp("kept")
    if request.param == "generated":
        generated_exports.write(folder / "rank0.sqlite", 4)
        timeline = _timeline(folder / "rank0.sqlite")
    elif request.param == "nsys":
        (folder / "rank0.sqlite").write_bytes(
            lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes())
        )
        timeline = _timeline(folder / "rank0.sqlite")
    else:
        name = {"torch": "ddp_step_rank0", "memory": "allocator_rank0"}[request.param]
        timeline = _timeline(DATA / f"{name}.pt.trace.json.gz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_parquet, "_ROWS_IN_GROUP", 50)
        yield _kept(folder / "timeline", timeline), timeline


@settings(max_examples=25, deadline=None)
@given(begin=st.floats(-0.1, 1.1), length=st.floats(0, 0.3))
def test_the_kept_events_of_a_window_are_those_of_the_whole_timeline_in_it(
    kept: Kept, begin: float, length: float
) -> None:
    events, timeline = kept
    calls = timeline.calls if len(timeline.calls) else timeline.operators
    first, last = int(calls.start.min()), int(calls.end.max())
    start = first + int(begin * (last - first))
    end = start + int(length * (last - first))
    _assert_same_events(events.window(start, end), cut(timeline, start, end))


def test_groups_of_rows_outside_a_window_are_not_read(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    events, timeline = kept
    read: list[int] = []
    whole = ParquetFile.read_row_groups

    def counted(file: object, groups: list[int], *others: object) -> object:
        read.append(len(groups))
        return whole(file, groups, *others)

    monkeypatch.setattr(ParquetFile, "read_row_groups", counted)
    start = int((timeline.calls if len(timeline.calls) else timeline.operators).start.min())
    events.window(start, start + 1)
    tables = [getattr(timeline, field) for field in timeline_tables()]
    assert 0 < sum(read) < sum(-(-len(table) // 50) for table in tables)
    read.clear()
    found = events.window(-100, -50)
    assert found is not None and not found.operation_count and sum(read) == 0


def test_an_event_that_begins_before_a_window_and_ends_after_it_is_found(kept: Kept) -> None:
    events, timeline = kept
    ranges = timeline.ranges if len(timeline.ranges) else timeline.operators
    longest = int(np.argmax(ranges.end - ranges.start))
    middle = int(ranges.start[longest] + ranges.end[longest]) // 2
    found = events.window(middle, middle + 1)
    assert found is not None
    of_window = found.ranges if len(timeline.ranges) else found.operators
    assert int(ranges.start[longest]) in of_window.start.tolist()


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> RunWindows:
    """The windows of a program whose events were not kept."""
    folder = tmp_path_factory.mktemp("windows")
    store, _ = store_program(folder, PROGRAM)
    return RunWindows(Run(RUN, folder / "profiles"), store)


def test_the_events_of_steps_include_the_calls_that_launched_them(windows: RunWindows) -> None:
    steps = windows.steps(RANK)
    assert steps.number.tolist() == list(range(10))
    assert np.all(steps.start[1:] == steps.end[:-1])
    found = windows.read_steps(RANK, 3, 4)
    whole = windows._profile(RANK)
    start, end = int(steps.start[3]), int(steps.end[4])
    inside = (whole.kernels.start < end) & (whole.kernels.end > start)
    assert found.kernels.start.tolist() == whole.kernels.start[inside].tolist()
    assert np.all(launch_calls(found) != NO_CALL)
    assert found.calls.start.min() < start
    # Calls of the step before do not belong to it.
    assert len(found.calls) < 1.2 * len(found.kernels)


def test_a_window_of_a_profile_without_kept_events_is_read_from_the_profile(windows: RunWindows) -> None:
    steps = windows.steps(RANK)
    start, end = int(steps.start[5]), int(steps.end[5])
    found = windows.read(RANK, start, end)
    _assert_same_events(found, cut(windows._profile(RANK), start, end))
    assert len(found.kernels) == 100


def test_steps_that_a_rank_lacks_are_named_with_those_that_it_has(windows: RunWindows) -> None:
    with pytest.raises(HpcprofError, match=r"rank 2 of run has no steps 10 to 12: its steps are 0 to 9\."):
        windows.read_steps(RANK, 10, 12)
