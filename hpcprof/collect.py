"""From profiles to results: reads each rank's profile, runs every analysis, fills the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.analysis.catalogue import ANALYSES, Scope
from hpcprof.errors import DamagedInput, HpcprofError
from hpcprof.executors import Executor, Lost, serially
from hpcprof.rank_collect import Gathered, Task, Unchanged, as_result, gather, identify
from hpcprof.readers.detect import find_profiles
from hpcprof.run import Run, save
from hpcprof.store import ANALYSIS_VERSION, ProfileRow, Result, RunRow, Store

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
            f"no profiles (*.sqlite, *.trace.json, *.trace.json.gz) in {run.path}"
            + (" or its profiles/." if run.manifest else ".")
        )
    summary = Collected()
    by_rank = _by_rank(files, executor, jobs, summary)
    tasks = _tasks(run, store, by_rank, max(1, jobs // max(1, len(by_rank))))
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
        progress(done, len(tasks), task.path)
    if summary.read or summary.unchanged:
        store.put_run(run.id, _over_ranks(run, store))
    if run.manifest is not None:
        save(run)
    return summary


def _by_rank(files: list[Path], executor: Executor, jobs: int, summary: Collected) -> dict[int, Path]:
    """Give each file its rank; a single file that tells none is rank 0."""
    told: dict[Path, int | DamagedInput | None] = {}
    for paths, found in executor(identify, [files[i::jobs] for i in range(min(jobs, len(files)))]):
        if isinstance(found, Lost):
            found = [DamagedInput(f"{path} was not collected: {found.reason}.") for path in paths]
        told |= zip(paths, found, strict=True)
    by_rank: dict[int, Path] = {}
    for path in files:
        rank = told[path]
        if isinstance(rank, DamagedInput):
            summary.skipped.append(str(rank))
            continue
        if rank is None and len(files) > 1:
            raise HpcprofError(
                f"neither {path} nor its name tells the rank: rename it, for example rank00000{path.suffix}."
            )
        rank = rank or 0
        if rank in by_rank:
            raise HpcprofError(f"two profiles of rank {rank}: {by_rank[rank]} and {path}; remove one.")
        by_rank[rank] = path
    return by_rank


def _tasks(run: Run, store: Store, by_rank: dict[int, Path], threads: int) -> list[Task]:
    """Return the tasks by rank. A folder that hpcprof did not make is only read."""
    stored = store.profiles(run.id)
    timelines = run.path / "timeline" if run.manifest else None
    tasks = []
    for rank, path in sorted(by_rank.items()):
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
    store.put_profile(_run_row(run), profile, gathered.results)


def _over_ranks(run: Run, store: Store) -> dict[str, Result]:
    # pandas is not needed before, and not at all where nothing has changed.
    import pandas as pd

    from hpcprof.analysis.outcome import of_run

    results = {}
    for name, analysis in ANALYSES.items():
        if analysis.scope is Scope.RUN:
            needed = {need: pd.DataFrame(store.read(run.id, need).rows) for need in analysis.needs}
            results[name] = as_result(of_run(analysis, needed))
    return results


def _run_row(run: Run) -> RunRow:
    job = run.manifest.job if run.manifest else None
    return RunRow(
        id=run.id,
        path=str(run.path),
        site=job.site if job else None,
        workload=job.workload if job else None,
        ranks=job.ranks if job else None,
    )
