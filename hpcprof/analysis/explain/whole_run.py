"""Findings that need no replay: changes of the step time, copies without steps, and incomplete profiles."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hpcprof.analysis.account.places import NONE, WHOLE_CAPTURE
from hpcprof.analysis.collectives.matches import Arrivals
from hpcprof.analysis.explain.cause import Cause, Stack, Trait, find_cause, has_trait
from hpcprof.analysis.explain.causes.double_precision import DOUBLE, DOUBLE_PRECISION, MIN_DOUBLE_SHARE
from hpcprof.analysis.explain.causes.late_rank import MAX_HELD_UP_RATIO
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.explain.evidence import Tables, largest, step_evidence
from hpcprof.analysis.explain.explanation import (
    CAPTURE,
    IDLE,
    MIN_ESTIMATE_PCT,
    PAGES,
    PRECISION,
    REST,
    WAITING,
    Evidence,
    Finding,
    NotJudged,
    OnceStep,
    unpriced_finding,
)
from hpcprof.analysis.explain.findings import estimated_finding
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.intervals import MODEL_SHARE, half_width
from hpcprof.analysis.explain.replay import Replay
from hpcprof.analysis.explain.run_graph import RunGraph
from hpcprof.analysis.explain.scene import place_with_most
from hpcprof.analysis.explain.step_series import Pause, drift, named_steps, spikes_and_pauses
from hpcprof.analysis.mpi.run_lists import START_CALLS
from hpcprof.analysis.statistics.confidence_intervals import NORMAL_90
from hpcprof.analysis.statistics.grouped import sums
from hpcprof.analysis.steps.capture_losses import MIGRATION
from hpcprof.analysis.steps.mpi_steps import mpi_calls_in_order
from hpcprof.analysis.steps.run_step import PARTS, StepSeries, account_of_all_steps, step_series, whole_steps
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.units import counted, format_bytes, format_ns, named_ranks
from hpcprof.profiles.columns.unique import distinct, name_matches, numbered_rows
from hpcprof.profiles.losses import LossKind, sum_losses
from hpcprof.profiles.timeline import NO_NAME, Floats, Mask, Timeline
from hpcprof.runs.step_time import single_long_steps

_CAUSES_OF_IDLE = {
    "host": "host_work",
    "sync": "host_sync",
    "allocation": "device_allocation",
    "copy": "blocking_copy",
    "launch": "host_bound",
}
"""The causes with the remedies of idle time, by `hpcprof.analysis.account.idle_causes.IdleCause`."""

_MAX_LAUNCH_NS = 100_000
"""Maximum mean time from a launch to its operation that less work of the host may shorten, in ns."""

_MIN_COPYING_PCT = 20.0
"""Minimum share of a capture without steps for copies that nothing hides to be a finding."""

_PAGE_FAULT_NS = 10_000
"""Typical time of a fault of a page beside its move, in ns: a stencil on an H200 had 916 in 12 ms."""

_MIN_MOVING_SHARE = 0.03
"""Minimum share of the capture for pages of unified memory that the driver moves."""

_MIN_MAIN_SHARE = 0.5
"""Minimum share of copies beside no kernel to be most of them."""

_ON_GPU = re.compile(r"memset|fill|DtoD|Device-to-Device", re.IGNORECASE)
"""Names of memory operations that move nothing between host and GPU."""

_PAGES_TO_HOST = re.compile(r"(?:Unified|UVM).*(?:Device-to-Host|DtoH)")

_SENTENCE_END = re.compile(r"(?<=\.) ")

_KEEP_ON_GPU = (
    "Keep data on the GPU between kernels (OpenMP: target enter data, or one target data region around the "
    "loop; OpenACC: data), copy only what changes, and from pinned memory."
)

RECURRING = 3
"""Minimum number of occasions of long steps that show that the program causes them."""

_MIN_WAITING_SHARE, _MIN_IDLE_SHARE = 0.05, 0.25
"""Minimum shares of a step that are reported without a finding: of waiting for ranks, and of idle time of the
GPU or waiting in MPI."""
_REPEATED_LAUNCHES = ("kernels", "graph")
"""The sources of steps that are periods of launches."""
_MAX_COVERED_SHARE = 0.75
"""Maximum share of the time on the GPU in steps for a sentence about the rest of the capture."""
_MIN_START_RATIO = 0.1
"""Minimum ratio of the judged work to ``MPI_Init`` without a sentence about it."""
_MAX_NAMED_RANKS = 8

_WAVEFRONT = (
    "Messages pass from rank to rank, and a rank begins when the one before it has sent: smaller blocks let "
    "others begin earlier, and a second sweep could run meanwhile. Their saving is not predicted"
)
"""The reason why ranks of a balanced wavefront wait."""

_UNEXPLAINED = "No cause that was judged explains most of that"
_SCHEDULE = (
    "No slow rank or stage explains most of that; the schedule of the pipeline does. The saving of "
    "more microbatches or of an interleaved schedule is not predicted"
)
"""The reason why ranks of a pipeline wait that none makes wait in each step."""


def series_findings(
    tables: Tables, ranks: tuple[int, ...], series: StepSeries, timelines: Mapping[int, Timeline]
) -> tuple[list[Finding], list[Pause]]:
    """Return the findings in the times of the steps, and the pauses between steps."""
    (long_steps, pauses), trend = spikes_and_pauses(series, timelines), drift(series)
    # Steps that take long once are reported by `once_steps`.
    long_steps = np.setdiff1d(long_steps, single_long_steps(series.wall.tolist()))
    findings = []
    if len(long_steps):
        excess = float((series.wall[long_steps] - series.p50).sum()) / len(series.wall)
        steps = tuple(series.steps[long_steps].tolist())
        saving = excess, half_width(np.delete(series.wall, long_steps).astype(float))
        evidence = step_evidence(tables, steps)
        spikes = estimated_finding(
            Cause.STEP_SPIKES, ranks, named_steps(steps), *saving, series.p50, evidence
        )
        findings.append(replace(spikes, steps=steps))
    if trend:
        steps, shown_steps = tuple(trend.steps.tolist()), tuple(series.steps[[0, -1]].tolist())
        if steps:
            worse = np.isin(series.steps, steps)
            shown_steps = _typical_step(series, worse), _typical_step(series, ~worse)
        evidence = step_evidence(tables, shown_steps)
        saving = trend.excess, NORMAL_90 * trend.error
        level = estimated_finding(Cause.STEP_DRIFT, ranks, WHOLE_CAPTURE, *saving, series.p50, evidence)
        findings.append(replace(level, steps=steps))
    return findings, pauses


def _typical_step(series: StepSeries, mask: Mask) -> int:
    wall = series.wall[mask]
    return int(series.steps[mask][np.argmin(np.abs(wall - np.median(wall)))])


def unexplained_waiting(
    inputs: ExplainInputs,
    findings: Sequence[Finding],
    wall: float,
    pipeline: bool,
    unaligned: int,
    once: Sequence[OnceStep] = (),
) -> Iterator[NotJudged]:
    """Yield the waiting of ranks for each other in a step, if no finding explains most of it.

    ``wall`` is the time of a step in ns, ``pipeline`` tells whether ranks send each other messages, and
    ``loose`` is the number of ranks without an aligned clock. Waits in the steps ``once`` do not count.
    """
    account = inputs.tables["step_account"]
    for pause in once:
        account = account[account["step"] != pause.step]
    if not len(account):
        return
    waited = account["wait_for_peer_ns"].astype(float)
    late = (
        item
        for item in findings
        if has_trait(item.cause, Trait.DELAYS_OTHERS) or len(item.ranks) < len(inputs.ranks)
    )
    explained = sum(item.saving_ns or 0 for item in late)
    mean = 0.0 if waited.isna().all() else float(waited.mean())
    if mean - explained >= _MIN_WAITING_SHARE * wall:
        reason = _waiting_reason(inputs, findings, pipeline, unaligned)
        yield NotJudged(WAITING, f"on average a rank waits {_share_of_step(mean, wall)} for others. {reason}")
    rows = account[waited.isna()]
    communicated = float(rows["exposed_comm_ns"].mean()) if len(rows) else 0.0
    if communicated >= _MIN_WAITING_SHARE * wall:
        ranks = named_ranks(sorted(rows["rank"].unique().tolist()), _MAX_NAMED_RANKS)
        share = _share_of_step(communicated, wall)
        reason = inputs.coverage or "no collectives on aligned clocks show when others arrive"
        yield NotJudged(
            WAITING,
            f"communication that no compute hides takes {share} on {ranks}. How much of it is waiting is "
            f"unknown: {reason}",
        )


def unexplained_in_mpi(
    graph: RunGraph, weights: Floats | None, findings: Sequence[Finding], wall: float
) -> Iterator[NotJudged]:
    """Yield the waiting of ranks in MPI in a step of ``wall`` ns, if findings do not explain it.

    ``weights`` are the weights of the steps in ``wall``, None if all count alike.
    """
    if graph.mpi is None:
        return
    waits = sums(graph.calls.step, graph.mpi.wait, graph.steps)
    mean = float(np.average(waits, weights=weights)) / graph.mpi.ranks
    if mean - sum(item.saving_ns or 0 for item in findings) >= _MIN_IDLE_SHARE * wall:
        reason = _WAVEFRONT if graph.mpi.is_pipeline else f"{_UNEXPLAINED} (--analysis mpi_delays)"
        yield NotJudged(WAITING, f"on average a rank waits {_share_of_step(mean, wall)} for others. {reason}")


def _share_of_step(time: float, wall: float) -> str:
    return f"{format_ns(time)} of a step ({100 * time / wall:.0f} %)"


def unexplained_idle(
    tables: Tables,
    findings: Sequence[Finding],
    wall: float,
    profiler_ns: float,
    uncertain: Sequence[NotJudged],
    stack: Stack,
) -> Iterator[NotJudged]:
    """Yield the idle time of the GPU in a step of ``wall`` ns, if no finding explains most of it.

    The profiler makes the recorded step longer by ``profiler_ns``. ``uncertain`` are the causes that more
    steps may confirm, the costliest first: the first one of the host may explain the idle time. Else it is
    the cause with most of ``idle_causes``, with the remedy for programs of ``stack``.
    """
    idle, account = 0.0, tables["step_account"]
    if len(account):
        # Few steps that differ much may have a median above their mean, and ``wall`` is a mean.
        kinds = tables["step_kinds"]
        mean = account_of_all_steps(kinds)["idle_ns"] if len(kinds) else np.inf
        idle = min(float(account["idle_ns"].astype(float).median()), mean) - profiler_ns
    if idle - sum(item.saving_ns or 0 for item in findings) >= _MIN_IDLE_SHARE * wall:
        reason = "and no replay shortens that (--analysis idle_causes)"
        by_cause = tables["idle_causes"].groupby("cause")[["idle_ns_per_step", "gaps"]].sum()
        if len(by_cause):
            largest_cause = by_cause.sort_values("idle_ns_per_step").iloc[-1]
            most = str(largest_cause.name)
            steps = account["step"].nunique()
            gap = steps * float(largest_cause["idle_ns_per_step"]) / max(largest_cause["gaps"], 1)
            if most in _CAUSES_OF_IDLE and (most != "launch" or gap <= _MAX_LAUNCH_NS):
                cause = find_cause(_CAUSES_OF_IDLE[most])
                advice = cause.advise("the step", (), stack=stack).rstrip(".")
                reason = f"{reason}, most of it for {cause.title}. {advice}"
        host_causes = [item for item in uncertain if find_cause(item.what).is_of_host]
        if host_causes:
            reason = f"perhaps for {find_cause(host_causes[0].what).title}: {host_causes[0].reason}"
        yield NotJudged(IDLE, f"the GPU is idle for {_share_of_step(idle, wall)}, {reason}")


def moving_pages(
    breakdown: pd.DataFrame, copies: pd.DataFrame, findings: Iterable[Finding] = ()
) -> Iterator[NotJudged]:
    """Yield the time in which the driver moves pages of unified memory, if it is much of the capture.

    Kernels that need the pages run meanwhile. ``breakdown`` is the table of that name, ``copies`` is
    ``memops``. ``findings`` may price the moves.
    """
    if not len(breakdown) or not len(copies):
        return
    moved = copies[copies["operation"].str.contains(MIGRATION)]
    if any(item.cause == Cause.PAGE_MIGRATION for item in findings):
        yield NotJudged(
            PAGES,
            f"the profiler slows each of the {int(moved['count'].sum()):,} moves of pages, by some 7 µs on "
            "an H200, which is in the step and in no saving",
        )
        return
    times = breakdown[["span_ns", "exposed_mem_ns"]].astype(float).sum()
    time = float(moved["total_ns"].astype(float).sum())
    if len(moved) and time >= _MIN_MOVING_SHARE * times["span_ns"]:
        amount = format_bytes(float(moved["total_bytes"].astype(float).sum()))
        if times["exposed_mem_ns"] < _MIN_MAIN_SHARE * float(copies["total_ns"].astype(float).sum()):
            remedy = "and kernels that need them wait: cudaMemPrefetchAsync moves them before"
        else:
            remedy = "while no kernel runs"
            back = moved[moved["operation"].str.contains(_PAGES_TO_HOST)]["total_ns"].astype(float).sum()
            if back:
                remedy += (
                    f", for {format_ns(float(back))} of it to the host: where it waits for them, "
                    "cudaMemPrefetchAsync to the host moves them in larger pieces"
                )
        yield NotJudged(
            PAGES,
            f"the driver moves pages of unified memory for {format_ns(time)} of the capture "
            f"({100 * time / times['span_ns']:.0f} %; {amount}), {remedy}",
        )


def double_precision(kernels: pd.DataFrame, findings: Iterable[Finding] = ()) -> Iterator[NotJudged]:
    """Yield the share of the time of kernels in double precision, if it is most and no finding.

    Whether the program needs it is not known. ``kernels`` is the table of that name.
    """
    if not len(kernels) or any(finding.cause == DOUBLE_PRECISION.name for finding in findings):
        return
    computing = kernels[kernels["class"] == "comp"]
    time = computing["total_ns"].astype(float)
    double = float(time[computing["name"].str.contains(DOUBLE)].sum())
    if double and double >= MIN_DOUBLE_SHARE * time.sum():
        yield NotJudged(
            PRECISION,
            f"{100 * double / time.sum():.0f} % of the time of kernels is in those of double precision, by "
            "their names. Where the results allow single precision, a kernel that moves data takes half of "
            "its time",
        )


def moves_in_steps(
    copies: pd.DataFrame, timelines: Mapping[int, Timeline], ranks: Iterable[int]
) -> list[tuple[str, float, float]]:
    """Return the moves of pages that begin in steps of some ranks, by name: number and time in ns of a step.

    Others, as of what a program reads at its end, make no step longer. ``copies`` is the table ``memops``;
    without moves to the host there, no timeline is read.
    """
    moves: list[tuple[str, float, float]] = []
    if not len(copies) or not copies["operation"].str.contains(_PAGES_TO_HOST).any():
        return moves
    read = [timelines[rank] for rank in ranks]
    steps = sum(len(step_intervals(timeline).start) for timeline in read)
    for timeline in read:
        memops, times = timeline.memops, step_intervals(timeline)
        begun, ended = (
            np.searchsorted(np.sort(bound), memops.start, "right") for bound in (times.start, times.end)
        )
        moved = memops.take(name_matches(timeline, memops.name, MIGRATION.search) & (begun > ended))
        for name in distinct(moved.name).tolist():
            time = (moved.end - moved.start)[moved.name == name]
            moves.append((str(timeline.strings[name]), len(time) / steps, int(time.sum()) / steps))
    return moves


def with_page_waits(
    findings: Sequence[Finding],
    account: pd.DataFrame,
    copies: pd.DataFrame,
    moves: Sequence[tuple[str, float, float]],
    elapsed: int,
) -> list[Finding]:
    """Bound what host work costs by the idle time of the GPU where the host reads pages of unified memory.

    The host waits there for the GPU without a call. The pages are the cause if their faults and moves take
    half of the idle time. ``account`` is the table ``step_account``, ``copies`` is ``memops``, and ``moves``
    are those of `moves_in_steps`.
    """
    to_host = [move for move in moves if _PAGES_TO_HOST.search(move[0]) and move[1]]
    if not to_host or not len(account):
        return [*findings]
    idle = round(float(account["idle_ns"].astype(float).mean()))
    moving, all_moving = (round(sum(time for *_, time in each)) for each in (to_host, moves))
    faults = sum(count for _, count, _ in to_host) * _PAGE_FAULT_NS
    are_cause = faults + moving >= idle / 2
    evidence = largest("memops", "total_ns", copies[copies["operation"].str.contains(_PAGES_TO_HOST)])[:1]

    def bounded(item: Finding) -> Finding:
        if item.cause != Cause.HOST_WORK or not (are_cause or (item.saving_ns or 0) > idle):
            return item
        saving = min(item.saving_ns or 0, idle)
        item = replace(
            item,
            saving_ns=saving,
            saving_low_ns=round((1 - MODEL_SHARE) * saving),
            saving_high_ns=saving,
            share_pct=round(100 * saving / elapsed, 3),
            confidence="low",
        )
        if not are_cause:
            return item
        return replace(
            item,
            cause=Cause.PAGE_MIGRATION,
            remedy=find_cause(Cause.PAGE_MIGRATION).advise(item.where, item.ranks),
            saving_low_ns=min(moving, saving),
            saving_high_ns=min(saving + all_moving - moving, elapsed),
            evidence=tuple(evidence),
            evidence_text=(),
        )

    return [item.changed(bounded) for item in findings]


def gpu_span(devices: pd.DataFrame) -> float:
    """Return the longest time of a GPU from its first operation to the last, in ns.

    ``devices`` is the table ``device_breakdown``.
    """
    return float(devices["span_ns"].astype(float).max()) if len(devices) else 0.0


def rest_of_capture(devices: pd.DataFrame, covered_ns: float, source: str) -> Iterator[NotJudged]:
    """Yield the time on the GPU outside the steps, if it is much.

    ``devices`` is as in `gpu_span`, and ``covered_ns`` the time of all steps together or, without steps, of
    the judged work. ``source`` is as in `StepSummary`.
    """
    span = gpu_span(devices)
    if covered_ns < _MAX_COVERED_SHARE * span:
        subject = "judged work covers" if source == CAPTURE else "steps cover"
        parts = ", and may be parts of one, such as layers" if source in _REPEATED_LAUNCHES else ""
        yield NotJudged(
            REST,
            f"the {subject} {format_ns(covered_ns)} of the {format_ns(span)} from the first operation of the "
            f"GPU to the last ({100 * covered_ns / span:.2g} %){parts}: what is outside, or has no recorded "
            "launch, is in no saving",
        )


def start_of_mpi(calls: pd.DataFrame, covered_ns: float) -> Iterator[NotJudged]:
    """Yield the time of ``MPI_Init`` if the judged work is short beside it; ``calls`` is `mpi_calls`."""
    starts = calls[calls["call"].isin(START_CALLS)] if len(calls) else calls
    longest = float(starts["total_ns"].max()) if len(starts) else 0.0
    if covered_ns < _MIN_START_RATIO * longest:
        yield NotJudged(
            REST,
            f"MPI_Init takes up to {format_ns(longest)} on a rank, the judged work {format_ns(covered_ns)}: "
            "hardly any of the run is in a saving",
        )


def _waiting_reason(
    inputs: ExplainInputs, findings: Sequence[Finding], pipeline: bool, unaligned: int
) -> str:
    if unaligned:
        return f"Why is unknown: the clocks of {counted(unaligned, 'rank')} cannot be aligned"
    slowest = next((item for item in findings if item.cause == Cause.PIPELINE_BUBBLE), None)
    if not pipeline:
        return f"{_UNEXPLAINED}{_last_to_arrive(inputs.arrivals())}"
    if slowest is None:
        return _SCHEDULE
    stage, saved = named_ranks(slowest.ranks, _MAX_NAMED_RANKS), format_ns(slowest.saving_ns or 0)
    balanced = f"The stage of {stage} has the most work; to balance the stages would save {saved}"
    return f"{_SCHEDULE}. {balanced}"


def _last_to_arrive(arrivals: Iterable[Arrivals]) -> str:
    collectives = [batch for batch in arrivals if batch.collective.any()]
    if not collectives:
        return ""
    longest = np.concatenate([batch.longest[batch.collective] for batch in collectives])
    last = np.concatenate([batch.last[batch.collective] for batch in collectives])[longest >= longest.mean()]
    ranks, times = np.unique(last, return_counts=True)
    often = f"{times.max():,} of the {counted(len(last), 'collective')} with the longest waits"
    return f": the last one to arrive is rank {ranks[times.argmax()]} in {often}"


def incomplete_capture(inputs: ExplainInputs) -> Iterator[Finding]:
    """Yield the finding about ranks without a profile, and losses of profiles."""
    lacking = tuple(rank for rank, losses in inputs.losses.items() if losses)
    if not lacking and not inputs.coverage:
        return
    missing: list[tuple[Evidence, str]] = []
    if inputs.coverage and len(rows := inputs.tables["rank_collectives"]):
        missing = [(item, "") for item in largest("rank_collectives", "world_ranks", rows)[:1]]
    rank_losses = [(rank, loss) for rank in lacking for loss in inputs.losses[rank]]
    rank_losses.sort(key=lambda rank_loss: rank_loss[1].kind is not LossKind.FAILED)
    sentences = [loss.sentence for _, loss in sum_losses(rank_losses)]
    # A program that failed may be why events are missing on its rank.
    failed = {rank for rank, loss in rank_losses if loss.kind is LossKind.FAILED}
    missing_kinds = (LossKind.MISSING, LossKind.DIAGNOSTIC)
    causes = [loss for rank, loss in rank_losses if rank not in failed or loss.kind not in missing_kinds]
    remedies = [part for loss in causes for part in _SENTENCE_END.split(loss.remedy) if part]
    if inputs.coverage or not remedies:
        remedies.append(find_cause(Cause.CAPTURE_INCOMPLETE).remedy)
    if inputs.coverage:
        sentences.insert(0, inputs.coverage)
    where, remedy = "; ".join(sentences), " ".join(dict.fromkeys(remedies))
    ranks = lacking or inputs.ranks
    yield unpriced_finding(Cause.CAPTURE_INCOMPLETE, ranks, where, missing, remedy, "high")


def copies_without_steps(inputs: ExplainInputs) -> Iterator[Finding]:
    """Yield the finding about copies with the host in a capture without steps, if they take much of it."""
    if len(inputs.tables["step_account"]):
        return
    breakdown, copies = inputs.tables["breakdown"], inputs.tables["memops"]
    if not len(breakdown) or not len(copies):
        return
    times = breakdown[["rank", "exposed_mem_ns", "span_ns"]].astype(float)
    whole, copies = copies["total_ns"].sum(), copies[~copies["operation"].str.contains(_ON_GPU)]
    exposed = times["exposed_mem_ns"].sum() * copies["total_ns"].sum() / max(1.0, whole)
    share = 100 * exposed / max(1.0, times["span_ns"].sum())
    if share < _MIN_COPYING_PCT:
        return
    largest_first = (
        copies.groupby("operation")[["total_ns", "total_bytes"]].sum().sort_values("total_ns")[::-1]
    )
    amounts = [
        f"{name.strip('[]')}: {format_bytes(float(row['total_bytes']))} "
        f"in {format_ns(float(row['total_ns']))}"
        for name, row in largest_first[:2].iterrows()
    ]
    where = f"the capture, of which they are {share:.0f} % ({'; '.join(amounts)})"
    evidence = [(item, "") for item in largest("breakdown", "exposed_mem_ns", breakdown)[:1]]
    ranks = tuple(sorted(times["rank"].astype(int).tolist()))
    yield unpriced_finding(Cause.BLOCKING_COPY, ranks, where, evidence, _KEEP_ON_GPU, "medium")


def with_first_work(
    replayed: Sequence[Finding], inputs: ExplainInputs, timelines: Mapping[int, Timeline], elapsed: int
) -> list[Finding]:
    """Add the host work before the first operation of the GPU, in captures of a single step.

    Replays begin with that operation. The time is added to a finding about host work in the same place, if
    there is one. ``elapsed`` is the time of the step in ns.
    """
    delay = elapsed
    for rank in inputs.ranks:
        steps = step_intervals(timelines[rank])
        if not elapsed or np.count_nonzero(steps.on_gpu) != 1:
            return [*replayed]
        delay = min(delay, int((steps.gpu_start - steps.start)[steps.on_gpu][0]))
    idle = inputs.tables["idle_causes"]
    by_range = idle[idle["cause"] == "host"].groupby("range")["idle_ns_per_step"].sum()
    place = str(by_range.idxmax()) if len(by_range) else ""
    same_place = [item for item in replayed if item.cause == Cause.HOST_WORK and item.where == place]
    if not same_place and 100 * delay < MIN_ESTIMATE_PCT * elapsed:
        return [*replayed]
    evidence = tuple(largest("step_account", "idle_ns", inputs.tables["step_account"])[:1])
    first = estimated_finding(Cause.HOST_WORK, inputs.ranks, place, delay, 0.0, elapsed, evidence)
    if not same_place:
        return [*replayed, first]
    total = replace(
        same_place[0],
        **{
            key: (getattr(same_place[0], key) or 0) + getattr(first, key)
            for key in ("saving_ns", "saving_low_ns", "saving_high_ns", "share_pct")
        },
    )
    return [total if item is same_place[0] else item for item in replayed]


def without_judged_copies(findings: Sequence[Finding], replayed: Sequence[Finding]) -> list[Finding]:
    """Leave out the finding about copies of the whole capture if the replay has priced copies."""
    priced = [part for item in replayed for part in (item, *item.alternatives)]
    if all(item.cause != Cause.BLOCKING_COPY for item in priced):
        return [*findings]
    return [item for item in findings if item.cause != Cause.BLOCKING_COPY]


def is_rare(finding: Finding) -> bool:
    """Return whether a finding is about long steps on fewer than `RECURRING` occasions.

    Other processes of a machine may hold up a program on CPUs once. Steps in a row are one occasion.
    """
    occasions = sum(step - 1 not in finding.steps for step in finding.steps)
    return finding.cause == Cause.STEP_SPIKES and occasions < RECURRING


def is_held_up(finding: Finding, held_up: float) -> bool:
    """Return whether long steps may come from delays in MPI: ``held_up`` is the time that its calls lose."""
    return finding.cause == Cause.STEP_SPIKES and held_up >= MAX_HELD_UP_RATIO * (finding.saving_ns or 0)


def rare_steps(finding: Finding) -> NotJudged:
    """Return the cost of long steps that may have another reason than the program."""
    reason = (
        "too rare to tell" if is_rare(finding) else "not enough to tell, since calls of MPI are held up too,"
    )
    return NotJudged(
        finding.where,
        f"much longer than similar steps, which costs {format_ns(finding.saving_ns or 0)} of the mean step. "
        f"That is {reason} whether the program or something else on the machine is the reason",
    )


_ONCE_CAUSES = {
    "compute_ns": (None, "compute"),
    "exposed_comm_ns": (Cause.EXPOSED_COMMUNICATION, "exposed communication"),
    "wait_for_peer_ns": (Cause.LATE_RANK_HOST, "waiting for peers"),
    "exposed_mem_ns": (Cause.BLOCKING_COPY, "copies"),
    "idle_ns": (Cause.HOST_WORK, "idle"),
}
"""The likely cause of a longer part of the account, and the name of the part."""


def once_steps(account: pd.DataFrame) -> tuple[OnceStep, ...]:
    """Return the steps that take long once, in their order; ``account`` has the rows of ``step_account``."""
    if not len(account):
        return ()
    series = step_series(account)
    places = single_long_steps(series.wall.tolist())
    if not places:
        return ()
    rows = whole_steps(account).fillna({"wait_for_peer_ns": 0})
    parts = rows.astype(dict.fromkeys(PARTS, float)).groupby("step")[[*PARTS]].mean()
    usual, median = parts.median(), float(np.median(series.wall))
    steps = []
    for place in places:
        number = int(series.steps[place])
        longest = str((parts.loc[number] - usual).idxmax())
        steps.append(OnceStep(number, round(float(series.wall[place]) - median), *_ONCE_CAUSES[longest]))
    return tuple(steps)


STREAM_WAITS = "waits between streams"


def waits_between_streams(replay: Replay, findings: Sequence[Finding]) -> Iterator[NotJudged]:
    """Yield the maximum gain of a step if kernels did not wait for those of other streams, if it is much.

    Whether they could run at once depends on their data and on their share of the GPU. Nothing is said if one
    of the findings, or of their alternatives, is that streams wait for the default stream.
    """
    causes = {part.cause for item in findings for part in (item, *item.alternatives)}
    if Cause.SERIALIZED_STREAMS in causes:
        return
    graph = replay.graph
    work, edges = graph.work, graph.edges
    waits = edges.of(EdgeKind.EVENT)
    row, source = edges.row[waits], (edges.source[waits] - graph.work_start(0)) // 2
    kernels = work.is_compute[row] & work.is_compute[source]
    waits, row, source = waits[kernels], row[kernels], source[kernels]
    if not len(waits):
        return
    elapsed_ns = float(replay.elapsed(replay.unchanged).mean())
    replayed = replay.moments(replay.measured.without(waits))
    saving = elapsed_ns - float(replay.elapsed(replayed).mean())
    if 100 * saving < MIN_ESTIMATE_PCT * elapsed_ns:
        return
    stream_predecessor = work.before[row]
    earliest = np.maximum(
        work.start[source],
        np.where(stream_predecessor == NONE, work.start[source], work.end[stream_predecessor]),
    )
    delay = np.bincount(work.name[source], (work.end[source] - earliest).clip(min=0))
    kernel = int(delay.argmax())
    place = place_with_most(work.place[source[work.name[source] == kernel]])
    inside = "" if place == NONE else f" in {graph.places[place]}"
    yield NotJudged(
        STREAM_WAITS,
        f"kernels wait for those of another stream, most for {graph.names[kernel]}{inside}. If they ran at "
        f"once, a step would take up to {format_ns(saving)} less. No profile records whether their data and "
        "the GPU allow that",
    )


_WAIT_OF_THREADS = re.compile("barrier|taskwait", re.IGNORECASE)
"""A part of the names of ranges in which threads wait for each other, such as the end of a loop of OpenMP."""


def unjudged_threads(timelines: Mapping[int, Timeline]) -> Iterator[NotJudged]:
    """Yield the threads of ranks with MPI that no finding is about.

    1. The rank with the largest share of its time in MPI on other threads than the one with the most calls.
    2. The range whose work the threads of a rank share least evenly, such as a region of OpenMP. All of its
       threads enter such a range equally often. A replay has the first thread of each rank alone.
    """
    max_idle_pct, unjudged = float(MIN_ESTIMATE_PCT), list[NotJudged]()
    max_other_pct, calling = _MIN_OTHER_THREADS_PCT, list[NotJudged]()
    for rank, timeline in timelines.items():
        other_pct, threads_in_mpi = _other_threads_in_mpi(timeline)
        if other_pct >= max_other_pct:
            max_other_pct = other_pct
            reason = (
                f"{threads_in_mpi} threads of rank {rank} call MPI, and {other_pct:.0f} % of their time "
                "there is not on the thread with the most calls, the only one in steps and in pop"
            )
            calling = [NotJudged("other threads in MPI", reason)]
        ranges = timeline.ranges
        if not len(ranges):
            continue
        span = int(ranges.end.max() - ranges.start.min())
        keys, number = numbered_rows(ranges.name, ranges.thread)
        visits, busy = np.bincount(number), np.bincount(number, ranges.end - ranges.start)
        first = np.flatnonzero(np.diff(keys[:, 0], prepend=NONE - 1))
        threads = np.diff(first, append=len(keys))
        longest, shortest = np.maximum.reduceat(busy, first), np.minimum.reduceat(busy, first)
        is_shared = np.minimum.reduceat(visits, first) == np.maximum.reduceat(visits, first)
        is_shared &= (threads > 1) & (keys[first, 0] != NO_NAME)
        mean = np.add.reduceat(busy, first) / threads
        # The thread with most work waits least.
        waits = np.array(
            [bool(_WAIT_OF_THREADS.search(timeline.strings[name] or "")) for name in keys[first, 0]]
        )
        idle_pct = (
            np.where(is_shared, np.where(waits, mean - shortest, longest - mean), 0.0) * 100 / max(span, 1)
        )
        row = int(idle_pct.argmax())
        if idle_pct[row] < max_idle_pct:
            continue
        max_idle_pct = float(idle_pct[row])
        reason = (
            f"{threads[row]} threads of rank {rank} {'wait' if waits[row] else 'take'} between "
            f"{format_ns(shortest[row])} and {format_ns(longest[row])} in it. Shared evenly, their work "
            f"would take up to {max_idle_pct:.0f} % of the time less; findings are about the first thread of "
            "each rank"
        )
        unjudged = [NotJudged(f"threads in {timeline.strings[keys[first[row], 0]]}", reason)]
    yield from (*calling, *unjudged)


_MIN_OTHER_THREADS_PCT = 10.0
"""Minimum share of a rank's time in MPI on threads other than its main one that is told, in percent."""


def _other_threads_in_mpi(timeline: Timeline) -> tuple[float, int]:
    """Return the share of a rank's time in MPI outside its main thread, in percent, and its threads there."""
    rows, thread = mpi_calls_in_order(timeline)
    if not thread.any():
        return 0.0, 1
    calls = timeline.mpi_calls.take(rows)
    time = np.bincount(thread, np.maximum(calls.end - calls.start, 0))
    return 100 * float(time[1:].sum()) / max(float(time.sum()), 1.0), len(time)
