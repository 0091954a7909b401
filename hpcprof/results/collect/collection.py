"""Collect a run: read the profile of each rank, run every analysis and fill the store."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common import __version__
from hpcprof.common.errors import DamagedInput, HpcprofError, StoreError, UsageError
from hpcprof.common.paths import is_folder
from hpcprof.common.private import make_private
from hpcprof.common.units import counted
from hpcprof.profiles.event_folders import origin_path, remove_run_events
from hpcprof.profiles.losses import over_ranks
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import ALL_FORMATS, content_of
from hpcprof.profiles.readers.foreign_files import foreign_kind
from hpcprof.results.collect.darshan_logs import copy_logs
from hpcprof.results.collect.executors.interface import Executor, Lost, Progress, serially
from hpcprof.results.collect.executors.processes import Processes
from hpcprof.results.collect.known_files import KnownFile, remember, remember_settled, unchanged_files
from hpcprof.results.collect.last_collected import note_collected, note_refused
from hpcprof.results.collect.profile_ranks import RankedProfiles, profiles_by_rank
from hpcprof.results.collect.rank_task import (
    PRELOAD,
    ProfileResults,
    ProfileTask,
    RankOutcome,
    Unchanged,
    WithoutSteps,
    analyze_profile,
    work_of,
)
from hpcprof.results.collect.run_names import find_runs_to_collect
from hpcprof.results.collect.run_profiles import (
    Search,
    foreign_files,
    is_unpacked,
    profiles_of,
    readable,
    sampled_so_far,
    untraced_notes,
    why_unprofiled,
)
from hpcprof.results.collect.stalls import is_unprofiled
from hpcprof.results.collect.step_choice import (
    is_current,
    requested_steps,
    stored_step_ranges,
    wanted_step_range,
)
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.results.store.store import RankResults, Store, open_store
from hpcprof.results.store.tables import ProfileRow, RunRow
from hpcprof.runs.config import group_may_read
from hpcprof.runs.directory import Run, runs_directory, typed_name, update_files

if TYPE_CHECKING:  # a collect that finds nothing new does without
    from hpcprof.results.collect.over_ranks import RunSurvey


@dataclass
class Collected:
    """The result of a collect: the profiles that were read, unchanged and skipped."""

    read: list[Path] = field(default_factory=list)
    """Profiles whose results are new in the store."""
    unchanged: list[Path] = field(default_factory=list)
    """Profiles whose results the store already had."""
    skipped: list[str] = field(default_factory=list)
    """A sentence for each profile that could not be collected."""
    warnings: list[str] = field(default_factory=list)
    """Sentences about the others."""
    losses: list[str] = field(default_factory=list)
    """Sentences about what the profiles of the run lack, each with its ranks."""
    tracebacks: list[str] = field(default_factory=list)
    """The traceback of each skipped profile whose reading ended in an unexpected exception."""

    def add(self, other: Collected) -> None:
        """Add the result of the collect of another run."""
        for name in self.__dataclass_fields__:
            getattr(self, name).extend(getattr(other, name))

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
    step_range: str | None = None,
    program: str | None = None,
) -> Collected:
    """Read the profiles of runs into the results database; see `hpcprof.collect_profiles`."""
    runs = runs_directory(Path(runs_dir) if runs_dir else None)
    store = open_store(db, runs)
    whole = Collected()
    search = Search(skipped=whole.skipped)
    named = [] if isinstance(run, Run) else [os.fspath(run)]
    runs_to_collect = [run] if isinstance(run, Run) else find_runs_to_collect(named, runs, store, search)
    store.prepare()
    with nullcontext(serially) if jobs is None else Processes(jobs, PRELOAD, work_of) as executor:
        for collected_run in runs_to_collect:
            try:
                with readable(collected_run) as (run_to_read, unpacked):
                    whole.skipped += unpacked.skipped
                    whole.add(collect(run_to_read, store, progress, executor, jobs or 1, step_range, program))
            except StoreError:
                raise
            except HpcprofError as error:
                if len(runs_to_collect) == 1:
                    raise
                # The other runs are collected.
                whole.skipped.append(str(error))
    return whole


def collect(
    run: Run,
    store: Store,
    progress: Progress | None = None,
    executor: Executor = serially,
    jobs: int = 1,
    step_range: str | None = None,
    program: str | None = None,
) -> Collected:
    """Bring the store up to date with the profiles of a run.

    A profile is not read again if the store has the results of the same content. A damaged one is skipped. A
    run without profiles gets only the samples of its nodes stored: its step times and its stall are read from
    its folder.

    ``executor`` reads and analyzes the ranks on ``jobs`` CPUs; fewer ranks than CPUs use several threads
    each. This process alone writes to the store. ``step_range`` names the range that is the step of this run
    from now on (``auto``: the step is detected again), and ``program`` the program, by which ``scaling`` and
    ``compare`` distinguish programs. Both default to the values of an earlier collect, else the step is
    detected and the program is the job's.

    Raises HpcprofError if there are no profiles, or two have the same rank; then nothing is stored. Raises
    UsageError if no profile has the range; then no timeline is stored.
    """
    if copy_logs(run) or run.beside:
        store.delete_run_results(run.id)
    files = _files_to_read(run, store)
    if not files:
        _store_beside_profiles(run, store, _run_row(run, store, program))
        return Collected()
    summary = Collected()
    # hpcprof may have launched one process that started ranks of its own (torchrun).
    ranks_known = run.manifest is not None and run.manifest.job.ranks > 1
    row = _run_row(run, store, program)
    collection = _CollectUnderWay(row, ranks_known, store, summary)
    if not store.profiles(run.id):
        _import_ahead(executor, files)
    # The cache has whole folders only.
    unchanged = unchanged_files(files) if run.files is None else {}
    identities = {file: stored.identity for file, stored in unchanged.items()}
    profiles = profiles_by_rank(files, executor, jobs, identities)
    for damage in profiles.damaged:
        summary.skip(damage)
    summary.warnings += profiles.left_out
    tasks = _profile_tasks(run, store, profiles, max(1, jobs // max(1, len(profiles.paths))), step_range)
    unchanged_profiles = {
        (stored.identity.path, rank): sha256
        for stored in unchanged.values()
        for rank, sha256 in stored.sha256.items()
    }
    with collection.storing():
        for count, (task, result) in enumerate(_run_tasks(tasks, unchanged_profiles, executor), 1):
            collection.take(task, result)
            if progress is not None:
                progress(count, len(tasks), task.path)
    with collection.storing():
        for task, result in executor(analyze_profile, collection.repeated_tasks(tasks, step_range)):
            collection.take(task, result)
    if run.files is None:
        remember(collection.known_files(profiles))
    survey = None
    if run.manifest is None and row.program is None and summary.read:
        new = [task for task in tasks if task.path in collection.read]
        survey = _survey_of_one_program(run, store, executor, new)
    summary.warnings += _world_size_warnings(run, collection.world_sizes)
    summary.warnings += untraced_notes(run)
    summary.warnings += _import_failures(run)
    summary.warnings += foreign_files(run)
    if summary.read or summary.unchanged:
        summary.warnings += _attempt_note(run)
        collection.describe_run()
        update_run(run.id, store, executor, run, survey)
        summary.losses = over_ranks(store.losses(run.id))
    _note_outcome(run, store, summary)
    if run.files is None and not (summary.read or summary.skipped or summary.warnings):
        read = [task.path for task in tasks]
        database = Path(store.url.database or "")
        remember_settled(run.id, files, database, read, summary.losses, row.events or "")
    summary.warnings += update_files(run)
    return summary


def _files_to_read(run: Run, store: Store) -> list[Path]:
    files = profiles_of(run)
    if not files and not is_unprofiled(run, store):
        if reason := why_unprofiled(run):
            raise HpcprofError(f"{run.id} has nothing to collect: {reason}.")
        if run.manifest is not None:
            from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll

            status = poll([run], LISTING_SECONDS)[run.id]
            waiting = f" yet: wait with hpcprof status {typed_name(run.path)} --watch, then collect"
            raise HpcprofError(
                f"{run.id} has no profiles{f': it is {status}' if status.state.ended else waiting}."
            )
        depths = ("*", "*/*", "*/*/*") if is_folder(run.path) else ()
        for depth in depths:
            kinds = [(file, kind) for file in sorted(run.path.glob(depth)) if (kind := foreign_kind(file))]
            # A trace is named rather than its summaries.
            if kinds:
                file, kind = min(kinds, key=lambda each: "without times" in each[1])
                raise HpcprofError(f"no profiles in {run.path}: {file.relative_to(run.path)} is {kind}.")
        raise HpcprofError(f"no profiles in {run.path}: {ALL_FORMATS}.")
    return files


def update_run(
    run_id: str,
    store: Store,
    executor: Executor = serially,
    run: Run | None = None,
    survey: RunSurvey | None = None,
) -> None:
    """Compute the analyses that span the ranks of a run unless they are stored.

    Without ``run``, those of its nodes are left out; ``survey`` is as for `analyze_over_ranks`.

    Should another collect replace a profile in the meantime, they are computed again.
    """
    if store.has_run(run_id):
        return
    from hpcprof.results.collect.over_ranks import analyze_over_ranks

    while True:
        sha256 = {rank: profile.sha256 for rank, profile in store.profiles(run_id).items()}
        if store.put_run(run_id, analyze_over_ranks(run_id, store, executor, run, survey), sha256):
            return


def _note_outcome(run: Run, store: Store, summary: Collected) -> None:
    if summary.read or summary.unchanged:
        note_collected(run, store.runs_dir)
    elif run.manifest is None and summary.skipped:
        note_refused(run, store.runs_dir)


def _store_beside_profiles(run: Run, store: Store, row: RunRow) -> None:
    """Store the samples, memory and logs of a run without profiles, and note its collect."""
    from hpcprof.analysis.framework.outcome import analyze_run
    from hpcprof.results.collect.over_ranks import mapped_beside_profiles

    # A foreign folder may have snapshots of memory anywhere.
    sampled = sampled_so_far(run) if run.manifest is not None else None
    row = msgspec.structs.replace(row, sampled=sampled)
    if sampled and store.run(run.id) == row and store.has_run(run.id):
        note_collected(run, store.runs_dir)
        return
    values = mapped_beside_profiles(run)
    if run.manifest is not None and not any(values.values()):
        return
    store.describe_run(row)
    tables = {
        name: analyze_run(item, {}, values[item.map]) for name, item in ANALYSES.items() if item.map in values
    }
    store.put_run(run.id, tables, {})
    note_collected(run, store.runs_dir)


def _survey_of_one_program(run: Run, store: Store, executor: Executor, read: list[ProfileTask]) -> RunSurvey:
    """Survey the ranks of a run; unless all are of one program, remove the results that were just read."""
    from hpcprof.results.collect.over_ranks import survey_ranks
    from hpcprof.results.collect.same_program import check_same_program

    survey = survey_ranks(store.rank_events(run.id), executor)
    try:
        check_same_program(run.id, store, survey.calls)
    except HpcprofError:
        new = {task.rank for task in read}
        if new >= store.profiles(run.id).keys():
            store.delete_run(run.id)
            remove_run_events(store.events_folder(run.path), run.id)
        else:
            store.delete_ranks(run.id, sorted(new))
            update_run(run.id, store, executor, run)
        raise
    return survey


def _import_ahead(executor: Executor, files: list[Path]) -> None:
    """Import the analyses over ranks while the server of the workers imports its modules."""
    if isinstance(executor, Processes) and executor.expect([ProfileTask(path, 0) for path in files]):
        for analysis in (analysis for analysis in ANALYSES.values() if analysis.scope is Scope.RUN):
            import_module((analysis.function or analysis.map).partition(":")[0])


def _run_tasks(
    tasks: list[ProfileTask], unchanged: Mapping[tuple[Path, int], str], executor: Executor
) -> Iterator[tuple[ProfileTask, RankOutcome | Lost]]:
    """Yield each task with its outcome; ``unchanged`` has the SHA-256 of ranks that are not read again."""
    changed = []
    for task in tasks:
        if task.known is not None and task.known == unchanged.get((task.path, task.rank)):
            yield task, Unchanged()
        else:
            changed.append(task)
    if changed:
        yield from executor(analyze_profile, changed)


_MAX_BATCH_RANKS, _MAX_BATCH_ROWS, _MAX_BATCH_SECONDS = 64, 50_000, 1.0
"""Limits of a transaction in ranks, rows and time: waiting rows take memory, and a kill loses them."""


class _CollectUnderWay(msgspec.Struct):
    """A collect under way: the results that wait to be stored, and the facts about the profiles so far."""

    run: RunRow
    ranks_known: bool
    store: Store
    summary: Collected
    world_sizes: dict[Path, int] = msgspec.field(default_factory=dict)
    without_steps: dict[Path, str] = msgspec.field(default_factory=dict)
    sha256: dict[Path, dict[int, str]] = msgspec.field(default_factory=dict)
    read: set[Path] = msgspec.field(default_factory=set)
    _waiting: list[RankResults] = msgspec.field(default_factory=list)
    _rows: int = 0
    _since: float = 0.0

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Store the waiting results of many ranks in a transaction, the last even after an exception."""
        try:
            yield
        finally:
            self._store_waiting()

    def take(self, task: ProfileTask, result: RankOutcome | Lost) -> None:
        """Store the results of a profile, or note the reason why there are none."""
        if isinstance(result, Unchanged):
            assert task.known is not None
            # A profile of several ranks has a task for each, and is new if one of them is.
            if task.path not in self.sha256:
                self.summary.unchanged.append(task.path)
            self.sha256.setdefault(task.path, {})[task.rank] = task.known
        elif isinstance(result, WithoutSteps):
            self.without_steps[task.path] = result.reason
        elif isinstance(result, DamagedInput):
            self.summary.skip(result)
        elif isinstance(result, Lost):
            self.summary.skipped.append(f"{task.path} was not collected: {result.reason}.")
        else:
            self._add(task.rank, task.path.name, result)
            # A search of the lists for each of thousands of ranks would take longer than storing them.
            if task.path in self.sha256 and task.path in self.summary.unchanged:
                self.summary.unchanged.remove(task.path)
            self.sha256.setdefault(task.path, {})[task.rank] = result.sha256
            if task.path not in self.read:
                self.read.add(task.path)
                self.summary.read.append(task.path)
                self.summary.warnings += result.warnings
            if result.origin.world_size is not None:
                self.world_sizes[task.path] = result.origin.world_size

    def _add(self, rank: int, file: str, outcome: ProfileResults) -> None:
        """Add the results of a rank, and store the waiting ones once they reach a limit of a transaction.

        Raises StoreError if they cannot be stored.
        """
        if not self._waiting:
            self._since = time.monotonic()
        origin = outcome.origin
        profile = ProfileRow(
            run_id=self.run.id,
            rank=rank,
            file=file,
            sha256=outcome.sha256,
            bytes=outcome.bytes,
            kind=origin.kind,
            host=origin.host,
            devices=", ".join(origin.device_names),
            profiler_version=origin.profiler_version,
            start_utc_ns=origin.start_utc_ns,
            analysis_version=ANALYSIS_VERSION,
            made_by=__version__,
        )
        results = RankResults(profile, outcome.tables, origin.gpus, origin.facts, outcome.losses)
        self._waiting.append(results)
        self._rows += sum(table.count for table in outcome.tables.values())
        late = time.monotonic() - self._since >= _MAX_BATCH_SECONDS
        if late or len(self._waiting) == _MAX_BATCH_RANKS or self._rows >= _MAX_BATCH_ROWS:
            self._store_waiting()

    def _store_waiting(self) -> None:
        waiting, self._waiting, self._rows = self._waiting, [], 0
        if waiting:
            self.store.put_profiles(self.run, waiting)

    def known_files(self, profiles: RankedProfiles) -> dict[Path, KnownFile]:
        """Return the profiles whose results are in the store, for the cache of known files."""
        return {
            file: KnownFile(identity, self.sha256[identity.path])
            for file, identity in profiles.identities.items()
            if identity.path in self.sha256
        }

    def describe_run(self) -> None:
        """Store the facts about the run, such as the number of ranks that most profiles record."""
        run = self.run
        sizes = [] if self.ranks_known else [*self.world_sizes.values()]
        stored = self.store.run(run.id)
        if stored is not None and run.ranks is None and not sizes:
            # A concurrent collect may have stored the number, or a killed one has left it in the events.
            run = msgspec.structs.replace(run, ranks=stored.ranks)
            stored_events = {} if stored.ranks else self.store.rank_events(self.run.id)
            sizes = [size for events in stored_events.values() if (size := events.world_size()) is not None]
        if sizes:
            run = msgspec.structs.replace(run, ranks=Counter(sizes).most_common(1)[0][0])
        if stored != run:
            self.store.describe_run(run)

    def repeated_tasks(self, tasks: list[ProfileTask], requested: str | None) -> list[ProfileTask]:
        """Return tasks for the ranks that were analyzed with another step than the ranks' common one.

        Raises UsageError if no profile has the range that a user gave.
        """
        if not self.summary.read and not self.without_steps:
            return []
        stored = stored_step_ranges(self.store, self.run.id)
        if self.without_steps and not any(is_current(requested, stored, rank) for rank in stored.rows):
            raise UsageError(f"--step-range {requested}: {next(iter(self.without_steps.values()))}.")
        if self.without_steps:
            missing = [task for task in tasks if task.path in self.without_steps]
            return [replace(task, needs_steps=False, known=None) for task in missing]
        from hpcprof.profiles.timeline import StepRange

        other = stored.differing()
        handled = {*self.summary.read, *self.summary.unchanged}
        return [
            replace(task, step_range=StepRange(other[task.rank]), known=None)
            for task in tasks
            if task.rank in other and task.path in handled
        ]


def _attempt_note(run: Run) -> list[str]:
    """Return a sentence that names the attempt of the profiles, if the job was started more than once."""
    attempt, last = run.profiled_attempt(), run.attempt
    without = f", since attempt {last} has none" if attempt < last else ""
    return [f"{run.id}: the profiles are of attempt {attempt} of {last}{without}"] if last > 1 else []


def _import_failures(run: Run) -> list[str]:
    """Return a sentence for each recording of nsys that it could not turn into a report."""
    traces = (run.outputs(run.profiled_attempt()) / "profiles").glob("*.qdstrm")
    ends = (".nsys-rep", ".sqlite")
    return [
        f"nsys could not import what it recorded in {path}. QdstrmImporter of Nsight Systems, in its folder "
        f"host-linux-x64, may do it: QdstrmImporter -i {path}; then collect again."
        for path in sorted(traces)
        if not any(path.with_suffix(end).exists() for end in ends)
    ]


def _world_size_warnings(run: Run, world_sizes: Mapping[Path, int]) -> list[str]:
    """Return a warning if profiles record another number of ranks than the run has.

    Without a manifest, or if hpcprof launched a single process, which may have started ranks of its own
    (torchrun), the expected number is the one that most profiles record. All profiles are collected.
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


def _profile_tasks(
    run: Run, store: Store, profiles: RankedProfiles, threads: int, requested: str | None
) -> list[ProfileTask]:
    """Return the tasks by rank. Nothing is written into a folder that hpcprof did not create."""
    stored = store.profiles(run.id)
    steps = stored_step_ranges(store, run.id)
    step_range = wanted_step_range(requested, steps)
    # A name from an earlier collect may exist on some ranks only.
    needs_steps = step_range is not None and requested is not None
    folder = store.events_folder(run.path)
    with suppress(OSError):  # without the right to write, events are not kept
        make_private(folder, group_may_read())
    tasks = []
    for rank, path in sorted(profiles.paths.items()):
        previous = stored.get(rank)
        current = previous and (previous.file, previous.analysis_version) == (path.name, ANALYSIS_VERSION)
        current = current and is_current(requested, steps, rank)
        sha256 = previous.sha256 if previous and current and _has_events(folder, run.id, previous) else None
        tasks.append(
            ProfileTask(
                path,
                rank,
                sha256,
                folder,
                run.manifest is not None or is_unpacked(run),
                run.id,
                threads,
                profiles.parts.get(rank),
                step_range,
                needs_steps,
                requested_steps(run),
            )
        )
    return tasks


def _has_events(folder: Path, run_id: str, profile: ProfileRow) -> bool:
    """Return whether the folder has the analyses of a rank that analyses over the ranks read."""
    timeline = content_of(profile.kind) is ProfileContent.TIMELINE
    return not timeline or origin_path(folder, run_id, profile.rank).is_file()


def _run_row(run: Run, store: Store, program: str | None) -> RunRow:
    """Return the facts about a run before its profiles are read."""
    if program is not None and not program.strip():
        raise UsageError(f"--program {program!r}: give the name of the program that ran.")
    job = run.manifest.job if run.manifest else None
    stored = store.run(run.id) or RunRow(run.id, str(run.path))
    return RunRow(
        id=run.id,
        path=str(run.path),
        site=job.site if job else stored.site,
        workload=job.workload if job else stored.workload,
        ranks=stored.ranks or (job.ranks if job else None),
        program=program or stored.program or (job.program if job else None),
        events=str(store.events_folder(run.path).absolute()),
    )
