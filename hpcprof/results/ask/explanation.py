"""Explain a run: gather the inputs of the explanation, compute it once and keep it in the store."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from hpcprof.analysis.collectives.verdicts import with_cost, with_hidden_lateness
from hpcprof.analysis.explain.cause import Cause, Trait, has_trait
from hpcprof.analysis.explain.changes import Change, Prediction, parse_changes
from hpcprof.analysis.explain.explanation import (
    CAUSES,
    GIVEN,
    HOOK,
    Explanation,
    Finding,
    NotJudged,
    Slower,
    StepAlone,
    StepSummary,
    unpriced_finding,
)
from hpcprof.analysis.framework.losses import touches
from hpcprof.analysis.framework.outcome import (
    WHOLE_RUN,
    AnalysisTable,
    Outcome,
    Row,
    analyze_run,
    in_declared_columns,
)
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.memory.findings import memory_findings
from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError, StoreError, UsageError, unknown
from hpcprof.common.logs import log_traceback
from hpcprof.common.paths import is_folder
from hpcprof.common.patterns import matches
from hpcprof.common.units import counted, format_ns
from hpcprof.node.on_request import SLOWER
from hpcprof.profiles.losses import RECORD_MORE_MPI, Loss, LossKind
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.profiles.readers.operations import OPERATIONS
from hpcprof.profiles.readers.results import read_results
from hpcprof.results.ask.step_alone import noted_capture, step_alone
from hpcprof.results.ask.tables import CRITICAL_PATH, PROFILER_COSTS, SLOWDOWNS, RunTables
from hpcprof.results.collect.executors.interface import Executor, serially
from hpcprof.results.collect.run_memory import memory_rows
from hpcprof.results.collect.run_names import command_line, not_collected_error, typed_run
from hpcprof.results.collect.run_profiles import (
    eztrace_notes,
    profiles_of,
    unprofiled_sentence,
    untraced_notes,
)
from hpcprof.results.collect.stalls import find_stall, is_unprofiled, unread_dumps
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION, earlier_version
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import noted_step_time, read_live_steps, step_lines
from hpcprof.submit.runs.failures import first_failure
from hpcprof.submit.waiting import ended_by_stall

if TYPE_CHECKING:  # a kept explanation needs none of them
    import pandas as pd

    from hpcprof.analysis.explain.inputs import ExplainInputs
    from hpcprof.profiles.timeline import Gpu, Timeline
    from hpcprof.results.store.tables import ProfileRow
    from hpcprof.runs.step_time import StepTime

_ANALYSES_READ = (CRITICAL_PATH, "mpi_waits")
"""Analyses whose losses make findings uncertain."""

_HARMLESS_LOSSES = (
    *(LossKind.NOTE, LossKind.CLOCK, LossKind.OPEN, LossKind.STEP, LossKind.BEFORE),
    *(LossKind.NUMBERED, LossKind.MERGED, LossKind.TABLE, LossKind.QUEUED, LossKind.REPEATED),
)
"""Losses that leave out no event of the capture."""

_MAX_HARMLESS_LAUNCHES = 0.01
"""Maximum harmless share of operations without a launch call: a capture begins amid work."""

_MPI_PREFIX = "MPI_"
"""Part of the names of places between MPI calls."""

_VERSION_KEY, _VERSION = "version", 65
"""Increased when explanations of unchanged analyses change, so that they are computed again."""

RanksRead = Callable[[int, int], None]
"""Called with the number of ranks read so far, and the number of all ranks."""

_MIN_STEP_LINES, _MAX_STEP_LINES, _MAX_STEPS = 10, 2000, 2000
"""Minimum step lines for an explanation without profiles; maximum lines and steps that are analyzed."""

_MAX_LISTED_NAMES = 12
"""Maximum number of valid names in an error."""


def kept_explanation(run: Run, store: Store) -> Explanation | None:
    """Return the stored explanation of a run; None if there is none.

    An explanation of an earlier version of hpcprof counts only if the run's folder cannot be reached.
    """
    row = store.explanation(run.id) if store.exists() else None
    if row is None or (row.analysis_version != ANALYSIS_VERSION and is_folder(run.path)):
        return None
    try:
        values = from_json(row.explanation)
        if values.get(_VERSION_KEY) != _VERSION and is_folder(run.path):
            return None
        return Explanation.from_json(values)
    except msgspec.MsgspecError:  # of an earlier version, or damaged
        return None


def explain_for_report(
    run: Run, store: Store, progress: RanksRead | None = None, executor: Executor = serially
) -> str:
    """Compute the explanation that a report shows; return the reason of a failure, else an empty text.

    A report has other parts, so no error of this one may end it. A run without timelines is not explained.
    """
    profiles = store.profiles(run.id) if store.exists() else {}
    if not any(content_of(profile.kind) is ProfileContent.TIMELINE for profile in profiles.values()):
        return ""
    try:
        explain(run, store, progress, executor)
    except HpcprofError as error:
        return str(error)
    except Exception as error:
        log_traceback(f"{run.id} was not explained: {error}", traceback.format_exc())
        return f"an internal error of hpcprof: {error} (hpcprof --debug explain shows where)"
    return ""


def explain(
    run: Run,
    store: Store,
    progress: RanksRead | None = None,
    executor: Executor = serially,
    *,
    step_ns: int | None = None,
    as_recorded: bool = False,
) -> Explanation:
    """Explain where the time of a step goes, with the causes and the saving of each.

    The explanation is computed once and kept in the store until a profile of the run changes. ``executor``
    computes the lazy analyses (`hpcprof.results.ask.tables`).
    ``step_ns`` is the time of a step without the profiler, which is kept with the explanation;
    ``as_recorded`` leaves the profiler's share in, and that explanation is not kept. Raises HpcprofError if
    the run has not been collected, or its timelines cannot be read.
    """
    now = partial(with_live_findings, run=run, store=store)
    if is_unprofiled(run, store):
        return now(_explain_unprofiled(run, store))
    given_step = None if step_ns is None else StepAlone(step_ns, step_ns, step_ns, GIVEN)
    if as_recorded:
        return now(_explain_run(run, store, progress, executor, None, as_recorded=True)[0])
    while True:
        stored = kept_explanation(run, store)
        if stored is not None and given_step in (None, stored.step.alone_ns):
            return now(stored)
        explanation, is_kept = _compute_and_store(
            run, store, progress, executor, given_step or step_alone(run, store)
        )
        if is_kept:
            return now(explanation)


def with_live_findings(explanation: Explanation, run: Run, store: Store) -> Explanation:
    """Add live findings from the run's folder: a stall, a failure, slower steps, memory, untraced calls."""
    ranks = _world_size(run) or explanation.step.ranks
    findings = [*explanation.findings, *memory_findings(memory_rows(run, store), ranks)]
    if sentences := untraced_notes(run):
        sentences[:0] = [finding.where for finding in findings if finding.remedy == RECORD_MORE_MPI]
        findings = [finding for finding in findings if finding.remedy != RECORD_MORE_MPI]
        where = "; ".join(sentences)
        findings.append(unpriced_finding(Cause.CAPTURE_INCOMPLETE, (), where, (), RECORD_MORE_MPI, "high"))
    profiles = store.profiles(run.id) if store.exists() else {}
    unknown_waits = (
        NotJudged("calls of MPI", sentence) for sentence in eztrace_notes(run, profiles.values())
    )
    has_step = explanation.step.priced_ns is not None or explanation.step.alone_ns is not None
    return replace(
        explanation,
        findings=(*findings,),
        not_judged=(*explanation.not_judged, *unknown_waits),
        step=explanation.step if has_step else _noted_step(run) or explanation.step,
        **_events_of_run(run),
    )


def _events_of_run(run: Run) -> dict[str, Any]:
    failure = first_failure(run) if run.manifest is not None else None
    if failure is not None and ended_by_stall(run) and not failure.has_own_fault:
        failure = None  # it was ended with the job
    slower = None
    with suppress(msgspec.MsgspecError):
        slower = from_json(run.state_file(SLOWER) or "", Slower)
    return {"stall": find_stall(run), "failure": failure.as_json() if failure else None, "slower": slower}


def _noted_step(run: Run) -> StepSummary | None:
    """Return the step that the ranks of a run noted, which counts where profiles have none; None without."""
    noted = noted_step_time(run) if run.manifest is not None else None
    if noted is None:
        return None
    return StepSummary(
        wall_p50_ns=round(noted.p50_ns),
        elapsed_ns=round(noted.elapsed_ns),
        source=HOOK,
        steps=noted.steps,
        counted_steps=noted.counted,
        ranks=len(read_live_steps(run)),
        explained_steps=0,
        replay_error_pct=None,
    )


def _explain_unprofiled(run: Run, store: Store) -> Explanation:
    steps = read_live_steps(run) if run.manifest is not None else {}
    noted = noted_step_time(run) if run.manifest is not None else None
    reason = unprofiled_sentence(run)
    findings, rare = _explain_noted_steps(run, store, tuple(sorted(steps)), noted)
    slow = None if findings else _file_findings(run, store)
    if isinstance(slow, str):
        reason = f"{reason}; {slow}"
    elif slow is not None:
        findings = (slow,)
    unread = unread_dumps(run.path) if run.manifest is None else ""
    lost = (NotJudged("which rank holds the others up", unread),) if unread else ()
    step = StepSummary(None, 0, len(steps), 0, None)
    return Explanation(findings, (), (NotJudged(CAUSES, reason), *lost, *rare), step)


def _file_findings(run: Run, store: Store) -> Finding | str | None:
    """Return the finding of Darshan's logs of a run without profiles, or why there is none; None without."""
    if not store.exists() or not store.has_run(run.id):
        return None
    tables = RunTables(run, store)
    if not tables.table("darshan_files").rows:
        return None
    # Runs without logs do without pandas.
    from hpcprof.analysis.explain.machine import slow_files

    return slow_files(tables.frames["darshan_files"])


def _explain_noted_steps(
    run: Run, store: Store, ranks: tuple[int, ...], whole: StepTime | None
) -> tuple[tuple[Finding, ...], tuple[NotJudged, ...]]:
    """Return the findings from the noted steps of a run and the samples of its nodes; none with few steps.

    Shares are of ``whole``, the time of all steps. If there are too many steps, only the last
    ones are analyzed, and shares are of these.
    """
    lines = step_lines(run, ranks[:1]).get(ranks[0], ()) if ranks else ()
    if len(lines) < _MIN_STEP_LINES or whole is None:
        return (), ()
    # Runs without steps do without these imports.
    from hpcprof.analysis.explain.explain import explain_noted
    from hpcprof.analysis.steps.run_step import StepSeries
    from hpcprof.analysis.telemetry.coincidences import noted_steps, single_steps
    from hpcprof.results.collect.over_ranks import mapped_beside_profiles

    names = ("coincidences", "darshan_files")
    if store.exists() and store.has_run(run.id):
        rows, files = map(RunTables(run, store).frames.__getitem__, names)
    else:
        mapped = mapped_beside_profiles(run)
        rows, files = (analyze_run(ANALYSES[name], {}, mapped[ANALYSES[name].map]).frame for name in names)
    chosen = lines[-_MAX_STEP_LINES:]
    # A line says when its last step ended: the first one is preceded by the begin of its first step.
    begin = chosen[0].time - sum(wall * count for wall, count in chosen[0].times) / 1e9
    noted = noted_steps((msgspec.structs.replace(chosen[0], time=begin), *chosen))
    assert noted is not None
    series = single_steps(noted)
    newest = StepSeries(*(column[-_MAX_STEPS:] for column in (series.steps, series.wall, series.ranks)))
    if len(newest.wall) >= whole.steps:
        return explain_noted(newest, ranks, rows, files, whole.elapsed_ns)
    mean = float(newest.wall.mean())
    findings, rare = explain_noted(newest, ranks, rows, files, mean)
    last = f"findings are of the last {counted(len(newest.wall), 'step')}, which take {format_ns(mean)} each"
    return findings, (*rare, *([NotJudged("earlier steps", last)] if findings else []))


def _compute_and_store(
    run: Run, store: Store, progress: RanksRead | None, executor: Executor, alone: StepAlone | None
) -> tuple[Explanation, bool]:
    """Return an explanation, and False if a profile changed while it was computed."""
    # A stored explanation needs neither pandas nor the graph.
    import pandas as pd

    profiles = store.profiles(run.id) if store.exists() else {}
    sha256 = {rank: profile.sha256 for rank, profile in profiles.items()}
    explanation, path, slowdowns = _explain_run(run, store, progress, executor, alone)
    costs = pd.DataFrame([asdict(cost) for cost in explanation.step.profiler_cost])
    outcomes = {
        CRITICAL_PATH: Outcome(
            path, "" if len(path) else "the steps have no path through threads and streams"
        ),
        PROFILER_COSTS: Outcome(costs, "" if len(costs) else "the profiler's share of a step is unknown"),
        SLOWDOWNS: Outcome(slowdowns, "" if len(slowdowns) else "the run has no table of operations"),
    }
    tables = {name: in_declared_columns(outcome, ANALYSES[name]) for name, outcome in outcomes.items()}
    late_ranks = store.table(run.id, "skew_summary"), store.table(run.id, "skew")
    replayed = explanation.step.ranks > 1 and len(slowdowns) > 0
    tables |= _late_ranks(explanation, *late_ranks, replayed=replayed)
    text = msgspec.json.encode({**explanation.as_json(), _VERSION_KEY: _VERSION}).decode()
    try:
        return explanation, store.put_analyses(run.id, WHOLE_RUN, tables, sha256, text)
    except StoreError:  # Users who may only read the database get the explanation too.
        return explanation, True


def _late_ranks(
    whole: Explanation, summary: AnalysisTable, skew: AnalysisTable, *, replayed: bool = False
) -> dict[str, AnalysisTable]:
    """Return ``skew_summary`` and ``skew`` with the costs of late ranks by their findings.

    If every rank was ``replayed``, ranks without a finding are late only because of the others' work.
    """
    costs = {
        rank: late.saving_ns
        for late in reversed(whole.shown())
        if has_trait(late.cause, Trait.DELAYS_OTHERS) and len(late.ranks) < whole.step.ranks
        for rank in late.ranks
    }
    even = {"lateness_p50_ns": 0, "lateness_low_ns": 0, "lateness_high_ns": 0}
    rows = [
        with_cost(
            {**row, "elapsed_ns": whole.step.elapsed_ns or row["elapsed_ns"]}
            | (even if replayed and row["rank"] not in costs else {}),
            costs.get(row["rank"]),
        )
        for row in summary.rows
    ]
    columns = {name: [row[name] for row in rows] for name in summary.columns}
    judged = {name: columns[name] for name in ("verdict", "lateness_p50_ns")} if rows else {}
    made = {}
    for name, table, values in (
        ("skew_summary", summary, columns),
        ("skew", skew, {**skew.columns, **judged}),
    ):
        reason = with_hidden_lateness(table.reason, rows)
        made[name] = replace(table, values=values, reasons={WHOLE_RUN: reason} if reason else {})
    return made


def _explain_run(
    run: Run,
    store: Store,
    progress: RanksRead | None,
    executor: Executor,
    alone: StepAlone | None,
    *,
    as_recorded: bool = False,
) -> tuple[Explanation, pd.DataFrame, pd.DataFrame]:
    """Return the explanation, the critical path, and the slowdowns of a table of operations."""
    import pandas as pd

    if (table := operations_of(run, store)) is not None:
        from hpcprof.analysis.predict.operation_causes import explain_operations

        account = _account_of_steps(run, store)
        explanation, slowdowns = explain_operations(table, account.get("elapsed_ns"))
        times = {name: account[name] for name in ("wall_p50_ns", "counted_steps") if account}
        explanation = replace(explanation, step=replace(explanation.step, **times))
        return explanation, pd.DataFrame(), slowdowns
    from hpcprof.analysis.explain.explain import explain_run

    inputs = _with_progress(explain_inputs(run, store, executor), progress)
    return *explain_run(replace(inputs, alone=alone, as_recorded=as_recorded)), pd.DataFrame()


def _account_of_steps(run: Run, store: Store) -> Row:
    """Return the account of all steps, the first row of ``step_kinds``; empty without steps."""
    return next(iter(store.table(run.id, "step_kinds").rows), {})


def operations_of(run: Run, store: Store) -> pd.DataFrame | None:
    """Return the operations of a run whose profiles are tables of operations; None for other runs."""
    profiles = store.profiles(run.id) if store.exists() else {}
    if {profile.kind for profile in profiles.values()} != {OPERATIONS.name} or not profiles_of(run):
        return None
    from hpcprof.profiles.readers.operations.table import read_tables

    return read_tables(profiles_of(run))


def _with_progress(inputs: ExplainInputs, progress: RanksRead | None) -> ExplainInputs:
    if progress is None:
        return inputs
    finished: set[int] = set()

    def read(rank: int) -> Timeline:
        timeline = inputs.read(rank)
        finished.add(rank)
        progress(len(finished), len(inputs.ranks))
        return timeline

    return replace(inputs, read=read)


def what_if(run: Run, store: Store, texts: Sequence[str]) -> Prediction:
    """Predict the step of a run with changed times; without changes, replay it as it was.

    ``texts`` are the changes, each in one of the forms of `hpcprof.analysis.explain.changes.FORMS`. Raises
    UsageError if a change cannot be parsed, or is about something that the run does not have, and
    HpcprofError if the run has not been collected, or its timelines cannot be read.
    """
    changes = parse_changes(texts)
    if (table := operations_of(run, store)) is not None:
        from hpcprof.analysis.predict.operation_causes import what_if_operations

        account = _account_of_steps(run, store)
        return what_if_operations(table, changes, account.get("elapsed_ns"))
    inputs = explain_inputs(run, store)
    for text, change in zip(texts, changes, strict=True):
        _check_change(text, change, inputs)
    from hpcprof.analysis.explain.whatif import predict

    return predict(inputs, changes)


def explain_inputs(run: Run, store: Store, executor: Executor = serially) -> ExplainInputs:
    """Gather the inputs of an explanation; ``executor`` is as for `explain`.

    Raises HpcprofError if the run has not been collected by this version of hpcprof, or has no timelines.
    """
    from hpcprof.analysis.explain.inputs import ExplainInputs
    from hpcprof.results.ask.run_inputs import run_data
    from hpcprof.results.ask.windows import RunWindows
    from hpcprof.results.collect.over_ranks import run_communication

    profiles = store.profiles(run.id) if store.exists() else {}
    collecting = command_line(store, "collect", typed_run(run))
    if not profiles:
        raise not_collected_error(run, store)
    earlier = earlier_version(profiles.values())
    if earlier and not is_folder(run.path):
        raise HpcprofError(f"{run.id} cannot be explained: {earlier} collected it, and its folder is gone.")
    if earlier:
        raise HpcprofError(f"{run.id} was collected by {earlier}: run {collecting} again first.")
    data = run_data(run, store)
    if not data.timeline_ranks:
        raise HpcprofError(
            f"{run.id} has no timelines to explain: profile it with Nsight Systems or the PyTorch profiler."
        )
    communication, stored = run_communication(run, store), store.run(run.id)
    return ExplainInputs(
        ranks=tuple(sorted(data.timeline_ranks)),
        read=data.read,
        window=RunWindows(run, store).read,
        mpi=communication.mpi_calls,
        tables=RunTables(run, store, executor).frames,
        losses=_losses_by_rank(run, store),
        clocks=communication.clocks.clocks,
        aligned=communication.clocks.aligned,
        matches=communication.matches,
        arrivals=communication.arrivals,
        world_size=max(_world_size(run), communication.size, (stored.ranks if stored else None) or 0),
        gpus=_gpus_by_rank(run, store),
        call_weights=_call_weights(run, profiles.values()),
        captured_steps=noted_capture(run),
    )


def _call_weights(run: Run, profiles: Iterable[ProfileRow]) -> Mapping[str, float]:
    from hpcprof.results.ask.site_measurements import call_weights

    versions = (profile.profiler_version for profile in profiles)
    return call_weights(run.manifest.site.name, versions) if run.manifest else {}


def _world_size(run: Run) -> int:
    """Return the number of ranks of a run, 0 if unknown: a single rank may have started others (torchrun)."""
    results = read_results(run.outputs()).ranks
    if results:
        return results[0].world_size
    ranks = run.manifest.job.ranks if run.manifest else 1
    return ranks if ranks > 1 else 0


def _losses_by_rank(run: Run, store: Store) -> dict[int, tuple[Loss, ...]]:
    losses: dict[int, tuple[Loss, ...]] = {}
    for rank, loss in store.losses(run.id):
        few = loss.kind is LossKind.LAUNCH and loss.count <= _MAX_HARMLESS_LAUNCHES * (loss.of or 0)
        if (
            loss.kind not in _HARMLESS_LOSSES
            and not few
            and any(touches(loss, ANALYSES[name]) for name in _ANALYSES_READ)
        ):
            losses[rank] = (*losses.get(rank, ()), loss)
    return losses


def _gpus_by_rank(run: Run, store: Store) -> dict[int, tuple[Gpu, ...]]:
    from hpcprof.profiles.timeline import Gpu

    gpus_of_ranks: dict[int, list[Gpu]] = defaultdict(list)
    for row in store.gpus(run.id):
        values = msgspec.structs.asdict(row)
        gpus_of_ranks[values.pop("rank")].append(Gpu(**{k: v for k, v in values.items() if k != "run_id"}))
    return {rank: tuple(gpus) for rank, gpus in gpus_of_ranks.items()}


def _check_change(text: str, change: Change, inputs: ExplainInputs) -> None:
    if change.kind == "ideal":
        raise UsageError(f"{text!r} changes a table of operations, which the run does not have.")
    if change.rank is not None and change.rank not in inputs.ranks:
        raise unknown("rank", str(change.rank), map(str, inputs.ranks), f" in {text!r}")
    if change.median and len(inputs.ranks) == 1:
        raise UsageError(f"{text!r} needs the other ranks, and only rank {change.rank} was profiled.")
    # Places between calls of MPI have no range; the replay knows them.
    if change.kind in ("range", "gpu") and _MPI_PREFIX not in change.pattern:
        names = set(inputs.tables["ranges"]["range"].dropna())
        if not {change.pattern, change.pattern.rpartition("/")[2]} & names:
            raise unknown("range", change.pattern, names, f" in {text!r}", _MAX_LISTED_NAMES)
    table, key = {"kernel": ("kernels", "name"), "api": ("api", "name"), "mpi": ("mpi_calls", "call")}.get(
        change.kind, ("", "")
    )
    if table and not any(matches(change.pattern, [*set(inputs.tables[table][key])])):
        kind = {"kernel": "kernel", "mpi": "MPI call"}.get(change.kind, "API call")
        raise UsageError(f"{text!r}: no {kind} of the run matches {change.pattern!r}.")
