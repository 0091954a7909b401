"""The slices of a rank on the common clock, read part by part and merged to what a tile can show."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from hpcprof.profiles.kernel_names import short_name
from hpcprof.profiles.timeline import Ints, Timeline, concatenate
from hpcprof.report.page.timeline_data import column, differences
from hpcprof.report.page.timeline_links import links_of
from hpcprof.report.page.timeline_tracks import (
    MPI_CALLS,
    NONE,
    ON_GPU,
    RankTracks,
    Track,
    TrackKind,
    TrackSlices,
    merge_short,
    rank_tracks,
)
from hpcprof.results.run_communication import RankCommunication

_BYTES_A_SLICE = 56

# Tiles have few names, and the same ones; without this, names take a quarter of the time of a tile.
_short_name = lru_cache(maxsize=4096)(short_name)


@dataclass(frozen=True)
class RankPart:
    """The activity of a rank in a part of its time, on the common clock.

    ``strings`` has the names to which the slices point.
    """

    tracks: RankTracks
    strings: Sequence[str]

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        slices = sum(len(track.slices) for track in self.tracks.tracks)
        return slices * _BYTES_A_SLICE + sum(map(len, self.strings))


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
        found = self._found(key)
        if found is not None:
            return found
        with self._reading:
            found = self._found(key)
            if found is None:
                found = read()
                self._keep(key, found)
            return found

    def _found(self, key: tuple[object, ...]) -> RankPart | None:
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
    """Return the part that a timeline is.

    Parameters
    ----------
    to_zero : callable
        Puts time stamps of the profile on the clock of the slices.
    window : tuple of int, or None
        On that clock: only the slices that begin in it are kept. None keeps all.
    projects : bool
        Whether the timeline is whole, so that ranges are also drawn where their work is on the GPU.
    """
    found = rank_tracks(timeline, projects)
    tracks = []
    for track in found.tracks:
        own = replace(track.slices, start=to_zero(track.slices.start), end=to_zero(track.slices.end))
        if window is not None:
            own = own.take((own.start >= window[0]) & (own.start < window[1]))
        if len(own):
            tracks.append(replace(track, slices=own))
    return RankPart(RankTracks(tracks, found.infos), timeline.strings.tolist())


def encoded_tile(
    rank: int,
    parts: Iterator[RankPart],
    communication: RankCommunication,
    start: int,
    end: int,
    shortest: int,
) -> dict[str, Any]:
    """Return what a tile shows of a rank, as the timeline of a page has it.

    ``labels`` also has the tracks without a slice in the tile.

    Parameters
    ----------
    parts : iterator of RankPart
        In their order; each is forgotten before the next is read.
    communication : RankCommunication
        What the rank has in common with others, with starts on the clock of the parts.
    start, end : int
        The time of the tile, on the clock of the parts.
    shortest : int
        Slices shorter than this are merged with their neighbours.
    """
    number: dict[str, int] = {}
    found: dict[tuple[TrackKind, str], list[TrackSlices]] = {}
    short: dict[int, str] = {}
    labels: dict[tuple[str, str], None] = {}
    for part in parts:
        labels |= dict.fromkeys((track.kind.value, track.label) for track in part.tracks.tracks)
        for track in _in_window(part.tracks, start, end):
            slices = merge_short(track.slices, shortest) if shortest > 1 else track.slices
            slices = replace(
                slices,
                name=_renumbered(slices.name, part.strings, number),
                info=_renumbered(slices.info, part.tracks.infos, number),
            )
            found.setdefault((track.kind, track.label), []).append(slices)
    order = list(TrackKind)
    keys = sorted(found, key=lambda key: order.index(key[0]))
    tracks = [Track(*key, concatenate(TrackSlices, found[key])) for key in keys]
    encoded = [_encoded(track, communication, number) for track in tracks]
    texts = [*number]
    for track in tracks:
        if track.kind in (TrackKind.STREAM, TrackKind.COMMUNICATION):
            for name in np.unique(track.slices.name).tolist():
                if name != NONE and (brief := _short_name(texts[name])) != texts[name]:
                    short[name] = brief
    return {
        "rank": rank,
        "strings": texts,
        "short": short,
        "labels": [*labels],
        "tracks": encoded,
    }


def _in_window(tracks: RankTracks, start: int, end: int) -> Iterator[Track]:
    """Yield the tracks that have slices in a window, with these; one without length may lie in it too."""
    for track in tracks.tracks:
        own = track.slices
        rows = (own.start < end) & (np.maximum(own.end, own.start + 1) > start)
        if rows.any():
            yield replace(track, slices=own.take(rows))


def described_tracks(parts: Sequence[RankPart]) -> list[dict[str, Any]]:
    """Return tracks that fit the parts of several ranks.

    The streams of a GPU are called the same on all ranks. Threads are not, and are counted.
    """
    levels: dict[tuple[TrackKind, str], int] = {}
    for part in parts:
        count: dict[tuple[TrackKind, str], int] = {}
        for track in part.tracks.tracks:
            label = track.label
            of_thread = track.kind in (TrackKind.RANGES, TrackKind.CALLS) or label.startswith(MPI_CALLS)
            if of_thread and label != ON_GPU and len(parts) > 1:
                general = label.partition(",")[0]
                count[track.kind, general] = count.get((track.kind, general), 0) + 1
                label = f"{general}, thread {count[track.kind, general]}"
            deepest = 1 + int(track.slices.depth.max(initial=0))
            levels[track.kind, label] = max(levels.get((track.kind, label), 1), deepest)
    order = list(TrackKind)
    keys = sorted(levels, key=lambda key: order.index(key[0]))
    return [{"kind": key[0].value, "label": key[1], "levels": levels[key]} for key in keys]


def _renumbered(values: Ints, texts: Sequence[str], number: dict[str, int]) -> Ints:
    """Return the numbers that texts have in a tile, which are given out as they are needed."""
    used, place = np.unique(values, return_inverse=True)
    known = [NONE if i == NONE else number.setdefault(texts[i], len(number)) for i in used.tolist()]
    renumbered: Ints = np.array(known, np.int64)[place.reshape(-1)]
    return renumbered


def _encoded(track: Track, communication: RankCommunication, number: dict[str, int]) -> dict[str, Any]:
    own, links = track.slices, links_of(track.slices, communication)
    info = own.info.copy()
    for row, text in links.texts.items():
        info[row] = number.setdefault(text, len(number))
    return {
        "kind": track.kind.value,
        "label": track.label,
        "count": len(own),
        "start": differences(own.start),
        "duration": column(own.end - own.start),
        "depth": column(own.depth),
        "name": column(own.name),
        "slice_kind": column(own.kind),
        "launch": differences(own.launch),
        "collective": differences(links.collective),
        "messages": links.encoded_messages(),
        "info": column(info),
    }
