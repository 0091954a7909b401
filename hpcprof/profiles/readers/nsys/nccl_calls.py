"""Collectives of an nsys export, from NCCL's own ranges and their payloads."""

import numpy as np

from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.columns.unique import distinct, numbered_rows
from hpcprof.profiles.readers.nccl_groups import launching_calls
from hpcprof.profiles.readers.nsys.export import NO_ID, PROCESS_SHIFT, THREAD_BITS, NsysExport
from hpcprof.profiles.readers.nsys.nvtx_ranges import DOMAIN_CREATE, PUSH_POP, NvtxEvents, Payloads, layouts
from hpcprof.profiles.readers.string_table import StringTable, translate
from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_NAME,
    NO_PEER,
    NO_PROCESS,
    UNKNOWN_RANKS,
    Collectives,
    Ints,
    has_plausible_times,
)

NCCL_DOMAIN = "NCCL"
# The names of the entries of NCCL's payloads in its versions (NCCL's nvtx_payload_schemas.h).
COMMUNICATOR = ("NCCL communicator ID",)
MESSAGE = ("Message size [bytes]", "Bytes")
RANKS = ("No. of ranks",)
PEER = ("Peer rank", "Peer")


def read_collectives(export: NsysExport, events: NvtxEvents, strings: StringTable) -> Collectives:
    """Return the collectives that NCCL annotated, in the order of their threads and calls.

    Size and communicator come from the payloads, which an export has if it was made with
    ``--include-blobs=true`` from a version of NCCL that writes them.
    """
    if not events.present >= {"domainId", "globalTid", "text"}:
        return Collectives.empty()
    calls = _Calls(export, events)
    launched_by = launching_calls(calls.texts, calls.name, calls.thread)
    operations = strings.add_all(map(operation, calls.texts))[calls.name]
    chosen = np.flatnonzero(operations != NO_NAME)
    return Collectives(
        start=calls.start[launched_by][chosen],
        end=calls.end[launched_by][chosen],
        process=np.where(calls.thread == NO_ID, NO_PROCESS, calls.thread >> PROCESS_SHIFT)[chosen],
        thread=(calls.thread & THREAD_BITS)[chosen],
        operation=operations[chosen],
        **{column: values[chosen] for column, values in _decode_payloads(export, calls, strings).items()},
    )


class _Calls:
    """The ranges of NCCL's domains, sorted by thread and start, with their names and payloads.

    ``name`` holds indices into ``texts``; a range without a payload has an empty blob.
    """

    def __init__(self, export: NsysExport, events: NvtxEvents) -> None:
        columns = events.columns
        kind = columns["eventType"]
        created = np.flatnonzero(kind == DOMAIN_CREATE)
        names = events.text.take(created).texts()
        nccl_rows = [row for row, name in zip(created.tolist(), names, strict=True) if name == NCCL_DOMAIN]
        # A domain's id is unique within a process.
        _, domain = numbered_rows(columns["domainId"], columns["globalTid"] >> PROCESS_SHIFT)
        owned = np.isin(domain, domain[nccl_rows])
        timed = has_plausible_times(columns["start"], columns["end"])
        rows = np.flatnonzero(owned & timed & (kind == PUSH_POP))
        rows = rows[np.lexsort((columns["start"][rows], columns["globalTid"][rows]))]
        self.start, self.end, self.thread, self.domain, ids = (
            columns[name][rows] for name in ("start", "end", "globalTid", "domainId", "textId")
        )
        texts = StringTable()
        strings = export.strings(distinct(ids))
        self.name = translate(ids, {i: texts.add(value) for i, value in strings.items()})
        inline = np.flatnonzero(self.name == NO_NAME)
        self.name[inline] = texts.add_all(text or "" for text in events.text.take(rows[inline]).texts())
        self.texts: list[str] = texts.array().tolist()
        self.payloads = events.payload.take(rows)


def _decode_payloads(export: NsysExport, calls: _Calls, strings: StringTable) -> dict[str, Ints]:
    """Return communicator, bytes, ranks and peer of each call, as far as the payloads hold them."""
    all_layouts = layouts(export)
    count = len(calls.name)
    communicator = np.full(count, NO_NAME)
    size, ranks = np.full(count, NO_BYTES), np.full(count, UNKNOWN_RANKS)
    peer = np.full(count, NO_PEER)
    for domain in np.unique(calls.domain).tolist():
        rows = np.flatnonzero(calls.domain == domain)
        payloads = Payloads(
            calls.payloads.take(rows),
            {schema: layout for (owner, schema), layout in all_layouts.items() if owner == domain},
        )
        identity, identified = payloads.values(*COMMUNICATOR)
        used, number = np.unique(identity, return_inverse=True)
        names = strings.add_all(f"0x{value:016x}" for value in used.tolist())
        communicator[rows] = np.where(identified, names[number], NO_NAME)
        message, sized = payloads.values(*MESSAGE)
        fits = sized & (message <= np.uint64(np.iinfo(np.int64).max))
        size[rows[fits]] = message[fits].astype(np.int64)
        partner, paired = payloads.values(*PEER)
        fits = paired & (partner <= np.uint64(np.iinfo(np.int32).max))
        peer[rows[fits]] = partner[fits].astype(np.int64)
        members, counted = payloads.values(*RANKS)
        # Only the calls that make a communicator record its size.
        sizes = dict(
            zip(identity[counted & identified].tolist(), members[counted & identified].tolist(), strict=True)
        )
        ranks[rows] = np.array([sizes.get(value, UNKNOWN_RANKS) for value in used.tolist()], np.int64)[number]
        ranks[rows[~identified]] = UNKNOWN_RANKS
    return {
        "communicator": communicator,
        "bytes": size,
        "ranks": ranks,
        "comm_peer": peer,  # NCCL knows no ranks but those of the communicator
    }
