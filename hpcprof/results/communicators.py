"""The collectives and messages of a run, matched communicator by communicator.

No process needs the rows of all ranks at once: each task reads those of some ranks from the store and matches
the communicators that these share. What it returns has a few values for each rank and step, and the rows of
the matched collectives. The first process puts it on disk and reads it again when it is needed: all rows of a
table to sort them, the waits of some ranks at a time.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sqlalchemy.engine import URL

from hpcprof.analysis.collectives import across_ranks, point_to_point
from hpcprof.analysis.collectives.across_ranks import Listed, by_total_latency, unprofiled
from hpcprof.analysis.collectives.common_clock import Aligned
from hpcprof.analysis.collectives.communication import Communication
from hpcprof.analysis.collectives.matching import exposed_before, match_recorded, recorded
from hpcprof.analysis.collectives.pair_matching import match_pairs
from hpcprof.analysis.collectives.skew import Waiting, judge, skew_of, skew_summary_of, waiting
from hpcprof.analysis.collectives.waiting_balance import exposed_by_step
from hpcprof.analysis.explain.step_account import PeerWaits, account_of, divide, peer_waits, why_unknown
from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import Outcome, as_declared, outcome_from_columns, outcome_from_parts
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import HpcprofError, StoreError
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.results.at_once import analyze_at_once
from hpcprof.results.communicator_tasks import AccountTask, Survey, Task, plan_tasks, rank_chunks
from hpcprof.results.executors.interface import Executor, Lost, ResultT, TaskT, serially
from hpcprof.results.shelf import Block, Shelf, ShelvedRows, put_table, sorted_rows
from hpcprof.results.store.store import Store

_LISTS = {
    "collectives": across_ranks.why_incomplete,
    "point_to_point": point_to_point.why_incomplete,
}
"""The analyses that list what was matched, and what says why some is missing."""

_MATCHED = (
    "skew",
    "skew_summary",
    "step_account",
    *(f"{name}{end}" for name in _LISTS for end in ("", "_summary")),
)
_OTHERS = [
    analysis.name
    for analysis in ANALYSES.values()
    if analysis.scope is Scope.RUN and analysis.name not in _MATCHED
]
"""The analyses that span the ranks and match nothing."""

_ACCOUNTED = ("step_parts", "exposed_communication")
_COLLECTIVES = "rank_collectives"
_RANKS_AT_ONCE = 16
_UNTOLD = "SendRecv"


class _Part(NamedTuple):
    """What the rows of some communicators show; ``lists`` are the collectives and the messages."""

    lists: tuple[Listed, Listed]
    waiting: Waiting
    waits: PeerWaits


@dataclass(frozen=True)
class _Others:
    """The outcomes of the analyses that match nothing, by name."""

    outcomes: dict[str, Outcome]


class _Shelved(NamedTuple):
    """A `_Part` whose larger values are on a shelf: blocks of the lists, and the places of waits by rank."""

    lists: tuple[Listed, Listed]
    blocks: tuple[list[Block], list[Block]]
    waiting: Waiting
    waits: Mapping[int, int]

    @classmethod
    def of(cls, part: _Part, shelf: Shelf) -> _Shelved:
        """Put the values of a part on a shelf."""
        waits = {rank: shelf.put(wait) for rank, wait in part.waits.items()}
        collectives, messages = part.lists
        blocks = (put_table(collectives.columns, shelf), put_table(messages.columns, shelf))
        lists = (replace(collectives, columns={}), replace(messages, columns={}))
        return cls(lists, blocks, part.waiting, waits)


def match_by_communicator(
    run_id: str, store: Store, executor: Executor
) -> dict[str, Outcome | ShelvedRows] | None:
    """Compute the analyses that span the ranks, and match collectives communicator by communicator.

    Parameters
    ----------
    run_id : str
    store : Store
    executor : Executor
        Runs the tasks. Where they cannot read the store, this process does.

    Returns
    -------
    dict or None
        Of str to Outcome or ShelvedRows; None if the rows do not tell the communicators apart, so that all
        have to be matched at once.

    Raises
    ------
    HpcprofError
        If the folder for temporary files is full.
    """
    ranks = sorted(store.profiles(run_id))
    task = Task(_anywhere(store.url), run_id, _digest(store, run_id), ())
    surveys = _surveys(task, ranks, executor)
    tasks = plan_tasks(task, surveys)
    if tasks is None:
        return None
    facts = pd.DataFrame({"world_ranks": [*surveys[0].worlds], "profiled": [tasks[0].profiled]})
    missing = unprofiled(facts)
    others = replace(task, ranks=tuple(ranks))
    try:
        shelf = Shelf()
        shelved: dict[Task, _Shelved] = {}
        unmatched: dict[str, Outcome] = {}
        for one, part in _run(_match_or_others, [others, *tasks], executor):
            if isinstance(part, _Part):
                shelved[one] = _Shelved.of(part, shelf)
            elif isinstance(part, _Others):
                unmatched = part.outcomes
        parts = [shelved[one] for one in tasks]
        account = _account(task, ranks, parts, shelf, executor)
        matched = _outcomes(parts, shelf, surveys, unmatched["steps"], missing)
        return {**unmatched, **matched, "step_account": account}
    except OSError as error:
        raise HpcprofError(f"cannot write to {tempfile.gettempdir()}: {error.strerror or error}.") from error


def _outcomes(
    parts: Sequence[_Shelved], shelf: Shelf, surveys: Sequence[Survey], steps: Outcome, missing: str
) -> dict[str, Outcome | ShelvedRows]:
    """Put together what all communicators show."""
    exposed = pd.concat([survey.exposed for survey in surveys], ignore_index=True)
    # The longest of each step decides, as it does among the rows of all ranks.
    times = steps.rows.rename(columns={"max_ns": "wall_ns"})
    verdicts = judge([part.waiting for part in parts], exposed, times, missing)
    found: dict[str, Outcome | ShelvedRows] = {
        "skew": as_declared(skew_of(*verdicts), ANALYSES["skew"]),
        "skew_summary": as_declared(skew_summary_of(*verdicts), ANALYSES["skew_summary"]),
    }
    for number, (name, why_incomplete) in enumerate(_LISTS.items()):
        listed = [part.lists[number] for part in parts]
        reason = why_incomplete(listed, missing)
        blocks = [block for part in parts for block in part.blocks[number]]
        found[name] = sorted_rows(blocks, shelf, ANALYSES[name], reason)
        summary = Outcome(by_total_latency([one.medians for one in listed]), reason)
        found[f"{name}_summary"] = as_declared(summary, ANALYSES[f"{name}_summary"])
    return found


def _account(
    task: Task, ranks: Sequence[int], parts: Sequence[_Shelved], shelf: Shelf, executor: Executor
) -> Outcome | ShelvedRows:
    """Divide the steps of all ranks, of some by each task."""
    waits: defaultdict[int, list[int]] = defaultdict(list)
    for part in parts:
        for rank, place in part.waits.items():
            waits[rank].append(place)
    shelf.flush()
    tasks = [
        AccountTask(
            **{**vars(task), "ranks": some},
            shelf=shelf.shared,
            waits=tuple(tuple(waits[rank]) for rank in some),
        )
        for some in rank_chunks(ranks)
    ]
    places: dict[Task, int] = {}
    unknown: set[int] = set()
    for one, (rows, not_known) in _run(_divide, tasks, executor):
        unknown |= not_known
        if len(rows):
            places[one] = shelf.put(rows)
    if not places:
        return as_declared(account_of([]), ANALYSES["step_account"])
    in_order = [places[one] for one in tasks if one in places]
    return ShelvedRows(
        lambda: (one for place in in_order for one in shelf.get([place])), why_unknown(unknown)
    )


def _divide(task: AccountTask) -> tuple[Outcome, set[int]] | None:
    """Divide the steps of some ranks; None if the store or the shelf cannot be read here."""
    try:
        store = _opened(task)
        parts, exposed = (
            outcome_from_parts(ANALYSES[name], store.read_parts(task.run_id, name, task.ranks)).rows
            for name in _ACCOUNTED
        )
        with task.shelf.opened() as get:
            waits = {rank: get(places) for rank, places in zip(task.ranks, task.waits, strict=True)}
    except (StoreError, OSError):
        return None
    divided = divide(parts, exposed, waits)
    return as_declared(Outcome(divided.rows), ANALYSES["step_account"]), divided.unknown


def aligned_by_communicator(run_id: str, store: Store) -> list[Aligned]:
    """Align the clocks in each communicator, and of each two ranks that send each other messages.

    The rows are those that `match_by_communicator` has, so the clocks are those of its analyses.
    """
    ranks = sorted(store.profiles(run_id))
    task = Task(_anywhere(store.url), run_id, _digest(store, run_id), tuple(ranks))
    tasks = plan_tasks(task, _surveys(task, ranks, serially))
    return [one for _, part in _run(_clocks, tasks or [task], serially) for one in part]


def _clocks(task: Task) -> list[Aligned] | None:
    """Align the clocks of some communicators; None if the store cannot be read here."""
    found = _communication(task)
    if found is None:
        return None
    together = [
        (np.frombuffer(ranks, np.int64).tolist(), clock) for (_, ranks), clock in found.clocks.items()
    ]
    # The first rank's clock is that of both, so it has no error of its own.
    pairs = [
        (list(ranks), replace(clock, uncertainty=clock.uncertainty * [0, 1]))
        for ranks, clock in found.pair_clocks.items()
    ]
    return together + pairs


def _surveys(task: Task, ranks: Sequence[int], executor: Executor) -> list[Survey]:
    """Look at the communicators of all ranks."""
    tasks = [replace(task, ranks=some) for some in rank_chunks(ranks)]
    found = dict(_run(_survey, tasks, executor))
    return [found[one] for one in tasks]


def _run(
    function: Callable[[TaskT], ResultT | None], tasks: Sequence[TaskT], executor: Executor
) -> Iterator[tuple[TaskT, ResultT]]:
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


def _survey(task: Task) -> Survey | None:
    """Look at the communicators of some ranks; None if the store cannot be read here."""
    try:
        rows = pd.concat([*_read(task)], ignore_index=True)
    except StoreError:
        return None
    names = rows["comm_id"]
    known = names.notna() & (names != "")
    members = {name: set(of["rank"].tolist()) for name, of in rows[known].groupby("comm_id")}
    return Survey(
        members,
        set(rows["comm_id"][known & rows["op"].isin(POINT_TO_POINT)].tolist()),
        {None if np.isnan(world) else world for world in rows["world_ranks"].astype(float).unique().tolist()},
        exposed_by_step(rows),
        bool((~known).any() or (rows["op"] == _UNTOLD).any()),
    )


def _match_or_others(task: Task) -> _Part | _Others | None:
    """Match the communicators of a task; one without any computes the analyses that match nothing.

    Both take long, and neither needs the other. None if the store cannot be read here.
    """
    if task.communicators:
        return _match(task)
    try:
        return _Others(analyze_at_once(task.run_id, _opened(task), _OTHERS))
    except StoreError:
        return None


def _match(task: Task) -> _Part | None:
    """Match some communicators; None if the store cannot be read here."""
    found = _communication(task)
    if found is None:
        return None
    lists = across_ranks.list_collectives(found), point_to_point.list_messages(found)
    return _Part(lists, waiting(found), peer_waits(found))


def _communication(task: Task) -> Communication | None:
    """Match the rows of some communicators; None if the store cannot be read here.

    The rows of a few ranks at a time are sorted: all of a large communicator would take several times
    the memory of what is kept of them.
    """
    found = []
    exchanged = []
    ranks: set[int] = set()
    worlds: set[float] = set()
    try:
        for rows in _read(task):
            if not len(rows):
                continue
            found.append(recorded(rows))
            ranks.update(rows["rank"].tolist())
            worlds.update(rows["world_ranks"].tolist())
            exchanged.append(rows[rows["comm_id"].isin(task.messages)] if task.communicators else rows)
    except StoreError:
        return None
    if not ranks:
        return Communication([], [], [], [], [])
    messages = pd.concat(exchanged, ignore_index=True)
    if task.communicators:
        messages["profiled"] = task.profiled
    collectives = match_recorded(found, worlds == {task.profiled or len(ranks)})
    return Communication(sorted(ranks), *collectives, *match_pairs(messages))


def _read(task: Task) -> Iterator[pd.DataFrame]:
    """Yield the rows of a task, those of a few ranks at a time.

    Raises
    ------
    StoreError
        If the store is not here.
    """
    analysis = ANALYSES[_COLLECTIVES]
    names = [column.name for column in analysis.columns]
    store = _opened(task)
    for at in range(0, len(task.ranks), _RANKS_AT_ONCE):
        some = task.ranks[at : at + _RANKS_AT_ONCE]
        parts = [*store.read_parts(task.run_id, _COLLECTIVES, some)]
        # Of a few ranks together: numpy's calls take longer than what they do for one rank.
        columns = {name: [*chain.from_iterable(part[name] for part in parts)] for name in names}
        rows = outcome_from_columns(analysis, columns).rows
        needed = ("rank", "part", "start_ns", "exposed_ns")
        rows["before"] = exposed_before({name: rows[name].to_numpy(np.int64) for name in needed})
        yield rows[rows["comm_id"].isin(task.communicators)] if task.communicators else rows


def _opened(task: Task) -> Store:
    """Return the store of a task.

    Raises
    ------
    StoreError
        If it is not here.
    """
    if not _has(task.url, task.run_id, task.profiles):
        raise StoreError("the results database is not here.")
    return _store(task.url)


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
