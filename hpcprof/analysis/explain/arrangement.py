"""The findings of a run in their order: findings of the replay, joined with findings in step times."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np
import pandas as pd

from hpcprof.analysis.account.places import WHOLE_CAPTURE
from hpcprof.analysis.explain.cause import Cause, Trait
from hpcprof.analysis.explain.evidence import evidence_of
from hpcprof.analysis.explain.explanation import (
    MIN_ESTIMATE_PCT,
    MIN_PCT,
    Confidence,
    Earlier,
    Finding,
    NotJudged,
)
from hpcprof.analysis.explain.findings import MUCH_SLOWER, Judged
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.intervals import MODEL_SHARE
from hpcprof.analysis.explain.replayable import Replayable
from hpcprof.analysis.explain.run_graph import RunGraph
from hpcprof.analysis.explain.step_series import drift, spikes
from hpcprof.analysis.explain.whole_run import RECURRING
from hpcprof.analysis.steps.run_step import StepSeries
from hpcprof.common.units import counted, format_ns, shortened
from hpcprof.profiles.losses import LossKind

_FIRST_STEP = 5
"""The first step of a default capture."""

SURELY_SLOW = 2.5
"""Minimum ratio of times of a host that is slower everywhere, for a finding; nsys alone causes up to 1.9."""

_MIN_EXPLAINED_SHARE = 0.5
"""Minimum share of the time of recurring long steps for a cause that replaces them as the finding."""

_GOOD_REPLAY_PCT, POOR_REPLAY_PCT = 1.0, 3.0
"""Maximum error of a replay for high and for medium confidence, in percent."""


def drifts(judged: Judged, series: StepSeries) -> bool:
    """Return whether the level of the steps would change less than half as much without a cause."""
    change, replayed = drift(series), len(judged.gained)
    # The elapsed time of the last step may be unknown.
    if change is None or replayed not in (len(series.wall) - 1, len(series.wall)):
        return False
    wall = series.wall.copy()
    wall[:replayed] -= np.rint(judged.gained).astype(np.int64)
    remaining = drift(replace(series, wall=wall))
    return remaining is None or remaining.excess < _MIN_EXPLAINED_SHARE * change.excess


def with_certain_interval(judged: Judged, level: Finding) -> Judged:
    """Return the cause of a drift with the relative width of the drift's own interval.

    The steps of a drift differ by its trend, which is no noise.
    """
    share, (off_below, off_above) = judged.saving / (level.saving_ns or 1), judged.interval.beside_steps
    below, above = (
        share * (bound or 0) - judged.saving for bound in (level.saving_low_ns, level.saving_high_ns)
    )
    low = judged.saving - float(np.hypot(below, off_below))
    high = judged.saving + float(np.hypot(above, off_above))
    return replace(judged, interval=replace(judged.interval, low=low, high=high, steps_needed=None))


def join_by_steps(
    series: Sequence[Finding], replayed: Sequence[Finding], paused: Set[int], drifting: Sequence[Finding]
) -> list[Finding]:
    """Join the findings of the series and of the replay that are about the same single steps.

    A cause that costs time only where the steps pause is no finding. A cause of long steps is an alternative
    to them or, if they recur, comes before them, as does a cause that changes the level of the steps
    (``drifting``).
    """
    unassigned = [item for item in replayed if not _is_about_steps(item, paused)]
    result = []
    for pauses in series:
        change = pauses.cause == Cause.STEP_DRIFT
        same_steps = [
            item
            for item in unassigned
            if _is_about_steps(item, set(pauses.steps)) or (change and item in drifting)
        ]
        unassigned = [item for item in unassigned if item not in same_steps]
        if not same_steps:
            result.append(pauses)
        elif (change or len(pauses.steps) >= RECURRING) and (
            same_steps[0].saving_ns or 0
        ) >= _MIN_EXPLAINED_SHARE * (pauses.saving_ns or 0):
            result += [
                replace(same_steps[0], alternatives=(*same_steps[0].alternatives, pauses)),
                *same_steps[1:],
            ]
        else:
            result.append(
                replace(pauses, alternatives=tuple(replace(item, alternatives=()) for item in same_steps))
            )
    return [*result, *unassigned]


def _is_about_steps(finding: Finding, steps: Set[int]) -> bool:
    """Return whether a finding is about some of ``steps``, or their neighbours, and no other step."""
    near_steps = {step + offset for step in steps for offset in (-1, 0, 1)}
    return bool(finding.steps) and near_steps.issuperset(finding.steps)


def slow_hosts(graph: RunGraph, slow: Sequence[Judged]) -> Iterator[NotJudged]:
    """Yield the ranks whose host is somewhat slower than the others', which a profiler may cause."""
    for item in slow:
        if item.candidate.slower < SURELY_SLOW:
            rank = graph.ranks[item.ranks[0]]
            times = item.candidate.slower
            judged = "the findings are those without it" if times >= MUCH_SLOWER else "it is not a finding"
            yield NotJudged(
                f"the host of rank {rank}",
                f"its calls and the time between them take {times:.1f} times as long as on the other ranks, "
                f"which costs {format_ns(item.saving)} of a step. A profiler can cause that, so {judged}: "
                "compare with steps that are not profiled",
            )


def usual_confidence(inputs: ExplainInputs, built: Replayable, error_pct: float) -> Confidence:
    """Return the confidence of a finding, unless something about the finding itself lowers it."""
    if error_pct > POOR_REPLAY_PCT or inputs.coverage:
        return "low"
    uncoupled = bool(built.loose_ranks) or (len(inputs.ranks) > 1 and not built.graph.is_coupled)
    inferred = built.graph.inferred_waits or built.graph.paced_ranks
    return "medium" if error_pct > _GOOD_REPLAY_PCT or inferred or uncoupled else "high"


def finding_of(
    inputs: ExplainInputs,
    built: Replayable,
    judged: Judged,
    wall: int,
    usual: Confidence,
    *,
    hidden: bool = False,
) -> Finding:
    """Return a judged candidate as a finding.

    ``wall`` is the time of a step in ns, and ``usual`` the result of `usual_confidence`.
    """
    candidate, replayed = judged.candidate, built.graph.ranks
    earlier = judged.limits_after.candidate if judged.limits_after else None
    # A cause of all replayed steps is one of the steps that they stand for.
    on_all = len(judged.ranks) == len(replayed)
    ranks = inputs.ranks if on_all else tuple(replayed[position] for position in judged.ranks)
    low, high = max(0.0, judged.interval.low), judged.interval.high
    wide = high - low > judged.saving
    estimated = candidate.cause.spread > MODEL_SHARE
    doubtful = candidate.has(Trait.UNCERTAIN) or candidate.slower > 0 or usual == "low"
    confidence: Confidence = "low" if doubtful else "medium" if wide or estimated else usual
    # Steps that lost work on the GPU idle for an unknown reason.
    is_missing = any(loss.kind is LossKind.MISSING for loss in inputs.losses_of_all)
    complete = built.replayed_numbers if is_missing else None
    with_mpi = not built.graph.couplings
    return Finding(
        cause=candidate.cause.name,
        ranks=ranks,
        where=candidate.where or built.step,
        saving_ns=round(judged.saving),
        saving_low_ns=round(low),
        saving_high_ns=round(high),
        share_pct=round(100 * judged.saving / wall, 3),
        evidence=evidence_of(inputs.tables, candidate, ranks, complete, with_mpi=with_mpi),
        remedy=candidate.cause.advise(
            candidate.where, ranks, in_turn=on_all and len(ranks) > 1, advice=candidate.advice
        ),
        confidence=confidence,
        cost_ns=round(candidate.own_ns) if hidden else None,
        limits_after=Earlier(earlier.cause.name, earlier.where or built.step) if earlier else None,
        steps=tuple(built.number(place) for place in judged.steps),
        alternatives=tuple(finding_of(inputs, built, other, wall, usual) for other in judged.alternatives),
        together=tuple(finding_of(inputs, built, other, wall, usual) for other in judged.together),
    )


def without_profiler_cost(
    built: Replayable, judged: Sequence[Judged], wall: int
) -> tuple[list[Judged], list[NotJudged]]:
    """Return the causes that exceed the thresholds whatever the profiler costs, and the doubtful ones.

    A doubtful cause would be shown if the profiler cost nothing, or with more steps.
    """
    least_saving, least_bound = MIN_ESTIMATE_PCT / 100 * wall, MIN_PCT / 100 * wall
    certain, doubts = [], []
    for item in judged:
        interval, cause = item.interval, item.candidate.cause.name
        where = item.candidate.where
        place = f" in {shortened(where)}" if where not in ("", WHOLE_CAPTURE) else ""
        seems = f"it seems to cost {format_ns(item.saving)} of a step{place}"
        if item.saving - interval.by_profiler < least_saving <= item.saving:
            doubts.append(_doubt_of_profiler(cause, seems))
            continue
        certain.append(item)
        unsure = item.saving >= least_saving and interval.low < least_bound
        if unsure and interval.steps_needed and built.graph.steps == built.steps:
            steps, last = interval.steps_needed, _FIRST_STEP + interval.steps_needed - 1
            doubts.append(
                NotJudged(
                    cause,
                    f"{seems}, but {counted(built.steps, 'step')} are too few to tell: record {steps} steps "
                    f"(--capture-steps {_FIRST_STEP}-{last})",
                )
            )
    return certain, doubts


def without_profiler_drift(
    findings: Sequence[Finding], series: StepSeries, account: pd.DataFrame, by_profiler: float
) -> tuple[list[Finding], list[NotJudged]]:
    """Return the findings, and as a doubt a drift of the steps that may be no more than the profiler added.

    A profiler slows calls and no kernels: a drift is the program's if half of it is that of the compute.
    ``account`` is the table ``step_account``, and ``by_profiler`` the time by which the recorded step is
    longer than a replay without the profiler, in ns.
    """
    doubtful = [
        item
        for item in findings
        if item.cause == Cause.STEP_DRIFT and (item.saving_low_ns or 0) < by_profiler
    ]
    if doubtful:
        rows = np.setdiff1d(np.arange(1, len(series.wall) - 1), spikes(series))
        compute = account.groupby("step")["compute_ns"].max().reindex(series.steps).fillna(0).to_numpy(float)
        (varies, by_compute), _ = np.cov(series.wall[rows], compute[rows])
        doubtful = [] if by_compute >= _MIN_EXPLAINED_SHARE * varies else doubtful
    doubts = [
        _doubt_of_profiler(item.cause, f"it seems to cost {format_ns(item.saving_ns or 0)} of a step")
        for item in doubtful
    ]
    return [item for item in findings if item not in doubtful], doubts


def _doubt_of_profiler(cause: str, seems: str) -> NotJudged:
    reason = f"{seems}, but the profiler, which slows the host, may be the reason"
    return NotJudged(cause, f"{reason}: compare with steps that are not profiled")


def only_hidden(hiding: Sequence[Finding], findings: Sequence[Finding], elapsed: int) -> list[Finding]:
    """Return the costs on the host that hide behind the GPU.

    Places of findings and places in which the GPU is idle are left out. A cost of the whole step may be that
    of its only place. ``elapsed`` is the time of a step in ns.
    """
    priced = {item.place for finding in findings for item in (finding, *finding.alternatives)}
    return [
        item
        for item in {item.place: item for item in hiding}.values()
        if item.place not in priced
        and not any(
            figure.analysis == "idle_causes" and 100 * float(figure.value) >= MIN_ESTIMATE_PCT * elapsed
            for figure in item.evidence
        )
    ]


def _ranked_saving(finding: Finding) -> int:
    saving = finding.saving_low_ns if finding.confidence == "low" else finding.saving_ns
    return saving or 0


def order_findings(
    findings: Sequence[Finding], elapsed: int | None, kinds: Mapping[int, int]
) -> tuple[Finding, ...]:
    """Order findings by their savings, with their share of a step and the kind of steps that has them.

    ``elapsed`` is the time of a step in ns, and ``kinds`` the kind of each step where there are several. No
    finding saves more than a step. The most costly come first; a finding of low confidence counts with the
    lower bound of its saving. A finding comes after those that it goes together with, and findings without an
    estimate come last.
    """

    def with_share(finding: Finding) -> Finding:
        # The host's work before the first launch of a step is in the wall time of the step before.
        kinds_of_steps = [{kinds.get(step - offset) for step in finding.steps} for offset in (0, 1)]
        # The rarer kind tells more.
        kind = max(
            (number for pair in kinds_of_steps if len(pair) == 1 for number in pair if number), default=None
        )
        if finding.saving_ns is None or elapsed is None:
            return replace(finding, share_pct=None, kind=kind)
        saving, low, high = (
            min(bound or 0, elapsed)
            for bound in (finding.saving_ns, finding.saving_low_ns, finding.saving_high_ns)
        )
        share = round(100 * saving / elapsed, 3)
        return replace(
            finding, saving_ns=saving, saving_low_ns=low, saving_high_ns=high, share_pct=share, kind=kind
        )

    placed = [item.changed(with_share) if elapsed else item for item in findings]

    def sort_key(finding: Finding) -> tuple[bool, int, bool]:
        together = {other.place for other in finding.together}
        before = [item for item in placed if item.place in together]
        least = min(_ranked_saving(item) for item in (finding, *before))
        return finding.saving_ns is None, -least, bool(before)

    return tuple(sorted(placed, key=sort_key))
