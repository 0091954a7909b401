"""A timeline that was kept is the timeline that was read, or none."""

from __future__ import annotations

import json
import lzma
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from hpcprof.profiles import timeline_parquet
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Table, Timeline
from hpcprof.profiles.timeline_parquet import load, save
from tests.data import generated_exports

DATA = Path(__file__).parents[2] / "data"


def assert_same(a: Timeline | None, b: Timeline) -> None:
    """Compare all that two timelines hold."""
    assert a is not None
    assert a.origin == b.origin
    assert a.strings.tolist() == b.strings.tolist()
    for f in fields(Timeline):
        one, two = getattr(a, f.name), getattr(b, f.name)
        for column in fields(one) if isinstance(one, Table) else ():
            assert getattr(one, column.name).dtype == np.int64
            assert np.array_equal(getattr(one, column.name), getattr(two, column.name)), column.name


def read_timeline(path: Path) -> Timeline:
    """Read a profile that holds a timeline."""
    profile = read_profile(path)
    assert isinstance(profile, Timeline)
    return profile


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
    save(tmp_path / "timeline", timeline, 0, "f00d")
    assert_same(load(tmp_path / "timeline", 0, "f00d"), timeline)


def test_a_table_that_is_written_in_several_parts_comes_back_whole(
    tmp_path: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = len(timeline.kernels)
    monkeypatch.setattr(timeline_parquet, "_GROUP", rows // 3)
    save(tmp_path, timeline, 0, "f00d")
    assert parquet.ParquetFile(tmp_path / "rank00000.kernels.parquet").metadata.num_row_groups >= 3
    assert_same(load(tmp_path, 0, "f00d"), timeline)


def test_that_of_a_trace_comes_back_too(tmp_path: Path) -> None:
    timeline = read_timeline(DATA / "ddp_step_rank0.pt.trace.json.gz")
    # A name that UTF-8 cannot hold, as JSON can write it.
    timeline.strings[0] = "half \ud800 of a pair"
    save(tmp_path, timeline, 7, "f00d")
    assert_same(load(tmp_path, 7, "f00d"), timeline)


def test_other_programs_read_names_and_ranks(tmp_path: Path, timeline: Timeline) -> None:
    save(tmp_path, timeline, 3, "f00d")
    kernels = pd.read_parquet(tmp_path / "rank00003.kernels.parquet")
    assert set(kernels["rank"]) == {3}
    assert kernels["name"].tolist() == timeline.names(timeline.kernels.name)
    assert kernels["grid_x"].tolist() == timeline.kernels.grid[:, 0].tolist()


def test_one_of_another_profile_or_rank_is_not_read(tmp_path: Path, timeline: Timeline) -> None:
    save(tmp_path, timeline, 0, "f00d")
    assert load(tmp_path, 0, "beef") is None
    assert load(tmp_path, 1, "f00d") is None
    assert load(tmp_path / "absent", 0, "f00d") is None


def test_one_of_another_version_is_not_read(
    tmp_path: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, timeline, 0, "f00d")
    monkeypatch.setattr("hpcprof.profiles.timeline_parquet.VERSION", 99)
    assert load(tmp_path, 0, "f00d") is None


def test_one_from_before_a_table_was_added_is_not_read(tmp_path: Path, timeline: Timeline) -> None:
    assert len(timeline.synchronizations)
    save(tmp_path, timeline, 0, "f00d")
    described = json.loads((tmp_path / "rank00000.json").read_text())
    described["layout"].remove("synchronizations")
    (tmp_path / "rank00000.json").write_text(json.dumps(described))
    assert load(tmp_path, 0, "f00d") is None


def test_tables_of_two_profiles_are_not_mixed(tmp_path: Path, timeline: Timeline) -> None:
    save(tmp_path / "a", timeline, 0, "f00d")
    save(tmp_path / "b", replace(timeline, kernels=timeline.kernels.take(np.arange(5))), 0, "beef")
    (tmp_path / "b/rank00000.kernels.parquet").replace(tmp_path / "a/rank00000.kernels.parquet")
    assert load(tmp_path / "a", 0, "f00d") is None


@pytest.mark.parametrize("name", ["rank00000.json", "rank00000.kernels.parquet", "rank00000.calls.parquet"])
def test_a_damaged_or_missing_file_is_not_read(tmp_path: Path, timeline: Timeline, name: str) -> None:
    save(tmp_path, timeline, 0, "f00d")
    whole = (tmp_path / name).read_bytes()
    for part in (whole[: len(whole) // 2], whole[:3], b""):
        (tmp_path / name).write_bytes(part)
        assert load(tmp_path, 0, "f00d") is None
    (tmp_path / name).unlink()
    assert load(tmp_path, 0, "f00d") is None


def test_nothing_temporary_is_left(tmp_path: Path, timeline: Timeline) -> None:
    save(tmp_path / "kept", timeline, 0, "f00d")
    assert not [path for path in (tmp_path / "kept").iterdir() if path.name.startswith(".")]
