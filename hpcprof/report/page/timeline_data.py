"""The data of a page's timeline: the steps of chosen ranks on one clock.

Columns are lists of whole numbers. Starts are written as differences, which compress well, and a column whose
values are all equal is written as that value. The page's ``timeline/embedded.js`` reads them.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from hpcprof.common.errors import HpcprofError
from hpcprof.common.units import counted, named_ranks
from hpcprof.profiles.kernel_classification import family
from hpcprof.profiles.kernel_names import short_name
from hpcprof.profiles.readers.telemetry import NodeTelemetry, read_telemetry
from hpcprof.profiles.timeline import Ints, Timeline
from hpcprof.profiles.timeline_parquet import overlaps_window
from hpcprof.report.many_ranks import MAX_DEVIATING, MAX_RANKS_IN_FULL
from hpcprof.report.page.timeline_tracks import (
    NONE,
    NodeTrack,
    RankTracks,
    SliceKind,
    SliceLinks,
    Track,
    TrackKind,
    TrackSlices,
    joined,
    links_of,
    merge_short,
    node_tracks,
    rank_tracks,
)
from hpcprof.results.ask.windows import RankSteps, RunWindows, steps_of_ranks
from hpcprof.results.collect.over_ranks import run_communication
from hpcprof.results.store.run_communication import RankCommunication, RunClocks
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run

PAGE_BUDGET_BYTES = 1_800_000
"""Maximum bytes of compressed slices of a page; in base64 they take a third more."""

MAX_EVENTS = 1_000_000
"""Maximum events of all ranks to read; of more, only the median and the worst step are read."""

_PIXELS_PER_STEP = 2000
"""Slices are merged that are too short to see where a step is as wide as this number of pixels."""


class _Detail(NamedTuple):
    """Pixels up to which slices are merged, in the median and the worst step and in the others.

    None leaves the other steps out.
    """

    chosen: int
    others: int | None


_DETAILS = (_Detail(0, 0), _Detail(0, 1), _Detail(0, 10), _Detail(1, 10), _Detail(0, None), _Detail(1, None))
"""From all that there is to the least; a page takes the first that fits."""


Windows = Mapping[int, RankSteps]
"""The steps of each rank on the clock of its profile, by rank."""


class ShownSteps(NamedTuple):
    """The steps that a page shows."""

    median: int
    worst: int


@dataclass(frozen=True)
class _Rank:
    """The part of a rank that the page shows; ``pixel_ns`` is the length of what is too short to see."""

    rank: int
    windows: RankSteps
    tracks: RankTracks
    strings: Sequence[str]
    communication: RankCommunication
    pixel_ns: int


# Tiles have few names, and the same ones; without this, names take a quarter of the time of a tile.
_short_name = lru_cache(maxsize=4096)(short_name)
_family = lru_cache(maxsize=4096)(family)


class Texts(msgspec.Struct):
    """The texts of a timeline, each once, with the short names and the families of kernels."""

    number: dict[str, int] = msgspec.field(default_factory=dict)
    short: dict[int, str] = msgspec.field(default_factory=dict)
    family: dict[int, str] = msgspec.field(default_factory=dict)

    def add(self, text: str, is_kernel: bool = False) -> int:
        """Return the number of a text."""
        number = self.number.setdefault(text, len(self.number))
        if is_kernel and number not in self.family:
            self.family[number] = _family(text)
            if (short := _short_name(text)) != text:
                self.short[number] = short
        return number

    def renumbered(self, values: Ints, texts: Sequence[str], kind: TrackKind | None = None) -> Ints:
        """Return the numbers here of places in ``texts``; the names on a track of the GPU are of kernels."""
        on_gpu = kind in (TrackKind.STREAM, TrackKind.COMMUNICATION)
        used, place = np.unique(values, return_inverse=True)
        numbers = [NONE if i == NONE else self.add(texts[i], on_gpu) for i in used.tolist()]
        renumbered: Ints = np.array(numbers, np.int64)[place.reshape(-1)]
        return renumbered


def timeline_data(run: Run, store: Store, budget: int = PAGE_BUDGET_BYTES) -> dict[str, Any]:
    """Return the data of the timeline of a page.

    Up to `MAX_RANKS_IN_FULL` ranks are all shown; of more, a median rank and the `MAX_DEVIATING` ranks that
    deviate most, by their lateness or else by their step time. If the slices take more than ``budget`` bytes,
    short ones are merged, first outside the median and the worst step; then the other steps are left out,
    then ranks, and ``notes`` says so. Without ranks, ``notes`` says why there is nothing to show.
    """
    windows = steps_of_ranks(store.rank_events(run.id).values())
    reader = RunWindows(run, store)
    if not windows:
        return _whole_captures(run, store, reader, budget)
    communication = run_communication(run, store)
    clocks = communication.clocks
    steps = median_and_worst(windows)
    candidates = [rank for rank in clocks.clocks if rank in windows and len(windows[rank].only(steps))]
    ranks, note = chosen_ranks(candidates, deviations(store, run.id, windows))
    whole = sum(reader.rows(rank) or 0 for rank in ranks) <= MAX_EVENTS
    ranks_shown, missing = [], []
    for rank in ranks:
        window = windows[rank] if whole else windows[rank].only(steps)
        try:
            timelines = [
                reader.read_steps(rank, first, last) for first, last in spans(window.number.tolist())
            ]
            ranks_shown.append(_rank(rank, window, timelines, communication.of_rank(rank)))
        except HpcprofError as error:
            missing.append(str(error))
    if not ranks_shown:
        return _empty_timeline(missing[0])
    notes = [*clocks.notes(), *note, *missing]
    if not whole:
        notes.append(_CHOSEN_STEPS_NOTE)
    nodes = read_telemetry(run.path) if clocks.start_utc_ns is not None else []
    return _assemble_data(ranks_shown, clocks, steps, notes, budget, nodes)


def _whole_captures(run: Run, store: Store, reader: RunWindows, budget: int) -> dict[str, Any]:
    """Return the whole capture of each rank as one step, where no steps are known."""
    totals = accumulate(reader.rows(rank) or 0 for rank in reader.profiles)
    shown_ranks = [rank for rank, total in zip(reader.profiles, totals, strict=True) if total <= MAX_EVENTS]
    if not shown_ranks:
        return _empty_timeline("No steps were found, and there is no capture small enough to show whole.")
    communication = run_communication(run, store)
    tracks = [
        _rank(rank, window, [timeline], communication.of_rank(rank))
        for rank in shown_ranks
        for window, timeline in [reader.read_capture(rank)]
        if window.start[0] < window.end[0]
    ]
    if not tracks:
        return _empty_timeline("No steps were found, and the capture has no events.")
    notes = ["No steps were found: the whole capture is shown."]
    if len(shown_ranks) < len(reader.profiles):
        notes.append(f"To keep this page small, it has {named_ranks(shown_ranks)} only.")
    return _assemble_data(tracks, communication.clocks, ShownSteps(0, 0), notes, budget, [])


def median_and_worst(windows: Windows) -> ShownSteps:
    """Return the steps of median and of greatest wall time, the maximum over ranks of each step."""
    number = np.concatenate([window.number for window in windows.values()])
    wall = np.concatenate([window.end - window.start for window in windows.values()])
    by_time = np.lexsort((wall, number))
    last = np.flatnonzero(np.diff(number[by_time], append=-1))
    steps, longest = number[by_time][last], wall[by_time][last]
    middle = np.argsort(longest, kind="stable")[(len(steps) - 1) // 2]
    return ShownSteps(int(steps[middle]), int(steps[np.argmax(longest)]))


def deviations(store: Store, run_id: str, windows: Windows) -> dict[int, float]:
    """Return the lateness of each rank or, where that is unknown, the median wall time of its steps."""
    late = {
        row["rank"]: row["lateness_p50_ns"]
        for row in store.table(run_id, "skew_summary").rows
        if row["lateness_p50_ns"] is not None
    }
    return late or {rank: float(np.median(window.end - window.start)) for rank, window in windows.items()}


def chosen_ranks(ranks: Sequence[int], measure: Mapping[int, float]) -> tuple[list[int], list[str]]:
    """Return the ranks to show, the most important ones first, and a note if some are left out."""
    if len(ranks) <= MAX_RANKS_IN_FULL:
        return sorted(ranks), []
    middle = median(measure.get(rank, 0) for rank in ranks)
    by_distance = sorted(ranks, key=lambda rank: (abs(measure.get(rank, 0) - middle), rank))
    typical, furthest = by_distance[0], by_distance[: -MAX_DEVIATING - 1 : -1]
    note = (
        f"The page has a median rank of {counted(len(ranks), 'rank')}, rank {typical}, and the "
        f"{len(furthest)} that deviate most: {named_ranks(sorted(furthest))}. hpcprof serve shows all."
    )
    return [typical, *furthest], [note]


def _assemble_data(
    ranks: Sequence[_Rank],
    clocks: RunClocks,
    steps: ShownSteps,
    notes: Sequence[str],
    budget: int,
    nodes: Sequence[NodeTelemetry],
) -> dict[str, Any]:
    """Return the data of a page's timeline within the budget; what the nodes did takes little beside that."""
    zero = min(int(clocks.to_common(rank.rank, rank.windows.start).min()) for rank in ranks)
    texts = Texts()
    encoded_ranks, windows, more = _fit(
        ranks, steps, budget, lambda rank: _encode_rank(rank, clocks, zero, texts)
    )
    utc = zero + (clocks.start_utc_ns or 0)
    end = max(int(clocks.to_common(rank.rank, rank.windows.end).max()) for rank in ranks) - zero
    tracks_of_rank = node_tracks(nodes, sorted(encoded_ranks), utc / 1e9, (utc + end) / 1e9)
    return {
        "notes": [*notes, *more],
        "median": steps.median,
        "worst": steps.worst,
        "ranks": [
            {
                "rank": rank_data.rank,
                "uncertainty_ns": clocks.uncertainty_ns(rank_data.rank) if len(ranks) > 1 else 0,
                "steps": windows[rank_data.rank].on_common_clock(rank_data.rank, clocks).rows(zero),
                "tracks": encoded_ranks[rank_data.rank]
                + [_encoded_samples(track, utc, texts) for track in tracks_of_rank.get(rank_data.rank, ())],
            }
            for rank_data in sorted(ranks, key=lambda rank_data: rank_data.rank)
            if rank_data.rank in encoded_ranks
        ],
        # The texts of all tracks are known by now.
        "strings": [*texts.number],
        "short": texts.short,
        "family": texts.family,
    }


def _empty_timeline(reason: str) -> dict[str, Any]:
    return {
        "notes": [reason],
        "median": NONE,
        "worst": NONE,
        "strings": [],
        "short": {},
        "family": {},
        "ranks": [],
    }


def _rank(
    rank: int, windows: RankSteps, timelines: Sequence[Timeline], communication: RankCommunication
) -> _Rank:
    """Return the part of a rank that the page shows; each timeline has some neighbouring steps of it."""
    tracks = joined([rank_tracks(timeline, len(timelines) == 1) for timeline in timelines])
    pixel_ns = int((windows.end - windows.start).max()) // _PIXELS_PER_STEP
    return _Rank(rank, windows, tracks, timelines[0].strings.tolist(), communication, pixel_ns)


def spans(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last step of each run of neighbours."""
    blocks: list[tuple[int, int]] = []
    for step in sorted(steps):
        if blocks and step <= blocks[-1][1] + 1:
            blocks[-1] = blocks[-1][0], step
        else:
            blocks.append((step, step))
    return blocks


def _fit(
    ranks: Sequence[_Rank], steps: ShownSteps, budget: int, encode: Callable[[_Rank], Any]
) -> tuple[dict[int, Any], Windows, list[str]]:
    """Return the encoded ranks that the budget allows, their steps, and sentences on what is left out."""
    for detail in _DETAILS:
        reduced = [_reduce_rank(rank, steps, detail) for rank in ranks]
        encoded = [encode(rank) for rank in reduced]
        sizes = [len(zlib.compress(msgspec.json.encode(rank), 1)) for rank in encoded]
        if sum(sizes) <= budget:
            break
    pixel_ns = max(rank.pixel_ns for rank in ranks)
    notes = [
        f"Neighbours shorter than {count * pixel_ns / 1e3:,.0f} µs are merged{where}, to keep this page "
        "small. hpcprof serve shows each of them."
        for count, where in _merge_levels(detail)
    ]
    if any(len(less.windows) < len(rank.windows) for less, rank in zip(reduced, ranks, strict=True)):
        notes.append(_CHOSEN_STEPS_NOTE)
    fitting = max(1, sum(total <= budget for total in accumulate(sizes)))
    if fitting < len(ranks):
        out = [rank.rank for rank in ranks[fitting:]]
        notes.append(
            f"Left out, to keep this page small: {named_ranks(sorted(out))}. hpcprof serve shows all."
        )
    fitting_ranks = {rank.rank: data for rank, data in zip(reduced[:fitting], encoded, strict=False)}
    return fitting_ranks, {rank.rank: rank.windows for rank in reduced}, notes


_CHOSEN_STEPS_NOTE = (
    "To keep this page small, it has the median and the worst step only. hpcprof serve shows all steps."
)


def _merge_levels(detail: _Detail) -> list[tuple[int, str]]:
    """Return pairs of the pixels up to which slices are merged, and the steps in words."""
    if detail.others is None or detail.chosen == detail.others:
        return [(detail.chosen, "")] if detail.chosen else []
    in_chosen, in_others = " in the median and the worst step", " in the other steps"
    return [(n, where) for n, where in ((detail.chosen, in_chosen), (detail.others, in_others)) if n]


def _reduce_rank(rank: _Rank, steps: ShownSteps, detail: _Detail) -> _Rank:
    """Return a rank with its slices merged, and without the steps that ``detail`` leaves out."""
    if detail == _DETAILS[0]:
        return rank
    chosen = rank.windows.only(steps)
    extents = [_with_launches(rank.tracks, start, end) for _, start, end in chosen.rows()]
    tracks = []
    for track in rank.tracks.tracks:
        slices = track.slices
        inside = np.any([overlaps_window(slices.start, slices.end, *extent) for extent in extents], axis=0)
        if detail.others is None:
            slices, inside = slices.take(inside), np.ones(np.count_nonzero(inside), bool)
        pixels = np.where(inside, detail.chosen, detail.others or 0)
        tracks.append(replace(track, slices=merge_short(slices, pixels * rank.pixel_ns)))
    windows = chosen if detail.others is None else rank.windows
    return replace(rank, windows=windows, tracks=replace(rank.tracks, tracks=tracks))


def _with_launches(tracks: RankTracks, start: int, end: int) -> tuple[int, int]:
    """Return the extent of a step, from the first call on that launched work of it."""
    on_gpu, calls = set[int](), []
    for track in tracks.tracks:
        slices = track.slices
        if track.kind is TrackKind.CALLS:
            calls.append(slices)
        else:
            on_gpu.update(slices.launch[(slices.start >= start) & (slices.start < end)].tolist())
    launches = np.array(sorted(on_gpu - {NONE}), np.int64)
    first = [call.start[np.isin(call.launch, launches)].min(initial=start) for call in calls]
    return int(min([start, *first])), end


def _encode_rank(rank: _Rank, clocks: RunClocks, zero: int, texts: Texts) -> list[dict[str, Any]]:
    infos = np.array([*map(texts.add, rank.tracks.infos), NONE])
    return [_encoded_track(track, rank, clocks, zero, texts, infos) for track in rank.tracks.tracks]


def _encoded_track(
    track: Track, rank: _Rank, clocks: RunClocks, zero: int, texts: Texts, infos: Ints
) -> dict[str, Any]:
    slices = track.slices
    start = clocks.to_common(rank.rank, slices.start) - zero
    names = texts.renumbered(slices.name, rank.strings, track.kind)
    info = infos[slices.info]
    links = links_of(slices, rank.communication)
    for row, text in links.texts.items():
        info[row] = texts.add(text)
    end = start + slices.end - slices.start
    slices = replace(slices, start=start, end=end, name=names, info=info)
    return encoded_slices(replace(track, slices=slices), links)


def _encoded_samples(track: NodeTrack, utc: int, texts: Texts) -> dict[str, Any]:
    """Return the samples of a node as a track; ``utc`` is when the page's clock shows 0, in ns since 1970."""
    begin, end = (
        np.round(1e3 * (times - utc / 1e9)).astype(np.int64) * 1_000_000 for times in (track.begin, track.end)
    )
    none, texts_of, highest = np.full(len(begin), NONE), track.texts(), float(track.values.max())
    slices = TrackSlices(
        start=begin,
        end=end,
        depth=np.zeros_like(begin),
        name=np.array([texts.add(text) for text in texts_of]),
        kind=np.full(len(begin), int(SliceKind.SAMPLE)),
        launch=none,
        info=none,
    )
    label = f"{track.label}, max {texts_of[int(track.values.argmax())]}"
    encoded = encoded_slices(Track(TrackKind.NODE, label, slices), SliceLinks(none, [], [], {}))
    height = np.round(100 * track.values / highest) if highest > 0 else np.zeros(len(begin))
    return {**encoded, "height": column(height.astype(np.int64))}


def encoded_slices(track: Track, links: SliceLinks) -> dict[str, Any]:
    """Return a track as the page's script reads it; names and infos are numbers of texts by now."""
    slices = track.slices
    return {
        "kind": track.kind.value,
        "label": track.label,
        "count": len(slices),
        "start": differences(slices.start),
        "duration": column(slices.end - slices.start),
        "depth": column(slices.depth),
        "name": column(slices.name),
        "slice_kind": column(slices.kind),
        "launch": differences(slices.launch),
        "collective": differences(links.collective),
        "messages": {"row": links.message_rows, "number": links.messages},
        "info": column(slices.info),
    }


def column(values: Ints) -> list[int] | int:
    """Return a column as a list, or as one value if all are equal."""
    is_constant = len(values) > 0 and bool(np.all(values == values[0]))
    return int(values[0]) if is_constant else values.tolist()


def differences(values: Ints) -> list[int] | int:
    """Return the first value and the difference of each other one from the value before it, as a column."""
    return (
        int(values[0]) if len(values) and np.all(values == values[0]) else np.diff(values, prepend=0).tolist()
    )
