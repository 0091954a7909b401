"""The graph of a run whose ranks work on GPUs, call MPI, or both; or the reason why there is none.

1. Choose the ranks and the steps to replay.
2. Gather the activity of each rank in these steps.
3. Join the ranks by their collectives and messages, on a common clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.collectives.matches import MESSAGE, Arrivals, MatchedGroup, Matches, groups_of
from hpcprof.analysis.explain.explanation import NO_GPU, NO_LAUNCHES, NOT_JOINED, NotJudged
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.mpi_graph import HostSteps, common_steps, mpi_graph
from hpcprof.analysis.explain.rank_activity import rank_activity, step_fronts, with_pauses
from hpcprof.analysis.explain.rank_edges import rank_edges
from hpcprof.analysis.explain.run_graph import CommonClock, RunGraph, clock_parts, common_clock, run_graph
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.steps.run_step import PARTS, kinds_of_steps, whole_steps
from hpcprof.analysis.steps.step_ranges import is_empty, steps_of, with_capture_as_step
from hpcprof.analysis.steps.streams import why_no_launches
from hpcprof.common.units import counted, format_ns, named_ranks
from hpcprof.profiles.losses import LAUNCH_KINDS, NO_GPU_USED, for_profiler
from hpcprof.profiles.timeline import Floats, Ints, Mask, Timeline

MAX_OPERATIONS = 45_000
"""Maximum number of replayed operations over all ranks; a longer run is replayed in some steps of its
middle."""

_MAX_CALLS = 1_000_000
"""Maximum number of MPI calls in the timelines that are kept in memory: some 250 MB."""

_MIN_STEPS = 3
"""Minimum number of replayed steps, whatever their size."""

_MAX_UNEXPLAINED_PCT = 1.0
"""Maximum delay of operations that no recorded dependency explains, in percent of the steps."""


@dataclass(frozen=True, eq=False)
class Replayable:
    """The steps of a run that can be replayed."""

    graph: RunGraph
    steps: int
    """The number of steps of the capture, of which ``graph.steps`` are replayed."""
    step: str
    """The name of the range that is the step, or ``step``."""
    profiler: str
    """The kind of the profiles."""
    problems: tuple[NotJudged, ...]
    """The parts that the graph lacks."""
    numbers: tuple[int, ...] = ()
    """The program's numbers of the steps."""
    source: str = ""
    """See `StepSummary`."""
    loose_ranks: int = 0
    """The number of ranks whose clocks are not aligned with the others'."""

    def number(self, place: int) -> int:
        """Return the program's number of a step, which may be the one after the last."""
        beyond = max(0, place - len(self.numbers) + 1)
        return self.numbers[place - beyond] + beyond if self.numbers else place

    @property
    def replayed_numbers(self) -> tuple[int, ...]:
        """The program's numbers of the replayed steps."""
        return tuple(self.number(self.graph.first_step + place) for place in range(self.graph.steps))


class Timelines(Mapping[int, Timeline]):
    """The timelines of a run by rank, each read at its first use.

    Programs without work on a GPU keep timelines up to `_MAX_CALLS` calls.
    """

    def __init__(self, inputs: ExplainInputs) -> None:
        self._inputs = inputs
        self._read: dict[int, Timeline] = {}
        self._calls = 0

    def __getitem__(self, rank: int) -> Timeline:
        if rank in self._read:
            return self._read[rank]
        timeline = self._inputs.read(rank)
        self._calls += len(timeline.mpi_calls)
        if timeline.operation_count or self._calls <= _MAX_CALLS:
            self._read[rank] = timeline
        return timeline

    def __iter__(self) -> Iterator[int]:
        return iter(self._inputs.ranks)

    def __len__(self) -> int:
        return len(self._inputs.ranks)


def replayable(
    inputs: ExplainInputs, timeline_of_rank: Mapping[int, Timeline] | None = None
) -> Replayable | str:
    """Build the graph of a run, or return the reason why that cannot be done.

    ``timeline_of_rank`` has the timelines by rank; by default they are read.
    """
    timeline_of_rank = Timelines(inputs) if timeline_of_rank is None else timeline_of_rank
    if not timeline_of_rank:
        return "no rank has a timeline"
    ranks = replayed_ranks(inputs.ranks, inputs.arrivals(), delays=_delays(inputs))
    if ranks and not any(timeline_of_rank[rank].operation_count for rank in ranks):
        first = timeline_of_rank[ranks[0]]
        on_host = {rank: HostSteps.of(timeline_of_rank[rank]) for rank in ranks}
        length = sum(host.calls for host in on_host.values())
        if 0 < length <= MAX_OPERATIONS and not any(map(len, on_host.values())):
            first = with_capture_as_step(first)
            on_host = {rank: HostSteps.of(with_capture_as_step(timeline_of_rank[rank])) for rank in ranks}
        return _replayable_mpi(inputs, first, on_host)
    timelines = {rank: timeline_of_rank[rank] for rank in ranks}
    counts = [timeline.operation_count for timeline in timelines.values()]
    is_short = min(counts) > 0 and sum(counts) <= MAX_OPERATIONS
    computes = any(len(timeline.kernels) or len(timeline.graphs) for timeline in timelines.values())
    if is_short and computes and not any(len(steps_of(timeline)) for timeline in timelines.values()):
        timelines = {rank: with_capture_as_step(timeline) for rank, timeline in timelines.items()}
    if reason := _without_launches(inputs, timelines):
        return reason
    fronts = {rank: step_fronts(timeline) for rank, timeline in timelines.items()}
    if reason := _without_steps(fronts, timelines[ranks[0]]):
        return reason
    steps = min(map(len, fronts.values()))
    operations = sum(counts) + sum(len(timeline.mpi_calls) for timeline in timelines.values())
    chosen = _steps_with_work(
        [front[:steps] for front in fronts.values()], operations, inputs.tables["step_account"]
    )
    if chosen is None:
        return "each step has no work on the GPU, or the profile lacks some of its work or launches"
    activities = {
        rank: with_pauses(rank_activity(whole, chosen, fronts[rank])) for rank, whole in timelines.items()
    }
    edges = {rank: rank_edges(activity) for rank, activity in activities.items()}
    begin = {rank: int(activity.work.start[activity.front[0]]) for rank, activity in activities.items()}
    matched = [*groups_of(matches_among(inputs.matches(ranks), ranks))] if len(ranks) > 1 else []
    calls = {rank: item.mpi_calls for rank, item in timelines.items()}
    spans = {rank: (int(c.start.min()), int(c.start.max()) + 1) for rank, c in calls.items() if len(c)}
    mpi = inputs.mpi(spans) if len(spans) == len(calls) else None
    # Calls of MPI are on the clock of most ranks.
    clock = common_clock(inputs.clocks, clock_parts(inputs.aligned, matched if mpi is None else ()), begin)
    graph = run_graph(activities, edges, clock, matched, mpi)
    unequal = len({len(front) for front in fronts.values()}) > 1
    step_set = steps_of(timelines[ranks[0]])
    numbers = tuple(step_set.number.tolist())
    return _build_replayable(
        inputs, timelines[ranks[0]], graph, (steps, numbers), clock, matched, mpi, unequal=unequal
    )


def _build_replayable(
    inputs: ExplainInputs,
    timeline: Timeline,
    graph: RunGraph,
    steps: tuple[int, tuple[int, ...]],
    clock: CommonClock,
    matched: Sequence[MatchedGroup],
    mpi: RunMpi | None,
    *,
    unequal: bool = False,
) -> Replayable:
    """Return a graph with what it lacks; ``steps`` are their number in the capture, and their own numbers.

    ``timeline`` is that of the first rank; ``unequal`` if the ranks have different numbers of steps.
    """
    loose, marked = _loose_ranks(inputs, clock, matched), steps_of(timeline)
    named = (graph.is_of_host or timeline.step_range is not None) and not (marked.by_hook or marked.by_calls)
    unmatched = mpi.unmatched.problems() if mpi is not None else ()
    problems = [
        *_problems(inputs, graph, loose, unequal),
        *(NotJudged("some messages and collectives", problem) for problem in unmatched),
    ]
    name = (marked.name if named else "") or "step"
    kind = timeline.origin.kind
    return Replayable(graph, steps[0], name, kind, tuple(problems), steps[1], marked.source, loose)


def _delays(inputs: ExplainInputs) -> dict[int, float]:
    if len(inputs.ranks) <= MAX_RANKS or not len(inputs.tables["mpi_waits"]):
        return {}
    waits = inputs.tables["mpi_waits"].dropna(subset=["delaying_rank"])
    sums = waits.groupby("delaying_rank")["wait_ns"].sum()
    return {int(rank): float(time) for rank, time in sums.items()}


_ON_PROCESSORS = (
    "[nsys:; without a GPU nsys records MPI and NVTX ranges (hpcprof run --profiler torch records PyTorch)]"
)
"""Advice on programs that leave a profile empty, for `for_profiler`."""


def _without_launches(inputs: ExplainInputs, timelines: Mapping[int, Timeline]) -> str:
    """Return the reason why no rank has launches of its GPU work, with the remedy; empty if one has."""
    if not all(item.operation_count and why_no_launches(item) for item in timelines.values()):
        return ""
    losses = (loss for rank in timelines for loss in inputs.losses.get(rank, ()))
    remedy = next((loss.remedy for loss in losses if loss.kind in LAUNCH_KINDS), "")
    advice = for_profiler(remedy, next(iter(timelines.values())).origin.kind).partition(". ")[0].rstrip(".")
    return f"{NO_LAUNCHES}: {advice[:1].lower()}{advice[1:]}" if advice else NO_LAUNCHES


def _without_steps(steps: Mapping[int, Sized], timeline: Timeline) -> str:
    """Return the reason why ranks have no steps, with the remedy; ``timeline`` is that of one rank."""
    without = [rank for rank, rank_steps in steps.items() if not len(rank_steps)]
    if not without:
        return ""
    if is_empty(timeline):
        advice = for_profiler(_ON_PROCESSORS, timeline.origin.kind)
        return f"no work on a GPU, call or range was recorded on {named_ranks(without)}{advice}"
    if timeline.origin.gpus and not len(timeline.kernels) + len(timeline.graphs):
        if len(timeline.calls):
            return f"no kernel is recorded on {named_ranks(without)}"
        untraced = for_profiler(NO_GPU_USED, timeline.origin.kind)
        return f"neither a kernel nor a call of the GPU is recorded on {named_ranks(without)}: {untraced}"
    clause = "known as a step; name one (hpcprof collect --step-range NAME), or mark steps"
    if not len(timeline.ranges):
        clause = "recorded that could be a step; mark steps"
    return f"no range of {named_ranks(without)} is {clause}"


def _replayable_mpi(
    inputs: ExplainInputs, timeline: Timeline, steps: Mapping[int, HostSteps]
) -> Replayable | str:
    """Build the graph of a program without work on a GPU, or return the reason why there is none.

    Only the calls in the steps that are replayed are read; ``timeline`` is that of the first rank.
    """
    if reason := _without_steps(steps, timeline):
        return reason
    if not all(item.calls for item in steps.values()):
        return NO_GPU
    numbers = common_steps(steps)
    if not len(numbers):
        return "no step has the same number on all ranks"
    calls = sum(item.calls for item in steps.values())
    chosen = numbers[_typical_steps(0, len(numbers), calls, inputs.tables["step_account"], len(numbers))]
    extents = {rank: item.around(chosen) for rank, item in steps.items()}
    bounds = {rank: item.bounds(chosen) for rank, item in steps.items()}
    run = inputs.mpi(extents)
    if run is None:
        return NOT_JOINED
    clock = common_clock(
        inputs.clocks, clock_parts(inputs.aligned), {rank: int(bound[0]) for rank, bound in bounds.items()}
    )
    windows = {rank: inputs.window(rank, *window) for rank, window in extents.items()}
    graph = mpi_graph(windows, run, clock, bounds)
    if len(steps) > 1 and not graph.is_coupled:
        return NOT_JOINED
    return _build_replayable(inputs, timeline, graph, (len(numbers), tuple(chosen.tolist())), clock, (), run)


def _steps_with_work(fronts: Sequence[Ints], operations: int, account: pd.DataFrame) -> slice | None:
    """Return the steps to replay, all of which have work on the GPU of every rank."""
    working = np.all([front != NONE for front in fronts], axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], working, [False])).astype(np.int64)))
    runs = edges.reshape(-1, 2)
    if not len(runs):
        return None
    begin, end = runs[np.argmax(runs[:, 1] - runs[:, 0])].tolist()
    return _typical_steps(begin, end, operations, account, len(working))


def _typical_steps(begin: int, end: int, operations: int, account: pd.DataFrame, steps: int) -> slice:
    """Return the steps to replay among those from ``begin`` to ``end``.

    They are the middle ones or, if there are several kinds of steps, those most like all steps.
    ``operations`` is the number of operations of all ``steps`` steps.
    """
    most = max(_MIN_STEPS, MAX_OPERATIONS * steps // operations)
    middle = begin + max(0, (end - begin - most) // 2)
    possible = np.arange(begin, max(begin, end - most) + 1)
    possible = possible[np.argsort(np.abs(possible - middle), kind="stable")]
    unlike = _window_distances(account, steps, most)
    first = int(possible[np.argmin(unlike[possible])]) if len(unlike) else middle
    return slice(first, min(end, first + most))


def _window_distances(account: pd.DataFrame, steps: int, length: int) -> Floats:
    """Return the distance of each window of steps from all steps, by the place of its first step.

    The distance sums the differences of the shares of kinds and of the mean account. It is empty where all
    steps are of one kind.
    """
    kinds = kinds_of_steps(account) if length < steps else np.empty(0, np.int64)
    if len(kinds) != steps or kinds.max(initial=0) < 2:
        return np.empty(0)
    parts = whole_steps(account).fillna(0).astype(float).groupby("step")[[*PARTS]].mean().to_numpy().T
    features = [*(kinds == np.arange(1, kinds.max() + 1)[:, np.newaxis]), *parts / parts.sum(axis=0).mean()]
    sums = np.cumsum(np.insert(np.array(features, float), 0, 0.0, axis=1), axis=1)
    means = (sums[:, length:] - sums[:, :-length]) / length
    unlike: Floats = np.abs(means - sums[:, -1:] / steps).sum(axis=0)
    return np.pad(unlike, (0, length - 1), constant_values=np.inf)


def _problems(inputs: ExplainInputs, graph: RunGraph, loose: int, unequal: bool) -> Iterator[NotJudged]:
    count = len(inputs.ranks)
    if inputs.coverage:
        yield NotJudged("late ranks", f"{inputs.coverage}, and the others may be late")
    elif count > 1 and not graph.is_coupled:
        yield NotJudged(
            "late ranks",
            "nothing couples the ranks: that takes 5 all-reduces, all-gathers, barriers or messages",
        )
    elif loose:
        yield NotJudged(
            "late ranks",
            f"the clocks of {loose:,} of {counted(count, 'rank')} cannot be aligned with "
            "the others, and these ranks may be late: alignment takes 5 all-reduces, all-gathers, barriers "
            "or messages",
        )
    if len(graph.ranks) < count:
        yield NotJudged(
            "the other ranks",
            f"{len(graph.ranks)} of {counted(count, 'rank')} are replayed: those that others wait for most, "
            "with their groups, and some that stand for the rest; findings name only these ranks, or all",
        )
    if unequal:
        yield NotJudged(
            "the last steps",
            "the ranks recorded different numbers of steps; only steps present on all ranks are used",
        )
    if graph.inferred_waits:
        yield NotJudged(
            "recorded waits",
            f"inferred, since not recorded: {counted(graph.inferred_waits, 'wait')} for events or streams"
            "[nsys: (nsys --trace=cuda records them)]"
            "[torch: (PyTorch's profiler records them with enable_cuda_sync_events)]",
        )
    if graph.paced_ranks:
        yield NotJudged(
            "recorded waits",
            f"on {counted(len(graph.paced_ranks), 'rank')} the host pauses until the GPU has done its work, "
            "without a call that waits: these pauses are taken for waits",
        )
    span = float(np.median(np.diff(graph.observed[graph.front], axis=1))) * graph.steps * len(graph.ranks)
    if 100 * graph.odd_ns > _MAX_UNEXPLAINED_PCT * span:
        yield NotJudged(
            "late starts",
            f"operations start {format_ns(graph.odd_ns / graph.steps / len(graph.ranks))} a step later than "
            "what is recorded explains; a replay keeps these times",
        )


def _loose_ranks(inputs: ExplainInputs, clock: CommonClock, matched: Sequence[MatchedGroup] = ()) -> int:
    """Return the number of ranks whose clock is not aligned with the others'.

    Ranks that do not communicate with the others only need a clock among themselves.
    """
    if len(inputs.ranks) < 2:
        return 0
    apart = all(clock.agree(calls.ranks) for calls in matched)
    return len({*inputs.ranks} - (clock.part.keys() if apart else {*inputs.aligned}))


MAX_RANKS = 128
"""Maximum number of replayed ranks; the time grows with them, and the others resemble these."""

_MIN_PARTS = 4
"""Minimum number of parts in a replay: a part has at most the replayed ranks divided by this."""


def replayed_ranks(
    ranks: Sequence[int],
    arrivals: Iterable[Arrivals],
    most: int = MAX_RANKS,
    delays: Mapping[int, float] | None = None,
) -> tuple[int, ...]:
    """Return the ranks to replay, in ascending order.

    Half of them are in the most awaited parts of the run, and half in parts at equal distances. A part has
    the ranks that exchange data with each other in small groups, such as the tensor group and the pipeline of
    a model, as a whole. Larger groups are cut: for the ranks that are left out, a replay only keeps the time
    at which the last of them arrived.

    ``ranks``, in ascending order, have a timeline; if they are no more than ``most``, all are replayed.
    ``arrivals`` yields the arrivals of all ranks, some communicators at a time, and is not read in that case.
    ``delays`` is the time that others waited in MPI for each rank, in ns.
    """
    if len(ranks) <= most:
        return tuple(ranks)
    all_ranks = np.array(ranks)
    caused_by, members = np.array([(delays or {}).get(rank, 0.0) for rank in ranks]), [np.empty(0, np.int64)]
    for batch in arrivals:
        caused_by += waits_caused(all_ranks, batch)
        members.append(_members(all_ranks, batch))
    part = _parts(len(all_ranks), np.concatenate(members), most // _MIN_PARTS)
    caused = np.bincount(part, caused_by)
    awaited = np.argsort(-caused, kind="stable")[: np.count_nonzero(caused)]
    chosen = _fill_sample([], awaited, part, most // 2)
    room = most - np.count_nonzero(np.isin(part, chosen))
    unchosen = np.setdiff1d(part, chosen)
    # As many parts at equal distances as fit if they have the mean size.
    count = max(1, int(room * len(unchosen) // np.count_nonzero(np.isin(part, unchosen))))
    spread = unchosen[np.linspace(0, len(unchosen) - 1, min(count, len(unchosen))).astype(np.int64)]
    chosen = _fill_sample(chosen, spread, part, most)
    return tuple(all_ranks[np.isin(part, chosen)].tolist())


def matches_among(matches: Matches, ranks: Sequence[int]) -> Matches:
    """Return the matches of some ranks, without the messages whose partner is another rank."""
    inside = np.isin(matches.rank, ranks)
    inside &= (matches.op != MESSAGE) | np.isin(matches.peer, ranks)
    return matches.take(inside)


def waits_caused(ranks: Ints, arrivals: Arrivals) -> Floats:
    """Return the time that others waited while each rank was the last to arrive, in ns; shape (ranks,)."""
    place, inside = _places(ranks, arrivals.last)
    return np.bincount(place[inside], arrivals.waited[inside], len(ranks)).astype(float)


def _fill_sample(chosen: Sequence[int], wanted: Ints, part: Ints, most: int) -> list[int]:
    """Add each wanted part that fits to the chosen ones: together they have at most ``most`` ranks."""
    size = np.bincount(part)
    sample, taken = list(chosen), int(size[list(chosen)].sum())
    for candidate in wanted.tolist():
        if taken + size[candidate] <= most:
            sample.append(candidate)
            taken += int(size[candidate])
    return sample


def _members(ranks: Ints, arrivals: Arrivals) -> Ints:
    place, inside = _places(ranks, arrivals.member)
    return np.unique(arrivals.group[inside] * len(ranks) + place[inside])


def _places(ranks: Ints, wanted: Ints) -> tuple[Ints, Mask]:
    """Return the index in sorted ``ranks`` of each wanted rank, and whether it is there; both shape (n,)."""
    place = np.minimum(np.searchsorted(ranks, wanted), len(ranks) - 1)
    return place, ranks[place] == wanted


def _parts(ranks: int, members: Ints, most: int) -> Ints:
    """Return the number of each rank's part; groups are joined, the smallest first, up to ``most`` ranks."""
    _, first, size = np.unique(members // ranks, return_index=True, return_counts=True)
    parts = [[rank] for rank in range(ranks)]
    for group in np.argsort(size, kind="stable").tolist():
        if size[group] > most:
            break
        rows = members[first[group] : first[group] + size[group]] % ranks
        joined = {id(parts[rank]): parts[rank] for rank in rows.tolist()}
        if len(joined) > 1 and sum(map(len, joined.values())) <= most:
            whole = [rank for part in joined.values() for rank in part]
            for rank in whole:
                parts[rank] = whole
    number = {id(part): min(part) for part in parts}
    return np.unique([number[id(part)] for part in parts], return_inverse=True)[1].astype(np.int64)
