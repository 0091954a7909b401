"""Synchronizations of a PyTorch trace, which it has with ``enable_cuda_sync_events=True``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.readers.kineto.arguments import WaitArguments
from hpcprof.profiles.readers.kineto.json_stream import Event
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    NO_STREAM,
    ApiCalls,
    IntColumns,
    Ints,
    Synchronizations,
    SyncKind,
)
from hpcprof.profiles.waiting_calls import QUERY, UNKNOWN, kinds_by_call

COLUMNS = ("start", "end", "kind", "correlation", "device", "stream", "source_stream", "source_correlation")
"""The columns of synchronizations that the events themselves tell."""

# libkineto's syncTypeString.
_KINDS = {
    "Event Sync": SyncKind.EVENT,
    "Stream Wait Event": SyncKind.STREAM_WAIT,
    "Stream Sync": SyncKind.STREAM,
    "Context Sync": SyncKind.DEVICE,
}


def waits(
    events: Sequence[Event], arguments: Sequence[WaitArguments]
) -> tuple[IntColumns, NDArray[np.bool_]]:
    """Return what waits tell beyond annotations on the GPU, and which of the events are waits."""
    kinds = (_KINDS.get(e.name or "", UNKNOWN) if e.cat == "cuda_sync" else UNKNOWN for e in events)
    kind = np.fromiter(kinds, np.int64, len(events))
    streams = (a.wait_on_stream for a in arguments)
    records = (a.wait_on_cuda_event_record_corr_id for a in arguments)
    columns = {
        "kind": kind,
        "source_stream": _column(streams, NO_STREAM),
        "source_correlation": _column(records, NO_CORRELATION),
    }
    return columns, kind != UNKNOWN


def synchronizations(
    columns: IntColumns, process: int, calls: ApiCalls, strings: Sequence[str]
) -> Synchronizations:
    """Build the synchronizations from `COLUMNS`; the names of their calls tell which are queries."""
    of_process = np.full(len(columns["kind"]), process)
    told = kinds_by_call(of_process, columns["correlation"], calls, strings)
    found = Synchronizations(
        **{**columns, "kind": np.where(told == UNKNOWN, columns["kind"], told)}, process=of_process
    )
    return found.take(told != QUERY)


def _column(values: Iterable[int | None], otherwise: int) -> Ints:
    return np.fromiter((otherwise if v is None else v for v in values), np.int64)
