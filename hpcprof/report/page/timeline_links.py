"""Links between slices of ranks: parts of collectives, and both ends of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcprof.profiles.timeline import Ints
from hpcprof.report.page.timeline_tracks import NONE, SliceKind, TrackSlices
from hpcprof.results.run_communication import RankCommunication


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
    rows = np.flatnonzero(slices.kind == SliceKind.COMMUNICATION)
    place = dict(zip(slices.start[rows].tolist(), rows.tolist(), strict=True))
    found = SliceLinks(collective, [], [], {})
    known = np.flatnonzero(np.isin(communication.start, slices.start[rows]))
    for one in known.tolist():
        row, number = place[int(communication.start[one])], int(communication.number[one])
        if way := int(communication.way[one]):
            found.message_rows.append(row)
            found.messages.append(way * (number + 1))
        else:
            collective[row] = number
        said = communication.texts[one]
        found.texts[row] = f"{found.texts[row]}; {said}" if row in found.texts else said
    return found
