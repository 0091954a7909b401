"""The range that marks a step: by its name, or by its repetition.

1. The range of a framework is the step, the first one in the order of `KNOWN`.
2. Else it is a range that repeats on one thread and covers half of the capture on every rank: of nested ones
   the outermost (`_only_outermost`), and of those that take turns the time from one turn to the next
   (`_in_turns`).
3. Else the marks of the start-up hook, a repeated sequence of MPI calls, the range of the optimizer, a known
   range that occurs once, periods of launches on the GPU, or any range that occurs once without a GPU.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcprof.analysis.account.places import PROFILER_STEP
from hpcprof.analysis.steps.gpu_projection import project
from hpcprof.analysis.steps.launch_steps import launch_step_candidates, launch_steps
from hpcprof.analysis.steps.mpi_steps import (
    MIN_INSTANCES,
    OWN_LOOP,
    OWN_SEQUENCE,
    MpiStep,
    communicating_time,
    mpi_step_candidates,
    share_begun_inside,
)
from hpcprof.analysis.steps.range_names import names_part, range_names, with_counter
from hpcprof.analysis.steps.streams import NO_CALL, launch_calls
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.intervals import length, outermost
from hpcprof.profiles.columns.unique import numbered_rows, rows_by_key
from hpcprof.profiles.readers.operations import TABLE_STEP
from hpcprof.profiles.timeline import Ints, Mask, Ranges, Timeline

AUTOMATIC, REPEATS, NAMED = "automatic", "repeats", "--step-range"
"""Sources of a step: its range qualifies by itself, its range only repeats, a user named it."""

MPI, LAUNCHES, SINGLE = "MPI calls", "launches", "its name"
"""Sources of a step that calls of MPI or launches on the GPU mark, and of a known range that occurs once."""

MIN_COVERAGE_PCT = 50.0
"""Minimum coverage of the capture by an unknown range that is the step, in percent."""

_MIN_MPI_INSIDE = 0.5
"""Minimum share of the messages and collectives of MPI inside an unknown range that is the step."""

_MIN_GPU_INSIDE = 0.1
"""Minimum share of the GPU's launched time in an unknown range that is the step: programs move parameters to
the GPU in a loop before they compute."""

_MIN_USUAL_SHARE = 0.01
"""Minimum ratio of the median to the mean length of an unknown range that is the step: runtimes of tasks
(HPX) leave and enter the main program often, for microseconds."""

_MAX_LISTED_RANGES, _MAX_JUDGED_RANGES = 8, 32
"""Maximum number of repeating ranges that are listed, and of unknown ranges that are judged."""

_MIN_OTHERS_SHARE = 0.1
"""Minimum share of the time of ranges in turns that those beside the longest one take."""

_MIN_MARKERS = 3
"""Minimum markers: with the last step, which may be incomplete, they make two steps."""

_MODULE = re.compile(r"\w\.\d+(?![\w])")
"""A part of a model by its path: ``blocks.10`` in ``FSDP::pre_forward (blocks.10.mlp)``."""

_MIN_PARTS = 2
"""Minimum number of numbered parts of a model (``layer 3``) that begin in few periods each, for layers."""

_NO_STEPS = ("NCCL:", "RCCL:", "nccl:", "gloo:", "<unknown>", "garbage collection")
"""Beginnings of names that libraries give, and `hpcprof.node.hooks.torch_hook.recording`."""


@dataclass(frozen=True)
class KnownRange:
    """A range that frameworks put around their iterations."""

    source: str
    """The framework."""
    pattern: re.Pattern[str]
    """The pattern of the whole name, with ``N`` for its counter (`hpcprof.analysis.steps.range_names`)."""
    marker: bool = False
    """True if the range is only a part of the iteration that occurs once in each: a step then lasts from the
    start of one such range to the start of the next.
    """
    name: str = ""
    """The one name of all ranges that match, which also matches; empty if each name is a range of its own."""


ITERATION = "iteration"
"""The name of the steps of programs that use `hpcprof.workloads.capture`."""

_XLA = "XLA"
_MIN_INSIDE_SHARE, _MIN_EXECUTIONS = 0.9, 1.5
"""A program of XLA is a part of another program's step if at least this share of its executions lie among the
other's, and it runs at least this many times for each of them: some may belong to a warm-up."""

_MAX_STEP_RATIO = 1.25
"""Maximum ratio of the numbers of steps of two ranks that each repeat a sequence of their own."""

ITERATION_RANGE = KnownRange(ITERATION, re.compile(ITERATION))
TORCH_STEPS = KnownRange("PyTorch profiler", re.compile(re.escape(PROFILER_STEP)))

KNOWN: tuple[KnownRange, ...] = (
    KnownRange("the table", re.compile(rf"{TABLE_STEP} [\dN]+")),
    ITERATION_RANGE,
    TORCH_STEPS,
    # pytorch_lightning/loops/training_epoch_loop.py, trainer/call.py and profilers/pytorch.py
    KnownRange("Lightning", re.compile(r"\[pl\]\[profile\]run_training_batch")),
    KnownRange(
        "Lightning",
        re.compile(r"\[pl\]\[profile\]\[Strategy\]\w+\.(?:training|validation|test|predict)_step"),
    ),
    # vllm/v1/worker/gpu_worker.py (annotate_profile) and gpu_model_runner.py
    KnownRange(
        "vLLM",
        re.compile(r"execute_(?:[\dN]+_)?context_[\dN]+\([^()]*\)_generation_[\dN]+\([^()]*\)"),
        name="execute_context_N(N)_generation_N(N)",
    ),
    KnownRange("vLLM", re.compile(r"execute_new_[\dN]+_cached_[\dN]+"), name="execute_new_N_cached_N"),
    KnownRange("vLLM", re.compile("gpu_model_runner: preprocess"), marker=True),
    # sglang/srt/model_executor: a forward pass, with its kind, batch and tokens
    KnownRange("SGLang", re.compile(r"step\[[A-Z]\w* bs=[^\]]*\]"), name="step[MODE bs=N]"),
    # jax/_src/profiler.py (StepTraceAnnotation), as TraceMe encodes it
    KnownRange("JAX", re.compile(r"[^#]+#(?:\w+=[^,#]*,)*step_num=[\dN]+(?:,\w+=[^,#]*)*#")),
    # xla/service/gpu/nvtx_utils; the domain is TSL. A step has what the host does between two executions.
    KnownRange(_XLA, re.compile("(?:TSL:)?XlaModule:#.*#", re.DOTALL), marker=True),
    # megatron/core/pipeline_parallel/schedules.py
    KnownRange(
        "Megatron",
        re.compile(r"megatron\.core\.pipeline_parallel\.schedules\.forward_backward_\w+\.warmup"),
        marker=True,
    ),
    # deepspeed/runtime/engine.py (instrument_w_nvtx); newer versions have a domain
    KnownRange("DeepSpeed", re.compile(r"(?:DeepSpeed:)?DeepSpeedEngine\.forward"), marker=True),
)
"""The ranges that are steps by their name; the first one that a program has is its step."""

OPTIMIZER = KnownRange("optimizer", re.compile(r"Optimizer\.step#\w+\.step"), marker=True)
"""The range of torch.optim in each iteration, as of Hugging Face's Trainer; used if nothing else is found."""

_ONE_PASS = re.compile(r"(?:model_)?inference")
"""A range around one pass of a model, as in PyTorch's profiler recipe: a step only if it occurs once."""

HOOK = KnownRange("hpcprof", re.compile(r"hpcprof\.step"), marker=True)
"""The mark of the start-up hook between optimizer steps (`hpcprof.node.hooks.torch_hook.step_windows`)."""

_WINDOW = "hpcprof.window"
"""The mark of the hook before the window of a program that is recorded from its start on."""

_SOURCES = (
    *dict.fromkeys(kind.source for kind in KNOWN),
    *(AUTOMATIC, HOOK.source, MPI, OPTIMIZER.source, SINGLE, LAUNCHES),
)
_MAY_OCCUR_ONCE = KNOWN[:3]
"""A single range with these names is a step; others have to repeat."""


_MIN_SPAN_SHARE = 0.1
"""Minimum share of the capture from the first to the last of the ranges that are proposed as steps."""


@dataclass(frozen=True)
class StepCandidate:
    """A range that may be the step of a rank."""

    name: str
    """Its name without a counter."""
    source: str
    """`KnownRange.source`, `AUTOMATIC` or `REPEATS`."""
    instances: int
    """The number of times that it occurs."""
    coverage_pct: float
    """The share of the capture in which it is open, or the work that was launched in it runs on the GPU."""
    in_turn: bool = False
    """True if it is one of several ranges that take turns: a step lasts until its next turn."""


def known_range(name: str) -> KnownRange | None:
    """Return the known range that has this name without a counter, or None."""
    return next((kind for kind in (*KNOWN, HOOK, OPTIMIZER) if kind.pattern.fullmatch(name)), None)


def common_step_range(candidates: Mapping[int, Sequence[StepCandidate]]) -> str:
    """Return the name of the range that is the step of all ranks, empty if there is none.

    Known ranges come first, in the order of `KNOWN`: the range of most ranks. An unknown range has to qualify
    on every rank. Among several, the range that covers most of the capture is taken. Calls of MPI count if
    no range does; every rank finds its steps by the name that most of them have. Launches count last, if
    every rank has a period of them. ``candidates`` are what `step_candidates` returns for each rank that has
    a timeline.
    """
    for source in _SOURCES:
        by_name: dict[str, list[StepCandidate]] = {}
        for steps_of_rank in candidates.values():
            for step in steps_of_rank:
                if step.source == source:
                    by_name.setdefault(step.name, []).append(step)
        if source == AUTOMATIC:
            by_name = {name: steps for name, steps in by_name.items() if len(steps) == len(candidates)}
        if source == LAUNCHES and sum(map(len, by_name.values())) < len(candidates):
            by_name = {}
        if source == MPI:
            for name in {OWN_SEQUENCE, OWN_LOOP} - {_common_sequence([*candidates.values()])}:
                by_name.pop(name, None)
        if source == MPI and by_name:
            # A rank without messages between two collectives cannot tell them apart.
            made = Counter(
                step.name for steps in candidates.values() for step in steps if step.name in by_name
            )
            most = [name for name, steps in by_name.items() if 2 * len(steps) > len(candidates)]
            # The best call of leaders may be one that the other ranks do not make.
            most = most or [name for name in by_name if 2 * made[name] > len(candidates)]
            # Steps that are fewer are longer.
            counts = {name: [step.instances for step in by_name[name]] for name in most or by_name}
            return min(counts, key=lambda name: (np.mean(counts[name]), -len(counts[name])))
        if by_name:
            return max(by_name, key=lambda name: _preference(by_name[name]))
    return ""


def _common_sequence(candidates: list[Sequence[StepCandidate]]) -> str:
    """Return the name of the own sequences of ranks that repeat equally often on all; empty if none do.

    Each worker of a master repeats its own sequence of calls; that is no step of the program. In coupled
    programs, the sequence of one model may repeat in a loop that the ranks have in common.
    """
    instances = [{step.name: step.instances for step in steps} for steps in candidates]
    for name in (OWN_SEQUENCE, OWN_LOOP):
        numbers = [by_name.get(name, by_name.get(OWN_SEQUENCE, 0)) for by_name in instances]
        if 0 < max(numbers, default=0) <= _MAX_STEP_RATIO * min(numbers):
            return name
    return ""


def _preference(steps: list[StepCandidate]) -> tuple[int, float, int]:
    """Order the ranges of one source; of two that cover the same time, the outer one has fewer instances."""
    return len(steps), min(step.coverage_pct for step in steps), -sum(step.instances for step in steps)


@computed_once
def step_candidates(timeline: Timeline) -> tuple[StepCandidate, ...]:
    """Return the ranges of a timeline that may be its step, the one that takes most time on the host first.

    These are the known ranges, those that qualify, and some of those that only repeat. Last come those that
    calls of MPI mark.
    """
    names, index = step_names(timeline)
    ranges = timeline.ranges
    always = [number for number, name in enumerate(names) if known_range(name) in _MAY_OCCUR_ONCE]
    in_thread = (ranges.one_thread != 0) | np.isin(index, always)
    complete = np.flatnonzero((ranges.closed == 1) & in_thread & (index >= 0))
    total, count = (np.zeros(len(names), np.int64) for _ in range(2))
    np.add.at(total, index[complete], ranges.end[complete] - ranges.start[complete])
    np.add.at(count, index[complete], 1)
    ordered = [(names[number], int(count[number])) for number in np.argsort(-total, kind="stable").tolist()]
    unknown = [
        name
        for name, times in ordered
        if times >= MIN_INSTANCES and known_range(name) is None and not name.startswith(_NO_STEPS)
    ]
    judged = {*unknown[:_MAX_JUDGED_RANGES]}
    judged |= {name for name, _ in ordered if known_range(name) or _ONE_PASS.fullmatch(name)}
    marked = step_candidates_named(timeline, [name for name, _ in ordered if name in judged])
    marked = _outer_programs(timeline, [step for step in marked if step.source])
    repeating = [step for step in marked if step.source == REPEATS]
    listed = _only_outermost(
        timeline, [step for step in marked if step not in repeating[_MAX_LISTED_RANGES:]]
    )
    if all(step.source in (AUTOMATIC, REPEATS) for step in listed):
        listed = _in_turns(timeline, listed)
    candidates = [*listed, *_marked_by_mpi(timeline)]
    # Another rank may lack a range that only repeats.
    if all(candidate.source in (AUTOMATIC, REPEATS) for candidate in candidates):
        best = [step for step in launch_step_candidates(timeline)[:1] if not _are_layers(timeline, step.name)]
        candidates += [StepCandidate(step.name, LAUNCHES, step.instances, step.coverage_pct) for step in best]
    on_host = not timeline.operation_count and not len(timeline.calls) and len(timeline.operators)
    if on_host and all(step.source == REPEATS for step in candidates):
        # Nothing else could be judged.
        once = [name for name, times in ordered if times == 1 and not name.startswith(_NO_STEPS)]
        longest = step_candidates_named(timeline, once[:1])
        candidates += [
            replace(step, source=SINGLE) for step in longest if step.coverage_pct >= MIN_COVERAGE_PCT
        ]
    return tuple(candidates)


def _are_layers(timeline: Timeline, name: str) -> bool:
    """Return whether periods of launches are layers of one step: most modules begin in a few of them only."""
    periods, _ = launch_steps(timeline, name)
    names, index = step_names(timeline)
    begun = [(timeline.modules.name, timeline.modules.start, MIN_INSTANCES)]
    for is_part, min_names in ((names_part, _MIN_PARTS), (_MODULE.search, MIN_INSTANCES)):
        rows = np.flatnonzero(np.isin(index, [i for i, text in enumerate(names) if is_part(text)]))
        begun.append((index[rows], timeline.ranges.start[rows], min_names))
    for module, start, min_names in begun:
        period = np.searchsorted(periods.start, start, side="right") - 1
        inside = (period >= 0) & (period < len(periods))
        pairs, _ = numbered_rows(module[inside], period[inside])
        times = np.unique(pairs[:, 0], return_counts=True)[1]
        if len(times) >= min_names and 2 * np.median(times) < len(periods):
            return True
    return False


def _marked_by_mpi(timeline: Timeline) -> list[StepCandidate]:
    """Return the steps that calls of MPI mark: the best one, if it qualifies, and others that repeat."""
    mpi_steps = mpi_step_candidates(timeline)[:_MAX_LISTED_RANGES]
    judged = [mpi_candidate(timeline, step) for step in mpi_steps]
    best = {OWN_LOOP, *(step.name for step in mpi_steps[:1])}
    return [
        replace(
            item, source=MPI if step.regular and step.name in best and item.source == AUTOMATIC else REPEATS
        )
        for item, step in zip(judged, mpi_steps, strict=True)
        if item.instances >= MIN_INSTANCES
    ]


def mpi_candidate(timeline: Timeline, step: MpiStep) -> StepCandidate:
    """Judge a step that calls of MPI mark by its share of the time from the first one to the last."""
    # Ranks wait for each other in the first call, as long as it takes to start them all.
    covered = round(100 * min(step.length / max(communicating_time(timeline), 1), 1.0), 2)
    source = AUTOMATIC if covered >= MIN_COVERAGE_PCT else REPEATS
    return StepCandidate(step.name, source, step.instances, covered)


def _only_outermost(timeline: Timeline, candidates: list[StepCandidate]) -> list[StepCandidate]:
    """Let an unknown range qualify only if most of its instances lie outside the others that qualify."""
    rows = {step.name: marking_rows(timeline, step.name) for step in candidates if step.source == AUTOMATIC}
    inner: set[str] = set()
    # If two lie inside each other, the one with fewer instances is the outer one.
    for outer in sorted(rows, key=lambda name: len(rows[name])):
        if outer not in inner:
            unknown_ranges = rows.keys() - inner - {outer}
            inner |= {
                name for name in unknown_ranges if _mostly_inside(timeline.ranges, rows[name], rows[outer])
            }
    return [replace(step, source=REPEATS) if step.name in inner else step for step in candidates]


def _in_turns(timeline: Timeline, candidates: list[StepCandidate]) -> list[StepCandidate]:
    """Let ranges that take turns qualify together, those of a turn in their order and before the others.

    They are the outermost ones of the thread whose ranges take the most time, occur equally often and always
    in the same order. A turn begins after the longest pause.
    """
    ranges, by_name = timeline.ranges, [marking_rows(timeline, step.name) for step in candidates]
    if len(by_name) < 2:
        return candidates
    longest = int(np.argmax([_duration(ranges, rows) for rows in by_name]))
    rows, name = np.concatenate(by_name), np.repeat(np.arange(len(by_name)), [*map(len, by_name)])
    for column in (ranges.process, ranges.thread):
        on_thread = column[rows] == column[by_name[longest][0]]
        rows, name = rows[on_thread], name[on_thread]
    outer = outermost(ranges.start[rows], ranges.end[rows])
    start, end, name = ranges.start[rows][outer], ranges.end[rows][outer], name[outer]
    count, time = np.bincount(name, minlength=len(by_name)), np.bincount(name, end - start, len(by_name))
    members = np.flatnonzero((np.abs(count - count[longest]) <= 1) & (count >= MIN_INSTANCES))
    if longest not in members:
        return candidates
    inside = np.isin(name, members)
    start, end, name = start[inside], end[inside], name[inside]
    covered = round(100 * int(end[-1] - start[0]) / max(_capture_length(timeline), 1), 2)
    if (
        time[longest] > (1 - _MIN_OTHERS_SHARE) * time[members].sum()
        or np.any(name[len(members) :] != name[: -len(members)])
        or covered < MIN_COVERAGE_PCT
    ):
        return candidates
    pause = [np.median((start[1:] - end[:-1])[name[1:] == member]) for member in name[: len(members)]]
    turn = np.roll(name[: len(members)], -int(np.argmax(pause))).tolist()
    marks = [replace(candidates[i], source=AUTOMATIC, coverage_pct=covered, in_turn=True) for i in turn]
    return [*marks, *(step for i, step in enumerate(candidates) if i not in turn)]


def _outer_programs(timeline: Timeline, candidates: list[StepCandidate]) -> list[StepCandidate]:
    """Let a program of XLA mark steps only if no other program runs once while it runs several times."""
    programs = [step.name for step in candidates if step.source == _XLA and step.instances >= MIN_INSTANCES]
    starts = {name: timeline.ranges.start[marking_rows(timeline, name)] for name in programs}
    inner = set()
    for name, start in starts.items():
        for outer in (other for other in starts.values() if len(start) >= _MIN_EXECUTIONS * len(other)):
            end = outer[-1] + np.median(np.diff(outer))
            if np.mean((start >= outer[0]) & (start < end)) >= _MIN_INSIDE_SHARE:
                inner.add(name)
    return [replace(step, source=REPEATS) if step.name in inner else step for step in candidates]


def _mostly_inside(ranges: Ranges, rows: Ints, outer: Ints) -> bool:
    """Return whether more than half of some ranges lie inside others, which are sorted by start."""
    at = np.searchsorted(ranges.start[outer], ranges.start[rows], side="right") - 1
    inside = (at >= 0) & (ranges.end[rows] <= ranges.end[outer][at])
    for column in (ranges.process, ranges.thread):
        inside &= column[rows] == column[outer][at]
    return 2 * int(np.count_nonzero(inside)) > len(rows)


def step_candidates_named(timeline: Timeline, names: Sequence[str]) -> list[StepCandidate]:
    """Judge ranges as steps; a range that occurs too rarely or too unevenly has an empty source."""
    rows = [marking_rows(timeline, name) for name in names]
    if not rows:
        return []
    all_ranges = timeline.ranges.take(np.concatenate(rows))
    # A host that runs ahead leaves its ranges long before the GPU has done their work.
    start, end, _ = project(timeline, all_ranges)
    edges = np.cumsum([len(members) for members in rows])
    candidates, capture = [], max(_capture_length(timeline), 1)
    for name, row, last in zip(names, rows, edges.tolist(), strict=True):
        part = slice(last - len(row), last)
        ranges = all_ranges.take(part)
        time = length(np.concatenate((ranges.start, start[part])), np.concatenate((ranges.end, end[part])))
        covered = round(100 * time / capture, 2)
        source = _source(name, ranges, covered)
        is_part = (
            share_begun_inside(timeline, ranges) < _MIN_MPI_INSIDE
            or _share_launched_inside(timeline, ranges) < _MIN_GPU_INSIDE
        )
        if source == AUTOMATIC and is_part:
            source = REPEATS
        lengths = (ranges.end - ranges.start, end[part] - start[part])
        # A few instances that take nearly all the time are no usual step.
        uneven = (len(times) * np.median(times) <= _MIN_USUAL_SHARE * times.sum() for times in lengths)
        span = int(ranges.end.max() - ranges.start.min()) if len(ranges) else 0
        brief = not covered or span < _MIN_SPAN_SHARE * capture
        if source in (AUTOMATIC, REPEATS) and (all(uneven) or brief):
            source = ""
        candidates.append(StepCandidate(name, source, len(row), covered))
    return candidates


def _share_launched_inside(timeline: Timeline, ranges: Ranges) -> float:
    """Return the share of the GPU's time that was launched in consecutive ranges; 1 without work."""
    launched, time = _launched_time(timeline)
    first, last = np.searchsorted(launched, ranges.start), np.searchsorted(launched, ranges.end)
    return float((time[last] - time[first]).sum() / time[-1]) if time[-1] else 1.0


@computed_once
def _launched_time(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the launches of operations by their start, and the time on the GPU of those before each."""
    call = launch_calls(timeline)
    rows = np.flatnonzero(call != NO_CALL)
    begun = timeline.calls.start[call[rows]]
    start, end = timeline.of_operations("start", "end")
    order = np.argsort(begun)
    return begun[order], np.append(0, np.cumsum((end - start)[rows][order]))


def _source(name: str, ranges: Ranges, covered: float) -> str:
    """Return the source of the step that ranges of one name are; empty if they are too few."""
    framework_range = known_range(name)
    single = SINGLE if len(ranges) == 1 and covered >= MIN_COVERAGE_PCT else ""
    if framework_range is not None:
        enough = 1 if framework_range in _MAY_OCCUR_ONCE else _MIN_MARKERS if framework_range.marker else 2
        too_few = "" if framework_range.marker else single
        return framework_range.source if len(ranges) >= enough else too_few
    threads = rows_by_key(ranges.process, ranges.thread)
    if max((len(thread_rows) for _, thread_rows in threads), default=0) < MIN_INSTANCES:
        return single if _ONE_PASS.fullmatch(name) else ""
    return AUTOMATIC if covered >= MIN_COVERAGE_PCT else REPEATS


@computed_once
def step_names(timeline: Timeline) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct names of ranges without counters, and the index of each range's; -1 without one."""
    families = range_names(timeline)
    known_names = [
        kind.name if (kind := known_range(name)) and kind.name else name for name in families.names
    ]
    names = tuple(dict.fromkeys(known_names))
    place = {name: i for i, name in enumerate(names)}
    index = np.array([*(place[name] for name in known_names), -1], np.int64)
    return names, index[families.of_text[timeline.ranges.name]]


def resolve(timeline: Timeline, name: str) -> str:
    """Return the name without a counter that a user or another rank means: ``step N`` for ``step 17``."""
    names, _ = step_names(timeline)
    return next((option for option in (name, with_counter(name)) if option in names), name)


def marking_rows(timeline: Timeline, name: str, *, warm_up: bool = False) -> Ints:
    """Return the rows of the complete ranges that mark the steps if ``name`` is the step, by start.

    The steps before a window of the start-up hook count only with ``warm_up``, or if it has hardly begun.
    """
    ranges = timeline.ranges
    in_thread = (ranges.one_thread != 0) | (known_range(name) in _MAY_OCCUR_ONCE)
    rows = one_after_another(
        ranges, np.flatnonzero(rows_named(timeline, name) & (ranges.closed == 1) & in_thread)
    )
    if known_range(name) == HOOK and not warm_up:
        begins = ranges.start[rows_named(timeline, _WINDOW)]
        inside = ranges.start[rows] >= min(begins, default=0)
        if np.count_nonzero(inside) > _MIN_MARKERS:
            return rows[inside]
    return rows[:-1] if name == PROFILER_STEP and _last_is_empty(timeline, rows) else rows


def _last_is_empty(timeline: Timeline, rows: Ints) -> bool:
    """Return whether nothing begins in the last range, but in each before: the profiler stopped right then.

    PyTorch's profiler marks the next step as soon as one ends.
    """
    ranges = timeline.ranges.take(rows)
    begun = np.sort(np.concatenate((timeline.operators.start, timeline.calls.start)))
    count = np.searchsorted(begun, ranges.end, side="right") - np.searchsorted(begun, ranges.start)
    return len(rows) > 1 and not count[-1] and bool(count[:-1].all())


def rows_named(timeline: Timeline, name: str) -> Mask:
    """Return a mask of the ranges that have a name without a counter, shape (ranges,)."""
    names, index = step_names(timeline)
    number = names.index(name) if name in names else None
    return np.zeros(len(index), bool) if number is None else index == number


def _capture_length(timeline: Timeline) -> int:
    """Return the time from the first start to the last end of the ranges and of the work on the GPU.

    API calls count only where there is no such work: programs initialize the GPU long before they use it.
    """
    work = (timeline.kernels, timeline.memops, timeline.graphs)
    tables = (timeline.ranges, *(work if timeline.operation_count else (timeline.calls,)))
    filled = [table for table in tables if len(table)]
    if not filled:
        return 0
    return max(int(table.end.max()) for table in filled) - min(int(table.start.min()) for table in filled)


def one_after_another(ranges: Ranges, rows: Ints) -> Ints:
    """Return the rows that can be steps of one program, by start.

    These are the outermost ranges of each thread of the process whose ranges take the most time; if the
    ranges of its threads overlap, those of the thread whose ranges take the most time.
    """
    processes: dict[int, list[Ints]] = {}
    for (process, _), places in rows_by_key(ranges.process[rows], ranges.thread[rows]):
        thread_rows = rows[places]
        thread_rows = thread_rows[outermost(ranges.start[thread_rows], ranges.end[thread_rows])]
        processes.setdefault(process, []).append(thread_rows)
    if not processes:
        return rows
    threads = max(processes.values(), key=lambda parts: sum(_duration(ranges, part) for part in parts))
    together = np.concatenate(threads)
    together = together[np.argsort(ranges.start[together], kind="stable")]
    if len(threads) > 1 and np.any(ranges.start[together][1:] < ranges.end[together][:-1]):
        return max(threads, key=lambda part: _duration(ranges, part))
    return together


def _duration(ranges: Ranges, rows: Ints) -> int:
    return int(np.sum(ranges.end[rows] - ranges.start[rows]))
