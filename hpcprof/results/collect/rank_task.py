"""Read the profile of one rank and run its analyses, in this or a worker process."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpcprof.analysis.framework.declaration import Analysis, Policy, Scope
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import DamagedInput, reading
from hpcprof.common.freed_memory import return_freed_memory, use_one_heap
from hpcprof.common.logs import log_traceback
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.readers.discovery import BUILT_IN, files_of, read_profile, reading_profile

if TYPE_CHECKING:  # only a changed profile needs these modules at run time
    from hpcprof.analysis.framework.outcome import AnalysisTable
    from hpcprof.profiles.kernel_report import KernelReport
    from hpcprof.profiles.losses import Loss
    from hpcprof.profiles.timeline import Origin, StepRange, Timeline
    from hpcprof.profiles.timeline_parquet import RankEvents

PRELOAD = (
    "hpcprof.analysis.framework.outcome",
    "hpcprof.analysis.steps.capture_losses",
    "hpcprof.profiles.parts",
    "hpcprof.results.collect.kept_events",
    "hpcprof.results.collect.over_ranks",
    *(reader.read.partition(":")[0] for reader in BUILT_IN),
    *sorted({(analysis.function or analysis.map).partition(":")[0] for analysis in ANALYSES.values()}),
)
"""The modules that a process needs to read and analyze a profile.

Imported once, before the processes are forked, they save two thirds of the CPU time of a collect of 16 small
ranks (docs/explanation/performance.md, "Tricks kept and removed").
"""

_HASH_BLOCK_BYTES = 1 << 22

# Work in starts of a worker: to find the rank of a profile, per rank, per byte read, and per byte hashed.
_IDENTIFY_WORK, _RANK_WORK, _BYTE_WORK, _HASH_WORK = 0.002, 0.02, 3.3e-8, 1.5e-9

_RANK_ANALYSES = [analysis for analysis in ANALYSES.values() if analysis.scope is Scope.RANK]
_MIN_ADDRESS_SPACE = 800 << 20
"""Minimum address space for libraries and a small profile: with half, OpenBLAS hangs and Arrow crashes."""

_MIN_THREADED_BYTES = 1 << 23
"""Minimum bytes of a profile to use threads and return memory: below, both cost a tenth of the CPU time."""


@dataclass(frozen=True)
class ProfileTask:
    """One profile to collect."""

    path: Path
    rank: int
    known: str | None = None
    """The SHA-256 of the profile whose results the store has, if they are still valid."""
    events: Path | None = None
    """The folder of the dataset that the rank becomes part of; None for none."""
    keeps_timeline: bool = True
    """True if the dataset also gets the timeline, and not only the analyses that others need."""
    run_id: str = ""
    """The run that the events are kept under."""
    threads: int = 1
    """The number of threads that read the tables of the profile and run the analyses."""
    part: ProfilePart | None = None
    """The part of the profile that is this rank, if it holds several."""
    step_range: StepRange | None = None
    """The range that is the step; None if it is to be found."""
    needs_steps: bool = False
    """True if a profile without the range is not analyzed."""
    captured: tuple[tuple[int, int], ...] = ()
    """The steps that the job was told to capture, see `Origin`."""


class ProfileResults(msgspec.Struct, frozen=True):
    """The results of one profile; ``losses`` are what it lacks, and ``warnings`` are sentences."""

    sha256: str
    bytes: int
    origin: Origin
    tables: Mapping[str, AnalysisTable]
    losses: tuple[Loss, ...] = ()
    warnings: tuple[str, ...] = ()


class Unchanged(msgspec.Struct, frozen=True):
    """Replaces the results of a profile that the store already has."""


class WithoutSteps(msgspec.Struct, frozen=True):
    """Replaces the results of a profile without the steps that it needs; ``reason`` is a sentence."""

    reason: str


RankOutcome = ProfileResults | Unchanged | WithoutSteps | DamagedInput


def work_of(task: ProfileTask | Sequence[Path]) -> float:
    """Estimate the work of collecting a profile, or of finding the ranks of some, in starts of a worker."""
    if not isinstance(task, ProfileTask):
        return len(task) * _IDENTIFY_WORK
    size = _profile_bytes(task.path) / (len(task.part.of.processes) if task.part else 1)
    return _IDENTIFY_WORK + size * _HASH_WORK if task.known else _RANK_WORK + size * _BYTE_WORK


@cache
def _profile_bytes(path: Path) -> int:
    """Return the size of a profile, 0 if it cannot be read. A file that grows does not change an estimate."""
    try:
        return sum(file.stat().st_size for file in files_of(path))
    except (OSError, DamagedInput):
        return 0


def analyze_profile(task: ProfileTask) -> RankOutcome:
    """Read a profile and run every analysis of one rank.

    Damage is returned, not raised, so that the other profiles are still collected.
    """
    try:
        with reading_profile(task.path):
            return _analyze(task)
    except DamagedInput as error:
        log_traceback(str(error), error.traceback)
        return error


def _refuse_little_address_space(path: Path) -> None:
    """Refuse to collect with a limit of memory in which libraries would crash or hang."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _MIN_ADDRESS_SPACE:
        raise DamagedInput(
            f"{path} was not read: this process may map {limit >> 20} MiB, and its libraries alone need "
            f"{_MIN_ADDRESS_SPACE >> 20} MiB. Raise the limit (ulimit -v)."
        )


def _analyze(task: ProfileTask) -> ProfileResults | Unchanged | WithoutSteps:
    _refuse_little_address_space(task.path)
    files = files_of(task.path, task.part)
    before = _sizes_and_times(files)
    size = sum(file_size for file_size, _ in before)
    # A compressed trace grows tenfold.
    small = size < _MIN_THREADED_BYTES and task.path.suffix != ".gz"
    threads = 1 if small else task.threads
    use_one_heap()
    with _executor(threads) as beside:
        checksum = beside.submit(sha256_of, files)
        alone = threads == 1 or task.known is not None
        if alone and checksum.result() == task.known:
            return Unchanged()
        profile = read_profile(task.path, task.part, threads, task.captured)
        sha256 = checksum.result()
    # A profile that has not changed needs none of these.
    from hpcprof.analysis.framework.outcome import analyze_rank
    from hpcprof.analysis.steps.step_ranges import why_without_steps
    from hpcprof.profiles.timeline import Timeline
    from hpcprof.profiles.timeline_parquet import RankEvents

    if _sizes_and_times(files) != before:
        raise DamagedInput(f"{task.path} changed while it was read: collect again when it is complete.")
    if not small:
        return_freed_memory()
    timeline = replace(profile, step_range=task.step_range) if isinstance(profile, Timeline) else None
    if task.needs_steps and timeline is not None and (reason := why_without_steps(timeline)):
        return WithoutSteps(reason)
    profile, events = timeline or profile, None
    if timeline is not None and task.events is not None:
        events = RankEvents(task.events, task.run_id, task.rank, sha256)
    # Reading the timeline of a small profile again would take longer than the analyses.
    postpones_lazy = not small and task.keeps_timeline and events is not None
    due = [analysis for analysis in _RANK_ANALYSES if not (postpones_lazy and analysis.policy is Policy.LAZY)]

    def analyze(analysis: Analysis) -> tuple[str, AnalysisTable]:
        return analysis.name, analyze_rank(analysis, profile, task.rank)

    with _executor(threads) as pool:
        # At most half of the threads run memory-heavy analyses at a time.
        heavy = iter([analysis for analysis in due if analysis.memory_heavy and not small])
        groups = [pool.submit(_heavy_analyses, analyze, heavy) for _ in range(max(1, threads // 2))]
        keeping = pool.submit(_keep_timeline, task, events, timeline)
        tables = dict(pool.map(analyze, [analysis for analysis in due if small or not analysis.memory_heavy]))
        for group in groups:
            tables |= group.result()
    warnings = keeping.result()
    if not small:
        return_freed_memory()
    if warnings:  # Without the timeline, lazy analyses could not be computed later.
        tables |= map(analyze, [analysis for analysis in _RANK_ANALYSES if analysis.name not in tables])
    if events is not None and timeline is not None:
        _keep_tables(task, events, timeline, tables, with_timeline=task.keeps_timeline and not warnings)
    # Rows that are kept with the events are not in the database, which has the declared columns.
    stored = {
        name: replace(
            table, declared=(), values={} if ANALYSES[name].policy is Policy.WITH_EVENTS else table.values
        )
        for name, table in tables.items()
    }
    return ProfileResults(sha256, size, profile.origin, stored, _losses(profile, task), warnings)


class _InlineExecutor(Executor):
    """Runs each function where it is submitted."""

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


def _executor(threads: int) -> Executor:
    return ThreadPoolExecutor(threads) if threads > 1 else _InlineExecutor()


def _losses(profile: Timeline | KernelReport, task: ProfileTask) -> tuple[Loss, ...]:
    """Return the losses of a profile: by its reader, by the profiler's warnings, and of its capture."""
    from hpcprof.analysis.steps.capture_losses import capture_losses
    from hpcprof.profiles.profiler_log import logged_warnings
    from hpcprof.profiles.timeline import Timeline

    lost = (*profile.origin.losses, *logged_warnings(task.path, profile.origin.kind, task.rank))
    return (*lost, *capture_losses(profile)) if isinstance(profile, Timeline) else lost


def _sizes_and_times(files: Sequence[Path]) -> list[tuple[int, int]]:
    """Return the size of each file in bytes and the time of its last change in ns."""
    sizes_and_times = []
    for path in files:
        with reading(path):
            status = path.stat()
        sizes_and_times.append((status.st_size, status.st_mtime_ns))
    return sizes_and_times


def sha256_of(files: Sequence[Path]) -> str:
    """Return the SHA-256 of the contents of files, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with reading(path), path.open("rb", buffering=0) as file:
            buffer = memoryview(bytearray(min(_HASH_BLOCK_BYTES, path.stat().st_size + 1)))
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
    return digest.hexdigest()


def _keep_timeline(
    task: ProfileTask, events: RankEvents | None, timeline: Timeline | None
) -> tuple[str, ...]:
    """Keep the timeline of a rank, and return a warning if that fails; the results remain valid."""
    from hpcprof.results.collect.kept_events import keep_timeline

    if events is None or timeline is None or not task.keeps_timeline:
        return ()
    try:
        keep_timeline(events, timeline)
    except OSError as error:
        # Make room on a full disk for the tables of the analyses.
        events.discard()
        reason = error.strerror or error
        return (f"the timeline of {task.path} was not kept in {task.events}: {reason}.",)
    return ()


def _keep_tables(
    task: ProfileTask,
    events: RankEvents,
    timeline: Timeline,
    tables: Mapping[str, AnalysisTable],
    *,
    with_timeline: bool,
) -> None:
    """Keep the analyses that analyses over the ranks read."""
    from hpcprof.results.collect.kept_events import finish

    try:
        finish(events, timeline, tables, with_timeline=with_timeline)
    except OSError as error:
        reason = error.strerror or error
        raise DamagedInput(
            f"{task.path} was not collected: {task.events} cannot be written: {reason}."
        ) from None


def _heavy_analyses(
    analyze: Callable[[Analysis], tuple[str, AnalysisTable]], waiting: Iterator[Analysis]
) -> dict[str, AnalysisTable]:
    """Run memory-heavy analyses one after another, and return the memory that each has freed.

    Threads share ``waiting`` and take the next analysis from it.
    """
    tables: dict[str, AnalysisTable] = {}
    for analysis in waiting:
        tables |= [analyze(analysis)]
        return_freed_memory()
    return tables
