"""Balance of experts: the computing time of each rank's experts, and the rank for which the others wait.

A layer of experts is a dispatch of tokens and the combine after it. Both are matched over the ranks as
all-to-all: the rank with the shortest kernel came last, and the others wait for it in theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.communication import Communication
from hpcprof.analysis.collectives.matching import MatchedCollectives
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.profiles.collective_operations import COMBINE, DISPATCH
from hpcprof.profiles.columns.unique import position_in_group
from hpcprof.profiles.timeline import Floats, Ints

_COLUMNS = ("layer", "rank", "sent_bytes", "received_bytes", "compute_ns", "wait_ns", "waits_for")


def layers(communication: Communication) -> list[dict[str, Any]]:
    """Return the balance of the layers whose dispatch and combine are in some communicators."""
    by_communicator: dict[str | None, dict[str, MatchedCollectives]] = {}
    for matched in communication.collectives:
        by_communicator.setdefault(matched.comm_id, {})[matched.op] = matched
    rows: list[dict[str, Any]] = []
    for by_operation in by_communicator.values():
        dispatch, combine = by_operation.get(DISPATCH), by_operation.get(COMBINE)
        if dispatch and combine and len(dispatch.seq) and np.array_equal(dispatch.ranks, combine.ranks):
            rows += _rows_of_layers(dispatch, combine)
    return rows


def expert_balance(parts: Sequence[list[dict[str, Any]]], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return medians over the steps for each rank and layer of experts.

    ``layer`` counts the dispatches of a step, from 0, and is 0 without steps. ``compute_ns`` is the time from
    the end of the dispatch to the start of the combine. ``waits_for`` is the rank that came last, None for
    that rank itself, and ``wait_ns`` the time that the rank spends in both beyond the time of that rank.
    Bytes are None where no profile records them.
    """
    rows = [row for part in parts for row in part]
    if not rows:
        return no_rows("no dispatch and combine of experts is matched across ranks")
    table = pd.DataFrame(rows, columns=[*_COLUMNS], dtype=object)
    return Outcome(table.sort_values(["layer", "rank"], ignore_index=True))


def _rows_of_layers(dispatch: MatchedCollectives, combine: MatchedCollectives) -> list[dict[str, Any]]:
    count = min(len(dispatch.seq), len(combine.seq))
    layer = _layer_numbers(dispatch.step[:count, 0])
    compute = combine.start[:count] - dispatch.end[:count]
    lengths = [exchange.end[:count] - exchange.start[:count] for exchange in (dispatch, combine)]
    waits = sum(length - length.min(axis=1, keepdims=True) for length in lengths)
    last_place = np.argmin(np.sum(lengths, axis=0), axis=1)
    rows = []
    for number in np.unique(layer).tolist():
        in_layer = layer == number
        places, counts = np.unique(last_place[in_layer], return_counts=True)
        slowest = int(places[np.argmax(counts)])
        for place, rank in enumerate(dispatch.ranks.tolist()):
            rows.append(
                {
                    "layer": number,
                    "rank": rank,
                    "sent_bytes": _median(dispatch.message[:count][in_layer]),
                    "received_bytes": _median(combine.message[:count][in_layer]),
                    "compute_ns": _median(compute[in_layer, place]),
                    "wait_ns": _median(np.asarray(waits)[in_layer, place]),
                    "waits_for": None if place == slowest else int(dispatch.ranks[slowest]),
                }
            )
    return rows


def _layer_numbers(step: Floats) -> Ints:
    numbered = np.nan_to_num(step, nan=-1).astype(np.int64)
    _, group = np.unique(numbered, return_inverse=True)
    return np.where(numbered < 0, 0, position_in_group(group))


def _median(values: Floats | Ints) -> int | None:
    return None if np.isnan(values).any() else round(float(np.median(values)))
