"""``hpcprof collect``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcprof.cli.completion import complete_queues, complete_runs, complete_sites
from hpcprof.cli.conventions import command_with_examples, echo, typed_command
from hpcprof.cli.options import flag, push_option, store_options, with_default
from hpcprof.cli.progress import QUIET_SECONDS, ProgressLine, SearchingLine, bar
from hpcprof.cli.pushing import hub_to_push_to, push_each
from hpcprof.common.errors import HpcprofError, StoreError, UsageError
from hpcprof.common.units import counted, format_duration, visible

if TYPE_CHECKING:
    from hpcprof.results.collect.executors.dask import OnDask
    from hpcprof.results.collect.executors.interface import Executor
    from hpcprof.results.collect.executors.processes import Processes
    from hpcprof.results.collect.run_profiles import Search
    from hpcprof.results.store.store import Store
    from hpcprof.runs.directory import Run
    from hpcprof.submit.collect_job import CollectPlacement

_MAX_ALIKE_REASONS = 3
"""Maximum number of skipped files that are named one by one where their names alone differ, in numbers."""


@command_with_examples(
    "collect",
    "hpcprof collect",
    "hpcprof collect /data/profiles_of_another_tool",
    "hpcprof collect RUN --step-range train_epoch",
    "hpcprof collect profiles_on_8_ranks --program train",
    "hpcprof collect --executor dask --nodes 4 --jobs 32",
    "hpcprof collect --submit --executor mpi --nodes 2 --jobs 32",
)
@store_options
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPUs to use, by processes that share the ranks and threads within a rank.  [default: all]",
)
@with_default(
    "--executor",
    type=click.Choice(["processes", "mpi", "dask"]),
    default="processes",
    help="Where profiles are read: in processes on this machine, on the ranks of an MPI job, or by Dask.",
)
@click.option(
    "--dask-address",
    metavar="ADDRESS",
    help="With --executor dask: tcp://HOST:PORT or the scheduler file of a cluster that runs.  "
    "[default: workers on this machine]",
)
@click.option(
    "--step-range",
    metavar="NAME",
    help="The range that is the step of these runs, calls of MPI (mpi:MPI_Allreduce), launches "
    "(kernel:REGEX, copy:REGEX, graph:REGEX, operator:REGEX), or auto.  "
    "[default: as before, else auto]",
)
@click.option(
    "--program",
    metavar="NAME",
    help="The program that ran, for scaling and compare.  [default: as before, else the job's]",
)
@flag("--submit", help="Collect in a job of its own, on the site of the run.")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    help="Number of nodes of the job, or with --executor dask of jobs with workers.  [default: 1]",
)
@click.option(
    "--site",
    shell_complete=complete_sites,
    help="With --executor dask: site whose jobs run the workers.  [default: the run's]",
)
@click.option(
    "--queue",
    shell_complete=complete_queues,
    help="Queue, partition or QOS of these jobs.  [default: the run's]",
)
@click.option("--walltime", help="Walltime of these jobs: HH:MM:SS, or 90m.  [default: the site's]")
@push_option
@click.argument("runs", nargs=-1, metavar="[RUN]…", shell_complete=complete_runs)
def command(
    runs_dir: Path,
    db: str | None,
    jobs: int | None,
    executor: str,
    dask_address: str | None,
    step_range: str | None,
    program: str | None,
    submit: bool,
    nodes: int | None,
    site: str | None,
    queue: str | None,
    walltime: str | None,
    hub: str | None,
    runs: tuple[str, ...],
) -> None:
    """Read profiles into the results database.

    RUN is a run id, a name that means one run, a path, or last (the default); or a sweep that was submitted
    as an array, for all its runs. A path may be a profile or any folder of profiles (*.sqlite or *.nsys-rep
    of Nsight Systems, *.ncu-rep[z] or *.csv[.gz] of Nsight Compute, *.json[.gz] of PyTorch, *.otf2 of
    Score-P), also compressed as .xz, .gz or .zst. Profiles that have not changed since the last collect are
    not read again. Logs of Darshan (*.darshan) and snapshots of PyTorch's memory (*.pickle) that are named
    with one run are about that run.

    Steps are found by their names or by how they repeat (hpcprof report --analysis step_ranges). If another
    range is the step of your program, name it with --step-range; later collects of the run use it too.

    --program names what ran in profiles of another tool, for scaling, compare and history. All profiles of a
    folder then are its ranks; without it, ranks of different programs are refused.

    In a folder without profiles of its own, all runs and folders of profiles below it are collected.

    Over MPI: srun -n 64 python -m mpi4py.futures -m hpcprof collect --executor mpi RUN

    With Dask: --executor dask starts --jobs workers on this machine, or with --nodes or --site as many on
    each node in batch jobs, or it uses the cluster at --dask-address.

    --submit collects in a job, which starts when the run has ended: in processes on one node, or with
    --executor mpi on --nodes nodes with --jobs ranks each (by default as many as the run had). For a run on a
    host, hpcprof there submits the job.
    """
    batch = {"nodes": nodes, "site": site, "queue": queue, "walltime": walltime}
    options_given = [name for name, value in batch.items() if value is not None]
    _check_options(executor, submit, dask_address, options_given)
    if submit and hub:
        raise UsageError("--push: a job has no token; push when it has ended, with hpcprof push.")
    address = hub_to_push_to(hub)
    from hpcprof.results.collect.run_profiles import Search, runs_to_collect, several_runs_notes

    with SearchingLine() as progress:
        search = Search(progress)
        named = None if submit else _named_runs(runs or ("last",), runs_dir, search)
    is_plain = not (step_range or program or address or search.skipped)
    if named and is_plain and _nothing_new(named, runs_dir, db):
        return
    workers = workers_here(jobs)
    if named and executor == "processes":
        _announce_runs(workers, named)
    from hpcprof.results.collect.run_names import find_runs_to_collect
    from hpcprof.results.store.store import open_store
    from hpcprof.runs.directory import find_runs

    store = open_store(db, runs_dir)
    if submit:  # without the database, which only the job needs
        candidates = [run for name in runs or ("last",) for run in find_runs(name, runs_dir)]
        candidates = [member for run in candidates for member in runs_to_collect(run)]
    elif named is None:
        candidates = find_runs_to_collect(runs or ("last",), runs_dir, store, search)
    else:
        candidates = named
    for sentence in (*several_runs_notes(candidates), *skipped_sentences(search.skipped)):
        echo(f"hpcprof: {sentence}", err=True)
    if submit:
        from hpcprof.submit.collect_job import CollectPlacement

        where = CollectPlacement(executor == "mpi", jobs, nodes, queue, walltime, step_range, program)
        _submit_collects(candidates, store, where)
        return
    store.prepare()
    if executor == "dask":
        pool = _on_dask(_cluster(candidates, dask_address, jobs, batch if options_given else None, runs_dir))
    else:
        pool = _start_executor(executor, jobs, workers)
    with pool as (executing, cpus):
        read = partial(collect_and_report, cpus=cpus, executor=executing, step_range=step_range)
        complete = for_each(candidates, partial(read, store=store, program=program))
    pushed = address is None or push_each(address, candidates, store)
    if not (complete and pushed) or search.skipped:
        sys.exit(1)


def _submit_collects(runs: Sequence[Run], store: Store, where: CollectPlacement) -> None:
    from hpcprof.results.collect.host_collect import submit_there
    from hpcprof.runs.directory import typed_name
    from hpcprof.submit.collect_job import submit_collect
    from hpcprof.submit.remote.mirror import host_of

    for run in runs:
        if (host := host_of(run)) is not None:
            submit_there(run, host, where.options())
            echo(f"submitted on {host.name}; when it has ended: hpcprof collect {typed_name(run.path)}")
    if local_runs := [run for run in runs if host_of(run) is None]:
        started = submit_collect(local_runs, store.url, where, typed_command())
        echo(f"submitted {started.id}: hpcprof status {typed_name(started.path)}")


@contextmanager
def _start_executor(kind: str, jobs: int | None, here: Processes) -> Iterator[tuple[Executor, int | None]]:
    """Yield the executor that reads the profiles, and its number of CPUs; None for all of this machine."""
    from hpcprof.results.collect.executors.mpi import over_mpi

    with here:
        yield over_mpi if kind == "mpi" else here, jobs


@contextmanager
def _on_dask(cluster: AbstractContextManager[OnDask]) -> Iterator[tuple[Executor, int | None]]:
    from hpcprof.results.collect.rank_task import work_of

    with cluster as dask:
        echo(f"hpcprof: Dask dashboard: {dask.dashboard}", err=True)
        yield replace(dask, work=work_of), dask.workers


def workers_here(jobs: int | None = None) -> Processes:
    """Return the executor that reads profiles by processes of this machine, by default on all CPUs."""
    from hpcprof.results.collect.executors.planning import usable_cpus
    from hpcprof.results.collect.executors.processes import Processes
    from hpcprof.results.collect.rank_task import PRELOAD, work_of

    return Processes(jobs or usable_cpus(), PRELOAD, work_of, if_quicker=jobs is None)


def _announce_runs(here: Processes, runs: Sequence[Run]) -> None:
    """Let workers import what they need while this process imports what opens the store."""
    from hpcprof.results.collect.known_files import unchanged_files
    from hpcprof.results.collect.rank_task import ProfileTask
    from hpcprof.results.collect.run_profiles import profiles_of

    new: list[ProfileTask] = []
    for run in runs:
        files = profiles_of(run)
        unchanged = {*unchanged_files(files)} if run.files is None else set()
        new += [ProfileTask(file, 0) for file in files if file not in unchanged]
    here.expect(new)


def _cluster(
    runs: Sequence[Run], address: str | None, jobs: int | None, batch: dict[str, Any] | None, runs_dir: Path
) -> AbstractContextManager[OnDask]:
    """Return the Dask cluster to use; ``batch`` has the options of its batch jobs, None for none."""
    from hpcprof.results.collect.executors.dask import existing_cluster, local_cluster
    from hpcprof.results.collect.executors.planning import usable_cpus

    folders = [run.path.absolute() for run in runs]
    if address is not None:
        if jobs is not None:
            raise UsageError(
                f"--jobs {jobs}: the cluster at --dask-address has its own workers; leave it out."
            )
        return existing_cluster(address, folders)
    if batch is None:
        return local_cluster(jobs or usable_cpus())
    from hpcprof.results.collect.executors.dask_jobs import batch_cluster
    from hpcprof.submit.worker_jobs import WorkerPlacement, make_worker_jobs

    values = {name: value for name, value in batch.items() if value is not None}
    logs = folders[0] / "collect" if runs[0].manifest else runs_dir.absolute()
    place = WorkerPlacement(workers=jobs, **values)
    return batch_cluster(make_worker_jobs(runs, place, logs / "dask-workers"), folders)


def _check_options(executor: str, submit: bool, address: str | None, batch: Sequence[str]) -> None:
    if address is not None and executor != "dask":
        raise UsageError("--dask-address is for --executor dask: give both, or neither.")
    if submit and executor == "dask":
        raise UsageError("--submit: a job collects in processes or by --executor mpi, not by Dask.")
    if address is not None and batch:
        raise UsageError(f"--{batch[0]}: the cluster at --dask-address already runs; leave it out.")
    if "site" in batch and executor != "dask":
        raise UsageError("--site is for --executor dask: give both, or neither.")
    if batch and not submit and executor != "dask":
        raise UsageError(f"--{batch[0]} is for --submit: give both, or neither.")


def _named_runs(references: Sequence[str], runs_dir: Path, search: Search) -> list[Run] | None:
    """Return the runs of references that are all folders of runs or of profiles, else None."""
    from hpcprof.profiles.event_folders import EVENTS
    from hpcprof.profiles.readers.discovery import is_profile_folder
    from hpcprof.results.collect.run_profiles import runs_in, runs_to_collect
    from hpcprof.runs.directory import (
        ARRAY_SCRIPT,
        check_reference,
        has_manifest,
        matching_ids,
        open_run,
        submitted_ids,
    )
    from hpcprof.submit.remote.mirror import host_of

    named = []
    for reference in references:
        name = reference
        check_reference(name)
        if name == "last" and not (runs_dir / EVENTS).is_dir():  # else a run from elsewhere may be the last
            name = next(reversed(submitted_ids(runs_dir)), name)
        places = (runs_dir / name, Path(name))
        folder = next(filter(has_manifest, places), places[1])
        if not name or not folder.is_dir() or is_profile_folder(folder) or (folder / ARRAY_SCRIPT).is_file():
            return None  # The store may know the name.
        if not (has_manifest(folder) or runs_in(folder)) and matching_ids(name, submitted_ids(runs_dir)):
            return None
        named.append(open_run(folder))
        if host_of(named[-1]) is not None:
            return None
    return [run for sweep in named for run in runs_to_collect(sweep, search)]


def _nothing_new(runs: Sequence[Run], runs_dir: Path, db: str | None) -> bool:
    """Say so and return True if neither the profiles of all runs nor the store have changed."""
    from hpcprof.results.collect.known_files import settled_state
    from hpcprof.results.collect.last_collected import note_collected
    from hpcprof.results.collect.run_profiles import profiles_of
    from hpcprof.runs.config import database_file, default_database
    from hpcprof.runs.directory import update_files

    store = database_file(db or default_database(), runs_dir)
    if store is None:
        return False
    collected = []
    for run in runs:
        # The site may have new logs of the job.
        if run.files is not None or (run.manifest is not None and run.manifest.site.darshan_logs):
            return False
        files = profiles_of(run)
        stored = settled_state(run.id, files, store)
        if stored is None:
            return False
        collected.append((run, [files[0].with_name(name) for name in stored.read], stored.losses))
    for run, read, losses in collected:
        with ProgressBar() as progress:
            for count, path in enumerate(read, 1):
                progress(count, len(read), path)
        note_collected(run, runs_dir)
        for sentence in (*update_files(run), *losses):
            echo(f"hpcprof: {sentence}", err=True)
        echo(_summary(run, 0, len(read), 0, store))
    return True


def for_each(runs: Sequence[Run], function: Callable[[Run], bool]) -> bool:
    """Return whether a function returns True for each run; of several, an error skips one, and is told."""
    complete = True
    for run in runs:
        try:
            complete &= function(run)
        except StoreError:
            raise
        except HpcprofError as error:
            if len(runs) == 1:
                raise
            echo(f"hpcprof: skipped: {error}", err=True)
            complete = False
    return complete


def skipped_sentences(reasons: Sequence[str]) -> list[str]:
    """Return why files were skipped; of many that differ in numbers alone, the first with a count."""
    alike: dict[str, list[str]] = {}
    for reason in reasons:
        alike.setdefault(re.sub(r"\d+", "N", reason), []).append(reason)
    sentences: list[str] = []
    for each in alike.values():
        more = f" (and {len(each) - 1:,} more files, by other numbers)"
        sentences += each if len(each) <= _MAX_ALIKE_REASONS else [f"{each[0].rstrip('.')}{more}."]
    return [f"skipped: {sentence}" for sentence in sentences]


def collect_and_report(
    run: Run,
    store: Store,
    cpus: int | None = None,
    executor: Executor | None = None,
    aside: bool = False,
    step_range: str | None = None,
    program: str | None = None,
) -> bool:
    """Collect a run, say what was done with its profiles, and return whether none was skipped.

    By default it is read by processes on all CPUs of this machine. With ``aside`` standard output is for
    something else, so that it is said on standard error.
    """
    from hpcprof.results.collect.collection import collect
    from hpcprof.results.collect.executors.planning import usable_cpus
    from hpcprof.results.collect.host_collect import collect_there
    from hpcprof.results.collect.run_profiles import profiles_of, readable, unprofiled_sentence
    from hpcprof.results.collect.stalls import is_unprofiled
    from hpcprof.runs.live_steps import describe_live_steps
    from hpcprof.submit.remote.mirror import fetch_profiles, host_of

    if (host := host_of(run)) is not None:
        values = {"--step-range": step_range, "--program": program}
        options = [word for name, value in values.items() if value for word in (name, value)]
        output = collect_there(run, host, store, options)
        for sentence in output if output is not None else fetch_profiles(run):
            echo(sentence if output is not None else f"hpcprof: {sentence}", err=True)
        if output is not None:
            profiles = counted(len(store.profiles(run.id)), "profile")
            echo(f"{run.id}: {profiles} collected on {host.name}, into {store}", err=aside)
            return not any("skipped: " in sentence for sentence in output)
    if is_unprofiled(run, store) and not profiles_of(run):
        collect(run, store, program=program)
        parts = "nodes, memory and files" if run.manifest is not None else "files"
        remark = f"its {parts} were collected" if store.has_run(run.id) else ""
        is_complete = run.manifest is None or not run.manifest.job.profiled_ranks
        # The report says why, and shows the steps.
        steps = "" if aside else describe_live_steps(run) or "no step times were noted"
        remarks = ("" if aside else unprofiled_sentence(run), remark, steps)
        echo(
            f"{run.id}: {'; '.join(filter(None, remarks)) or 'nothing to collect'}",
            err=aside or not is_complete,
        )
        return is_complete
    jobs = cpus or usable_cpus()
    with (
        nullcontext(executor) if executor else workers_here(cpus) as reading,
        readable(run) as (run_to_read, unpacked),
    ):
        if unpacked.files:
            echo(f"hpcprof: {run.id}: {unpacked.sentence}", err=True)
        if not run_to_read.files and unpacked.skipped:
            raise HpcprofError(" ".join(unpacked.skipped))
        with ProgressBar(unpacked.named) as progress:
            summary = collect(run_to_read, store, progress, reading, jobs, step_range, program)
    skipped = [*unpacked.skipped, *summary.skipped]
    for sentence in (*summary.warnings, *summary.losses, *skipped_sentences(skipped)):
        echo(f"hpcprof: {unpacked.named(sentence)}", err=True)
    if click.get_current_context().find_root().params.get("debug"):
        echo("".join(summary.tracebacks), err=True, nl=False)
    counts = len(summary.read), len(summary.unchanged), len(skipped)
    echo(_summary(run, *counts, store), err=aside)
    return not skipped


def _summary(run: Run, read: int, unchanged: int, skipped: int, store: object) -> str:
    collected = counted(read, "profile")
    return f"{run.id}: {collected} collected, {unchanged} unchanged, {skipped} skipped, into {store}"


class ProgressBar(ProgressLine):
    """Shows the finished ranks on standard error: a bar on a terminal, elsewhere now and then a line."""

    def __init__(self, named: Callable[[str], str] = str) -> None:
        super().__init__(on_error_output=True, permanent=True)
        self._named = named
        self._began = time.monotonic()

    def __call__(self, finished: int, ranks: int, path: Path) -> None:
        """Show that the profile at ``path`` is finished, as number ``finished`` of ``ranks``."""
        if not self.drawn:
            if time.monotonic() - self._began > QUIET_SECONDS:
                echo(f"{visible(self._named(str(path)))} ({finished} of {ranks})", err=True)
                self._began = time.monotonic()
            return
        rate = finished / max(time.monotonic() - self._began, 1e-9)
        remaining = format_duration((ranks - finished) / rate)
        self.update(
            f"{bar(finished, ranks)} {finished} of {ranks} ranks, {rate:.1f} a second, {remaining} left"
        )
