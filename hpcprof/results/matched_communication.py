"""Which communication of a rank belongs to that of others: the arrows of timelines and traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.common.units import format_bytes
from hpcprof.profiles.timeline import Ints
from hpcprof.results.store.store import Store

_SEND, _RECV = "Send", "Recv"
_COLLECTIVE = ("op", "comm_id", "seq")
_MESSAGE = ("sender", "receiver", "comm_id", "seq")
_Key = tuple[Any, ...]
_written_size = lru_cache(1024)(format_bytes)


@dataclass(frozen=True)
class RankCommunication:
    """The n matched collectives and messages of a rank, by start.

    Attributes
    ----------
    start : ndarray of int64, shape (n,)
        When their kernel, or the host, began, on the clock of the rank's profile. Several messages may share
        a kernel. Of the collectives that share one, only the first is here.
    number : ndarray of int64, shape (n,)
        What a collective, or a message, has in common on all of its ranks, from 0 in each run.
    way : ndarray of int64, shape (n,)
        1 for a message that is sent, -1 for one that is received, 0 for a collective.
    texts : list of str
        What each is.
    """

    start: Ints
    number: Ints
    way: Ints
    texts: list[str]


class MatchedCommunication:
    """The matched collectives and messages of a run, as its analyses found them.

    Parameters
    ----------
    run_id : str
    store : Store
    """

    def __init__(self, run_id: str, store: Store) -> None:
        self._run_id, self._store = run_id, store
        self._collectives = self._matched("collectives", _COLLECTIVE, 0)
        self._messages = self._matched("point_to_point", _MESSAGE, len(self._collectives))

    def _matched(self, analysis: str, names: Sequence[str], first: int) -> pd.DataFrame:
        """Return what was matched, by its number; few communicators share many rows."""
        parts = self._store.read_parts(self._run_id, analysis, columns=names)
        columns: dict[str, Any] = next(parts, {name: [] for name in names})
        columns["comm_id"] = _named(columns["comm_id"])
        for text in columns.keys() & {"op", "comm_id"}:
            columns[text] = pd.Categorical(columns[text])
        found: pd.DataFrame = pd.DataFrame(columns, index=range(first, first + len(columns["seq"])))
        return found

    def of_rank(self, rank: int) -> RankCommunication:
        """Return what a rank has in common with others; nothing if it has no communication."""
        found: list[tuple[int, int, int, str]] = []
        messages = self._messages
        messages = messages[(messages["sender"] == rank) | (messages["receiver"] == rank)]
        number_of_message = _numbers(messages)
        for stored in self._store.read_parts(self._run_id, "rank_collectives", [rank]):
            part = {**stored, "comm_id": _named(stored["comm_id"])}
            inside = self._collectives["comm_id"].isin(set(part["comm_id"]))
            number_of_collective = _numbers(self._collectives[inside])
            peers = _peers(rank, part, messages)
            for row, (op, comm_id, seq) in enumerate(zip(*(part[n] for n in _COLLECTIVE), strict=True)):
                way = {_SEND: 1, _RECV: -1}.get(op, 0)
                if way:
                    ends = (rank, peers[row])[::way]
                    number = number_of_message.get((*ends, comm_id, seq))
                else:
                    # Collectives that share a kernel share its arrows.
                    number = None if part["part"][row] else number_of_collective.get((op, comm_id, seq))
                if number is not None:
                    found.append((part["start_ns"][row], number, way, _said(part, row, way, peers[row])))
        found.sort()
        start, numbers, ways = (np.array([one[place] for one in found], np.int64) for place in range(3))
        return RankCommunication(start, numbers, ways, [text for *_, text in found])


def _numbers(matched: pd.DataFrame) -> dict[_Key, int]:
    columns = (matched[name].tolist() for name in matched)
    return dict(zip(zip(*columns, strict=True), matched.index.tolist(), strict=True))


def _peers(rank: int, part: Mapping[str, Sequence[Any]], messages: pd.DataFrame) -> list[int | None]:
    """Return the partner of each send and receive by its rank in the program; None if it is unknown.

    Profilers record the rank in the program or in the communicator. In a communicator the ranks have the
    order of the program, so its partners there, in their order, are those of the rank's matched messages.
    """
    partners: defaultdict[str, set[int]] = defaultdict(set)
    ends = (messages[name].tolist() for name in ("sender", "receiver", "comm_id"))
    for sender, receiver, comm_id in zip(*ends, strict=True):
        partners[comm_id].add(receiver if sender == rank else sender)
    inside: defaultdict[str, set[int]] = defaultdict(set)
    for comm_id, peer in zip(part["comm_id"], part["comm_peer"], strict=True):
        if peer is not None:
            inside[comm_id].add(peer)
    known: dict[tuple[str, int | None], int] = {}
    for comm_id, of_program in partners.items():
        if len(of_program) == len(inside[comm_id]):
            pairs = zip(sorted(inside[comm_id]), sorted(of_program), strict=True)
            known |= {(comm_id, own): other for own, other in pairs}
        # With two ranks in a communicator, profilers may record no partner at all.
        if len(of_program) == 1:
            known[comm_id, None] = next(iter(of_program))
    columns = zip(part["comm_id"], part["peer"], part["comm_peer"], strict=True)
    return [known.get((comm_id, own)) if peer is None else peer for comm_id, peer, own in columns]


def _named(values: Sequence[str | None]) -> list[str]:
    """Return the names of communicators, empty where one is unknown."""
    return [value or "" for value in values]


def _said(part: Mapping[str, Sequence[Any]], row: int, way: int, peer: int | None) -> str:
    op, comm_id, seq, size = (part[name][row] for name in (*_COLLECTIVE, "bytes"))
    partner = f" {'to' if way > 0 else 'from'} rank {peer}" if way else ""
    where = f"communicator {comm_id}" if comm_id else "an unknown communicator"
    return f"{op} {seq}{partner} of {where}{f', {_written_size(size)}' if size is not None else ''}"
