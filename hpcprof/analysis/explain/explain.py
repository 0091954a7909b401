"""Explains a run: replays its steps without each cause that might cost time, and reports what that saves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.collectives.matches import MatchedGroup, groups_of
from hpcprof.analysis.explain.candidates import Candidate, Candidates
from hpcprof.analysis.explain.culprits import with_culprits
from hpcprof.analysis.explain.evidence import evidence_of
from hpcprof.analysis.explain.evidence_words import in_words
from hpcprof.analysis.explain.explanation import (
    LEAST_ESTIMATE_PCT,
    LEAST_PCT,
    MEASURED,
    CallCost,
    Cause,
    Confidence,
    Explanation,
    Finding,
    NotJudged,
    StepAlone,
    StepKind,
    StepSummary,
)
from hpcprof.analysis.explain.findings import MUCH_SLOWER, Judged, Search
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.intervals import CALL_COST_NS, MPI_CALL_COST_NS
from hpcprof.analysis.explain.machine import with_files, with_machine, with_waiting
from hpcprof.analysis.explain.mpi_candidates import HELD_UP, MpiCandidates
from hpcprof.analysis.explain.mpi_graph import HostSteps, common_steps, mpi_graph
from hpcprof.analysis.explain.mpi_removals import MpiRemovals
from hpcprof.analysis.explain.on_host import explain_on_host
from hpcprof.analysis.explain.once_steps import once_steps
from hpcprof.analysis.explain.profiler_share import (
    known_costs,
    launch_cost,
    typical_alone,
    typical_costs,
    without_profiler,
)
from hpcprof.analysis.explain.rank_activity import rank_activity, step_fronts, with_pauses
from hpcprof.analysis.explain.rank_edges import rank_edges
from hpcprof.analysis.explain.rank_sample import MOST_RANKS, of_ranks, replayed_ranks
from hpcprof.analysis.explain.remedies import remedy, with_remedies_of
from hpcprof.analysis.explain.removals import Removals
from hpcprof.analysis.explain.replay import Replay, critical_path
from hpcprof.analysis.explain.run_graph import CommonClock, RunGraph, clock_parts, common_clock, run_graph
from hpcprof.analysis.explain.slow_math import slow_products, tensor_core_gain
from hpcprof.analysis.explain.step_series import drift, outside_steps
from hpcprof.analysis.explain.stream_waits import waits_between_streams
from hpcprof.analysis.explain.whole_run import (
    of_capture,
    of_capture_without_steps,
    of_series,
    unexplained_waiting,
)
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.steps.run_step import PARTS, StepSeries, kinds_of_steps, steady_series, whole_steps
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.common.units import counted, format_ns, named_ranks
from hpcprof.profiles.timeline import Floats, Ints, Timeline

MOST_OPERATIONS = 45_000
"""So many operations of all ranks are replayed; of a longer run, some steps in the middle."""

NO_GPU = (
    "no rank has work on a GPU: only host work, ranks with extra host time and exposed communication are "
    "judged, by the account of the steps and without a replay"
)
"""The reason why a run on CPUs has no graph."""

_MOST_CALLS = 1_000_000
"""The timelines of so many calls of MPI take some 250 MB."""

_FEWEST_STEPS = 3
_FIRST_STEP = 5
"""The first step of a default capture."""

_SURELY_SLOW = 2.5
"""A host that is so many times slower everywhere is a finding; nsys alone was seen to cause up to 1.9."""

_RECURRING, _EXPLAINED = 3, 0.5
"""A cause in so many long steps that explains so much of them is named instead of these."""

_ESTIMATED = (
    Cause.SLOW_MATH,
    Cause.SMALL_KERNELS,
    Cause.EXPOSED_COMMUNICATION,
    Cause.PIPELINE_BUBBLE,
    Cause.SMALL_MESSAGES,
    Cause.WRONG_ORDER,
)
"""Causes whose removal is not known exactly, since something else takes their place."""

_LIKE_WAITING = (
    Cause.EXPOSED_COMMUNICATION,
    Cause.PIPELINE_BUBBLE,
    Cause.SERIAL_SECTION,
    Cause.LATE_RECEIVER,
    Cause.WRONG_ORDER,
)
"""Causes that waiting for ranks without a profile, or with another clock, resembles."""

_GOOD_REPLAY_PCT, _POOR_REPLAY_PCT = 1.0, 3.0
_ODD_PCT = 1.0


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
    loose_ranks: int = 0
    """The number of ranks whose clocks are not aligned with the others'."""

    def number(self, place: int) -> int:
        """Return the program's number of a step, which may be the one after the last."""
        beyond = max(0, place - len(self.numbers) + 1)
        return self.numbers[place - beyond] + beyond if self.numbers else place


def replayable(inputs: ExplainInputs) -> Replayable | str:
    """Build the graph of a run, or return the reason why that cannot be done."""
    return _replayable(inputs, _Timelines(inputs))


class _Timelines(Mapping[int, Timeline]):
    """The timelines of a run by rank, each read at its first use.

    Of programs without work on a GPU so many are kept as have `_MOST_CALLS`.
    """

    def __init__(self, inputs: ExplainInputs) -> None:
        self._inputs = inputs
        self._read: dict[int, Timeline] = {}
        self._calls = 0

    def __getitem__(self, rank: int) -> Timeline:
        if rank in self._read:
            return self._read[rank]
        found = self._inputs.read(rank)
        self._calls += len(found.mpi_calls)
        if found.operation_count or self._calls <= _MOST_CALLS:
            self._read[rank] = found
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._inputs.ranks)

    def __len__(self) -> int:
        return len(self._inputs.ranks)


def _replayable(inputs: ExplainInputs, every: Mapping[int, Timeline]) -> Replayable | str:
    if not every:
        return "no rank has a timeline"
    ranks = replayed_ranks(inputs.ranks, inputs.arrivals(), delays=_delays(inputs))
    on_host = _steps_on_host(every, ranks)
    if on_host:
        return _replayable_mpi(inputs, every[ranks[0]], on_host)
    timelines = {rank: every[rank] for rank in ranks}
    fronts = {rank: step_fronts(timeline) for rank, timeline in timelines.items()}
    if without := _without_steps(fronts):
        return without
    steps = min(map(len, fronts.values()))
    count = sum(timeline.operation_count for timeline in timelines.values())
    count += sum(len(timeline.mpi_calls) for timeline in timelines.values())
    chosen = _window([front[:steps] for front in fronts.values()], count, inputs.tables["step_account"])
    if chosen is None:
        return "no steps have work on the GPU with a recorded launch"
    activities = {
        rank: with_pauses(rank_activity(one, chosen, fronts[rank])) for rank, one in timelines.items()
    }
    edges = {rank: rank_edges(activity) for rank, activity in activities.items()}
    begin = {rank: int(one.work.start[one.front[0]]) for rank, one in activities.items()}
    matched = [*groups_of(of_ranks(inputs.matches(ranks), ranks))] if len(ranks) > 1 else []
    mpi = _matched_mpi(inputs, timelines)
    # Calls of MPI are on the clock of most ranks.
    clock = common_clock(inputs.clocks, clock_parts(inputs.aligned, matched if mpi is None else ()), begin)
    graph = run_graph(activities, edges, clock, matched, mpi)
    loose = _loose_ranks(inputs, clock, matched)
    problems = [*_problems(inputs, graph, loose, len({len(front) for front in fronts.values()}) > 1)]
    problems += _unmatched(mpi)
    first = timelines[ranks[0]]
    of_first = steps_of(first)
    named = first.step_range is not None and not (of_first.by_hook or of_first.by_calls)
    step = of_first.name if named else ""
    numbers = tuple(of_first.number.tolist())
    return Replayable(graph, steps, step or "step", first.origin.kind, tuple(problems), numbers, loose)


def _delays(inputs: ExplainInputs) -> dict[int, float]:
    """Return how long others waited in MPI for each rank, in ns, if not all ranks are replayed."""
    if len(inputs.ranks) <= MOST_RANKS or not len(inputs.tables["mpi_waits"]):
        return {}
    waits = inputs.tables["mpi_waits"].dropna(subset=["delaying_rank"])
    found = waits.groupby("delaying_rank", as_index=False)["wait_ns"].sum()
    ranks, times = found["delaying_rank"].tolist(), found["wait_ns"].tolist()
    return {int(rank): float(time) for rank, time in zip(ranks, times, strict=True)}


def _without_steps(steps: Mapping[int, Sized]) -> str:
    """Return a sentence on the ranks without steps; empty if all have some."""
    without = [rank for rank, of_rank in steps.items() if not len(of_rank)]
    return f"{named_ranks(without)}: no steps are known, see the analysis step_ranges" if without else ""


def _steps_on_host(every: Mapping[int, Timeline], ranks: Sequence[int]) -> dict[int, HostSteps]:
    """Return the steps of some ranks; empty if one of them has work on a GPU."""
    found = {}
    for rank in ranks:
        timeline = every[rank]
        if timeline.operation_count:
            return {}
        found[rank] = HostSteps.of(timeline)
    return found


def _replayable_mpi(
    inputs: ExplainInputs, timeline: Timeline, steps: Mapping[int, HostSteps]
) -> Replayable | str:
    """Build the graph of a program without work on a GPU, or return why that cannot be done.

    Only the calls in the steps that are replayed are read; ``timeline`` is that of the first rank.
    """
    if without := _without_steps(steps):
        return without
    if not all(one.calls for one in steps.values()):
        return NO_GPU
    numbers = common_steps(steps)
    if not len(numbers):
        return "no step has the same number on all ranks"
    calls = sum(one.calls for one in steps.values())
    chosen = numbers[_typical_steps(0, len(numbers), calls, inputs.tables["step_account"], len(numbers))]
    around = {rank: one.around(chosen) for rank, one in steps.items()}
    bounds = {rank: one.bounds(chosen) for rank, one in steps.items()}
    run = inputs.mpi(around)
    if run is None:
        return NO_GPU
    clock = common_clock(
        inputs.clocks, clock_parts(inputs.aligned), {rank: int(one[0]) for rank, one in bounds.items()}
    )
    windows = {rank: inputs.window(rank, *window) for rank, window in around.items()}
    graph = mpi_graph(windows, run, clock, bounds)
    loose = _loose_ranks(inputs, clock)
    problems = [*_problems(inputs, graph, loose, unequal=False), *_unmatched(run)]
    of_first = steps_of(timeline)
    name = "" if of_first.by_calls or of_first.by_hook else of_first.name
    kind, numbered = timeline.origin.kind, tuple(chosen.tolist())
    return Replayable(graph, len(numbers), name or "step", kind, tuple(problems), numbered, loose)


def _matched_mpi(inputs: ExplainInputs, timelines: Mapping[int, Timeline]) -> RunMpi | None:
    """Return all calls of MPI of some ranks on the common clock; None if not all of them make some."""
    calls = {rank: timeline.mpi_calls for rank, timeline in timelines.items()}
    if not all(map(len, calls.values())):
        return None
    return inputs.mpi({rank: (int(of.start.min()), int(of.start.max()) + 1) for rank, of in calls.items()})


def _unmatched(run: RunMpi | None) -> Iterator[NotJudged]:
    for problem in run.unmatched.problems() if run is not None else ():
        yield NotJudged("some messages and collectives", problem)


def _window(fronts: Sequence[Ints], operations: int, account: pd.DataFrame) -> slice | None:
    """Return the steps to replay, all of which have work on the GPU of every rank."""
    working = np.all([front != NONE for front in fronts], axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], working, [False])).astype(np.int64)))
    runs = edges.reshape(-1, 2)
    if not len(runs):
        return None
    begin, end = runs[np.argmax(runs[:, 1] - runs[:, 0])].tolist()
    return _typical_steps(begin, end, operations, account, len(working))


def _typical_steps(begin: int, end: int, operations: int, account: pd.DataFrame, steps: int) -> slice:
    """Return as many of the steps from ``begin`` to ``end`` as are replayed.

    They are those in the middle or, where steps are of several kinds, those that are most like all steps.
    ``operations`` is what there would be to replay in all of so many steps.
    """
    most = max(_FEWEST_STEPS, MOST_OPERATIONS * steps // operations)
    middle = begin + max(0, (end - begin - most) // 2)
    possible = np.arange(begin, max(begin, end - most) + 1)
    possible = possible[np.argsort(np.abs(possible - middle), kind="stable")]
    unlike = _unlike_all(account, steps, most)
    first = int(possible[np.argmin(unlike[possible])]) if len(unlike) else middle
    return slice(first, min(end, first + most))


def _unlike_all(account: pd.DataFrame, steps: int, length: int) -> Floats:
    """Return how unlike all steps are those of each window, by the place of its first step.

    That is by the shares of the kinds, and by the mean account. It is empty where steps are of one kind.
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
    known = len(inputs.ranks)
    if inputs.coverage:
        yield NotJudged("late ranks", f"{inputs.coverage}, and the others may be late")
    elif known > 1 and not graph.is_coupled:
        yield NotJudged(
            "late ranks",
            "nothing couples the ranks: that takes 5 all-reduces, all-gathers, barriers or messages",
        )
    elif loose:
        yield NotJudged(
            "late ranks",
            f"the clocks of {loose:,} of {counted(known, 'rank')} cannot be aligned with "
            "the others, and these ranks may be late: alignment takes 5 all-reduces, all-gathers, barriers "
            "or messages",
        )
    if len(graph.ranks) < known:
        yield NotJudged(
            "the other ranks",
            f"{len(graph.ranks)} of {counted(known, 'rank')} are replayed: those that others wait for most, "
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
            f"{counted(graph.inferred_waits, 'wait')} for events or streams are not recorded, but inferred "
            "(nsys --trace=cuda records them, PyTorch's profiler with enable_cuda_sync_events)",
        )
    if graph.paced_ranks:
        yield NotJudged(
            "recorded waits",
            f"on {counted(len(graph.paced_ranks), 'rank')} the host pauses until the GPU has done its work, "
            "without a call that waits: these pauses are taken for waits",
        )
    span = float(np.median(np.diff(graph.observed[graph.front], axis=1))) * graph.steps * len(graph.ranks)
    late_ms = graph.odd_ns / graph.steps / len(graph.ranks) / 1e6
    if 100 * graph.odd_ns > _ODD_PCT * span:
        yield NotJudged(
            "late starts",
            f"operations start {late_ms:.2f} ms a step later than "
            "what is recorded explains; a replay keeps these times",
        )


def _loose_ranks(inputs: ExplainInputs, clock: CommonClock, matched: Sequence[MatchedGroup] = ()) -> int:
    """Return how many ranks have a clock that is not aligned with the others'.

    Ranks that have nothing in common with the others only need a clock among themselves.
    """
    if len(inputs.ranks) < 2:
        return 0
    apart = all(clock.agree(one.ranks) for one in matched)
    return len({*inputs.ranks} - (clock.part.keys() if apart else {*inputs.aligned}))


def explain_run(inputs: ExplainInputs) -> tuple[Explanation, pd.DataFrame]:
    """Explain a run.

    The second value has the rows of the analysis ``critical_path``; it is empty if nothing can be replayed.
    """
    timelines = _Timelines(inputs)
    if len(inputs.ranks) == 1:
        # What a collect left is computed from the same timeline, before the graph takes memory.
        timelines[inputs.ranks[0]]
        inputs.tables["idle_causes"]
    explanation, path = _explain(inputs, timelines)
    if explanation.findings:
        first = timelines[inputs.ranks[0]]
        # Profilers other than that of JAX mark executions of XLA's programs alike.
        if any("XlaModule:#" in text for text in first.strings.tolist()):
            explanation = with_remedies_of("jax", explanation)
        elif len(first.mpi_calls) and not len(first.kernels):
            explanation = with_remedies_of("mpi", explanation)
    return with_culprits(explanation, inputs.tables, timelines), path


def explain_noted(
    series: StepSeries, ranks: tuple[int, ...], coincidences: pd.DataFrame, files: pd.DataFrame
) -> tuple[tuple[Finding, ...], tuple[NotJudged, ...]]:
    """Return what the steps show that a run without a profile noted, with what its nodes did meanwhile."""
    tables = {
        "step_times": pd.DataFrame(columns=["rank", "step", "wall_ns"]),
        "coincidences": coincidences,
        "darshan_files": files,
    }
    found, _ = of_series(tables, ranks, series, {})
    wall = float(series.wall.mean())
    placed = with_machine(_sorted(found, round(wall), {}), tables)
    placed = with_files(with_waiting(placed, coincidences, wall), tables)
    rare = [one for one in placed if _is_rare(one)]

    def told(finding: Finding) -> Finding:
        return replace(finding, evidence_text=tuple(in_words(tables, one) for one in finding.evidence))

    common = _sorted([one.changed(told) for one in placed if one not in rare], round(wall), {})
    return common, tuple(map(_rare_steps, rare))


def _explain(inputs: ExplainInputs, timelines: Mapping[int, Timeline]) -> tuple[Explanation, pd.DataFrame]:
    """Return the findings of a run as figures, and its critical path."""
    series = steady_series(inputs.tables["step_account"])
    wall, elapsed, kinds = _measured(inputs)
    numbers = kinds_of_steps(inputs.tables["step_account"]).tolist() if kinds else []
    of_step = dict(zip(series.steps.tolist(), numbers, strict=False))
    built = _replayable(inputs, timelines)
    of_steps, paused = of_series(inputs.tables, inputs.ranks, series, timelines)
    pauses = tuple(outside_steps(paused))
    findings = [*of_steps, *of_capture_without_steps(inputs), *of_capture(inputs)]
    if isinstance(built, str):
        if built == NO_GPU:
            on_host = explain_on_host(inputs.tables)
            findings += [one for one in on_host if not inputs.coverage or one.cause not in _LIKE_WAITING]
        once = once_steps(inputs.tables["step_account"])
        summary = StepSummary(wall, len(series.wall), len(inputs.ranks), 0, None, elapsed, kinds, once=once)
        unjudged = (NotJudged("causes", built), *pauses)
        findings = with_machine(_sorted(findings, elapsed, of_step), inputs.tables)
        return Explanation(tuple(findings), (), unjudged, summary), pd.DataFrame()
    of_mpi = built.graph.is_of_host
    replay = Replay(built.graph)
    weights, absent = _weights(built, of_step)
    share = _profiler_share(inputs, built, replay, weights, elapsed)
    replay = share.replay
    built = replace(built, graph=replay.graph)
    held_up = MpiRemovals(replay, built.graph.mpi).held_up if of_mpi and built.graph.mpi else 0.0
    rare = [one for one in findings if of_mpi and (_is_rare(one) or is_held_up(one, held_up))]
    findings = [one for one in findings if one not in rare]
    candidates = _candidates(inputs, replay)
    unknown = _LIKE_WAITING if inputs.coverage or built.loose_ranks else ()
    cost = min(CALL_COST_NS.get(built.profiler, 0), MPI_CALL_COST_NS if of_mpi else sys.maxsize)
    cost = cost if replay.recorded is None else 0
    judged = [one for one in candidates if one.cause not in unknown]
    search = Search(replay, judged, cost, weights)
    found, hidden, slow = search.findings()
    found += [one for one in slow if one.candidate.slower >= _SURELY_SLOW]
    wall, recorded_elapsed = wall or round(search.wall), elapsed or round(search.wall)
    elapsed = recorded_elapsed if replay.recorded is None else round(search.wall / share.scale)
    error = 100 * search.error / search.wall
    trust = _trust(inputs, built, error)
    doubts = [*absent]
    if error > _POOR_REPLAY_PCT and any(one.candidate.cause is Cause.CONTENTION for one in found):
        found = [one for one in found if one.candidate.cause is not Cause.CONTENTION]
        doubts.append(NotJudged("contention", f"a replay with it is {error:.1f} % off the measured step"))
    level = next((one for one in findings if one.cause is Cause.STEP_DRIFT), None)
    of_level = [one.candidate for one in found if level and _drifts(one, series)]
    found = [_as_sure(one, level) if level and one.candidate in of_level else one for one in found]
    found, uncertain = _without_profiler(built, found, elapsed)
    replayed = [_finding(inputs, built, one, elapsed, trust) for one in found]
    drifting = [finding for finding, one in zip(replayed, found, strict=True) if one.candidate in of_level]
    findings = _by_steps(findings, replayed, {pause.step for pause in paused}, drifting)
    hiding = tuple(_finding(inputs, built, one, elapsed, trust, hidden=True) for one in hidden)
    steps = max(len(series.wall), built.steps)
    summary = StepSummary(
        *(wall, steps, len(inputs.ranks), built.graph.steps, round(error, 3), elapsed, kinds),
        alone_ns=share.alone,
        recorded_elapsed_ns=recorded_elapsed,
        profiler_cost=share.costs,
        once=once_steps(inputs.tables["step_account"]),
    )
    doubts += [*_slow_hosts(built.graph, slow), *uncertain, *map(_rare_steps, rare)]
    pipeline, loose = built.graph.is_pipeline, built.loose_ranks
    waiting = () if of_mpi else unexplained_waiting(inputs, findings, elapsed, pipeline, loose)
    unjudged = (*waiting, *waits_between_streams(replay), *built.problems, *doubts, *pauses)
    findings = with_machine(_sorted(findings, elapsed, of_step), inputs.tables)
    return Explanation(tuple(findings), hiding, unjudged, summary), critical_path(replay.recorded or replay)


@dataclass(frozen=True)
class _ProfilerShare:
    """The replay that is explained, and the time of a step without the profiler.

    ``scale`` is the elapsed time of the replayed steps over that of all steps.
    """

    replay: Replay
    alone: StepAlone | None = None
    costs: tuple[CallCost, ...] = ()
    scale: float = 1.0


def _profiler_share(
    inputs: ExplainInputs, built: Replayable, replay: Replay, weights: Floats | None, elapsed: int | None
) -> _ProfilerShare:
    """Take the profiler's share out of a run if its step alone is known."""

    def time(moments: Ints) -> float:
        steps = replay.elapsed(moments)
        return float(np.average(steps, weights=None if weights is None else weights[: len(steps)]))

    recorded = time(replay.graph.observed)
    scale = recorded / elapsed if elapsed else 1.0
    alone = inputs.alone
    # The optimizers mark noted steps; a range of the program may be another step.
    if alone is None or (alone.source == MEASURED and built.step != "step"):
        typical = typical_alone(replay, built.profiler, time, scale)
        return _ProfilerShare(
            replay, typical, typical_costs(replay, built.profiler) if typical else (), scale
        )
    costs = known_costs(replay, alone, time, scale)
    cost = launch_cost(replay, alone.value, time, scale)
    return _ProfilerShare(without_profiler(replay, cost), alone, costs, scale)


def _is_rare(finding: Finding) -> bool:
    """Return whether a finding is about long steps on fewer occasions than show that the program causes them.

    Anything else on a machine may hold up a program on CPUs for once; steps in a row are one occasion.
    """
    occasions = sum(step - 1 not in finding.steps for step in finding.steps)
    return finding.cause is Cause.STEP_SPIKES and occasions < _RECURRING


def is_held_up(finding: Finding, held_up: float) -> bool:
    """Return whether a finding is about long steps of a program whose calls of MPI are held up as well."""
    return finding.cause is Cause.STEP_SPIKES and held_up >= HELD_UP * (finding.saving_ns or 0)


def _rare_steps(finding: Finding) -> NotJudged:
    """Return what long steps cost that the program need not cause."""
    why = (
        "too rare to tell" if _is_rare(finding) else "not enough to tell, since calls of MPI are held up too,"
    )
    return NotJudged(
        finding.where,
        f"much longer than the others, which costs {format_ns(finding.saving_ns or 0)} of the mean step. "
        f"That is {why} whether the program or something else on the machine is the reason",
    )


def _weights(built: Replayable, kinds: Mapping[int, int]) -> tuple[Floats | None, list[NotJudged]]:
    """Return how many steps of the run each replayed step stands for, by its kind; None if all are alike.

    ``kinds`` has the kind of each step where there are several. The list has kinds without a replayed step.
    """
    graph = built.graph
    if not kinds or graph.steps == built.steps:
        return None, []
    first = int(graph.calls.step[graph.front_call[0, 0]])
    replayed = np.array([kinds.get(built.number(first + place), 0) for place in range(graph.steps)])
    every = np.array([*kinds.values()])
    absent = sorted({*every.tolist()} - {*replayed.tolist()})
    counts = [np.count_nonzero(every == kind) / np.count_nonzero(replayed == kind) for kind in replayed]
    weights = np.maximum(np.array(counts), 1 / len(every))
    return weights, [
        NotJudged(f"kind {kind} of the steps", "none of them is among those that are replayed")
        for kind in absent
    ]


def _candidates(inputs: ExplainInputs, replay: Replay) -> list[Candidate]:
    """Return the causes that a graph may have."""
    graph = replay.graph
    of_mpi = MpiCandidates(replay, graph.mpi) if graph.mpi is not None else None
    if of_mpi is not None and graph.is_of_host:
        return of_mpi.all()
    slow_math = slow_products(graph, inputs.gpus)
    found = Candidates(replay, Removals(replay), slow_math, tensor_core_gain(inputs.gpus)).all()
    return found if of_mpi is None else [*found, *of_mpi.of_messages()]


def _measured(inputs: ExplainInputs) -> tuple[int | None, int | None, tuple[StepKind, ...]]:
    """Return the median and the elapsed time of the steps, and their kinds if there are several."""
    rows = inputs.tables["step_kinds"]
    if not len(rows):
        return None, None, ()
    every, *kinds = rows[["kind", "share_pct", "wall_p50_ns", "steps"]].itertuples(index=False)
    found = [StepKind(int(kind), float(share), int(p50), int(steps)) for kind, share, p50, steps in kinds]
    return int(every.wall_p50_ns), int(rows["elapsed_ns"].iloc[0]), tuple(found)


def _drifts(one: Judged, series: StepSeries) -> bool:
    """Return whether the level of the steps would change less than half as much without a cause."""
    change, known = drift(series), len(one.gained)
    # The elapsed time of the last step may be unknown.
    if change is None or known not in (len(series.wall) - 1, len(series.wall)):
        return False
    wall = series.wall.copy()
    wall[:known] -= np.rint(one.gained).astype(np.int64)
    rest = drift(replace(series, wall=wall))
    return rest is None or rest.excess < _EXPLAINED * change.excess


def _as_sure(one: Judged, level: Finding) -> Judged:
    """Return a cause of the changing level with an interval as narrow as the level's: a trend is no noise."""
    share = one.saving / (level.saving_ns or 1)
    low, high = share * (level.saving_low_ns or 0), share * (level.saving_high_ns or 0)
    return replace(one, interval=replace(one.interval, low=low, high=high, steps_needed=None))


def _by_steps(
    of_series: Sequence[Finding], replayed: Sequence[Finding], paused: Set[int], drifting: Sequence[Finding]
) -> list[Finding]:
    """Join the findings of the series and of the replay that are about the same single steps.

    What costs time only where the steps pause is no finding. What explains long steps is an alternative to
    them or, if they recur, comes before them, as does what changes the level of the steps (``drifting``).
    """
    left = [one for one in replayed if not _only_in(one, paused)]
    found = []
    for long in of_series:
        change = long.cause is Cause.STEP_DRIFT
        same = [one for one in left if _only_in(one, set(long.steps)) or (change and one in drifting)]
        left = [one for one in left if one not in same]
        if not same:
            found.append(long)
        elif (change or len(long.steps) >= _RECURRING) and (same[0].saving_ns or 0) >= _EXPLAINED * (
            long.saving_ns or 0
        ):
            found += [replace(same[0], alternatives=(*same[0].alternatives, long)), *same[1:]]
        else:
            found.append(replace(long, alternatives=tuple(replace(one, alternatives=()) for one in same)))
    return [*found, *left]


def _only_in(finding: Finding, steps: Set[int]) -> bool:
    """Return whether a finding is about some steps only, which are these or neighbours of them."""
    near = {one + by for one in steps for by in (-1, 0, 1)}
    return bool(finding.steps) and near.issuperset(finding.steps)


def _slow_hosts(graph: RunGraph, slow: Sequence[Judged]) -> Iterator[NotJudged]:
    """Yield the ranks whose host is somewhat slower than the others', which a profiler may cause."""
    for one in slow:
        if one.candidate.slower < _SURELY_SLOW:
            rank = graph.ranks[one.ranks[0]]
            times = one.candidate.slower
            judged = "the findings are those without it" if times >= MUCH_SLOWER else "it is not a finding"
            yield NotJudged(
                f"the host of rank {rank}",
                f"its calls and the time between them take {times:.1f} times as long as on the other ranks, "
                f"which costs {format_ns(one.saving)} of a step. A profiler can cause that, so {judged}: "
                "compare with steps that are not profiled",
            )


def _trust(inputs: ExplainInputs, built: Replayable, error_pct: float) -> Confidence:
    """Return the confidence that nothing about a single finding lowers."""
    if error_pct > _POOR_REPLAY_PCT or inputs.coverage:
        return "low"
    uncoupled = bool(built.loose_ranks) or (len(inputs.ranks) > 1 and not built.graph.is_coupled)
    inferred = built.graph.inferred_waits or built.graph.paced_ranks
    return "medium" if error_pct > _GOOD_REPLAY_PCT or inferred or uncoupled else "high"


def _finding(
    inputs: ExplainInputs,
    built: Replayable,
    one: Judged,
    wall: int,
    trust: Confidence,
    *,
    hidden: bool = False,
) -> Finding:
    candidate = one.candidate
    replayed = built.graph.ranks
    # What holds for all that are replayed holds for those that they stand for.
    of_all = len(one.ranks) == len(replayed)
    ranks = inputs.ranks if of_all else tuple(replayed[position] for position in one.ranks)
    low, high = max(0.0, one.interval.low), one.interval.high
    wide = high - low > one.saving
    estimated = candidate.cause in _ESTIMATED
    doubtful = candidate.slower > 0 or trust == "low"
    confidence: Confidence = "low" if doubtful else "medium" if wide or estimated else trust
    return Finding(
        cause=candidate.cause,
        ranks=ranks,
        where=candidate.where or built.step,
        saving_ns=round(one.saving),
        saving_low_ns=round(low),
        saving_high_ns=round(high),
        share_pct=round(100 * one.saving / wall, 3),
        evidence=evidence_of(inputs.tables, candidate, ranks),
        remedy=remedy(candidate.cause, candidate.where, ranks, in_turn=of_all and len(ranks) > 1),
        confidence=confidence,
        cost_ns=round(candidate.own_ns) if hidden else None,
        steps=tuple(built.number(place) for place in one.steps),
        alternatives=tuple(_finding(inputs, built, other, wall, trust) for other in one.alternatives),
        together=tuple(_finding(inputs, built, other, wall, trust) for other in one.together),
    )


def _without_profiler(
    built: Replayable, found: Sequence[Judged], wall: int
) -> tuple[list[Judged], list[NotJudged]]:
    """Return the causes that would also be shown without what the profiler adds to them, and those in doubt.

    The latter would be shown if the profiler cost nothing, or with more steps.
    """
    bar, least = LEAST_ESTIMATE_PCT / 100 * wall, LEAST_PCT / 100 * wall
    kept, doubts = [], []
    for one in found:
        interval, cause = one.interval, one.candidate.cause.value
        place = f" in {one.candidate.where}" if one.candidate.where else ""
        seems = f"it seems to cost {format_ns(one.saving)} of a step{place}"
        if one.saving - interval.by_profiler < bar <= one.saving:
            reason = f"{seems}, but the profiler, which slows the host, may be the reason"
            doubts.append(NotJudged(cause, f"{reason}: compare with steps that are not profiled"))
            continue
        kept.append(one)
        unsure = one.saving >= bar and interval.low < least
        if unsure and interval.steps_needed and built.graph.steps == built.steps:
            steps, last = interval.steps_needed, _FIRST_STEP + interval.steps_needed - 1
            doubts.append(
                NotJudged(
                    cause,
                    f"{seems}, but {counted(built.steps, 'step')} are too few to tell: record {steps} steps "
                    f"(--capture-steps {_FIRST_STEP}-{last})",
                )
            )
    return kept, doubts


def _sorted(
    findings: Sequence[Finding], elapsed: int | None, kinds: Mapping[int, int]
) -> tuple[Finding, ...]:
    """Return findings with their shares of the elapsed time of a step, and the kind of steps that has them.

    ``kinds`` has the kind of each step where there are several.

    No finding saves more than a step. The most costly come first, then findings of low confidence, and then
    findings without an estimate. A finding that needs another one for its saving comes after it.
    """

    def of_step(finding: Finding) -> Finding:
        saving = finding.saving_ns
        # What the host does before the first launch of a step is in the wall time of the step before.
        of_steps = [{kinds.get(step - by) for step in finding.steps} for by in (0, 1)]
        # The rarer kind tells more.
        kind = max((number for one in of_steps if len(one) == 1 for number in one if number), default=None)
        if saving is None or elapsed is None:
            return replace(finding, share_pct=None, kind=kind)
        share = round(100 * min(saving, elapsed) / elapsed, 3)
        low, high = (
            None if of is None else min(of, elapsed) for of in (finding.saving_low_ns, finding.saving_high_ns)
        )
        finding = replace(finding, saving_ns=min(saving, elapsed), saving_low_ns=low, saving_high_ns=high)
        return replace(finding, share_pct=share, kind=kind)

    placed = [one.changed(of_step) if elapsed else one for one in findings]

    def place(finding: Finding) -> tuple[bool, bool, int, bool]:
        before = [one for one in placed if any(_is_same(one, other) for other in finding.together)]
        least = min(one.saving_ns or 0 for one in (finding, *before))
        return finding.saving_ns is None, finding.confidence == "low", -least, bool(before)

    return tuple(sorted(placed, key=place))


def _is_same(one: Finding, other: Finding) -> bool:
    """Return whether two findings are about the same cause, place and ranks."""
    return (one.cause, one.where, one.ranks) == (other.cause, other.where, other.ranks)
