"""The ranks and communicators of a run that are matched together, by one task each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcprof.results.same_program import CollectiveCounts

RANKS_A_TASK = 64
"""The ranks that a task matches, about, so that 16 workers share 1,024 ranks; a larger communicator is one
task."""

RANKS_A_CHUNK = 32
"""The ranks of a task in which ranks stand alone: few enough for 16 workers to share 1,024 ranks evenly."""


@dataclass
class Survey:
    """The communicators of some ranks, and other facts of these ranks as a whole.

    ``exchanging`` are the communicators with sends and receives, ``size`` is the largest number of ranks that
    these ranks recorded, and ``whole`` says that all rows have to be matched at once. ``calls`` has what each
    rank calls.
    """

    members: dict[str, set[int]] = field(default_factory=dict)
    exchanging: set[str] = field(default_factory=set)
    worlds: set[int | None] = field(default_factory=set)
    size: int = 0
    whole: bool = False
    calls: dict[int, CollectiveCounts] = field(default_factory=dict)


class RankGroup(NamedTuple):
    """Ranks, and communicators that only these share; ``exchanging`` are those with sends and receives."""

    ranks: tuple[int, ...]
    communicators: frozenset[str]
    exchanging: frozenset[str]


def rank_chunks(ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield ranks that one task looks at, each by itself."""
    for at in range(0, len(ranks), RANKS_A_CHUNK):
        yield tuple(ranks[at : at + RANKS_A_CHUNK])


def groups_of_communicators(surveys: Sequence[Survey]) -> list[RankGroup] | None:
    """Divide the communicators of all ranks into groups that can be matched apart from each other.

    Returns
    -------
    list of RankGroup or None
        Groups of about `RANKS_A_TASK` ranks; None if all rows have to be matched at once.
    """
    members: dict[str, set[int]] = {}
    for survey in surveys:
        for name, ranks in survey.members.items():
            members.setdefault(name, set()).update(ranks)
    worlds = set().union(*(survey.worlds for survey in surveys))
    messages = frozenset().union(*(survey.exchanging for survey in surveys))
    if not members or len(worlds) > 1 or any(survey.whole for survey in surveys):
        return None
    groups: dict[tuple[int, ...], set[str]] = {}
    for name, ranks in members.items():
        groups.setdefault(tuple(sorted(ranks)), set()).add(name)
    exchanging = [rank for ranks, names in groups.items() if names & messages for rank in ranks]
    if len(exchanging) > len(set(exchanging)):
        # The clocks of two ranks are aligned by all their messages, in whatever communicator.
        return None
    return [RankGroup(ranks, names, names & messages) for ranks, names in _bundles(sorted(groups.items()))]


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
