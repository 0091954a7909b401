"""A timeline that was kept is the timeline that was read, or none, and other programs can read it."""

from __future__ import annotations

import json
import lzma
import tarfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyarrow import parquet

from hpcprof.profiles import timeline_parquet
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.event_folders import remove_run_events
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import SHAPES, Table, Timeline
from hpcprof.profiles.timeline_parquet import RankEvents
from tests.data import generated_exports

DATA = Path(__file__).parents[2] / "data"
TRACE = DATA / "ddp_step_rank0.pt.trace.json.gz"


def assert_same(a: Timeline | None, b: Timeline) -> None:
    """Compare all that two timelines hold."""
    assert a is not None
    assert a.origin == b.origin
    assert a.strings.tolist() == b.strings.tolist()
    for f in fields(Timeline):
        one, two = getattr(a, f.name), getattr(b, f.name)
        for column in fields(one) if isinstance(one, Table) else ():
            whole_numbers = (np.int64, np.int32) if column.name in SHAPES else (np.int64,)
            assert getattr(one, column.name).dtype in whole_numbers
            assert np.array_equal(getattr(one, column.name), getattr(two, column.name)), column.name


def read_timeline(path: Path) -> Timeline:
    """Read a profile that holds a timeline."""
    profile = read_profile(path)
    assert isinstance(profile, Timeline)
    return profile


def save(folder: Path, timeline: Timeline, rank: int = 0, sha256: str = "f00d") -> RankEvents:
    """Keep a timeline without steps and analyses."""
    events = RankEvents(folder, "run", rank, sha256)
    events.write(timeline, np.full(len(timeline.kernels), -1))
    events.finish(timeline, {})
    return events


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    """A real timeline."""
    path = tmp_path / "rank00000.sqlite"
    path.write_bytes(lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()))
    return read_timeline(path)


@pytest.mark.parametrize("seed", range(15))
def test_it_comes_back_as_it_was(tmp_path: Path, seed: int) -> None:
    generated_exports.write(tmp_path / "rank0.sqlite", seed)
    timeline = read_timeline(tmp_path / "rank0.sqlite")
    assert_same(save(tmp_path / "timeline", timeline).load(), timeline)


def test_a_table_that_is_written_in_several_parts_comes_back_whole(
    tmp_path: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_parquet, "_ROWS_IN_GROUP", len(timeline.kernels) // 3)
    events = save(tmp_path, timeline)
    assert parquet.ParquetFile(events.path("kernels")).metadata.num_row_groups >= 3
    assert_same(events.load(), timeline)


def test_row_groups_hold_the_times_of_their_rows(
    tmp_path: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_parquet, "_ROWS_IN_GROUP", 1000)
    path = save(tmp_path, timeline).path("kernels")
    with parquet.ParquetFile(path) as file:
        for number in range(file.metadata.num_row_groups):
            columns = file.metadata.row_group(number).to_dict()["columns"]
            found = {c["path_in_schema"]: c["statistics"] for c in columns if c["statistics"]}
            part = timeline.kernels.take(slice(1000 * number, 1000 * (number + 1)))
            assert (found["start_ns"]["min"], found["start_ns"]["max"]) == (
                part.start.min(),
                part.start.max(),
            )
            assert (found["end_ns"]["min"], found["end_ns"]["max"]) == (part.end.min(), part.end.max())


def test_that_of_a_trace_comes_back_too(tmp_path: Path) -> None:
    timeline = read_timeline(TRACE)
    # A name that UTF-8 cannot hold, as JSON can write it.
    timeline.strings[0] = "half \ud800 of a pair"
    assert_same(save(tmp_path, timeline, rank=7).load(), timeline)


def test_other_programs_read_names_runs_and_ranks(tmp_path: Path, timeline: Timeline) -> None:
    save(tmp_path, timeline, rank=3)
    save(tmp_path, timeline, rank=12)
    dataset = pa.dataset.dataset(tmp_path / "kernels", partitioning="hive")
    kernels = dataset.to_table(filter=pa.compute.field("rank") == 12).to_pandas()
    assert set(kernels["run"]) == {"run"}
    assert kernels["name"].tolist() == timeline.names(timeline.kernels.name)
    assert kernels["grid_x"].tolist() == timeline.kernels.grid[:, 0].tolist()
    assert set(kernels["category"]) == {"compute", "communication"}
    assert pd.read_parquet(tmp_path / "api")["rank"].value_counts().to_dict() == {
        3: len(timeline.calls),
        12: len(timeline.calls),
    }


def test_what_was_not_recorded_is_null(tmp_path: Path, timeline: Timeline) -> None:
    unknown = np.full(len(timeline.kernels), -1)
    kernels = replace(timeline.kernels, name=unknown, correlation=unknown)
    path = save(tmp_path, replace(timeline, kernels=kernels)).path("kernels")
    found = parquet.ParquetFile(path).read(["name", "correlation"])
    assert [column.null_count for column in found.columns] == [len(unknown)] * 2


def test_only_the_names_that_occur_in_a_table_are_in_its_file(tmp_path: Path, timeline: Timeline) -> None:
    path = save(tmp_path, timeline).path("kernels")
    with parquet.ParquetFile(path, read_dictionary=["name"]) as file:
        (chunk,) = file.read(["name"]).column("name").chunks
    assert len(chunk.dictionary) == len(numbered(timeline.kernels.name)[0]) < len(timeline.strings)


def test_a_table_without_rows_has_no_file(tmp_path: Path, timeline: Timeline) -> None:
    events = save(tmp_path, timeline)
    assert events.path("kernels").exists()
    assert not len(timeline.allocations)
    assert not (tmp_path / "allocations").exists()
    # One that is left from another profile of the rank goes.
    assert not save(tmp_path, replace(timeline, kernels=timeline.kernels.empty())).path("kernels").exists()


def test_one_of_another_profile_rank_or_run_is_not_read(tmp_path: Path, timeline: Timeline) -> None:
    events = save(tmp_path, timeline)
    assert replace(events, sha256="beef").load() is None
    assert replace(events, rank=1).load() is None
    assert replace(events, run_id="other").load() is None
    assert replace(events, folder=tmp_path / "absent").load() is None


def test_one_of_another_version_is_not_read(
    tmp_path: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = save(tmp_path, timeline)
    monkeypatch.setattr("hpcprof.profiles.timeline_parquet.VERSION", 99)
    assert events.load() is None


def test_one_from_before_a_table_was_added_is_not_read(tmp_path: Path, timeline: Timeline) -> None:
    assert len(timeline.synchronizations)
    events = save(tmp_path, timeline)
    path = tmp_path / "origins/run=run/rank=0.jsonl"
    first, second = path.read_text().splitlines()
    described = json.loads(first)
    del described["layout"]["synchronizations"]
    path.write_text(f"{json.dumps(described)}\n{second}\n")
    assert events.load() is None


def test_tables_of_two_profiles_are_not_mixed(tmp_path: Path, timeline: Timeline) -> None:
    events = save(tmp_path / "a", timeline)
    other = save(tmp_path / "b", replace(timeline, kernels=timeline.kernels.take(np.arange(5))), 0, "beef")
    other.path("kernels").replace(events.path("kernels"))
    assert events.load() is None


def test_one_that_was_not_finished_does_not_count(tmp_path: Path, timeline: Timeline) -> None:
    events = save(tmp_path, timeline)
    events.write(timeline, np.full(len(timeline.kernels), -1))
    assert events.rows() is None
    assert events.load() is None


@pytest.mark.parametrize("name", ["origins", "kernels", "api"])
def test_a_damaged_or_missing_file_is_not_read(tmp_path: Path, timeline: Timeline, name: str) -> None:
    events = save(tmp_path, timeline)
    path = tmp_path / "origins/run=run/rank=0.jsonl" if name == "origins" else events.path(name)
    whole = path.read_bytes()
    for part in (whole[: len(whole) // 2], whole[:3], b""):
        path.write_bytes(part)
        assert events.load() is None
    path.unlink()
    assert events.load() is None


def test_nothing_temporary_is_left(tmp_path: Path, timeline: Timeline) -> None:
    save(tmp_path / "kept", timeline)
    assert not [path for path in (tmp_path / "kept").rglob("*") if path.name.startswith(".")]


def test_files_from_before_a_table_was_added_are_read_without_it(
    tmp_path: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = {name: columns for name, columns in timeline_parquet._layout().items() if name != "functions"}
    monkeypatch.setattr(timeline_parquet, "_layout", lambda: layout)
    events = save(tmp_path, timeline)
    monkeypatch.undo()
    assert_same(events.load(), timeline)
    monkeypatch.setattr(timeline_parquet, "_ADDED_TABLES", ())
    assert events.load() is None


def test_files_of_version_0_1_are_read_and_replaced(tmp_path: Path) -> None:
    with tarfile.open(DATA / "timeline_0.1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder, timeline = tmp_path / "timeline", read_timeline(TRACE)
    events = RankEvents(folder, "run", 0, "f00d")
    kept = events.load()
    assert kept is not None
    for name in ("kernels", "calls", "ranges", "gpu_marks"):
        one, two = getattr(kept, name), getattr(timeline, name)
        assert len(one)
        assert one.start.tolist() == two.start.tolist()
        assert kept.names(one.name) == timeline.names(two.name)
    assert replace(events, sha256="beef").load() is None
    save(folder, kept)
    assert not list(folder.glob("rank*"))
    assert_same(events.load(), kept)


def test_the_events_of_one_run_are_removed_and_no_others(tmp_path: Path, timeline: Timeline) -> None:
    kept = save(tmp_path / "timeline", timeline)
    other = replace(kept, run_id="../odd [run]=1")
    other.write(timeline, np.full(len(timeline.kernels), -1))
    other.finish(timeline, {})
    assert_same(other.load(), timeline)
    remove_run_events(tmp_path / "timeline", other.run_id)
    assert other.load() is None
    assert_same(kept.load(), timeline)
    remove_run_events(tmp_path / "timeline", "run")
    assert not (tmp_path / "timeline").exists()
    remove_run_events(tmp_path / "timeline", "run")
