"""From profiles to results: reads each rank's profile, runs every analysis, fills the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import DamagedInput, HpcprofError
from hpcprof.profiles.readers.discovery import PROFILES, find_profiles
from hpcprof.results.executors import Executor, Lost, serially
from hpcprof.results.rank_task import Gathered, Identified, Task, Unchanged, as_result, gather, identify
from hpcprof.results.store.store import ANALYSIS_VERSION, Described, Result, Store
from hpcprof.results.store.tables import ProfileRow, RunRow
from hpcprof.submit.runs.directory import Run, save

Progress = Callable[[int, int, Path], None]
"""Called with the number of ranks that are done, of all, and the profile of the last one."""


@dataclass
class Collected:
    """What a collect did, file by file; ``skipped`` and ``warnings`` hold sentences."""

    read: list[Path] = field(default_factory=list)
    unchanged: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def collect(
    run: Run,
    store: Store,
    progress: Progress = lambda done, ranks, path: None,
    executor: Executor = serially,
    jobs: int = 1,
) -> Collected:
    """Bring the store up to date with a run's profiles.

    A profile whose content the store already has is left alone. A damaged one is skipped and named.

    Parameters
    ----------
    run : Run
    store : Store
    progress : callable
        Told of each rank that is done.
    executor : Executor
        Reads and analyses the ranks; the store is written here.
    jobs : int
        How many CPUs there are to use: what the ranks leave serves within a rank.

    Raises
    ------
    HpcprofError
        If there is no profile, or two of them are of the same rank: nothing is stored then.
    """
    files = find_profiles(run.path)
    if not files:
        raise HpcprofError(
            f"no profiles ({PROFILES}) in {run.path}" + (" or its profiles/." if run.manifest else ".")
        )
    summary = Collected()
    profiles = by_rank(files, summary, executor, jobs)
    tasks = _tasks(run, store, profiles, max(1, jobs // max(1, len(profiles))))
    sizes: dict[Path, int] = {}
    for done, (task, result) in enumerate(executor(gather, tasks), 1):
        if isinstance(result, Unchanged):
            summary.unchanged.append(task.path)
        elif isinstance(result, DamagedInput):
            summary.skipped.append(str(result))
        elif isinstance(result, Lost):
            summary.skipped.append(f"{task.path} was not collected: {result.reason}.")
        else:
            _store_profile(run, store, task, result)
            summary.read.append(task.path)
            summary.warnings += result.warnings
            if result.origin.world_size is not None:
                sizes[task.path] = result.origin.world_size
        progress(done, len(tasks), task.path)
    summary.warnings += _of_other_programs(run, sizes)
    if summary.read or summary.unchanged:
        _collect_run(run, store)
    if run.manifest is not None:
        try:
            save(run)
        except OSError as error:
            summary.warnings.append(f"the list of files in {run.path} stays as it was: {error.strerror}.")
    return summary


def by_rank(
    files: list[Path], summary: Collected, executor: Executor = serially, jobs: int = 1
) -> dict[int, Path]:
    """Give each file its rank; a single file that tells none is rank 0. Damaged ones are skipped.

    Raises
    ------
    HpcprofError
        If two files are of the same rank, or one of several tells none.
    """
    told: dict[Path, Identified] = {}
    for paths, answer in executor(identify, [files[i::jobs] for i in range(min(jobs, len(files)))]):
        told |= zip(paths, answer, strict=True) if not isinstance(answer, Lost) else _lost(paths, answer)
    profiles: dict[int, Path] = {}
    for file in files:
        found = told[file]
        if isinstance(found, DamagedInput):
            summary.skipped.append(str(found))
            continue
        path, rank = found
        if rank is None and len(files) > 1:
            raise HpcprofError(
                f"neither {path} nor its name tells the rank: rename it, for example rank00000{path.suffix}."
            )
        rank = rank or 0
        if rank in profiles:
            raise HpcprofError(f"two profiles of rank {rank}: {profiles[rank]} and {path}; remove one.")
        profiles[rank] = path
    return profiles


def _lost(paths: list[Path], lost: Lost) -> dict[Path, DamagedInput]:
    return {path: DamagedInput(f"{path} was not collected: {lost.reason}.") for path in paths}


def _of_other_programs(run: Run, sizes: Mapping[Path, int]) -> list[str]:
    """Say which profiles tell another number of ranks than the run has.

    They are compared with most of the others where the run does not know: without a manifest, and where one
    rank was launched, which may have started ranks of its own (torchrun). All are collected.
    """
    if not sizes:
        return []
    if run.manifest and run.manifest.job.ranks > 1:
        expected, who = run.manifest.job.ranks, "the run has"
    else:
        expected, who = Counter(sizes.values()).most_common(1)[0][0], "others are of"
    other = sorted(path for path, size in sizes.items() if size != expected)
    if not other:
        return []
    more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
    return [f"{other[0]}{more} is of {sizes[other[0]]} ranks, {who} {expected}: is it of another run?"]


def _tasks(run: Run, store: Store, profiles: dict[int, Path], threads: int) -> list[Task]:
    """Return the tasks by rank. A folder that hpcprof did not make is only read."""
    stored = store.profiles(run.id)
    timelines = run.path / "timeline" if run.manifest else None
    tasks = []
    for rank, path in sorted(profiles.items()):
        known = stored.get(rank)
        same = known and (known.file, known.analysis_version) == (path.name, ANALYSIS_VERSION)
        tasks.append(Task(path, rank, known.sha256 if known and same else None, timelines, threads))
    return tasks


def _store_profile(run: Run, store: Store, task: Task, gathered: Gathered) -> None:
    origin = gathered.origin
    profile = ProfileRow(
        run_id=run.id,
        rank=task.rank,
        file=task.path.name,
        sha256=gathered.sha256,
        bytes=gathered.bytes,
        kind=origin.kind,
        host=origin.host,
        devices=", ".join(origin.device_names),
        profiler_version=origin.profiler_version,
        start_utc_ns=origin.start_utc_ns,
        analysis_version=ANALYSIS_VERSION,
    )
    store.put_profile(_run_row(run), profile, Described(origin.gpus, origin.facts), gathered.results)


def _collect_run(run: Run, store: Store) -> None:
    """Compute what spans the ranks, unless it is there; again where another collect changes one meanwhile."""
    if store.has_run(run.id):
        return
    while True:
        checksums = {rank: profile.sha256 for rank, profile in store.profiles(run.id).items()}
        if store.put_run(run.id, _over_ranks(run, store), checksums):
            return


def _over_ranks(run: Run, store: Store) -> dict[str, Result]:
    # pandas is not needed before, and not at all where nothing has changed.
    from hpcprof.analysis.framework.outcome import from_columns, of_run

    analyses = [analysis for analysis in ANALYSES.values() if analysis.scope is Scope.RUN]
    names = {analysis.name for analysis in analyses}
    needs = {need for analysis in analyses for need in analysis.needs} - names
    outcomes = {need: from_columns(ANALYSES[need], store.read(run.id, need).columns) for need in needs}
    for analysis in analyses:
        outcomes[analysis.name] = of_run(analysis, outcomes)
    return {analysis.name: as_result(outcomes[analysis.name]) for analysis in analyses}


def _run_row(run: Run) -> RunRow:
    job = run.manifest.job if run.manifest else None
    return RunRow(
        id=run.id,
        path=str(run.path),
        site=job.site if job else None,
        workload=job.workload if job else None,
        ranks=job.ranks if job else None,
    )
