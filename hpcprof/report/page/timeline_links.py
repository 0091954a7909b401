"""Links between slices of ranks: parts of collectives, and both ends of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcprof.profiles.timeline import Ints
from hpcprof.report.page.timeline_tracks import NONE, SliceKind, TrackSlices
from hpcprof.results.run_communication import Carrier, RankCommunication

_KINDS = {
    Carrier.WORK: SliceKind.COMMUNICATION,
    Carrier.MPI_CALL: SliceKind.MPI,
    Carrier.MPI_REQUEST: SliceKind.MPI_REQUEST,
}
"""The kind of the slices that show what carries out communication."""


@dataclass(frozen=True)
class SliceLinks:
    """Links of slices to those of other ranks.

    Attributes
    ----------
    collective : ndarray of int64
        For each slice the number of its collective, or `NONE`.
    message_rows, messages : list of int
        The slices that carry out messages, once for each, and the numbers of these from 1: below 0 for one
        that is received.
    texts : dict of int to str
        What a slice carries out, by its row.
    """

    collective: Ints
    message_rows: list[int]
    messages: list[int]
    texts: dict[int, str]

    def encoded_messages(self) -> dict[str, Any]:
        """Return the messages as the page reads them."""
        return {"row": self.message_rows, "number": self.messages}


def links_of(slices: TrackSlices, communication: RankCommunication) -> SliceLinks:
    """Find the slices of a track that carry out communication; both have their starts on one clock."""
    collective = np.full(len(slices), NONE)
    found = SliceLinks(collective, [], [], {})
    place: dict[tuple[int, int], int] = {}
    known = np.zeros(len(communication.start), bool)
    for carrier, kind in _KINDS.items():
        rows = np.flatnonzero(slices.kind == kind)
        place |= {
            (int(carrier), start): row
            for row, start in zip(rows.tolist(), slices.start[rows].tolist(), strict=True)
        }
        known |= (communication.carrier == carrier) & np.isin(communication.start, slices.start[rows])
    for one in np.flatnonzero(known).tolist():
        row = place[int(communication.carrier[one]), int(communication.start[one])]
        number = int(communication.number[one])
        if way := int(communication.way[one]):
            found.message_rows.append(row)
            found.messages.append(way * (number + 1))
        else:
            collective[row] = number
        said = communication.texts[one]
        found.texts[row] = f"{found.texts[row]}; {said}" if row in found.texts else said
    return found
