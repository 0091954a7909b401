"""The cache of tiles."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpcprof.serve.tile_cache import TileCache, tile_key


def test_a_tile_is_made_once_for_all_servers(tmp_path: Path) -> None:
    calls: list[int] = []

    def make() -> bytes:
        calls.append(1)
        return b"tile"

    for _ in range(2):
        assert TileCache(tmp_path / "tiles").get("run", "0-0-0", make) == b"tile"
    assert len(calls) == 1
    assert stat.S_IMODE((tmp_path / "tiles" / "run").stat().st_mode) == 0o700


def test_a_damaged_tile_is_made_again(tmp_path: Path) -> None:
    cache = TileCache(tmp_path)
    cache.get("run", "a", lambda: b"one")
    (tmp_path / "run" / "a").write_bytes(b"half a fi")
    assert cache.get("run", "a", lambda: b"two") == b"two"
    assert cache.get("run", "a", lambda: b"three") == b"two"


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = TileCache(tmp_path / "file" / "tiles")
    assert cache.get("run", "a", lambda: b"one") == b"one"
    assert cache.get("run", "a", lambda: b"two") == b"two"


def test_an_error_is_not_kept(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise ValueError

    cache = TileCache(tmp_path)
    with pytest.raises(ValueError):
        cache.get("run", "a", fail)
    assert cache.get("run", "a", lambda: b"one") == b"one"


def test_the_runs_that_were_looked_at_least_recently_make_room(tmp_path: Path) -> None:
    cache = TileCache(tmp_path, most_bytes=40_000)
    for number in range(8):
        cache.get(f"run{number}", "a", lambda: os.urandom(10_000))
        os.utime(tmp_path / f"run{number}", (number, number))
    left = {path.name for path in tmp_path.iterdir()}
    assert "run7" in left
    assert "run0" not in left
    assert sum(file.stat().st_size for file in tmp_path.rglob("a")) <= 40_000


def test_other_profiles_have_other_tiles() -> None:
    key = tile_key(1, "run", profiles=[(0, "a"), (1, "b")])
    assert key == tile_key(1, "run", profiles=[(1, "b"), (0, "a")])
    others = {
        tile_key(2, "run", profiles=[(0, "a"), (1, "b")]),
        tile_key(1, "run", profiles=[(0, "a"), (1, "c")]),
        tile_key(1, "run", profiles=[(0, "a")]),
        tile_key(1, "\udcff", profiles=[(0, "a"), (1, "b")]),
    }
    assert len(others | {key}) == 5
