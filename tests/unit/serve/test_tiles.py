"""The tiles of a run hold what its profiles hold."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline
from hpcprof.report.page.timeline_tracks import SliceKind, TrackKind, rank_tracks
from hpcprof.results.ask.windows import RunWindows
from hpcprof.results.collect.collection import update_run
from hpcprof.results.collect.over_ranks import run_communication
from hpcprof.results.store.rank_tables import kept_table
from hpcprof.runs.directory import Run
from hpcprof.serve import tiles as module
from hpcprof.serve.tile_cache import TileCache
from hpcprof.serve.tiles import MAX_RANKS, RunTiles, Tiles, chosen_ranks
from tests.data.parallel_program import Program
from tests.data.stored_program import RUN, store_program

RANKS = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tiles]:
    """A run of four ranks whose clocks differ, and its tiles."""
    folder = tmp_path_factory.mktemp("tiles")
    store, _ = store_program(folder, Program(RANKS, 300, pipeline=2, step_ms=5.0))
    update_run(RUN, store)
    return folder, Tiles(store, TileCache(folder / "cache"))


@pytest.fixture
def tiles(place: tuple[Path, Tiles]) -> RunTiles:
    folder, tiles = place
    return tiles.of(Run(RUN, folder / "profiles"))


def summed(values: list[int] | int, count: int) -> list[int]:
    """Return a column that is written as differences."""
    return [values] * count if isinstance(values, int) else np.cumsum(values).tolist()


def plain(values: list[int] | int, count: int) -> list[int]:
    return [values] * count if isinstance(values, int) else values


def slices(tile: dict[str, Any]) -> set[tuple[str, int, int, int, str]]:
    """Return the slices of a tile: track, start, duration, depth and name."""
    found = set()
    names = [*tile["strings"], ""]
    for track in tile["tracks"]:
        count = track["count"]
        columns = (
            summed(track["start"], count),
            plain(track["duration"], count),
            plain(track["depth"], count),
            [names[number] for number in plain(track["name"], count)],
        )
        found |= {(track["label"], *row) for row in zip(*columns, strict=True)}
    return found


def whole(
    folder: Path, tiles: Tiles, rank: int, projects: bool = False
) -> set[tuple[str, int, int, int, str]]:
    """Return the slices of a profile on the common clock."""
    (path,) = [p for p in (folder / "profiles").iterdir() if read_profile(p).origin.rank == rank]
    timeline = read_profile(path)
    assert isinstance(timeline, Timeline)
    run_tiles = tiles.of(Run(RUN, folder / "profiles"))
    clocks = run_communication(Run(RUN, folder / "profiles"), tiles._store).clocks
    found = set()
    for track in rank_tracks(timeline, projects).tracks:
        own = track.slices
        start = clocks.to_common(rank, own.start) - run_tiles._extent.zero
        end = clocks.to_common(rank, own.end) - run_tiles._extent.zero
        names = [name or "" for name in timeline.names(own.name)]
        rows = zip(start.tolist(), (end - start).tolist(), own.depth.tolist(), names, strict=True)
        found |= {(track.label, *row) for row in rows}
    return found


def test_the_overview_has_the_steps_of_all_ranks_on_one_clock(tiles: RunTiles) -> None:
    overview = json.loads(tiles.overview())
    assert [rank["rank"] for rank in overview["ranks"]] == [*range(RANKS)]
    clocks = tiles._clocks
    for rank in overview["ranks"]:
        number = rank["rank"]
        own = kept_table([tiles._store.rank_events(RUN)[number]], "step_parts")
        start = own["start_ns"].to_numpy()
        stamps = clocks.to_common(number, np.stack((start, start + own["wall_ns"].to_numpy())))
        steps = zip(own["step"].to_pylist(), *(stamps - tiles._extent.zero).tolist(), strict=True)
        assert rank["steps"] == [[*step] for step in steps] and len(rank["steps"]) > 2
        assert rank["uncertainty_ns"] == clocks.uncertainty_ns(number)
    assert 0 < overview["end"] <= overview["span"]
    kinds = [track["kind"] for track in overview["ranks"][0]["tracks"]]
    assert kinds == sorted(kinds, key=["ranges", "communication", "stream", "calls"].index)


@pytest.mark.parametrize("events", [100_000, 150], ids=["one part", "several parts"])
def test_the_tiles_of_a_level_hold_every_slice_once(
    place: tuple[Path, Tiles], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, events: int
) -> None:
    folder, usual = place
    monkeypatch.setattr(module, "_EVENTS_PER_PART", events)
    monkeypatch.setattr(module, "_PIXELS_PER_TILE", 1 << 40)  # nothing is merged
    tiles = Tiles(usual._store, TileCache(tmp_path))
    run_tiles = tiles.of(Run(RUN, folder / "profiles"))
    expected = whole(folder, tiles, 2, projects=run_tiles._parts_level == 0)
    end = run_tiles._extent.length
    inside = {one for one in expected if one[1] < end and one[1] + one[2] > 0}
    for level in (0, 3):
        found = set()
        for index in range(1 << level):
            found |= slices(json.loads(run_tiles.tile(2, level, index)))
        assert {one for one in found if 0 <= one[1] < end} == {one for one in inside if one[1] >= 0}


def test_the_profile_of_a_rank_without_kept_events_is_read_once_for_all_servers(
    place: tuple[Path, Tiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tiles = place
    run = Run(RUN, folder / "profiles")
    read: list[int] = []
    profile = RunWindows._profile

    def counted(windows: RunWindows, rank: int) -> Timeline:
        read.append(rank)
        return profile(windows, rank)

    monkeypatch.setattr(RunWindows, "_profile", counted)
    (tmp_path / "no folder").write_text("")
    for name, reads in (("cache", 2), ("cache", 0), ("no folder", 2)):
        read.clear()
        own = Tiles(tiles._store, TileCache(tmp_path / name)).of(run)
        for rank in (0, 1):
            assert slices(json.loads(own.tile(rank, 0, 0))) == slices(
                json.loads(tiles.of(run).tile(rank, 0, 0))
            )
        assert len({*read}) == reads
        # The next server finds the events, but not the tiles.
        for kept in tmp_path.glob("cache/*/*-*-*"):
            kept.unlink()


def test_short_slices_are_merged_in_wide_tiles_only(tiles: RunTiles) -> None:
    wide = json.loads(tiles.tile(1, 0, 0))
    kinds = {kind for track in wide["tracks"] for kind in np.atleast_1d(track["slice_kind"]).tolist()}
    assert {SliceKind.MERGED | SliceKind.RANGE, SliceKind.MERGED | SliceKind.COMPUTE} & kinds
    overview = json.loads(tiles.overview())
    level = overview["levels"] - 1
    start = overview["ranks"][1]["steps"][1][1]
    narrow = json.loads(tiles.tile(1, level, start >> (overview["span"] >> level).bit_length() - 1))
    assert all(np.max(track["slice_kind"], initial=0) < SliceKind.MERGED for track in narrow["tracks"])
    assert narrow["labels"] == wide["labels"]


@pytest.mark.parametrize(("rank", "level", "index"), [(9, 0, 0), (0, 99, 0), (0, 1, 2), (0, 0, -1)])
def test_a_tile_that_there_is_not_is_one_sentence(tiles: RunTiles, rank: int, level: int, index: int) -> None:
    with pytest.raises(HpcprofError):
        tiles.tile(rank, level, index)


def test_ranks_are_written_as_spans() -> None:
    assert chosen_ranks("0-3,8") == [0, 1, 2, 3, 8]
    for text in ("", "a", "1-", "-1", "3-1", f"0-{MAX_RANKS}", "0-99999999", "9" * 30, "١"):
        with pytest.raises(UsageError):
            chosen_ranks(text)


def test_tiles_of_different_ranks_share_collectives_and_messages(tiles: RunTiles) -> None:
    collectives, messages = [], list[set[int]]()
    for rank in range(RANKS):
        # In wider tiles, short ones are merged.
        of_rank = [
            track
            for index in range(64)
            for track in json.loads(tiles.tile(rank, 6, index))["tracks"]
            if track["kind"] == TrackKind.COMMUNICATION.value
        ]
        collectives.append({n for t in of_rank for n in summed(t["collective"], t["count"])} - {-1})
        messages.append({number for track in of_rank for number in track["messages"]["number"]})
    assert any(one & other for one, other in combinations(collectives, 2))
    sent, received = ({way * n for own in messages for n in own if way * n > 0} for way in (1, -1))
    assert sent == received != set()
