"""Which ranks and communicators of a run are matched together, by one task each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from sqlalchemy.engine import URL

from hpcprof.results.shelf import SharedShelf

RANKS_A_TASK = 128
"""About how many ranks a task has; a communicator with more is one task."""


@dataclass(frozen=True)
class Task:
    """Some ranks of a run in a store, and which of their communicators to match; all of them if empty.

    ``messages`` are those communicators in which there are sends and receives. ``profiles`` identifies the
    profiles in the store: elsewhere another file may have the same path.
    """

    url: URL
    run_id: str
    profiles: str
    ranks: tuple[int, ...]
    communicators: frozenset[str] = frozenset()
    messages: frozenset[str] = frozenset()
    profiled: int = 0

    def __len__(self) -> int:
        """Return the number of ranks, by which an executor estimates the work."""
        return len(self.ranks)


@dataclass(frozen=True, kw_only=True)
class AccountTask(Task):
    """Some ranks whose steps are divided; ``waits`` has the places of their waits on a shelf."""

    shelf: SharedShelf
    waits: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Survey:
    """Which communicators some ranks have, and what else is known of them as a whole.

    ``messages`` are the communicators with sends and receives, and ``whole`` says that all rows have to be
    matched at once.
    """

    members: Mapping[str, set[int]]
    messages: set[str]
    worlds: set[float | None]
    exposed: pd.DataFrame
    whole: bool


def rank_chunks(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield as many ranks at a time as a task has."""
    for at in range(0, len(ranks), RANKS_A_TASK):
        yield tuple(ranks[at : at + RANKS_A_TASK])


def plan_tasks(task: Task, surveys: Sequence[Survey]) -> list[Task] | None:
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
        replace(task, ranks=ranks, communicators=names, messages=names & messages, profiled=profiled)
        for ranks, names in _bundles(sorted(groups.items()))
    ]


def _bundles(
    groups: Sequence[tuple[tuple[int, ...], set[str]]],
) -> Iterator[tuple[tuple[int, ...], frozenset[str]]]:
    """Yield the ranks and communicators of groups of about `RANKS_A_TASK` ranks together."""
    ranks: set[int] = set()
    names: set[str] = set()
    # Groups of one size are nearly always of one kind, and share few ranks with each other.
    for of_group, of_names in sorted(_overlapping(groups), key=lambda group: len(group[0])):
        if ranks and len(ranks.union(of_group)) > RANKS_A_TASK:
            yield tuple(sorted(ranks)), frozenset(names)
            ranks, names = set(), set()
        ranks.update(of_group)
        names.update(of_names)
    yield tuple(sorted(ranks)), frozenset(names)


def _overlapping(groups: Sequence[tuple[tuple[int, ...], set[str]]]) -> list[tuple[list[int], set[str]]]:
    """Put groups that share ranks together if they are small: their ranks are then read once."""
    found: list[tuple[list[int], set[str]]] = []
    of_rank: dict[int, int] = {}
    for of_group, of_names in sorted(groups, key=lambda group: len(group[0])):
        touched = sorted({of_rank[rank] for rank in of_group if rank in of_rank})
        ranks = sorted(set(of_group).union(*(found[number][0] for number in touched)))
        if len(ranks) > RANKS_A_TASK:
            found.append((list(of_group), of_names))
            continue
        names = of_names.union(*(found[number][1] for number in touched))
        for number in touched:
            found[number] = ([], set())
        of_rank |= dict.fromkeys(ranks, len(found))
        found.append((ranks, names))
    return [one for one in found if one[1]]
