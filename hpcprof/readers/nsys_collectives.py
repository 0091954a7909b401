"""Collectives of an nsys export: NCCL's own ranges and their payloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from sqlalchemy import func, literal, null, select

from hpcprof.collective_operations import operation
from hpcprof.numbering import distinct
from hpcprof.readers.nsys_export import MISSING, NO_ID, PROCESS_SHIFT, THREAD_BITS, Export, Source
from hpcprof.readers.nvtx_payloads import Payloads, layouts
from hpcprof.readers.strings import StringTable, translate
from hpcprof.timeline import NO_BYTES, NO_NAME, NO_PROCESS, UNKNOWN_RANKS, Collectives, Ints

_PUSH_POP, _DOMAIN_CREATE = 59, 75
_DOMAIN = "NCCL"
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"

# What the versions of NCCL call the entries of their payloads (nvtx_payload_schemas.h there).
_COMMUNICATOR = ("NCCL communicator ID",)
_MESSAGE = ("Message size [bytes]", "Bytes")
_RANKS = ("No. of ranks",)


def read_collectives(export: Export, strings: StringTable) -> Collectives:
    """Return the collectives that NCCL annotated, in the order of their threads and calls.

    Size and communicator come from the payloads, which an export has with ``--include-blobs=true`` and
    from NCCL versions that write them.
    """
    source = export.source("NVTX_EVENTS")
    needed = {"domainId", "globalTid", "start", "end", "eventType", "text"}
    if source is None or not needed <= source.columns:
        return Collectives.empty()
    domains = _domains(source)
    if not domains:
        return Collectives.empty()
    events = _Events(source, domains)
    launched_by = events.launched_by()
    operations = strings_of(strings, [operation(text) for text in events.texts])[events.name]
    chosen = np.flatnonzero(operations != NO_NAME)
    return Collectives(
        start=events.start[launched_by][chosen],
        end=events.end[launched_by][chosen],
        process=np.where(events.thread == NO_ID, NO_PROCESS, events.thread >> PROCESS_SHIFT)[chosen],
        thread=(events.thread & THREAD_BITS)[chosen],
        operation=operations[chosen],
        **{column: values[chosen] for column, values in _decoded(export, events, strings).items()},
    )


def strings_of(strings: StringTable, texts: Sequence[str | None]) -> Ints:
    """Return the numbers of texts, also of none at all."""
    return np.array([strings.add(text) for text in texts], np.int64)


def _domains(source: Source) -> dict[tuple[int, int], None]:
    """Return the id and process of each domain of NCCL, once each."""
    created = (source.clause.c.eventType == _DOMAIN_CREATE, source.clause.c.text == _DOMAIN)
    columns = source.ints({"domainId": NO_ID, "globalTid": NO_ID}, *created)
    process = columns["globalTid"] >> PROCESS_SHIFT
    return dict.fromkeys(zip(columns["domainId"].tolist(), process.tolist(), strict=True))


class _Events:
    """The ranges of NCCL's domains, sorted by thread and start, with their names and payloads.

    ``name`` are indices into ``texts``; of a range without a payload the blob is empty.
    """

    def __init__(self, source: Source, domains: Iterable[tuple[int, int]]) -> None:
        export, table = source.export, source.clause
        cells = (
            func.coalesce(table.c.start, MISSING),
            func.coalesce(table.c.end, MISSING),
            func.coalesce(table.c.globalTid, NO_ID),
            table.c.domainId,
            func.coalesce(table.c.textId, NO_ID) if "textId" in source.columns else literal(NO_ID),
            table.c.text,
            table.c.binaryData if "binaryData" in source.columns else null(),
        )
        wanted = (table.c.eventType == _PUSH_POP, table.c.domainId.in_({domain for domain, _ in domains}))
        rows = export.connection.execute(select(*cells).where(*wanted)).all()
        *numbers, inline, blobs = list(zip(*rows, strict=True)) or [()] * len(cells)
        start, end, thread, domain, text = (export.numbers(iter(column), source.name) for column in numbers)
        owned = np.logical_or.reduce(
            [(domain == number) & (thread >> PROCESS_SHIFT == process) for number, process in domains]
        )
        chosen = np.flatnonzero(owned & (start != MISSING) & (end != MISSING))
        chosen = chosen[np.lexsort((start[chosen], thread[chosen]))]
        self.start, self.end, self.thread, self.domain = (
            column[chosen] for column in (start, end, thread, domain)
        )
        names = StringTable()
        ids = text[chosen]
        known = export.strings(distinct(ids))
        self.name = translate(ids, {i: names.add(value) for i, value in known.items()})
        for row in np.flatnonzero(self.name == NO_NAME).tolist():
            value = inline[chosen[row]]
            self.name[row] = names.add(value if isinstance(value, str) else "")
        self.texts: list[str] = names.array().tolist()
        self.blobs = [blobs[row] if isinstance(blobs[row], bytes) else b"" for row in chosen.tolist()]

    def launched_by(self) -> Ints:
        """Return, for each call, the call that launches its work.

        That is the call itself, or where it stands in a group the one that ends the outermost group.
        """
        kinds = [(text == _GROUP_START) - (text == _GROUP_END) for text in self.texts]
        kind = np.array(kinds, np.int64)[self.name]
        result = np.arange(len(kind))
        cuts = np.flatnonzero(np.diff(self.thread)) + 1
        for rows in np.split(result.copy(), cuts):
            depth = np.cumsum(kind[rows])
            # The profile may begin inside a group, whose end then closes nothing.
            depth -= np.minimum(np.minimum.accumulate(depth), 0) if len(depth) else depth
            closing = rows[(kind[rows] < 0) & (depth == 0)]
            inside = rows[depth > 0]
            next_one = np.searchsorted(closing, inside)
            closed = next_one < len(closing)
            result[inside[closed]] = closing[next_one[closed]]
        return result


def _decoded(export: Export, events: _Events, strings: StringTable) -> dict[str, Ints]:
    """Return communicator, bytes and ranks of each call, as far as the payloads tell."""
    known = layouts(export)
    count = len(events.name)
    communicator = np.full(count, NO_NAME)
    size, ranks = np.full(count, NO_BYTES), np.full(count, UNKNOWN_RANKS)
    for domain in np.unique(events.domain).tolist():
        rows = np.flatnonzero(events.domain == domain)
        payloads = Payloads(
            [events.blobs[row] for row in rows.tolist()],
            {schema: layout for (owner, schema), layout in known.items() if owner == domain},
        )
        identity, identified = payloads.values(*_COMMUNICATOR)
        used, number = np.unique(identity, return_inverse=True)
        names = strings_of(strings, [f"0x{value:016x}" for value in used.tolist()])
        communicator[rows] = np.where(identified, names[number], NO_NAME)
        message, sized = payloads.values(*_MESSAGE)
        fits = sized & (message <= np.uint64(np.iinfo(np.int64).max))
        size[rows[fits]] = message[fits].astype(np.int64)
        of_size, counted = payloads.values(*_RANKS)
        # Only the calls that make a communicator tell its size.
        sizes = dict(
            zip(identity[counted & identified].tolist(), of_size[counted & identified].tolist(), strict=True)
        )
        ranks[rows] = np.array([sizes.get(value, UNKNOWN_RANKS) for value in used.tolist()], np.int64)[number]
        ranks[rows[~identified]] = UNKNOWN_RANKS
    return {"communicator": communicator, "bytes": size, "ranks": ranks}
