"""Which communication of a rank belongs to that of others: the arrows of timelines and traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcprof.common.units import format_bytes
from hpcprof.profiles.timeline import Ints
from hpcprof.results.store.store import Store

_SEND, _RECV = "Send", "Recv"
_COLLECTIVE = ("op", "comm_id", "seq")
_MESSAGE = ("sender", "receiver", "comm_id", "seq")
_Key = tuple[Any, ...]


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
        self._collectives = self._keys("collectives", _COLLECTIVE, 0)
        self._messages = self._keys("point_to_point", _MESSAGE, len(self._collectives))
        self._partners: dict[tuple[int, Any], set[int]] = {}
        for sender, receiver, comm_id, _ in self._messages:
            self._partners.setdefault((sender, comm_id), set()).add(receiver)
            self._partners.setdefault((receiver, comm_id), set()).add(sender)

    def _keys(self, analysis: str, names: Sequence[str], first: int) -> dict[_Key, int]:
        columns = self._store.read(self._run_id, analysis).columns
        rows = zip(*(_named(columns.get(name, ())) for name in names), strict=True)
        return {key: number for number, key in enumerate(rows, first)}

    def of_rank(self, rank: int) -> RankCommunication:
        """Return what a rank has in common with others; nothing if it has no communication."""
        found: list[tuple[int, int, int, str]] = []
        for stored in self._store.read_parts(self._run_id, "rank_collectives", [rank]):
            part = {**stored, "comm_id": _named(stored["comm_id"])}
            peers = self._peers(rank, part)
            for row, (op, comm_id, seq) in enumerate(zip(*(part[n] for n in _COLLECTIVE), strict=True)):
                way = {_SEND: 1, _RECV: -1}.get(op, 0)
                if way:
                    ends = (rank, peers[row])[::way]
                    number = self._messages.get((*ends, comm_id, seq))
                else:
                    # Collectives that share a kernel share its arrows.
                    number = None if part["part"][row] else self._collectives.get((op, comm_id, seq))
                if number is not None:
                    found.append((part["start_ns"][row], number, way, _said(part, row, way, peers[row])))
        found.sort()
        start, numbers, ways = (np.array([one[place] for one in found], np.int64) for place in range(3))
        return RankCommunication(start, numbers, ways, [text for *_, text in found])

    def _peers(self, rank: int, part: Mapping[str, Sequence[Any]]) -> list[int | None]:
        """Return the partner of each send and receive by its rank in the program; None if it is unknown.

        Profilers record the rank in the program or in the communicator. In a communicator the ranks have the
        order of the program, so its partners there, in their order, are those of its matched messages.
        """
        inside: dict[Any, set[int]] = {}
        for comm_id, peer in zip(part["comm_id"], part["comm_peer"], strict=True):
            if peer is not None:
                inside.setdefault(comm_id, set()).add(peer)
        known: dict[tuple[Any, int | None], int] = {}
        for comm_id, partners in inside.items():
            of_program = self._partners.get((rank, comm_id), set())
            if len(of_program) == len(partners):
                pairs = zip(sorted(partners), sorted(of_program), strict=True)
                known |= {(comm_id, own): other for own, other in pairs}
        # With two ranks in a communicator, profilers may record no partner at all.
        only = {
            comm_id: next(iter(partners))
            for (of, comm_id), partners in self._partners.items()
            if of == rank and len(partners) == 1
        }
        columns = zip(part["comm_id"], part["peer"], part["comm_peer"], strict=True)
        return [
            peer
            if peer is not None
            else known.get((comm_id, own), only.get(comm_id) if own is None else None)
            for comm_id, peer, own in columns
        ]


def _named(values: Sequence[Any]) -> list[Any]:
    """Return values with None for names that are empty, which unknown communicators have."""
    return [None if value == "" else value for value in values]


def _said(part: Mapping[str, Sequence[Any]], row: int, way: int, peer: int | None) -> str:
    op, comm_id, seq, size = (part[name][row] for name in (*_COLLECTIVE, "bytes"))
    partner = f" {'to' if way > 0 else 'from'} rank {peer}" if way else ""
    where = f"communicator {comm_id}" if comm_id else "an unknown communicator"
    return f"{op} {seq}{partner} of {where}{f', {format_bytes(size)}' if size is not None else ''}"
