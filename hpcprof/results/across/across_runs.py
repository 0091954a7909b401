"""Run the analyses that span several runs, and check that the runs are comparable."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from hpcprof.analysis.comparison.compare import MATERIAL_PCT, compare
from hpcprof.analysis.comparison.run_differences import (
    Difference,
    differences,
    unlike_steps,
    without_steps,
)
from hpcprof.analysis.framework.declaration import Analysis
from hpcprof.analysis.framework.losses import losses_of
from hpcprof.analysis.framework.outcome import AnalysisTable, analyze_across, in_declared_columns
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.common.errors import UsageError
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.collect.run_names import command_line, not_collected_error, typed_run
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Manifest, Run, all_runs
from hpcprof.runs.job import Job

DIFFERENCES = (
    "step_difference",
    "kernel_difference",
    "collective_difference",
    "idle_difference",
    "memory_difference",
)
"""Analyses that explain the difference between two sides."""


def over_pair(analysis: Analysis, runs: Sequence[Run], against: Sequence[Run], store: Store) -> AnalysisTable:
    """Run a pair analysis over two sides of runs; the runs of a side are repeats of each other.

    Raises UsageError if a run is listed twice on one side, and HpcprofError if a run has neither been
    collected nor has results of its workload.
    """
    if analysis.name == "compare":
        return compare_sides(runs, against, store)
    table = analyze_across(analysis, *_data_of_sides(runs, against, store)[:2])
    return _with_losses(table, analysis, [*runs, *against], store)


def compare_sides(
    runs: Sequence[Run],
    against: Sequence[Run],
    store: Store,
    margin_pct: float = MATERIAL_PCT,
    force: bool = False,
    gates: Sequence[str] = (),
) -> AnalysisTable:
    """Run ``compare`` over two sides of runs, with the earlier runs of the baseline.

    ``runs`` are the candidate and ``against`` the baseline. Both are equivalent if the interval of their
    ratio is within ``margin_pct``; ``gates`` decide beside the step
    (`hpcprof.analysis.comparison.compare.GATES`). With ``force``, different programs, numbers of ranks, or
    runs with themselves are compared.

    Raises UsageError if a run is listed twice on one side, the runs are of different programs or numbers of
    ranks, or both sides are the same runs, and HpcprofError as `over_pair`.
    """
    analysis = ACROSS_RUNS["compare"]
    candidate, baseline, unlike = _data_of_sides(runs, against, store)
    if not force:
        sides = [*(("--a", run) for run in against), *(("--b", run) for run in runs)]
        words = [word for side, run in sides for word in (side, typed_run(run))]
        forced = command_line(store, "compare", "--anyway", *words)
        if {run.id for run in runs} == {run.id for run in against}:
            raise UsageError(
                f"both sides are the same runs, which differ in nothing: {forced} compares them."
            )
        check_comparable([*baseline, *candidate], forced)
    before = [run_data(run, store) for run in earlier_runs(against, runs)]
    outcome = compare(candidate, baseline, before, margin_pct, gates)
    outcome = replace(outcome, reason="; ".join(filter(None, (unlike, outcome.reason))))
    table = in_declared_columns(outcome, analysis)
    return _with_losses(table, analysis, [*runs, *against], store)


def explain_difference(
    runs: Sequence[Run], against: Sequence[Run], store: Store
) -> tuple[dict[str, AnalysisTable], list[Difference]]:
    """Run the analyses in `DIFFERENCES` over two sides of runs, and find the facts in which these differ."""
    analyses = [ACROSS_RUNS[name] for name in DIFFERENCES]
    candidate, baseline, _ = _data_of_sides(runs, against, store)
    tables = {item.name: analyze_across(item, candidate, baseline) for item in analyses}
    return tables, differences(baseline, candidate)


def slowdown_over_pair(
    runs: Sequence[Run], against: Sequence[Run], store: Store
) -> tuple[AnalysisTable, AnalysisTable]:
    """Run ``slowdown_pairs`` and ``slowdown_by_overlap`` in one pass: most of the time goes into reading."""
    # Other analyses do not need its imports.
    from hpcprof.analysis.slowdown.by_overlap import slowdown_pairs_and_by_overlap

    outcomes = slowdown_pairs_and_by_overlap(*_data_of_sides(runs, against, store)[:2])
    pairs, by_overlap = (
        in_declared_columns(outcome, ACROSS_RUNS[name])
        for outcome, name in zip(outcomes, ("slowdown_pairs", "slowdown_by_overlap"), strict=True)
    )
    return pairs, by_overlap


def _data_of_sides(
    runs: Sequence[Run], against: Sequence[Run], store: Store
) -> tuple[list[RunData], list[RunData], str]:
    """Return the data of the two sides of a comparison, and why they are without steps, or an empty text.

    Raises UsageError if a run is listed twice.
    """
    for side in (runs, against):
        ids = [run.id for run in side]
        repeated = next((run_id for run_id in ids if ids.count(run_id) > 1), None)
        if repeated is not None:
            raise UsageError(f"{repeated} is listed twice on one side; repeats must be distinct runs.")
        _refuse_copies(side, store)
    candidate, baseline = _comparable_data(runs, store), _comparable_data(against, store)
    if unlike := unlike_steps(baseline, candidate):
        candidate, baseline = ([*map(without_steps, side)] for side in (candidate, baseline))
    return candidate, baseline, unlike


def _refuse_copies(runs: Sequence[Run], store: Store) -> None:
    run_by_content: dict[tuple[str, ...], Run] = {}
    for run in runs if store.exists() else ():
        content = tuple(sorted(profile.sha256 for profile in store.profiles(run.id).values()))
        first = run_by_content.setdefault(content, run) if content else run
        if first.id != run.id:
            raise UsageError(
                f"{first.id} and {run.id} have the same profiles, byte for byte; repeats must be distinct "
                "runs."
            )


def _comparable_data(runs: Sequence[Run], store: Store) -> list[RunData]:
    data_of_runs = []
    for run in runs:
        data = run_data(run, store)
        collected = store.exists() and (store.profiles(run.id) or len(data.tables["darshan_files"]))
        if not collected and not len(data.own_step_ns):
            raise not_collected_error(run, store)
        data_of_runs.append(data)
    return data_of_runs


def over_store(analysis: Analysis, runs: Sequence[Run], store: Store) -> AnalysisTable:
    """Run a store analysis over all runs given; runs without data are left out."""
    table = analyze_across(analysis, [run_data(run, store) for run in runs])
    return _with_losses(table, analysis, runs, store)


def _with_losses(
    table: AnalysisTable, analysis: Analysis, runs: Sequence[Run], store: Store
) -> AnalysisTable:
    """Return a table over some runs with the losses of their profiles."""
    ids = dict.fromkeys(run.id for run in runs) if store.exists() else {}
    losses = (f"{run}, {loss}" for run in ids for loss in losses_of(analysis, store.losses(run)))
    return replace(table, losses=tuple(losses))


def every_run(store: Store, runs_dir: Path, skipped: list[str]) -> list[Run]:
    """Return the runs in a folder and the collected runs that are elsewhere, by id.

    A sentence for each run that cannot be read is added to ``skipped``.
    """
    runs_by_id = {run.id: run for run in all_runs(runs_dir, skipped)}
    for row in store.runs() if store.exists() else ():
        runs_by_id.setdefault(row.id, Run(row.id, Path(row.path)))
    return [runs_by_id[run_id] for run_id in sorted(runs_by_id)]


_NUMBER = re.compile(r"\d+")

MAX_EARLIER_RUNS = 20
"""Maximum number of earlier runs; the latest ones count."""


def check_comparable(runs: Sequence[RunData], force: str) -> None:
    """Raise UsageError unless runs are of one program on one number of ranks, as far as that is known.

    Runs of an unknown program have to share a kernel or the name of their step. ``force`` is the command that
    compares them nevertheless.
    """
    for fact, words in (("program", "different programs"), ("ranks", "different numbers of ranks")):
        values = dict.fromkeys(str(run.facts[fact]) for run in runs if run.facts[fact] is not None)
        if len(values) > 1:
            both = ", ".join(values)
            raise UsageError(f"the runs have {words} ({both}): {force} compares them nevertheless.")
    if all(run.facts["program"] is not None for run in runs):
        return
    first, *other_runs = ((run.id, _landmarks(run)) for run in runs)
    for name, landmarks in other_runs:
        if first[1] and landmarks and first[1].isdisjoint(landmarks):
            raise UsageError(
                f"{first[0]} and {name} have neither a kernel nor the name of a step in common: {force} "
                "compares them nevertheless."
            )


def _landmarks(run: RunData) -> set[str]:
    """Return the names of a run's kernels and step, without the source lines that compilers put into them."""
    steps = run.tables["step_ranges"]
    names = (*run.tables["kernels"]["name"].dropna(), *steps["range"][steps["chosen"] == 1])
    return {_NUMBER.sub("", name) for name in names}


def earlier_runs(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[Run]:
    """Return the runs that repeat the job of the baseline and were submitted before it, oldest first.

    They are searched in the folders of the baseline. Their jobs have to be equal, and their code too: the
    commit of the user's repository, without changes, or the version of hpcprof for its own workloads. If that
    is unknown, there are none. Runs with a failed rank are left out.
    """
    manifests = [run.manifest for run in baseline if run.manifest is not None]
    jobs = [_repeated_job(manifest) for manifest in manifests]
    if len(jobs) < len(baseline) or any(job is None or job != jobs[0] for job in jobs):
        return []
    begin = min(run.manifest.created for run in (*baseline, *candidate) if run.manifest is not None)
    named = {run.id for run in (*baseline, *candidate)}
    beside = {run.id: run for folder in {run.path.parent for run in baseline} for run in all_runs(folder, [])}
    dated = [
        (run.manifest.created, run.id)
        for run in beside.values()
        if run.id not in named
        and run.manifest is not None
        and run.manifest.created < begin
        and _repeated_job(run.manifest) == jobs[0]
        and not any(run.rank_exit_codes().values())
    ]
    return [beside[run_id] for _, run_id in sorted(dated)[-MAX_EARLIER_RUNS:]]


def _repeated_job(manifest: Manifest) -> tuple[Job, str] | None:
    """Return the job and its version, equal for repeats; None if the repository had uncommitted changes."""
    job, git = manifest.job, manifest.git
    comparable = msgspec.structs.replace(job, after=[], walltime=0, account="")
    if job.workload is not None:
        return msgspec.structs.replace(comparable, directory=""), manifest.hpcprof_version
    if git is None:
        return comparable, ""
    return None if git.dirty else (comparable, git.commit)
