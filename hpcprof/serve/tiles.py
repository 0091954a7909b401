"""The timeline of any steps and ranks, in tiles: squares of a pyramid whose levels halve the time.

The tile 0 of level 0 is the whole extent of the run on the clock that all ranks share; each level below has
twice as many, of half the time. Slices that are too short to see in a tile are merged. A tile is computed
when it is asked for, and kept (`TileCache`). The events come from the files that a collect kept, of which
only the row groups in question are read; without such files, they are made in the cache.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import numpy as np

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.freed_memory import return_freed_memory
from hpcprof.profiles.event_folders import EVENTS
from hpcprof.profiles.timeline import Ints, Timeline, concatenate
from hpcprof.report.page.timeline_data import Texts, encoded_slices, median_and_worst
from hpcprof.report.page.timeline_tracks import (
    MPI_CALLS,
    ON_GPU,
    RankTracks,
    Track,
    TrackKind,
    TrackSlices,
    links_of,
    merge_short,
    rank_tracks,
)
from hpcprof.results.ask.windows import RankSteps, RunWindows, steps_of_ranks
from hpcprof.results.collect.over_ranks import run_communication
from hpcprof.results.collect.run_profiles import why_unprofiled
from hpcprof.results.store.run_communication import RankCommunication, RunClocks, RunCommunication
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from hpcprof.serve.tile_cache import TileCache, tile_key

LAYOUT = 5
"""Raised whenever tiles of the same profiles would be others."""

MAX_RANKS = 64
"""Maximum number of ranks that a request may ask for."""

_PIXELS_PER_TILE = 512
"""The slices that fit side by side in a tile."""

_MAX_FULL_RANKS = 16
"""Maximum number of ranks that have tracks of their own in the overview."""

_MIN_TILE_NS = 1 << 12
_EVENTS_PER_PART = 100_000
_MAX_PARTS_BYTES = 128 << 20
_MAX_OPEN_RUNS = 4
_FRESH_SECONDS = 2.0


class Extent(msgspec.Struct, frozen=True):
    """The time of all tiles, from ``zero`` on the common clock.

    The events take ``length`` ns; the tile of the first of ``levels`` covers ``span``, a power of two.
    """

    zero: int
    length: int
    span: int
    levels: int

    def width(self, level: int) -> int:
        """Return the length of the tiles of a level in ns."""
        return self.span >> level


class RunTiles:
    """The tiles of one run, whose profiles do not change; they are kept under a `tile_key`."""

    def __init__(self, run: Run, store: Store, key: str, cache: TileCache, parts: RecentParts) -> None:
        self._run, self._store, self._key = run, store, key
        self._cache, self._parts = cache, parts
        self._windows = RunWindows(run, store, cache.folder(key) / EVENTS)
        self._communication = lru_cache(MAX_RANKS)(self._read_communication)

    def overview(self) -> bytes:
        """Return as JSON which ranks, steps and levels there are, without any slice."""
        return self._cache.get(self._key, "overview", lambda: msgspec.json.encode(self._overview()))

    def tile(self, rank: int, level: int, index: int) -> bytes:
        """Return a tile of a rank as JSON."""
        name = f"{rank}-{level}-{index}"
        return self._cache.get(self._key, name, lambda: msgspec.json.encode(self._tile(rank, level, index)))

    @cached_property
    def _clocks(self) -> RunClocks:
        return self._run_communication.clocks

    @cached_property
    def _steps(self) -> dict[int, RankSteps]:
        steps = steps_of_ranks(self._store.rank_events(self._run.id).values())
        clocks = self._clocks
        return {r: marks.on_common_clock(r, clocks) for r, marks in steps.items() if r in clocks.clocks}

    @cached_property
    def _extent(self) -> Extent:
        if not self._windows.profiles:
            raise HpcprofError(f"{self._run.id} has no timeline: no profile of it holds one.")
        if steps_of_ranks := self._steps.values():
            # A step's work is launched before it begins.
            margin = max(int((steps.end - steps.start).max()) for steps in steps_of_ranks)
            first = min(int(steps.start.min()) for steps in steps_of_ranks) - margin
            last = max(int(steps.end.max()) for steps in steps_of_ranks) + margin
        else:
            first, last = self._whole_span()
        span = 1 << max(math.ceil(math.log2(max(1, last - first))), 1)
        levels = max(1, span.bit_length() - _MIN_TILE_NS.bit_length() + 1)
        return Extent(first, last - first, span, levels)

    @cached_property
    def _parts_level(self) -> int:
        rank = next(iter(self._windows.profiles))  # the others are alike
        self._keep(rank)
        parts = max(1, (self._windows.rows(rank) or 0) / _EVENTS_PER_PART)
        return min(math.ceil(math.log2(parts)), self._extent.levels - 1)

    def _whole_span(self) -> tuple[int, int]:
        extents = []
        for rank in self._windows.profiles:
            self._keep(rank)
            timeline = self._windows.read(rank)
            on_host = (timeline.calls, timeline.ranges, timeline.host_collectives, timeline.mpi_calls)
            tables = (timeline.operations(), *on_host)
            stamps = [s for table in tables if len(table) for s in (table.start.min(), table.end.max())]
            if stamps:
                extents += self._clocks.to_common(rank, np.array([min(stamps), max(stamps)])).tolist()
            return_freed_memory()
        return min(extents, default=0), max(extents, default=1)

    def _overview(self) -> dict[str, Any]:
        extent, clocks = self._extent, self._clocks
        several = len(clocks.clocks) > 1
        steps = median_and_worst(self._steps) if self._steps else None
        ranks = sorted(clocks.clocks)
        # Three of many ranks stand for all.
        is_sampled = len(ranks) > _MAX_FULL_RANKS
        tracks = self._tracks([ranks[0], ranks[len(ranks) // 2], ranks[-1]]) if is_sampled else []
        return {
            "notes": clocks.notes(),
            "start": 0,
            "end": extent.length,
            "tracks": tracks,
            "median": steps.median if steps else -1,
            "worst": steps.worst if steps else -1,
            "span": extent.span,
            "levels": extent.levels,
            "ranks": [
                {
                    "rank": rank,
                    "uncertainty_ns": clocks.uncertainty_ns(rank) if several else 0,
                    "steps": self._steps[rank].rows(extent.zero) if rank in self._steps else [],
                    "tracks": None if is_sampled else self._tracks([rank]),
                }
                for rank in ranks
            ],
        }

    def _tracks(self, ranks: Sequence[int]) -> list[dict[str, Any]]:
        # The middle part of the run, or its only one.
        number = (self._extent.length // 2) // self._extent.width(self._parts_level)
        return described_tracks([self._part(rank, number, False) for rank in ranks])

    def _tile(self, rank: int, level: int, index: int) -> dict[str, Any]:
        extent = self._extent
        if rank not in self._windows.profiles:
            raise HpcprofError(f"{self._run.id} has no timeline of rank {rank}.")
        if not (0 <= level < extent.levels and 0 <= index < 1 << level):
            raise HpcprofError(f"there is no tile {index} of level {level}: {extent.levels} levels.")
        width = extent.width(level)
        start, end = index * width, (index + 1) * width
        parts = self._parts_of(rank, level, index)
        return encoded_tile(rank, parts, self._communication(rank), start, end, width // _PIXELS_PER_TILE)

    @cached_property
    def _run_communication(self) -> RunCommunication:
        return run_communication(self._run, self._store)

    def _read_communication(self, rank: int) -> RankCommunication:
        operations = self._run_communication.of_rank(rank)
        return replace(operations, start=self._clocks.to_common(rank, operations.start) - self._extent.zero)

    def _parts_of(self, rank: int, level: int, index: int) -> Iterator[RankPart]:
        finer = self._parts_level - level
        numbers = [index >> -finer] if finer <= 0 else range(index << finer, (index + 1) << finer)
        for place, number in enumerate(numbers):
            # A slice that crosses the border between two parts is in both; the first part has it.
            yield self._part(rank, number, in_window=place > 0)

    def _part(self, rank: int, number: int, in_window: bool) -> RankPart:
        key = (self._key, rank, number, in_window)
        return self._parts.get(key, lambda: self._read(rank, number, in_window))

    def _read(self, rank: int, number: int, in_window: bool) -> RankPart:
        extent = self._extent
        width = extent.width(self._parts_level)
        window = (number * width, (number + 1) * width)
        first, last = (extent.zero + stamp for stamp in window)
        stamps = self._clocks.to_rank(rank, np.array([first, last])).tolist()
        self._keep(rank)
        timeline: Timeline = self._windows.read(rank, stamps[0], stamps[1] + 1)
        part = part_of(
            timeline,
            lambda s: self._clocks.to_common(rank, s) - extent.zero,
            window if in_window else None,
            projects=self._parts_level == 0,
        )
        del timeline
        return_freed_memory()
        return part

    def keep_events(self, until: float) -> tuple[Path, dict[int, str]]:
        """Keep the events of all ranks that the run has none of, until a moment of the monotonic clock.

        Return their folder, and by rank why its profile cannot be read. Raises `AskAgain` if there was not
        time for all of them.
        """
        missing = {}
        for number, rank in enumerate(self._windows.profiles):
            if number and time.monotonic() > until:
                whole = len(self._windows.profiles)
                raise AskAgain(
                    f"the events of {number} of {whole} ranks of {self._run.id} have been read: ask again."
                )
            try:
                self._keep(rank)
            except HpcprofError as error:
                missing[rank] = str(error).rstrip(".")
        return self._cache.folder(self._key) / EVENTS, missing

    def _keep(self, rank: int) -> None:
        if self._windows.keep(rank):
            self._cache.check_soon()
            return_freed_memory()


class AskAgain(HpcprofError):
    """The server is busy; the same request succeeds later."""


class Tiles:
    """The tiles of all runs of a store."""

    def __init__(self, store: Store, cache: TileCache) -> None:
        self._store, self._cache = store, cache
        self._parts = RecentParts(_MAX_PARTS_BYTES)
        self._runs: OrderedDict[str, RunTiles] = OrderedDict()
        self._keys: dict[str, tuple[str, float]] = {}
        self._lock = Lock()

    def of(self, run: Run) -> RunTiles:
        """Return the tiles of a run."""
        key = self._key(run)
        with self._lock:
            if key not in self._runs:
                self._runs[key] = RunTiles(run, self._store, key, self._cache, self._parts)
            self._runs.move_to_end(key)
            while len(self._runs) > _MAX_OPEN_RUNS:
                self._runs.popitem(last=False)
            return self._runs[key]

    def _key(self, run: Run) -> str:
        """Return the key of a run's tiles; a browser asks for several at once, so it is kept for a moment."""
        key, made_at = self._keys.get(run.id, ("", -math.inf))
        if time.monotonic() - made_at < _FRESH_SECONDS:
            return key
        profiles = self._store.profiles(run.id) if self._store.exists() else {}
        if not profiles:
            reason = why_unprofiled(run) or "it has not been collected"
            raise HpcprofError(f"{run.id} has no timeline: {reason}.")
        sums = ((rank, f"{profile.sha256} {profile.analysis_version}") for rank, profile in profiles.items())
        key = tile_key(LAYOUT, run.id, str(run.path), profiles=sums)
        self._keys[run.id] = key, time.monotonic()
        return key


def chosen_ranks(text: str) -> Sequence[int]:
    """Return the ranks of a parameter such as ``0-3,8``."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (is_rank(first) and (is_rank(last) if dash else True)):
            raise UsageError(f"ranks {text[:50]!r}: give ranks such as 0-3,8.")
        span = range(int(first), int(last or first) + 1)
        if not span or len(ranks) + len(span) > MAX_RANKS:
            raise UsageError(f"ranks {text[:50]!r}: give from 1 to {MAX_RANKS} ranks.")
        ranks += span
    return ranks


def is_rank(text: str) -> bool:
    """Return whether a text is the number of a rank."""
    return text.isascii() and text.isdecimal() and len(text) < 9


_BYTES_PER_SLICE = 56


class RankPart(msgspec.Struct, frozen=True):
    """A part of a rank's activity on the common clock; slices point to names in ``strings``."""

    tracks: RankTracks
    strings: Sequence[str]

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        slices = sum(len(track.slices) for track in self.tracks.tracks)
        return slices * _BYTES_PER_SLICE + sum(map(len, self.strings))


class RecentParts:
    """The parts that were read last, up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: OrderedDict[tuple[object, ...], RankPart] = OrderedDict()
        self._size = 0
        self._lock = Lock()
        self._reading = Lock()

    def get(self, key: tuple[object, ...], read: Callable[[], RankPart]) -> RankPart:
        """Return a part, read if it is not there; one at a time is read, which bounds the memory."""
        tile = self._find_part(key)
        if tile is not None:
            return tile
        with self._reading:
            tile = self._find_part(key)
            if tile is None:
                tile = read()
                self._keep(key, tile)
            return tile

    def _find_part(self, key: tuple[object, ...]) -> RankPart | None:
        with self._lock:
            if key not in self._parts:
                return None
            self._parts.move_to_end(key)
            return self._parts[key]

    def _keep(self, key: tuple[object, ...], part: RankPart) -> None:
        with self._lock:
            self._parts[key] = part
            self._size += part.size
            while self._size > self._most_bytes and len(self._parts) > 1:
                self._size -= self._parts.popitem(last=False)[1].size


def part_of(
    timeline: Timeline,
    to_zero: Callable[[Ints], Ints],
    window: tuple[int, int] | None,
    projects: bool = False,
) -> RankPart:
    """Return the part that a timeline is; ``to_zero`` puts its time stamps on the clock of the slices.

    Only the slices that begin in ``window``, on that clock, are kept; None keeps all. If it ``projects``, the
    timeline is whole, so that ranges are also drawn where their work is on the GPU.
    """
    rank = rank_tracks(timeline, projects)
    tracks = []
    for track in rank.tracks:
        part = replace(track.slices, start=to_zero(track.slices.start), end=to_zero(track.slices.end))
        if window is not None:
            part = part.take((part.start >= window[0]) & (part.start < window[1]))
        if len(part):
            tracks.append(replace(track, slices=part))
    return RankPart(RankTracks(tracks, rank.infos), timeline.strings.tolist())


def encoded_tile(
    rank: int,
    parts: Iterator[RankPart],
    communication: RankCommunication,
    start: int,
    end: int,
    shortest: int,
) -> dict[str, Any]:
    """Return the tile of a rank in the form of a page's timeline.

    ``labels`` also has the tracks without a slice in the tile. The parts are in their order; each is
    forgotten before the next is read. Their clock is that of ``start`` and ``end``, the time of the tile, and
    of the starts in ``communication``. Slices that are shorter than ``shortest`` are merged with their
    neighbours.
    """
    texts = Texts()
    groups: dict[tuple[TrackKind, str], list[TrackSlices]] = {}
    labels: dict[tuple[str, str], None] = {}
    for part in parts:
        labels |= dict.fromkeys((track.kind.value, track.label) for track in part.tracks.tracks)
        for track in _in_window(part.tracks, start, end):
            slices = merge_short(track.slices, shortest) if shortest > 1 else track.slices
            slices = replace(
                slices,
                name=texts.renumbered(slices.name, part.strings, track.kind),
                info=texts.renumbered(slices.info, part.tracks.infos),
            )
            groups.setdefault((track.kind, track.label), []).append(slices)
    keys = sorted(groups, key=lambda key: key[0].place)
    tracks = [Track(*key, concatenate(TrackSlices, groups[key])) for key in keys]
    encoded = [_encode_part(track, communication, texts) for track in tracks]
    return {
        "rank": rank,
        "strings": [*texts.number],
        "short": texts.short,
        "family": texts.family,
        "labels": [*labels],
        "tracks": encoded,
    }


def _in_window(tracks: RankTracks, start: int, end: int) -> Iterator[Track]:
    for track in tracks.tracks:
        slices = track.slices
        rows = (slices.start < end) & (np.maximum(slices.end, slices.start + 1) > start)
        if rows.any():
            yield replace(track, slices=slices.take(rows))


def described_tracks(parts: Sequence[RankPart]) -> list[dict[str, Any]]:
    """Return tracks that fit the parts of several ranks: streams have the same names, threads are counted."""
    levels: dict[tuple[TrackKind, str], int] = {}
    for part in parts:
        count: dict[tuple[TrackKind, str], int] = {}
        for track in part.tracks.tracks:
            label = track.label
            on_thread = track.kind in (TrackKind.RANGES, TrackKind.CALLS) or label.startswith(MPI_CALLS)
            if on_thread and label != ON_GPU and len(parts) > 1:
                general = label.partition(",")[0]
                count[track.kind, general] = count.get((track.kind, general), 0) + 1
                label = f"{general}, thread {count[track.kind, general]}"
            deepest = 1 + int(track.slices.depth.max(initial=0))
            levels[track.kind, label] = max(levels.get((track.kind, label), 1), deepest)
    keys = sorted(levels, key=lambda key: key[0].place)
    return [{"kind": key[0].value, "label": key[1], "levels": levels[key]} for key in keys]


def _encode_part(track: Track, communication: RankCommunication, texts: Texts) -> dict[str, Any]:
    links, info = links_of(track.slices, communication), track.slices.info.copy()
    for row, text in links.texts.items():
        info[row] = texts.add(text)
    return encoded_slices(replace(track, slices=replace(track.slices, info=info)), links)
