"""Steps of programs that mark none: the period of what the host launches on the GPU.

1. A launch is a call with its work: a kernel by its name, a copy by its kind and size, a whole CUDA graph by
   its first node. The launches of the process with most of them are one sequence. Without a recorded launch,
   it consists of the operations of the stream with most kernels; without work on a GPU, of the outermost
   operators of the thread with most of them.
2. A kind of launch may mark the step if it occurs often enough, covers enough of the capture, and the periods
   between its launches are usually alike: the same kinds about as often, whatever the tiles of matrix
   products. Other work between periods, warm-up and phases are allowed.
3. A kind that occurs several times in a step may mark it with every n-th launch. The number of launches up to
   the next one of the kind then has its rarest value after every n-th, as at the end of a token's layers.
4. The outermost period wins: the kind with the fewest marks. Among kinds with equally many, the one after the
   longest pause of the host, or of the stream, marks the boundary. Layers of a decoder are no steps: kinds
   with fewer marks, and equal numbers of layers between them, mark its tokens.
5. Periods with equal launches differ by their times on the GPU: if every n-th one takes longer, n of them are
   the step, as in a solver with work on the host after n sweeps. A wait of the host after every n-th one ends
   no step: programs log, and read clocks, after some steps.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from hpcprof.analysis.steps.mpi_steps import MIN_INSTANCES, unnamed_ranges
from hpcprof.analysis.steps.streams import NO_CALL, launch_calls, streams
from hpcprof.common.memoize import computed_once
from hpcprof.common.patterns import matches
from hpcprof.profiles.columns.unique import distinct, number_texts, numbered_rows, rows_by_key
from hpcprof.profiles.kernel_names import short_name
from hpcprof.profiles.timeline import (
    BEFORE_ALL,
    NO_NAME,
    Ints,
    Kernels,
    Mask,
    Ranges,
    Table,
    Timeline,
    concatenate,
)
from hpcprof.profiles.waiting_calls import launches_graph

KERNEL, COPY, GRAPH, OPERATOR = PREFIXES = ("kernel:", "copy:", "graph:", "operator:")
"""Prefixes of the names of steps that launches mark; the launch follows."""

_TILE = re.compile(r"\d+x\d+")
"""The sizes of tiles in the names of matrix products: ``nvjet_sm90_tst_192x208_64x4``."""

_EVERY_NTH_NAME = re.compile(r"(?P<launch>.+)/(?P<every>[1-9]\d*)", re.DOTALL)
"""A name of every n-th launch."""

_MAX_PERIODS = 64
"""Maximum number of periods in a step."""

_MIN_EXPLAINED_SHARE, _MIN_TIME_RATIO = 0.8, 1.2
"""For periods of one step: minimum share of the variance of times that the place in the step explains, and
minimum ratio of the mean times of two places."""

_MIN_COVERED_SHARE = 0.5
"""Minimum share of the capture, or of the time of kernels and graphs, in the periods.

Programs that set up for long copy much and launch few kernels before their loop.
"""

_MIN_REGULAR_SHARE, _MAX_VALUES, _MIN_NESTED = 0.9, 8, 1.9
"""Minimum share of equal distances between the ends of nested periods, maximum number of the rarest counts
that may tell them, and minimum number of periods in an outer one."""

_MAX_SIZES = 32
"""Maximum number of sizes of one kind of copy that are told apart."""

_MAX_KINDS, _MAX_MARKS = 64, 48
"""Maximum number of kinds of launches that are counted in a period, and of those that may mark it."""

_MAX_PERIOD_DIFFERENCE = 0.25
"""Maximum share of launches by which alike periods differ from the median period."""

_MIN_SIMILAR_SHARE, _MIN_SIMILAR_PART = 0.7, 0.5
"""Minimum shares of alike periods, and of their time and launches, for a step."""

_MIN_SIZES, _MAX_SIZES_SHARE = 3, 2 / 3
"""Minimum number of sizes of a kernel, or of an operator's inputs, for layers, and their maximum share of
the launches."""

_LAYER_NAMES = re.compile(r"norm|attn|attention|fmha|softmax|soft_max", re.IGNORECASE)
_TRAINING_NAMES = re.compile(r"bwd|backward|grad|adam|sgd|optim|loss", re.IGNORECASE)
"""Parts of names of kernels in layers of transformers, and of kernels that only training has."""

_MIN_LAYERS = 4
"""Minimum number of layers of a decoder."""

_MAX_END_RATIO = 4.0
"""Maximum ratio of the first and the last period to the median: programs load and compile at first."""

_MIN_TYPICAL_SHARE = 0.01
"""Minimum share of the time of all steps but the longest that as many median steps would take.

Requests to a server are bursts of launches, with long waits in between.
"""

_END_PERIODS = 16
"""Number of periods at each end whose median counts as well: the steps of a factorization shrink."""

_MAX_COUNT_RATIO = 1.1
"""Maximum ratio of the counts of kinds that occur equally often."""


@dataclass(frozen=True)
class _Launched(Table):
    """The calls of a process that launched work, by their start; ``kind`` is the number of their work.

    Without recorded calls, an operation counts as its own.
    """

    start: Ints
    end: Ints
    thread: Ints
    kind: Ints
    family: Ints
    """The kind without the tile of a product, which libraries change with the sizes."""
    front: Ints
    """Start of the first operation."""
    work: Ints
    """Time that the launched kernels and graphs take, in ns."""
    blocks: Ints
    """Number of thread blocks of the first operation, 0 for copies; the shapes of an operator's inputs."""


class _Sequence(msgspec.Struct, frozen=True):
    """The launches of one process, and the name of each kind."""

    launched: _Launched
    process: int
    names: tuple[str, ...]


class LaunchStep(msgspec.Struct, frozen=True):
    """A possible step, from every launch of a kind to the next."""

    name: str
    """Its name as a step range."""
    instances: int
    coverage_pct: float
    """The share of the capture, or of the time of kernels and graphs, whichever is more."""


def is_launch_step(name: str) -> bool:
    """Return whether a step of this name is marked by launches."""
    return name.startswith(PREFIXES)


@computed_once
def _sequence(timeline: Timeline) -> _Sequence | None:
    if len(timeline.unended_kernels):
        kernels = concatenate(Kernels, (timeline.kernels, timeline.unended_kernels))
        timeline = replace(timeline, kernels=kernels)
    call = launch_calls(timeline)
    operation = np.flatnonzero(call != NO_CALL)
    if not len(operation):
        return (
            _operations_of_a_stream(timeline) if timeline.operation_count else _outermost_operators(timeline)
        )
    (start,) = timeline.of_operations("start")
    operation = operation[np.lexsort((start[operation], call[operation]))]
    calls, first = np.unique(call[operation], return_index=True)
    work = np.add.reduceat(_computing_times(timeline)[operation], first)
    process = timeline.calls.process[calls]
    processes, number = np.unique(process, return_inverse=True)
    busiest = int(processes[np.bincount(number).argmax()])
    rows = np.flatnonzero(process == busiest)
    rows = rows[np.argsort(timeline.calls.start[calls[rows]], kind="stable")]
    calls, operation, work = calls[rows], operation[first[rows]], work[rows]
    api = timeline.calls.name[calls]
    graph = [number for number in distinct(api).tolist() if launches_graph(timeline.strings[number])]
    launching = timeline.calls.take(calls)
    host = launching.start, launching.end, launching.thread
    return _sequence_of(timeline, busiest, host, operation, work, np.isin(api, graph))


def _operations_of_a_stream(timeline: Timeline) -> _Sequence:
    """Return the operations of the stream with most kernels and graphs, each as its own launch."""
    work = _computing_times(timeline)
    operation = max((rows for *_, rows in streams(timeline)), key=lambda rows: np.count_nonzero(work[rows]))
    start, end, process = (column[operation] for column in timeline.of_operations("start", "end", "process"))
    host, no_graph = (start, end, np.full(len(start), NO_CALL)), np.zeros(len(start), bool)
    return _sequence_of(timeline, int(process[0]), host, operation, work[operation], no_graph)


def _computing_times(timeline: Timeline) -> Ints:
    """Return the time of each operation on the GPU in ns, 0 for copies; shape (operations,)."""
    start, end = timeline.of_operations("start", "end")
    time = end - start
    time[len(timeline.kernels) :][: len(timeline.memops)] = 0
    return time


def _sequence_of(
    timeline: Timeline,
    process: int,
    launching: tuple[Ints, Ints, Ints],
    operation: Ints,
    work: Ints,
    is_graph: Mask,
) -> _Sequence:
    """Return a sequence of launches: their starts, ends and threads, their first operations and their work.

    ``is_graph`` tells which calls launch a graph.
    """
    keys, kind = numbered_rows(*_describe_launches(timeline, operation, is_graph))
    # Kinds of one short name, such as templates of a library, are one kind.
    names, merged = np.unique([_name(timeline, *key) for key in keys.tolist()], return_inverse=True)
    _, family = np.unique([_TILE.split(name)[0] for name in names], return_inverse=True)
    kind = merged[kind]
    blocks = np.append(timeline.kernels.grid.prod(axis=1), np.zeros(timeline.operation_count, np.int64))
    (start,) = timeline.of_operations("start")
    launched = _Launched(*launching, kind, family[kind], start[operation], work, blocks[operation])
    return _Sequence(launched, process, tuple(names.tolist()))


def _outermost_operators(timeline: Timeline) -> _Sequence | None:
    threads = rows_by_key(timeline.operators.process, timeline.operators.thread)
    if not threads:
        return None
    (process, _), rows = max(threads, key=lambda thread: len(thread[1]))
    table = timeline.operators.take(rows)
    table = table.take(np.lexsort((-table.end, table.start)))
    ended = np.append(BEFORE_ALL, np.maximum.accumulate(table.end)[:-1])
    table = table.take(np.flatnonzero(table.start >= ended))
    names, kind = number_texts(timeline, table.name)
    length = table.end - table.start
    launched = _Launched(table.start, table.end, table.thread, kind, kind, table.start, length, table.dims)
    return _Sequence(launched, process, tuple(f"{OPERATOR}{name}" for name in names))


def _describe_launches(timeline: Timeline, operation: Ints, is_graph: Mask) -> tuple[Ints, Ints, Ints]:
    """Return, for the first operation of each launch, its prefix, the name of the operation, and its size."""
    kernels, copies = len(timeline.kernels), len(timeline.memops)
    prefix = np.where(is_graph | (operation >= kernels + copies), 2, 0)
    is_copy = (prefix == 0) & (operation >= kernels)
    prefix[is_copy] = 1
    (names,) = timeline.of_operations("name")
    name, is_graph = names[operation], prefix == 2
    # Graphs that are captured anew are one launch: each is launched for a while, and never again.
    graphs = name[is_graph]
    if len(distinct(graphs)) > MIN_INSTANCES and np.count_nonzero(np.diff(graphs)) < len(distinct(graphs)):
        name[is_graph] = NO_NAME
    size = np.zeros(len(operation), np.int64)
    size[is_copy] = timeline.memops.bytes[operation[is_copy] - kernels]
    for kind in distinct(name[is_copy]).tolist():
        is_kind = is_copy & (name == kind)
        if len(distinct(size[is_kind])) > _MAX_SIZES:
            size[is_kind] = 0
    return prefix, name, size


def _name(timeline: Timeline, prefix: int, name: int, size: int) -> str:
    text = timeline.strings[name] if name != NO_NAME else "?"
    return f"{PREFIXES[prefix]}{short_name(text)}" + (f":{size}" if PREFIXES[prefix] == COPY and size else "")


@computed_once
def launch_step_candidates(timeline: Timeline) -> tuple[LaunchStep, ...]:
    """Return the possible steps that launches mark, the best first; they cover half of the capture."""
    sequence = _sequence(timeline)
    if sequence is None:
        return ()
    kinds = [rows for _, rows in rows_by_key(sequence.launched.kind) if len(rows) > MIN_INSTANCES]
    every_launch = _steps_of_marks(sequence, [(1, rows) for rows in kinds])
    nested = [(every, rows[first]) for rows in kinds for every, first in [_outer_periods(np.diff(rows))]]
    outer = _steps_of_marks(sequence, [(every, marks) for every, marks in nested if every > 1])
    if not every_launch:
        return outer
    if outer and max(step.instances for step in every_launch) >= _MIN_NESTED * outer[0].instances:
        return outer
    return _tokens(sequence, every_launch[0]) or every_launch


def _tokens(sequence: _Sequence, layer: LaunchStep) -> tuple[LaunchStep, ...]:
    """Return the tokens of a decoder as steps, if the step that was found is its layer; else nothing."""
    launched, name = sequence.launched, layer.name
    if name not in sequence.names:
        return ()
    layers = np.flatnonzero(launched.kind == sequence.names.index(name))
    inside = {sequence.names[kind] for kind in launched.kind[layers[0] : layers[1]].tolist()}
    if any(map(_TRAINING_NAMES.search, inside)) or not any(map(_LAYER_NAMES.search, inside)):
        return ()
    for (kind,), marks in rows_by_key(launched.kind):
        if 2 <= len(marks) <= MIN_INSTANCES and _bound_equal_groups(
            np.searchsorted(layers, marks), len(layers)
        ):
            return (LaunchStep(sequence.names[kind], len(marks) - 1, layer.coverage_pct),)
    return ()


def _bound_equal_groups(place: Ints, layers: int) -> bool:
    """Return whether marks at places among some layers begin, or end, tokens with equally many layers.

    The last token may be cut.
    """
    begin = not place[0]
    counts = np.diff(np.append(place, layers) if begin else np.append(0, place))
    whole = counts[:-1] if begin and len(counts) > 2 else counts
    return bool(counts[0] >= _MIN_LAYERS and np.all(whole == counts[0]) and counts[-1] <= counts[0])


def _steps_of_marks(
    sequence: _Sequence, marks_of_kinds: Sequence[tuple[int, Ints]]
) -> tuple[LaunchStep, ...]:
    """Return the possible steps of marks, each with the number of launches of its kind in a step."""
    launched = sequence.launched
    pause = np.append(0, launched.start[1:] - np.maximum.accumulate(launched.end)[:-1])
    extent, work = max(1, int(launched.start[-1] - launched.start[0])), max(1, int(launched.work.sum()))
    candidates: list[tuple[int, float, LaunchStep]] = []
    for every, all_marks in sorted(marks_of_kinds, key=lambda kind: len(kind[1])):
        count = len(all_marks)
        if len(candidates) >= _MAX_MARKS or (candidates and count > _MAX_COUNT_RATIO * candidates[0][0]):
            break
        marks = _regular_marks(launched, all_marks)
        if len(marks) <= MIN_INSTANCES:
            continue
        if _are_layers(launched.blocks[marks]) and _mostly_layers(launched, marks_of_kinds, count):
            break  # Whatever occurs more often is inside a layer.
        time = int(launched.start[marks[-1]] - launched.start[marks[0]]) / extent
        covered = max(time, int(launched.work[marks[0] : marks[-1]].sum()) / work)
        if covered >= _MIN_COVERED_SHARE:
            periods = _periods_per_step(np.diff(launched.front[marks]))
            name = sequence.names[launched.kind[marks[0]]]
            name += f"/{every * periods}" if every * periods > 1 else ""
            step = LaunchStep(name, (len(marks) - 1) // periods, round(100 * covered, 2))
            candidates.append((count, float(np.median(pause[marks])), step))
    return tuple(step for _, _, step in sorted(candidates, key=lambda candidate: -candidate[1]))


def _outer_periods(counts: Ints) -> tuple[int, Ints]:
    """Return the number of periods in an outer one, and the first period of each; 1 and none without any.

    ``counts`` has one count for each period. The last period of an outer one has a count of its own.
    """
    values, number = np.unique(counts, return_counts=True)
    rare = values[np.argsort(number, kind="stable")][: _MAX_VALUES if len(values) > 1 else 0]
    for value in rare.tolist():
        ends = np.flatnonzero(counts == value)
        distances = np.diff(ends)
        if len(ends) > MIN_INSTANCES:
            every = int(np.median(distances))
            if every > 1 and np.mean(distances == every) >= _MIN_REGULAR_SHARE:
                begins = int(ends[0]) + 1 - every
                return every, np.append([begins] if begins >= 0 else [], ends + 1).astype(np.int64)
    return 1, counts[:0]


def _are_layers(sizes: Ints) -> bool:
    """Return whether sizes are as in layers of a network: they repeat, and its begin and end differ."""
    different, third = len(distinct(sizes)), len(sizes) // 3
    changes = 1 + np.count_nonzero(np.diff(sizes))
    follow = changes == different or not np.isin(sizes[:third], sizes[-third:]).any()
    return bool(_MIN_SIZES <= different <= _MAX_SIZES_SHARE * len(sizes) and follow)


def _mostly_layers(launched: _Launched, marks_of_kinds: Sequence[tuple[int, Ints]], count: int) -> bool:
    """Return whether kinds with ``count`` marks spend most of their time in sizes as in layers."""
    kinds = [marks for _, marks in marks_of_kinds if count <= len(marks) <= _MAX_COUNT_RATIO * count]
    work = [int(launched.work[marks].sum()) for marks in kinds]
    layers = [_are_layers(launched.blocks[marks]) for marks in kinds]
    return 2 * sum(time for time, layered in zip(work, layers, strict=True) if layered) >= sum(work)


def _regular_marks(launched: _Launched, marks: Ints) -> Ints:
    """Return the marks of alike periods, without unusual ones at both ends; none if few are alike."""
    is_similar, is_alike = _similar_periods(launched.family, marks)
    length = np.diff(launched.start[marks])
    if not is_similar.any():
        return marks[:0]
    alike = length[is_similar]
    ends = []
    for beside, end in ((alike[:_END_PERIODS], 0), (alike[-_END_PERIODS:], -1)):
        usual = is_similar & (length <= _MAX_END_RATIO * max(np.median(alike), np.median(beside)))
        # The setup may launch what also begins a step. Where most periods differ, they are steps.
        inner = usual & is_alike
        ends.append(np.flatnonzero(inner if 2 * inner.sum() >= usual.sum() else usual)[end])
    first, last = ends
    inside = slice(int(first), int(last) + 1)
    is_similar, length = is_similar[inside], length[inside]
    marks = marks[inside.start : inside.stop + 1]
    # A copy that follows itself a few times is no step of the program around it.
    regular = is_similar.mean() >= _MIN_SIMILAR_SHARE and all(
        part[is_similar].sum() >= _MIN_SIMILAR_PART * part.sum() for part in (length, np.diff(marks))
    )
    # A step of several periods is as long as they are together.
    periods = _periods_per_step(length)
    whole = length[: len(length) // periods * periods].reshape(-1, periods).sum(axis=1)
    typical = len(whole) * np.median(whole) >= _MIN_TYPICAL_SHARE * (whole.sum() - whole.max())
    return marks if regular and typical else marks[:0]


def _periods_per_step(length: Ints) -> int:
    """Return the number of periods in a step, after which their lengths repeat."""
    limits = np.quantile(length, [0.02, 0.98])
    times = np.clip(length, *limits).astype(float)
    for periods in range(2, min(_MAX_PERIODS, len(times) // MIN_INSTANCES) + 1):
        by_step = times[: len(times) // periods * periods].reshape(-1, periods)
        places = by_step.mean(axis=0)
        explained = float(places.var()) / max(float(by_step.var()), 1.0)
        if explained >= _MIN_EXPLAINED_SHARE and places.max() >= _MIN_TIME_RATIO * places.min():
            return periods
    return 1


def _similar_periods(kind: Ints, marks: Ints) -> tuple[Mask, Mask]:
    """Return masks of the periods that launch the kinds about as often as the median one, shape (marks - 1,).

    One launch more or less is always similar; the second mask lacks the periods that differ by more than
    their share.
    """
    # The rarest kinds count together.
    rank = np.argsort(np.argsort(-np.bincount(kind), kind="stable"))
    counted = np.minimum(rank, _MAX_KINDS)[kind[marks[0] : marks[-1]]]
    period = np.searchsorted(marks, np.arange(marks[0], marks[-1]), side="right") - 1
    shape = (len(marks) - 1, _MAX_KINDS + 1)
    counts = np.bincount(period * shape[1] + counted, minlength=shape[0] * shape[1]).reshape(shape)
    median = np.median(counts, axis=0)
    most, difference = _MAX_PERIOD_DIFFERENCE * float(median.sum()), np.abs(counts - median).sum(axis=1)
    return difference <= max(most, 1.0), difference <= most


def launch_steps(timeline: Timeline, name: str) -> tuple[Ranges, Ints]:
    """Return the steps of a name that launches mark, and their numbers from 0; empty if there are none.

    The name is that of a candidate, or a prefix with a regular expression for the launches.
    """
    sequence = _sequence(timeline)
    if sequence is None:
        return Ranges.empty(), np.empty(0, np.int64)
    launched = sequence.launched
    parts = None if name in sequence.names else _EVERY_NTH_NAME.fullmatch(name)
    launch, periods = (parts["launch"], int(parts["every"])) if parts else (name, 1)
    matching = _kinds_of_name(launch, sequence.names)
    marks = np.flatnonzero(np.isin(launched.kind, matching))
    every, first = _outer_periods(np.diff(marks))
    if every > 1 and periods % every == 0 and len(_regular_marks(launched, marks[first])):
        marks, periods = marks[first], periods // every
    if launch in sequence.names and len(marks) > MIN_INSTANCES:
        regular = _regular_marks(launched, marks)
        marks = regular if len(regular) else marks
    if periods > 1 and len(marks) > periods:
        marks = marks[_longest_place(np.diff(launched.front[marks]), periods) :: periods]
    if len(marks) < 2:
        return Ranges.empty(), np.empty(0, np.int64)
    steps = unnamed_ranges(launched.start[marks], sequence.process, int(launched.thread[marks[0]]))
    return steps, np.arange(len(steps))


def _longest_place(length: Ints, periods: int) -> int:
    """Return the position after the longest of ``periods`` periods, where a step begins."""
    whole = length[: len(length) // periods * periods].reshape(-1, periods)
    return int(np.median(whole, axis=0).argmax() + 1) % periods if len(whole) else 0


def _kinds_of_name(name: str, kinds: Sequence[str]) -> list[int]:
    """Return the kinds of launches of a step's name, which is their name or an expression for it."""
    prefix = next(prefix for prefix in PREFIXES if name.startswith(prefix))
    candidates = [number for number, kind in enumerate(kinds) if kind.startswith(prefix)]
    try:
        hits = matches(
            name.removeprefix(prefix), [kinds[number].removeprefix(prefix) for number in candidates]
        )
    except ValueError:
        hits = [False] * len(candidates)
    return [number for number, hit in zip(candidates, hits, strict=True) if hit or kinds[number] == name]
