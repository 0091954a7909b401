"""The collectives and messages of a run, matched communicator by communicator.

No process needs the rows of all ranks at once: each task reads those of some ranks from the store and matches
the communicators that these share. What it returns has a few values for each rank and step, and the rows of
the matched collectives. The first process puts it on disk and reads it again when it is needed: all rows of a
table to sort them, the waits of some ranks at a time.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from os import SEEK_END
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
from sqlalchemy.engine import URL

from hpcprof.analysis.collectives.across_ranks import Listed, collectives_of, list_collectives, unprofiled
from hpcprof.analysis.collectives.clock_alignment import align_clocks
from hpcprof.analysis.collectives.common_clock import Aligned
from hpcprof.analysis.collectives.matching import exposed_before
from hpcprof.analysis.collectives.pair_clocks import align_matched_pairs
from hpcprof.analysis.collectives.point_to_point import list_messages, messages_of
from hpcprof.analysis.collectives.skew import Waiting, judge, skew_of, skew_summary_of, waiting
from hpcprof.analysis.collectives.waiting_balance import exposed_by_step
from hpcprof.analysis.explain.step_account import PeerWaits, account_of, divide, peer_waits
from hpcprof.analysis.framework.outcome import Outcome, as_declared, outcome_from_parts
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import HpcprofError, StoreError
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.results.executors.interface import Executor, Lost, ResultT, serially
from hpcprof.results.store.store import Store

_ACCOUNTED = ("step_parts", "exposed_communication")
_COLLECTIVES = "rank_collectives"
_RANKS_A_TASK = 128
_RANKS_AT_ONCE = 32
_UNTOLD = "SendRecv"


@dataclass(frozen=True)
class _Task:
    """Some ranks of a run in a store, and which of their communicators to match; all of them if empty.

    ``profiles`` identifies the profiles in the store: elsewhere another file may have the same path.
    """

    url: URL
    run_id: str
    profiles: str
    ranks: tuple[int, ...]
    communicators: frozenset[str] = frozenset()
    profiled: int = 0

    def __len__(self) -> int:
        """Return the number of ranks, by which an executor estimates the work."""
        return len(self.ranks)


@dataclass(frozen=True)
class _Survey:
    """Which communicators some ranks have, and what else is known of them as a whole.

    ``messages`` are the communicators with sends and receives, and ``whole`` says that all rows have to be
    matched at once.
    """

    members: Mapping[str, set[int]]
    messages: set[str]
    worlds: set[float | None]
    exposed: pd.DataFrame
    whole: bool


class _Part(NamedTuple):
    """What the rows of some communicators show."""

    collectives: Listed
    messages: Listed
    waiting: Waiting
    waits: PeerWaits


class _Shelf:
    """Values in a file: those of thousands of ranks would take gigabytes of memory until they are needed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def put(self, value: object) -> int:
        """Write a value and return its place."""
        place = self._file.seek(0, SEEK_END)
        pickle.dump(value, self._file)
        return place

    def get(self, places: Iterable[int]) -> list[Any]:
        """Read the values at some places."""
        return [pickle.load(self._file) for _ in map(self._file.seek, places)]


class _Shelved(NamedTuple):
    """A `_Part` whose larger values are on a shelf: their places, that of the waits by rank."""

    collectives: int
    messages: int
    waiting: Waiting
    waits: Mapping[int, int]

    @classmethod
    def of(cls, part: _Part, shelf: _Shelf) -> _Shelved:
        """Put the values of a part on a shelf."""
        waits = {rank: shelf.put(wait) for rank, wait in part.waits.items()}
        return cls(shelf.put(part.collectives), shelf.put(part.messages), part.waiting, waits)


def match_by_communicator(
    run_id: str, store: Store, executor: Executor, times: pd.DataFrame
) -> dict[str, Outcome] | None:
    """Compute the analyses that match the collectives of all ranks.

    Parameters
    ----------
    run_id : str
    store : Store
    executor : Executor
        Runs the tasks. Where they cannot read the store, this process does.
    times : DataFrame
        The rows of ``step_times`` on all ranks.

    Returns
    -------
    dict of str to Outcome or None
        None if the rows do not tell the communicators apart, so that all have to be matched at once.

    Raises
    ------
    HpcprofError
        If the folder for temporary files is full.
    """
    ranks = sorted(store.profiles(run_id))
    task = _Task(_anywhere(store.url), run_id, _digest(store, run_id), ())
    surveys = _surveys(task, ranks, executor)
    tasks = _plan(task, surveys)
    if tasks is None:
        return None
    facts = pd.DataFrame({"world_ranks": [*surveys[0].worlds], "profiled": [tasks[0].profiled]})
    missing = unprofiled(facts)
    try:
        with tempfile.TemporaryFile() as file:
            shelf = _Shelf(file)
            shelved = {one: _Shelved.of(part, shelf) for one, part in _run(_match, tasks, executor)}
            found = _outcomes(run_id, store, [shelved[one] for one in tasks], shelf, surveys, times, missing)
    except OSError as error:
        raise HpcprofError(f"cannot write to {tempfile.gettempdir()}: {error.strerror or error}.") from error
    return {name: as_declared(found.pop(name), ANALYSES[name]) for name in [*found]}


def _outcomes(
    run_id: str,
    store: Store,
    parts: Sequence[_Shelved],
    shelf: _Shelf,
    surveys: Sequence[_Survey],
    times: pd.DataFrame,
    missing: str,
) -> dict[str, Outcome]:
    """Put together what all communicators show."""
    exposed = pd.concat([survey.exposed for survey in surveys], ignore_index=True)
    verdicts = judge([part.waiting for part in parts], exposed, times, missing)
    waits: defaultdict[int, list[int]] = defaultdict(list)
    for part in parts:
        for rank, place in part.waits.items():
            waits[rank].append(place)
    return {
        "skew": skew_of(*verdicts),
        "skew_summary": skew_summary_of(*verdicts),
        "step_account": _account(run_id, store, shelf, waits),
        "collectives": collectives_of(shelf.get(part.collectives for part in parts), missing),
        "point_to_point": messages_of(shelf.get(part.messages for part in parts), missing),
    }


def _account(run_id: str, store: Store, shelf: _Shelf, waits: Mapping[int, Sequence[int]]) -> Outcome:
    """Divide the steps of some ranks at a time."""
    divided = []
    for ranks in _chunks(sorted(store.profiles(run_id))):
        parts, exposed = (
            outcome_from_parts(ANALYSES[name], store.read_parts(run_id, name, ranks)).rows
            for name in _ACCOUNTED
        )
        divided.append(divide(parts, exposed, {rank: shelf.get(waits.get(rank, ())) for rank in ranks}))
    return account_of(divided)


def aligned_by_communicator(run_id: str, store: Store) -> list[Aligned]:
    """Align the clocks in each communicator, and of each two ranks that send each other messages.

    The rows are those that `match_by_communicator` has, so the clocks are those of its analyses.
    """
    ranks = sorted(store.profiles(run_id))
    task = _Task(_anywhere(store.url), run_id, _digest(store, run_id), tuple(ranks))
    tasks = _plan(task, _surveys(task, ranks, serially))
    return [one for _, part in _run(_clocks, tasks or [task], serially) for one in part]


def _clocks(task: _Task) -> list[Aligned] | None:
    """Align the clocks of some communicators; None if the store cannot be read here."""
    found = _read(task)
    if found is None:
        return None
    rows = pd.concat(found, ignore_index=True)
    if not len(rows):
        return []
    if task.communicators:
        rows["profiled"] = task.profiled
    together = [
        (np.frombuffer(ranks, np.int64).tolist(), clock) for (_, ranks), clock in align_clocks(rows).items()
    ]
    # The first rank's clock is that of both, so it has no error of its own.
    pairs = [
        (list(ranks), replace(clock, uncertainty=clock.uncertainty * [0, 1]))
        for ranks, clock in align_matched_pairs(rows).items()
    ]
    return together + pairs


def _surveys(task: _Task, ranks: Sequence[int], executor: Executor) -> list[_Survey]:
    """Look at the communicators of all ranks."""
    tasks = [replace(task, ranks=some) for some in _chunks(ranks)]
    found = dict(_run(_survey, tasks, executor))
    return [found[one] for one in tasks]


def _chunks(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for at in range(0, len(ranks), _RANKS_A_TASK):
        yield tuple(ranks[at : at + _RANKS_A_TASK])


def _run(
    function: Callable[[_Task], ResultT | None], tasks: Sequence[_Task], executor: Executor
) -> Iterator[tuple[_Task, ResultT]]:
    """Yield each task with its result, in any order; what another process cannot compute, this one does."""
    left = dict.fromkeys(tasks)
    for task, result in executor(function, tasks):
        if result is not None and not isinstance(result, Lost):
            del left[task]
            yield task, result
    for task in left:
        found = function(task)
        if found is None:
            raise StoreError("the results database cannot be read any more.")
        yield task, found


def _survey(task: _Task) -> _Survey | None:
    """Look at the communicators of some ranks; None if the store cannot be read here."""
    found = _read(task)
    if found is None:
        return None
    rows = pd.concat(found, ignore_index=True)
    names = rows["comm_id"]
    known = names.notna() & (names != "")
    members = {name: set(of["rank"].tolist()) for name, of in rows[known].groupby("comm_id")}
    return _Survey(
        members,
        set(rows["comm_id"][known & rows["op"].isin(POINT_TO_POINT)].tolist()),
        {None if np.isnan(world) else world for world in rows["world_ranks"].astype(float).unique().tolist()},
        exposed_by_step(rows),
        bool((~known).any() or (rows["op"] == _UNTOLD).any()),
    )


def _plan(task: _Task, surveys: Sequence[_Survey]) -> list[_Task] | None:
    """Return a task for each few groups of ranks, with all communicators of just these ranks."""
    members: dict[str, set[int]] = {}
    for survey in surveys:
        for name, ranks in survey.members.items():
            members.setdefault(name, set()).update(ranks)
    worlds = set().union(*(survey.worlds for survey in surveys))
    messages = set().union(*(survey.messages for survey in surveys))
    if not members or len(worlds) > 1 or any(survey.whole for survey in surveys):
        return None
    groups: dict[tuple[int, ...], set[str]] = {}
    for name, ranks in members.items():
        groups.setdefault(tuple(sorted(ranks)), set()).add(name)
    exchanging = [rank for ranks, names in groups.items() if names & messages for rank in ranks]
    if len(exchanging) > len(set(exchanging)):
        # The clocks of two ranks are aligned by all their messages, in whatever communicator.
        return None
    profiled = len(set().union(*members.values()))
    return [
        replace(task, ranks=ranks, communicators=names, profiled=profiled)
        for ranks, names in _bundles(sorted(groups.items()))
    ]


def _bundles(
    groups: Sequence[tuple[tuple[int, ...], set[str]]],
) -> Iterator[tuple[tuple[int, ...], frozenset[str]]]:
    """Yield the ranks and communicators of groups of about `_RANKS_A_TASK` ranks together."""
    ranks: set[int] = set()
    names: set[str] = set()
    # Groups of one size are nearly always of one kind, and share few ranks with each other.
    for of_group, of_names in sorted(groups, key=lambda group: len(group[0])):
        if ranks and len(ranks.union(of_group)) > _RANKS_A_TASK:
            yield tuple(sorted(ranks)), frozenset(names)
            ranks, names = set(), set()
        ranks.update(of_group)
        names.update(of_names)
    yield tuple(sorted(ranks)), frozenset(names)


def _match(task: _Task) -> _Part | None:
    """Match some communicators; None if the store cannot be read here."""
    found = _read(task)
    if found is None:
        return None
    rows = pd.concat(found, ignore_index=True).assign(profiled=task.profiled)
    return _Part(list_collectives(rows), list_messages(rows), waiting(rows), peer_waits(rows))


def _read(task: _Task) -> list[pd.DataFrame] | None:
    """Return the rows of a task, a few ranks at a time; None if the store cannot be read here."""
    analysis = ANALYSES[_COLLECTIVES]
    found = []
    try:
        if not _has(task.url, task.run_id, task.profiles):
            return None
        for at in range(0, len(task.ranks), _RANKS_AT_ONCE):
            some = task.ranks[at : at + _RANKS_AT_ONCE]
            parts = _store(task.url).read_parts(task.run_id, _COLLECTIVES, some)
            rows = outcome_from_parts(analysis, parts).rows
            columns = ("rank", "part", "start_ns", "exposed_ns")
            rows["before"] = exposed_before({name: rows[name].to_numpy(np.int64) for name in columns})
            chosen = rows["comm_id"].isin(task.communicators)
            found.append(rows[chosen] if task.communicators else rows)
    except StoreError:
        return None
    return found


def _anywhere(url: URL) -> URL:
    """Return the URL of a store, with the whole path of a file."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return url
    return url.set(database=str(Path(url.database).resolve()))


def _digest(store: Store, run_id: str) -> str:
    """Return what identifies the profiles of a run in a store."""
    profiles = [f"{rank} {profile.sha256}" for rank, profile in store.profiles(run_id).items()]
    return sha256("\n".join(profiles).encode()).hexdigest()


@lru_cache(maxsize=1)
def _has(url: URL, run_id: str, profiles: str) -> bool:
    """Return whether a store here has these profiles of a run."""
    return _store(url).exists() and _digest(_store(url), run_id) == profiles


@lru_cache(maxsize=1)
def _store(url: URL) -> Store:
    return Store(url)
