"""Explains a run without GPUs: operators count as compute, gloo and oneCCL as communication.

The host does one thing after another, and nothing hides behind a GPU. A step without a part of it is shorter
by the least time that any rank spends in that part, since the ranks meet in collectives.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcprof.analysis.account.host_activity import OUTSIDE
from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.causes.late_rank import late_groups
from hpcprof.analysis.explain.changes import Change, Prediction
from hpcprof.analysis.explain.evidence import Tables, largest
from hpcprof.analysis.explain.explanation import Evidence, Finding
from hpcprof.analysis.explain.findings import estimated_finding
from hpcprof.analysis.explain.intervals import half_width
from hpcprof.analysis.steps.mpi_steps import MIN_INSTANCES
from hpcprof.analysis.steps.phases import REST
from hpcprof.common.errors import HpcprofError, UsageError, unknown
from hpcprof.profiles.timeline import Floats

_MIN_SHARE = 0.01
"""Minimum saving of a finding, as a share of a step."""

_LATE_SHARE = 0.03
"""Minimum excess of a late rank, as a share of a step."""

_MIN_SIGN_DEVIATIONS = 2.58
"""Minimum standard deviations by which steps with more work of a late rank outnumber the others.

Two ranks that are late in turn reach it by chance in one program of a hundred."""

_MIN_PLACE_SHARE = 0.25
"""Minimum share of a rank's excess in one place for a finding to name the place."""

_EXECUTION_PREFIX = "XlaModule:#"
"""Prefix of ranges in which a device executes a program: a pause in one is the device's, not the host's."""

_JAX_READ = "np.asarray(jax.Array)"
"""JAX's range in which the host reads a value, also by ``float()``."""


@dataclass(frozen=True)
class _Account:
    """Parts of the steps of each rank, in ns; arrays have shape (steps, ranks)."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    wall: Floats
    own: Floats
    idle: Floats
    communication: Floats


def explain_on_host(tables: Tables) -> tuple[Finding, ...]:
    """Return the findings of a run whose steps were measured on the host, the most costly first.

    ``tables`` has ``step_account``, ``step_kinds``, ``idle_causes``, ``phases`` and ``skew_summary``.
    """
    account = _account(tables["step_account"])
    if account is None:
        return ()
    wall = float(np.median(account.wall.max(axis=1)))
    findings = [*_host_work(tables, account, wall), *_late_ranks(tables, account, wall)]
    findings += _exposed_findings(account, tables, wall)
    findings = [finding for finding in findings if (finding.saving_ns or 0) >= _MIN_SHARE * wall]
    return tuple(sorted(findings, key=lambda item: -(item.saving_ns or 0)))


def _account(table: pd.DataFrame) -> _Account | None:
    if not len(table):
        return None
    names = ["wall_ns", "compute_ns", "idle_ns", "exposed_comm_ns"]
    columns = table.pivot_table(index="step", columns="rank", values=names, aggfunc="sum")
    whole = columns[columns["wall_ns"].notna().all(axis=1)]
    if not len(whole):
        return None
    wall, compute, idle, communication = (whole[name].to_numpy(float) for name in names)
    ranks = tuple(int(rank) for rank in whole["wall_ns"].columns)
    return _Account(ranks, tuple(whole.index), wall, compute + idle, idle, communication)


def _host_work(tables: Tables, account: _Account, wall: float) -> Iterator[Finding]:
    """Yield the ranges in which no rank executes an operator: loading, Python, logging, reading values."""
    idle = tables["idle_causes"]
    if not len(idle):
        return
    idle = idle.assign(range=idle["range"].fillna(OUTSIDE))
    idle = idle[~idle["range"].str.startswith(_EXECUTION_PREFIX)]
    by_range = idle.groupby(["range", "rank"])["idle_ns_per_step"].sum().unstack("rank").fillna(0)
    # Savings are shares of a step without what took long once.
    counted = tables["step_kinds"]["idle_ns"]
    usual = min(1.0, float(counted.iloc[0]) / max(float(account.idle.mean()), 1.0)) if len(counted) else 1.0
    for place, row in by_range.iterrows():
        least = usual * float(row.reindex(account.ranks).fillna(0).min())
        spread = half_width(account.idle.min(axis=1)) if len(account.idle) > 1 else 0.0
        rows = idle[idle["range"] == place]
        evidence = tuple(largest("idle_causes", "idle_ns_per_step", rows))
        # The host waits for the device while it reads a value.
        cause = Cause.HOST_SYNC if place == _JAX_READ else Cause.HOST_WORK
        yield estimated_finding(cause, account.ranks, str(place), least, spread, wall, evidence, gains=True)


def _late_ranks(tables: Tables, account: _Account, wall: float) -> Iterator[Finding]:
    if len(account.ranks) < 2:
        return
    for position, rank in enumerate(account.ranks):
        later_work, idle = (_beyond_other_ranks(times, position) for times in (account.own, account.idle))
        excess = float(np.median(later_work))
        if excess < _LATE_SHARE * wall or excess < 0:
            continue
        place, evidence = _range_of_lateness(tables, rank, _MIN_PLACE_SHARE * excess, len(account.wall))
        # Other processes on the cores make computing uneven, but hardly pauses: if the excess of all work is
        # uncertain, the smaller one of it and the idle time counts.
        findings = [
            estimated_finding(
                Cause.LATE_RANK_HOST,
                (rank,),
                place,
                float(np.median(later)),
                half_width(later),
                wall,
                evidence,
            )
            for later in (later_work, np.minimum(later_work, idle).clip(min=0))
        ]
        sure = [finding for finding in findings if (finding.saving_low_ns or 0) >= _MIN_SHARE * wall]
        yield (sure or findings)[0]


def predict_on_host(tables: Tables, changes: Sequence[Change]) -> Prediction:
    """Predict the step of a run whose steps were measured on the host, by the parts of its steps.

    Raises UsageError if a change is not about a phase, all communication, or a rank like the others, and
    HpcprofError if no step of all ranks was recorded.
    """
    account = _account(tables["step_account"])
    if account is None:
        raise HpcprofError("nothing can be predicted: no step of all ranks was recorded.")
    wall = account.wall.max(axis=1)
    saved = np.minimum(wall, sum((_saved(tables, account, change) for change in changes), 0 * wall))
    kinds = tables["step_kinds"]
    elapsed = float(kinds["elapsed_ns"].iloc[0]) if len(kinds) else float(wall.mean())
    median, half = float(np.median(wall - saved)), half_width(saved)
    return Prediction(
        wall_p50_ns=round(median),
        low_ns=round(max(0.0, median - half)),
        high_ns=round(median + half),
        measured_p50_ns=round(float(np.median(wall))),
        replay_error_pct=None,
        steps=len(wall),
        elapsed_ns=round(max(0.0, elapsed - float(saved.mean()))),
        measured_elapsed_ns=round(elapsed),
    )


def _saved(tables: Tables, account: _Account, change: Change) -> Floats:
    """Return the time that a change saves in each step on the rank where it saves least, in ns."""
    saved: Floats
    if change.kind == "comm":
        saved = (account.communication * (1 - change.factor)).min(axis=1)
        return saved
    if change.median and change.rank is not None:
        return np.maximum(_beyond_other_ranks(account.own, account.ranks.index(change.rank)), 0)
    if change.kind != "range" or change.rank is not None:
        raise UsageError(
            f"{change.kind}: without work on a GPU or calls of MPI only range:NAME on all ranks, comm and "
            "rank:N=median can change."
        )
    phases = tables["phase_times"]
    rows = phases[phases["phase"] == change.pattern]
    if not len(rows):
        raise unknown("range", change.pattern, {*phases["phase"]} - {REST}, " of the step")
    times = rows.pivot_table(index="step", columns="rank", values="wall_ns", aggfunc="sum", fill_value=0)
    times = times.reindex(index=account.steps, columns=account.ranks, fill_value=0)
    saved = (times.to_numpy(float) * (1 - change.factor)).min(axis=1) - change.add_ns
    return saved


def _beyond_other_ranks(times: Floats, position: int) -> Floats:
    """Return the excess of a rank's times over the other ranks' median in each step."""
    excess: Floats = times[:, position] - np.median(np.delete(times, position, axis=1), axis=1)
    return excess


def late_in_mpi(tables: Tables) -> tuple[Finding, ...]:
    """Return the late ranks of a program with MPI whose messages and collectives are not recorded.

    1. Ranks are late that work longest outside MPI, in all steps together, by themselves or as a group.
    2. Without them, a step is shorter by their work beyond that of the next rank.
    3. It is shorter by no more than the other ranks spend in MPI beyond the least time of any rank there.
    4. A sign test over the steps rejects that the late rank and the next one are late in turn by chance.

    ``tables`` has those of `explain_on_host`.
    """
    account = _account(tables["step_account"])
    if account is None or len(account.ranks) < 2 or len(account.wall) < MIN_INSTANCES:
        return ()
    in_mpi = account.wall - account.own
    beyond_least = in_mpi - in_mpi.min(axis=1, keepdims=True)
    wall = float(np.median(account.wall.max(axis=1)))
    mean = account.own.mean(axis=0)
    excess = dict(enumerate((mean - np.median(mean)).clip(min=0).tolist()))
    findings = []
    for late in late_groups(excess, len(account.ranks)):
        waiting = np.delete(np.arange(len(account.ranks)), late)
        latest = max(late, key=lambda position: mean[position])
        next_rank = max(waiting.tolist(), key=lambda position: mean[position])
        more_work = account.own[:, latest] - account.own[:, next_rank]
        saved = np.minimum(more_work, np.median(beyond_least[:, waiting], axis=1))
        # Work that takes longer in single steps, or in turn on each rank, has a lower mean or median.
        saving = min(float(np.median(saved)), float(saved.mean()))
        surplus = int(np.sign(more_work).sum())
        if saving < _LATE_SHARE * wall or surplus < _MIN_SIGN_DEVIATIONS * np.sqrt(len(more_work)):
            continue
        ranks = tuple(account.ranks[position] for position in late)
        least = _MIN_PLACE_SHARE * saving
        place, evidence = _range_of_lateness(tables, account.ranks[latest], least, len(account.wall))
        compared = (_median_compute(tables, account.ranks[position]) for position in (latest, next_rank))
        evidence += tuple(itertools.chain.from_iterable(compared))
        half = half_width(saved)
        findings.append(estimated_finding(Cause.LATE_RANK_HOST, ranks, place, saving, half, wall, evidence))
    return tuple(sorted(findings, key=lambda finding: -(finding.saving_ns or 0))[:1])


def _median_compute(tables: Tables, rank: int) -> list[Evidence]:
    """Return the step of a rank with its median compute, as evidence."""
    steps = tables["step_account"]
    steps = steps[steps["rank"] == rank].sort_values("compute_ns", kind="stable")
    return largest("step_account", "compute_ns", steps.iloc[[len(steps) // 2]])


def _range_of_lateness(
    tables: Tables, rank: int, least: float, steps: int
) -> tuple[str, tuple[Evidence, ...]]:
    """Return the place with a rank's largest excess time over the others, and the evidence.

    It is a range in which the rank executes no operator, otherwise a phase, otherwise an operator.
    """
    idle, skew = tables["idle_causes"], tables["skew_summary"]
    idle, phases = idle.assign(range=idle["range"].fillna(OUTSIDE)), tables["phases"]
    excess = (
        _excess(idle, "range", "idle_ns_per_step", rank, least)
        or _excess(phases[phases["phase"] != REST], "phase", "p50_ns", rank, least)
        or _excess(tables["operators"], "name", "self_host_ns", rank, least * steps)
    )
    place = max(excess, key=excess.__getitem__, default="")
    evidence = largest("skew_summary", "lateness_p50_ns", skew[skew["rank"] == rank]) if len(skew) else []
    if len(idle):
        shown_rows = idle[(idle["rank"] == rank) & (idle["range"] == place)]
        evidence = [*largest("idle_causes", "idle_ns_per_step", shown_rows), *evidence]
    return place, tuple(evidence)


def _excess(table: pd.DataFrame, key: str, value: str, rank: int, least: float) -> dict[str, float]:
    if not len(table):
        return {}
    by_rank = table.groupby([key, "rank"])[value].sum().unstack("rank").fillna(0)
    if rank not in by_rank:
        return {}
    excess = by_rank[rank] - by_rank.drop(columns=rank).median(axis=1)
    return {str(place): float(time) for place, time in excess.items() if time > least}


def _exposed_findings(account: _Account, tables: Tables, wall: float) -> Iterator[Finding]:
    least = account.communication.min(axis=1)
    table = tables["step_account"]
    evidence = tuple(largest("step_account", "exposed_comm_ns", table))
    rows = tables["rank_collectives"]
    time = (rows["end_ns"] - rows["start_ns"]).groupby(rows["op"]).sum() if len(rows) else None
    where = "" if time is None else str(time.idxmax())
    yield estimated_finding(
        Cause.EXPOSED_COMMUNICATION,
        account.ranks,
        where,
        float(np.median(least)),
        half_width(least),
        wall,
        evidence,
        gains=True,
    )
