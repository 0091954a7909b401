"""What a collect does with one rank's profile: all but the store, so that it runs in any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.discovery import read_profile, readable
from hpcprof.profiles.readers.rank_identity import identify_rank
from hpcprof.results.checksums import checksum, stamp
from hpcprof.results.malloc import share, trim
from hpcprof.results.store.store import Result

if TYPE_CHECKING:  # what only a changed profile needs is imported when there is one
    from hpcprof.analysis.framework.outcome import Outcome
    from hpcprof.profiles.kernel_report import KernelReport
    from hpcprof.profiles.timeline import Origin, Timeline

HEAVY = (
    "hpcprof.analysis.framework.crosschecks",
    "hpcprof.analysis.framework.outcome",
    "hpcprof.profiles.readers.nsys.reader",
    "hpcprof.profiles.readers.kineto.reader",
    "hpcprof.profiles.timeline_parquet",
    *sorted({analysis.function.partition(":")[0] for analysis in ANALYSES.values()}),
)
"""What `gather` imports only when a profile has changed, and what many processes import once for all."""

_OF_RANKS = [analysis for analysis in ANALYSES.values() if analysis.scope is Scope.RANK]
_LARGE = [analysis.name for analysis in _OF_RANKS if analysis.memory_heavy]
"""The analyses that take most memory: they follow each other, while others run beside them."""


@dataclass(frozen=True)
class Task:
    """One profile to collect.

    ``known`` is the checksum that the store has of it, where its results are still good. ``timeline`` is
    the folder to keep the timeline in, None where it is not kept. So many ``threads`` run the analyses.
    """

    path: Path
    rank: int
    known: str | None = None
    timeline: Path | None = None
    threads: int = 1


@dataclass(frozen=True)
class Gathered:
    """What was found in a profile; ``warnings`` are sentences."""

    sha256: str
    bytes: int
    origin: Origin
    results: Mapping[str, Result]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unchanged:
    """Stands for a profile that the store has as it is."""


Identified = tuple[Path, int | None] | DamagedInput
"""The file to read for a profile and the rank that it tells, or what is wrong with it."""


def identify(paths: Sequence[Path]) -> list[Identified]:
    """Identify each profile; an error of one does not concern the others."""
    found: list[Identified] = []
    for file in paths:
        try:
            path = readable(file)
            found.append((path, identify_rank(path)))
        except DamagedInput as error:
            found.append(error)
    return found


def gather(task: Task) -> Gathered | Unchanged | DamagedInput:
    """Read a profile and run every analysis of one rank.

    What is wrong with the profile is returned, not raised: the others are to be collected.
    """
    try:
        return _gather(task)
    except DamagedInput as error:
        return error


def _gather(task: Task) -> Gathered | Unchanged:
    before = stamp(task.path)
    share()
    with ThreadPoolExecutor(2) as aside:
        # Python's hashes work outside its lock; whether the store has the file decides before it is read.
        hashed = aside.submit(checksum, task.path, before)
        if task.known and hashed.result() == task.known:
            return Unchanged()
        # Pages are decoded outside the lock too, and pandas alone takes longer to import than that.
        imports = aside.submit(lambda: [import_module(module) for module in HEAVY])
        profile = read_profile(task.path)
        imports.result()
        sha256 = hashed.result()
    if stamp(task.path) != before:
        raise DamagedInput(f"{task.path} changed while it was read: collect again when it is complete.")
    trim()
    with ThreadPoolExecutor(task.threads) as pool:
        large = pool.submit(_large, profile, task.rank)
        keeping = pool.submit(_keep, task, profile, sha256)
        small = [analysis.name for analysis in _OF_RANKS if not analysis.memory_heavy]
        results = dict(pool.map(lambda name: (name, _result(name, profile, task.rank)), small))
        results |= large.result()
    doubts = _contradictions(results)
    results |= {name: Result({}, sentence) for name, sentence in doubts.items()}
    warnings = [f"{task.path}: {sentence}." for sentence in dict.fromkeys(doubts.values())]
    return Gathered(sha256, before[0], profile.origin, results, (*keeping.result(), *warnings))


def _contradictions(results: Mapping[str, Result]) -> dict[str, str]:
    from hpcprof.analysis.framework.crosschecks import contradictions

    return contradictions({name: result.columns for name, result in results.items()})


def _keep(task: Task, profile: Timeline | KernelReport, sha256: str) -> tuple[str, ...]:
    """Keep a timeline; where that cannot be, the results are good all the same."""
    from hpcprof.profiles.timeline import Timeline

    if task.timeline is None or not isinstance(profile, Timeline):
        return ()
    from hpcprof.profiles import timeline_parquet

    try:
        timeline_parquet.save(task.timeline, profile, task.rank, sha256)
    except OSError as error:
        return (f"the timeline of {task.path} is not kept in {task.timeline}: {error.strerror or error}.",)
    return ()


def _large(profile: Timeline | KernelReport, rank: int) -> dict[str, Result]:
    """Run the analyses that take most memory, and give back what each has freed."""
    found = {}
    for name in _LARGE:
        found[name] = _result(name, profile, rank)
        trim()
    return found


def _result(name: str, profile: Timeline | KernelReport, rank: int) -> Result:
    from hpcprof.analysis.framework.outcome import of_rank

    return as_result(of_rank(ANALYSES[name], profile, rank))


def as_result(outcome: Outcome) -> Result:
    """Return what an analysis found as the store takes it."""
    return Result(outcome.columns(), outcome.reason)
