"""Explains a run: replays its steps without each cause that might cost time, and reports what that saves.

The pipeline, with the module of each part:

1. the activity of each rank, and the graph that joins them (`replayable`);
2. the replay, without the profiler's share where the step alone is known (`profiler_share`);
3. the candidates of all causes in the graph (`scene`), and what the run gains without each (`findings`);
4. what the steps and the profiles show without a replay (`whole_run`, `on_host`, `on_gpu`);
5. the findings in their order (`arrangement`), with what the machine did meanwhile (`machine`), their
   evidence in words, and the code to blame (`culprits`).
"""

import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.clock_alignment import NEAR_NS
from hpcprof.analysis.explain.arrangement import (
    POOR_REPLAY_PCT,
    SURELY_SLOW,
    drifts,
    finding_of,
    join_by_steps,
    only_hidden,
    order_findings,
    slow_hosts,
    usual_confidence,
    with_certain_interval,
    without_profiler_cost,
    without_profiler_drift,
)
from hpcprof.analysis.explain.cause import Cause, Stack, Trait, for_device, has_trait
from hpcprof.analysis.explain.culprits import with_culprits
from hpcprof.analysis.explain.evidence import in_words, with_distinct_evidence
from hpcprof.analysis.explain.explanation import (
    CAPTURE,
    NO_GPU,
    NO_LAUNCHES,
    NOT_JOINED,
    Explanation,
    Finding,
    MainKernel,
    NotJudged,
    StepKind,
    StepSummary,
)
from hpcprof.analysis.explain.findings import Search
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.intervals import CALL_COST_NS, MPI_CALL_COST_NS
from hpcprof.analysis.explain.machine import with_files, with_machine, with_waiting
from hpcprof.analysis.explain.on_gpu import MIN_MAIN_KERNEL_PCT, explain_on_gpu, measured_by_ncu
from hpcprof.analysis.explain.on_host import explain_on_host, late_in_mpi
from hpcprof.analysis.explain.profiler_share import profiler_share, unused_step_alone
from hpcprof.analysis.explain.replay import Replay, critical_path
from hpcprof.analysis.explain.replayable import Replayable, Timelines, replayable
from hpcprof.analysis.explain.scene import Scene
from hpcprof.analysis.explain.step_series import outside_steps
from hpcprof.analysis.explain.whole_run import (
    copies_without_steps,
    double_precision,
    gpu_span,
    incomplete_capture,
    is_held_up,
    is_rare,
    moves_in_steps,
    moving_pages,
    once_steps,
    rare_steps,
    rest_of_capture,
    series_findings,
    start_of_mpi,
    unexplained_idle,
    unexplained_in_mpi,
    unexplained_waiting,
    unjudged_threads,
    waits_between_streams,
    with_first_work,
    with_page_waits,
    without_judged_copies,
)
from hpcprof.analysis.steps.run_step import StepSeries, kinds_of_steps, steady_series
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.profiles.columns.unique import name_matches
from hpcprof.profiles.kernel_names import plain_name
from hpcprof.profiles.losses import LossKind, Subject
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.timeline import Floats, Timeline

_MIN_KERNEL_COVERAGE = 0.1
"""Minimum share of the time on the GPU in the judged work for the summary to name its main kernel."""


def explain_run(inputs: ExplainInputs) -> tuple[Explanation, pd.DataFrame]:
    """Explain a run.

    The second value has the rows of the analysis ``critical_path``; it is empty if nothing can be replayed.
    """
    timelines = Timelines(inputs)
    if len(inputs.ranks) == 1:
        # Analyses that a collect left are computed from the same timeline, before the graph takes memory.
        timelines[inputs.ranks[0]]
        inputs.tables["idle_causes"]
    explanation, path = _explain(inputs, timelines)
    stack = _stack(timelines[inputs.ranks[0]]) if explanation.findings else ""
    first = timelines[inputs.ranks[0]].origin
    device = " ".join([first.kind, *(gpu.name for gpu in first.gpus)])
    explanation = replace(explanation, findings=with_distinct_evidence(explanation.findings))
    explanation = with_culprits(explanation, inputs.tables, timelines, stack)
    explanation = explanation.changed(
        lambda item: replace(
            item, remedy=for_device(item.remedy, device), where=for_device(item.where, device)
        )
    )
    whole = "the judged work" if explanation.step.source == CAPTURE else "a step"
    doubts = (
        replace(item, reason=for_device(item.reason, device).replace(" of a step", f" of {whole}"))
        for item in explanation.not_judged
    )
    return replace(explanation, not_judged=tuple(doubts)), path


def _stack(first: Timeline) -> Stack:
    texts = first.strings.tolist()
    # Profilers other than that of JAX mark executions of XLA's programs alike.
    if any("XlaModule:#" in text for text in texts):
        return "jax"
    if not len(first.kernels):
        return "mpi" if len(first.mpi_calls) else ""
    return "" if any(word in text for text in texts for word in _PYTORCH_NAMES) else "cuda"


_PYTORCH_NAMES = ("at::native", "ProfilerStep#", "torch", "aten::", "iteration")
"""Parts of names in profiles of PyTorch, or of programs that mark steps as it does."""


def explain_noted(
    series: StepSeries,
    ranks: tuple[int, ...],
    coincidences: pd.DataFrame,
    files: pd.DataFrame,
    elapsed: float,
) -> tuple[tuple[Finding, ...], tuple[NotJudged, ...]]:
    """Return the findings in the steps that a run without a profile noted, with the state of its nodes.

    Shares are of ``elapsed`` ns; shares of rare steps are of the mean step.
    """
    tables = {
        "step_times": pd.DataFrame(columns=["rank", "step", "wall_ns"]),
        "coincidences": coincidences,
        "darshan_files": files,
    }
    findings, _ = series_findings(tables, ranks, series, {})
    placed = with_machine(order_findings(findings, round(series.wall.mean()), {}), tables)
    placed = [*with_distinct_evidence(with_files(with_waiting(placed, coincidences, elapsed), tables))]
    rare = [finding for finding in placed if is_rare(finding)]

    def with_sentences(finding: Finding) -> Finding:
        return replace(finding, evidence_text=tuple(in_words(tables, item) for item in finding.evidence))

    common = order_findings(
        [finding.changed(with_sentences) for finding in placed if finding not in rare], round(elapsed), {}
    )
    return common, tuple(map(rare_steps, rare))


def _explain(inputs: ExplainInputs, timelines: Mapping[int, Timeline]) -> tuple[Explanation, pd.DataFrame]:
    """Return the findings of a run as figures, and its critical path."""
    series = steady_series(inputs.tables["step_account"])
    # Steps without an account, as on a device that is not read, are steps.
    times = inputs.tables["step_times"]
    steps = len(series.wall) or (times["step"].nunique() if len(times) else 0)
    summary = _measured_step(inputs, steps)
    elapsed, once = summary.elapsed_ns, summary.once
    numbers = kinds_of_steps(inputs.tables["step_account"]).tolist() if summary.kinds else []
    kind_of = dict(zip(series.steps.tolist(), numbers, strict=False))
    built = replayable(inputs, timelines)
    in_steps, paused = series_findings(inputs.tables, inputs.ranks, series, timelines)
    pauses = [*outside_steps(paused)]
    findings = [*in_steps, *copies_without_steps(inputs), *incomplete_capture(inputs)]
    if isinstance(built, str):
        # Nothing can be replayed.
        if built in (NO_GPU, NOT_JOINED):
            judge = explain_on_host if built == NO_GPU else late_in_mpi
            on_host = judge(inputs.tables)
            findings += [
                item
                for item in on_host
                if not (inputs.coverage and has_trait(item.cause, Trait.LIKE_WAITING))
            ]
        source = steps_of(timelines[inputs.ranks[0]]).source if len(series.wall) else None
        summary = replace(summary, source=source, compute_pct=None)
        notes: tuple[NotJudged, ...] = ()
        if built.startswith(NO_LAUNCHES):
            first = timelines[inputs.ranks[0]]
            findings, kernel, notes = explain_on_gpu(inputs, first, findings, float(series.wall.sum()))
            summary = replace(summary, kernel=kernel)
        findings = with_machine(order_findings(findings, elapsed, kind_of), inputs.tables)
        threads = unjudged_threads(timelines) if built == NOT_JOINED else ()
        unjudged = (NotJudged("causes", built), *unused_step_alone(inputs.alone), *threads, *notes, *pauses)
        return Explanation(tuple(findings), (), unjudged, summary), pd.DataFrame()
    is_mpi = built.graph.is_of_host
    replay = Replay(built.graph)
    weights, absent = _step_weights(built, kind_of, {step.step for step in once})
    share = profiler_share(inputs, built, replay, weights, elapsed)
    replay = share.replay
    built = replace(built, graph=replay.graph)
    scene = Scene(replay, inputs.gpus, timelines)
    held_up = scene.mpi.held_up if is_mpi and scene.mpi else 0.0
    rare = [finding for finding in findings if is_mpi and (is_rare(finding) or is_held_up(finding, held_up))]
    findings = [finding for finding in findings if finding not in rare]
    unknown = {Trait.LIKE_WAITING} if inputs.coverage or built.loose_ranks else set()
    cost = min(CALL_COST_NS.get(built.profiler, 0), MPI_CALL_COST_NS if is_mpi else sys.maxsize)
    judged = [candidate for candidate in scene.candidates() if not candidate.has(*unknown)]
    cost = cost if replay.recorded is None else 0
    represented = _represented_share(inputs.tables["step_kinds"], absent)
    search = Search(replay, judged, cost, weights, share.slower, share.faster, share.scale, represented)
    causes, hidden, slow = search.findings()
    causes += [item for item in slow if item.candidate.slower >= SURELY_SLOW]
    recorded_elapsed = elapsed or round(search.wall)
    elapsed = recorded_elapsed if replay.recorded is None else round(search.wall)
    findings, drifts_by_profiler = without_profiler_drift(
        findings, series, inputs.tables["step_account"], recorded_elapsed - elapsed
    )
    error = 100 * search.error / search.wall
    usual = usual_confidence(inputs, built, error)
    doubts = [
        *share.doubts,
        *drifts_by_profiler,
        *(
            NotJudged(f"kind {kind} of the steps", "none of them is among those that are replayed")
            for kind in absent
        ),
    ]
    if error > POOR_REPLAY_PCT and any(item.candidate.cause.name == Cause.CONTENTION for item in causes):
        causes = [item for item in causes if item.candidate.cause.name != Cause.CONTENTION]
        doubts.append(NotJudged("contention", f"a replay with it is {error:.1f} % off the measured step"))
    level = next((finding for finding in findings if finding.cause == Cause.STEP_DRIFT), None)
    drifters = [item.candidate for item in causes if level and drifts(item, series)]
    causes = [
        with_certain_interval(item, level) if level and item.candidate in drifters else item
        for item in causes
    ]
    causes, uncertain = without_profiler_cost(built, causes, elapsed)
    replayed = [finding_of(inputs, built, item, elapsed, usual) for item in causes]
    drifting = [finding for finding, item in zip(replayed, causes, strict=True) if item.candidate in drifters]
    if is_mpi and built.steps == 1 < len(inputs.ranks):
        # Clocks do not agree to less, and one step has no mean.
        replayed = [item for item in replayed if (item.saving_ns or 0) >= NEAR_NS]
    has_late_rank = any(has_trait(finding.cause, Trait.LATE_RANK) for finding in replayed)
    if is_mpi and not has_late_rank and _lacks_records(inputs):
        replayed += late_in_mpi(inputs.tables)
    replayed = with_first_work(replayed, inputs, timelines, elapsed)
    account, copies = inputs.tables["step_account"], inputs.tables["memops"]
    moves = moves_in_steps(copies, timelines, built.graph.ranks)
    replayed = with_page_waits(replayed, account, copies, moves, elapsed)
    findings = join_by_steps(
        without_judged_copies(findings, replayed), replayed, {pause.step for pause in paused}, drifting
    )
    hiding = [finding_of(inputs, built, item, elapsed, usual, hidden=True) for item in hidden]
    hiding = only_hidden(hiding, findings, elapsed)
    summary = replace(
        summary,
        wall_p50_ns=summary.wall_p50_ns or round(search.wall),
        steps=max(len(series.wall), built.steps),
        explained_steps=built.graph.steps,
        replay_error_pct=round(error, 3),
        elapsed_ns=elapsed,
        alone_ns=share.alone,
        recorded_elapsed_ns=recorded_elapsed,
        profiler_cost=share.costs,
        source=built.source,
        kernel=_main_kernel(scene, recorded_elapsed),
    )
    doubts += [*slow_hosts(built.graph, slow), *uncertain, *map(rare_steps, rare)]
    pipeline, loose = built.graph.is_pipeline, built.loose_ranks
    if is_mpi:
        waiting = unexplained_in_mpi(built.graph, weights, findings, elapsed)
    else:
        waiting = unexplained_waiting(inputs, findings, elapsed, pipeline, loose, once)
    covered = float(series.wall.sum()) if len(series.wall) else recorded_elapsed
    devices = inputs.tables["device_breakdown"]
    if covered < _MIN_KERNEL_COVERAGE * gpu_span(devices):
        summary = replace(summary, kernel=None)
    capture_notes = (
        *(unjudged_threads(timelines) if is_mpi else ()),
        *(start_of_mpi(inputs.tables["mpi_calls"], covered) if is_mpi else ()),
        *moving_pages(inputs.tables["breakdown"], inputs.tables["memops"], findings),
        *double_precision(inputs.tables["kernels"], findings),
        *rest_of_capture(devices, covered, built.source if len(series.wall) else CAPTURE),
    )
    findings = with_machine(order_findings(findings, elapsed, kind_of), inputs.tables)
    explanation = Explanation(tuple(findings), tuple(hiding), (), summary)
    streams = waits_between_streams(replay, explanation.shown())
    unjudged = (*capture_notes, *waiting, *streams, *built.problems, *doubts, *pauses)
    if not is_mpi:
        profiler_ns, stack = max(0, recorded_elapsed - elapsed), _stack(timelines[inputs.ranks[0]])
        idle = unexplained_idle(inputs.tables, explanation.shown(), elapsed, profiler_ns, uncertain, stack)
        unjudged = (*idle, *unjudged)
    explanation = replace(explanation, not_judged=unjudged)
    return explanation, critical_path(replay.recorded or replay)


def _lacks_records(inputs: ExplainInputs) -> bool:
    """Return whether calls that communicate have no record, so that no replay shows who waits in them."""
    losses = inputs.losses_of_all
    return any(loss.subject is Subject.MPI_OPERATION and loss.kind is LossKind.ROW for loss in losses)


def _step_weights(
    built: Replayable, kinds: Mapping[int, int], once: Set[int]
) -> tuple[Floats | None, list[int]]:
    """Return the number of steps of the run for which each replayed step stands; None if all are alike.

    ``kinds`` has the kind of each step where there are several. The second value has the kinds without a
    replayed step. Steps that take long once (``once``) stand for none.
    """
    numbers = built.replayed_numbers
    steady = np.array([number not in once for number in numbers], float)
    if not kinds or built.graph.steps == built.steps:
        return (None if steady.all() or not steady[:-1].any() else steady), []
    replayed = np.array([kinds.get(number, 0) for number in numbers])
    all_kinds = np.array([*kinds.values()])
    absent = sorted({*all_kinds.tolist()} - {*replayed.tolist()})
    counts = [np.count_nonzero(all_kinds == kind) / np.count_nonzero(replayed == kind) for kind in replayed]
    weights = np.maximum(np.array(counts), 1 / len(all_kinds)) * (steady if steady[:-1].any() else 1.0)
    return weights, absent


def _represented_share(kinds: pd.DataFrame, absent: Sequence[int]) -> float:
    """Return the share of the steps of other kinds than the ``absent`` ones; ``kinds`` is ``step_kinds``."""
    if not absent:
        return 1.0
    counts = kinds["counted_steps"].fillna(kinds["steps"]).astype(float)
    return 1 - float(counts[kinds["kind"].isin(absent)].sum() / counts.iloc[0])


def _main_kernel(scene: Scene, elapsed: int) -> MainKernel | None:
    work, graph = scene.graph.work, scene.graph
    # Work without a name has the last one.
    names, number = np.unique([*map(plain_name, graph.names), ""], return_inverse=True)
    step = work.step - graph.first_step
    counts = work.is_compute & (step >= 0) & (step < graph.steps)
    time, name = np.where(counts, work.time, 0), number[work.name]
    total = np.bincount(name, time, len(names))
    share = 100 * float(total.max()) / (elapsed * graph.steps * len(graph.ranks))
    if share < MIN_MAIN_KERNEL_PCT:
        return None
    where = scene.inside(work.place, np.where(name == total.argmax(), time, 0))
    kernel = str(names[total.argmax()])
    first, gpus = scene.timelines[graph.ranks[0]], [gpu for gpus in scene.gpus.values() for gpu in gpus]
    # The timelines of the other ranks need not have been read.
    blocks = most_blocks([scene.timelines[rank] for rank in graph.ranks], kernel)
    units = scene.multiprocessors
    few = (blocks, units) if 0 < blocks < units else ()
    return MainKernel(kernel, round(min(share, 100.0), 3), where, measured_by_ncu(kernel, first, gpus), *few)


def most_blocks(timelines: Iterable[Timeline], kernel: str) -> int:
    """Return the maximum number of blocks in a launch of kernels of a plain name, 0 if unknown."""
    most = 0
    for timeline in timelines:
        kernels = timeline.kernels
        kernels = kernels.take(name_matches(timeline, kernels.name, lambda text: plain_name(text) == kernel))
        # Profiles without shapes have blocks of one thread; exports of nsys always have shapes.
        has_shape = (kernels.block.prod(axis=1) > 1) | (timeline.origin.kind == NSYS.name)
        most = max(most, int(kernels.grid.prod(axis=1)[has_shape].max(initial=0)))
    return most


def _measured_step(inputs: ExplainInputs, steps: int) -> StepSummary:
    """Return the summary of the measured ``steps`` steps, without the figures of a replay."""
    account, rows = inputs.tables["step_account"], inputs.tables["step_kinds"]
    summary = StepSummary(None, steps, len(inputs.ranks), 0, None, once=once_steps(account))
    if not len(rows):
        return summary
    all_steps, *kinds = rows[["kind", "share_pct", "wall_p50_ns", "steps"]].itertuples(index=False)
    elapsed, number, compute = rows[["elapsed_ns", "counted_steps", "compute_ns"]].iloc[0]
    return replace(
        summary,
        wall_p50_ns=int(all_steps.wall_p50_ns),
        elapsed_ns=int(elapsed),
        kinds=tuple(
            StepKind(int(kind), float(share), int(p50), int(count)) for kind, share, p50, count in kinds
        ),
        counted_steps=None if pd.isna(number) else int(number),
        compute_pct=round(min(100.0, 100 * float(compute) / float(elapsed)), 3) if elapsed else None,
    )
