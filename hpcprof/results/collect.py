"""From profiles to results: reads the profile of each rank, runs every analysis and fills the store."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import DamagedInput, HpcprofError
from hpcprof.common.units import counted
from hpcprof.profiles.losses import over_ranks
from hpcprof.profiles.readers.discovery import PROFILES, find_profiles
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.results.executors import Executor, Lost, Processes, serially
from hpcprof.results.profile_ranks import RankedProfiles, profiles_by_rank
from hpcprof.results.rank_task import PRELOAD, ProfileResults, ProfileTask, Unchanged, analyze_profile
from hpcprof.results.store.store import Store, open_store
from hpcprof.results.store.tables import ANALYSIS_VERSION, ProfileRow, RunRow
from hpcprof.submit.runs.directory import Run, find_run, runs_directory, save
from hpcprof.submit.runs.failures import profiler_complaint

Progress = Callable[[int, int, Path], None]
"""Called after each rank with the number of ranks done, the number of all, and the rank's profile."""


@dataclass
class Collected:
    """What a collect did with each profile.

    Attributes
    ----------
    read : list of Path
        Profiles whose results are new in the store.
    unchanged : list of Path
        Profiles whose results the store already had.
    skipped : list of str
        A sentence for each profile that could not be collected.
    warnings : list of str
        Sentences about the others.
    losses : list of str
        Sentences about what the profiles of the run lack, each with its ranks.
    tracebacks : list of str
        The traceback of each skipped profile whose reading ended in an unexpected exception.
    """

    read: list[Path] = field(default_factory=list)
    unchanged: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)

    def skip(self, damage: DamagedInput) -> None:
        """Name a profile that cannot be read."""
        self.skipped.append(str(damage))
        self.tracebacks += [damage.traceback] if damage.traceback else []


def collect_profiles(
    run: str | os.PathLike[str] | Run = "last",
    *,
    runs_dir: str | os.PathLike[str] | None = None,
    db: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Read the profiles of a run into the results database; see `hpcprof.collect_profiles`."""
    runs = runs_directory(Path(runs_dir) if runs_dir else None)
    found = run if isinstance(run, Run) else find_run(os.fspath(run), runs)
    store = open_store(db, runs)
    store.prepare()
    executor = serially if jobs is None else Processes(jobs, PRELOAD)
    return collect(found, store, progress, executor, jobs or 1)


def collect(
    run: Run,
    store: Store,
    progress: Progress | None = None,
    executor: Executor = serially,
    jobs: int = 1,
) -> Collected:
    """Bring the store up to date with the profiles of a run.

    A profile is left alone if the store has the results of the same content. A damaged one is skipped.

    Parameters
    ----------
    run : Run
    store : Store
    progress : callable, optional
        See `Progress`.
    executor : Executor
        Reads and analyzes the ranks. This process alone writes to the store.
    jobs : int
        The number of CPUs to use. If there are fewer ranks, the rest serves within the ranks.

    Raises
    ------
    HpcprofError
        If there are no profiles, or two have the same rank; then nothing is stored.
    """
    files = find_profiles(run.path)
    if not files:
        place = f"{run.path} or its profiles/" if run.manifest else run.path
        raise HpcprofError(f"no profiles ({PROFILES}) in {place}{profiler_complaint(run)}.")
    profiles = profiles_by_rank(files, executor, jobs)
    summary = Collected()
    for damage in profiles.damaged:
        summary.skip(damage)
    tasks = _tasks(run, store, profiles, max(1, jobs // max(1, len(profiles.paths))))
    world_sizes: dict[Path, int] = {}
    for done, (task, result) in enumerate(executor(analyze_profile, tasks), 1):
        if isinstance(result, Unchanged):
            summary.unchanged.append(task.path)
        elif isinstance(result, DamagedInput):
            summary.skip(result)
        elif isinstance(result, Lost):
            summary.skipped.append(f"{task.path} was not collected: {result.reason}.")
        else:
            _store_profile(run, store, task, result)
            summary.read.append(task.path)
            summary.warnings += result.warnings
            if result.origin.world_size is not None:
                world_sizes[task.path] = result.origin.world_size
        if progress is not None:
            progress(done, len(tasks), task.path)
    summary.warnings += _world_size_warnings(run, world_sizes)
    if summary.read or summary.unchanged:
        _collect_run(run, store)
        summary.losses = over_ranks(store.losses(run.id))
    if run.manifest is not None:
        try:
            save(run)
        except OSError as error:
            summary.warnings.append(f"the list of files in {run.path} was not updated: {error.strerror}.")
    return summary


def _world_size_warnings(run: Run, world_sizes: Mapping[Path, int]) -> list[str]:
    """Return a warning if profiles record another number of ranks than the run has.

    Without a manifest, or where hpcprof launched one rank, which may have started ranks of its own
    (torchrun), the number that most profiles record is the expected one. All profiles are collected.
    """
    if not world_sizes:
        return []
    if run.manifest and run.manifest.job.ranks > 1:
        expected, who = run.manifest.job.ranks, "the run has"
    else:
        expected, who = Counter(world_sizes.values()).most_common(1)[0][0], "most others have"
    other = sorted(path for path, size in world_sizes.items() if size != expected)
    if not other:
        return []
    more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
    size = counted(world_sizes[other[0]], "rank")
    return [f"{other[0]}{more} has {size}, but {who} {expected}: is it from another run?"]


def _tasks(run: Run, store: Store, profiles: RankedProfiles, threads: int) -> list[ProfileTask]:
    """Return the tasks by rank. Nothing is written into a folder that hpcprof did not create."""
    stored = store.profiles(run.id)
    timelines = run.path / "timeline" if run.manifest else None
    tasks = []
    for rank, path in sorted(profiles.paths.items()):
        known = stored.get(rank)
        current = known and (known.file, known.analysis_version) == (path.name, ANALYSIS_VERSION)
        sha256 = known.sha256 if known and current else None
        tasks.append(ProfileTask(path, rank, sha256, timelines, threads, profiles.parts.get(rank)))
    return tasks


def _store_profile(run: Run, store: Store, task: ProfileTask, found: ProfileResults) -> None:
    origin = found.origin
    profile = ProfileRow(
        run_id=run.id,
        rank=task.rank,
        file=task.path.name,
        sha256=found.sha256,
        bytes=found.bytes,
        kind=origin.kind,
        host=origin.host,
        devices=", ".join(origin.device_names),
        profiler_version=origin.profiler_version,
        start_utc_ns=origin.start_utc_ns,
        analysis_version=ANALYSIS_VERSION,
    )
    store.put_profile(_run_row(run), profile, found.tables, origin.gpus, origin.facts, found.losses)


def _collect_run(run: Run, store: Store) -> None:
    """Compute the analyses that span the ranks unless they are stored.

    Should another collect replace a profile in the meantime, they are computed again.
    """
    if store.has_run(run.id):
        return
    while True:
        sha256 = {rank: profile.sha256 for rank, profile in store.profiles(run.id).items()}
        if store.put_run(run.id, _analyses_over_ranks(run, store), sha256):
            return


def _analyses_over_ranks(run: Run, store: Store) -> dict[str, AnalysisTable]:
    # pandas is not needed before this, and not at all if no profile has changed.
    from hpcprof.analysis.framework.outcome import analyze_run, outcome_from_columns

    analyses = [analysis for analysis in ANALYSES.values() if analysis.scope is Scope.RUN]
    names = {analysis.name for analysis in analyses}
    needs = {need for analysis in analyses for need in analysis.needs} - names
    outcomes = {
        need: outcome_from_columns(ANALYSES[need], store.read(run.id, need).columns) for need in needs
    }
    for analysis in analyses:
        outcomes[analysis.name] = analyze_run(analysis, outcomes)
    return {name: AnalysisTable.from_outcome(outcomes[name]) for name in names}


def _run_row(run: Run) -> RunRow:
    job = run.manifest.job if run.manifest else None
    return RunRow(
        id=run.id,
        path=str(run.path),
        site=job.site if job else None,
        workload=job.workload if job else None,
        ranks=job.ranks if job else None,
    )
