"""The ranks of a large run to replay: the most awaited ones, and an even sample of the others.

A replay needs the ranks that exchange data with each other in small groups, such as the tensor group and the
pipeline of a model, as a whole. Larger groups are cut: for the ranks that are left out, a replay only keeps
the time at which the last of them arrived.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpcprof.analysis.collectives.matches import MESSAGE, Arrivals, Matches
from hpcprof.profiles.timeline import Floats, Ints, Mask

MOST_RANKS = 128
"""Maximum number of replayed ranks; the time grows with them, and the others resemble these."""

_MIN_PARTS = 4
"""Minimum number of parts in a replay: a part has at most the replayed ranks divided by this."""


def replayed_ranks(
    ranks: Sequence[int],
    arrivals: Iterable[Arrivals],
    most: int = MOST_RANKS,
    delays: Mapping[int, float] | None = None,
) -> tuple[int, ...]:
    """Return the ranks to replay, in ascending order.

    Half of them are in the most awaited parts of the run, and half in parts at equal distances.
    ``ranks``, in ascending order, have a timeline; if they are no more than ``most``, all are replayed.
    ``arrivals`` yields the arrivals of all ranks, some communicators at a time, and is not read in that case.
    ``delays`` is the time that others waited in MPI for each rank, in ns.
    """
    if len(ranks) <= most:
        return tuple(ranks)
    all_ranks = np.array(ranks)
    caused_by, members = np.array([(delays or {}).get(rank, 0.0) for rank in ranks]), [np.empty(0, np.int64)]
    for batch in arrivals:
        caused_by += waits_caused(all_ranks, batch)
        members.append(_members(all_ranks, batch))
    part = _parts(len(all_ranks), np.concatenate(members), most // _MIN_PARTS)
    caused = np.bincount(part, caused_by)
    awaited = np.argsort(-caused, kind="stable")[: np.count_nonzero(caused)]
    chosen = _fill_sample([], awaited, part, most // 2)
    room = most - np.count_nonzero(np.isin(part, chosen))
    unchosen = np.setdiff1d(part, chosen)
    # As many parts at equal distances as fit if they have the mean size.
    count = max(1, int(room * len(unchosen) // np.count_nonzero(np.isin(part, unchosen))))
    spread = unchosen[np.linspace(0, len(unchosen) - 1, min(count, len(unchosen))).astype(np.int64)]
    chosen = _fill_sample(chosen, spread, part, most)
    return tuple(all_ranks[np.isin(part, chosen)].tolist())


def matches_among(matches: Matches, ranks: Sequence[int]) -> Matches:
    """Return the matches of some ranks, without the messages whose partner is another rank."""
    inside = np.isin(matches.rank, ranks)
    inside &= (matches.op != MESSAGE) | np.isin(matches.peer, ranks)
    return matches.take(inside)


def waits_caused(ranks: Ints, arrivals: Arrivals) -> Floats:
    """Return the time that others waited while each rank was the last to arrive, in ns; shape (ranks,)."""
    place, inside = _places(ranks, arrivals.last)
    return np.bincount(place[inside], arrivals.waited[inside], len(ranks)).astype(float)


def _fill_sample(chosen: Sequence[int], wanted: Ints, part: Ints, most: int) -> list[int]:
    """Add each wanted part that fits to the chosen ones: together they have at most ``most`` ranks."""
    size = np.bincount(part)
    sample, taken = list(chosen), int(size[list(chosen)].sum())
    for candidate in wanted.tolist():
        if taken + size[candidate] <= most:
            sample.append(candidate)
            taken += int(size[candidate])
    return sample


def _members(ranks: Ints, arrivals: Arrivals) -> Ints:
    place, inside = _places(ranks, arrivals.member)
    return np.unique(arrivals.group[inside] * len(ranks) + place[inside])


def _places(ranks: Ints, wanted: Ints) -> tuple[Ints, Mask]:
    """Return the index in sorted ``ranks`` of each wanted rank, and whether it is there; both shape (n,)."""
    place = np.minimum(np.searchsorted(ranks, wanted), len(ranks) - 1)
    return place, ranks[place] == wanted


def _parts(ranks: int, members: Ints, most: int) -> Ints:
    """Return the number of each rank's part; groups are joined, the smallest first, up to ``most`` ranks."""
    _, first, size = np.unique(members // ranks, return_index=True, return_counts=True)
    parts = [[rank] for rank in range(ranks)]
    for group in np.argsort(size, kind="stable").tolist():
        if size[group] > most:
            break
        rows = members[first[group] : first[group] + size[group]] % ranks
        joined = {id(parts[rank]): parts[rank] for rank in rows.tolist()}
        if len(joined) > 1 and sum(map(len, joined.values())) <= most:
            whole = [rank for part in joined.values() for rank in part]
            for rank in whole:
                parts[rank] = whole
    number = {id(part): min(part) for part in parts}
    return np.unique([number[id(part)] for part in parts], return_inverse=True)[1].astype(np.int64)
