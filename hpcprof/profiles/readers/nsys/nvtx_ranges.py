"""NVTX ranges of an nsys export, and the operators of PyTorch and XLA among them.

``emit_nvtx`` and nsys ``--pytorch=autograd-nvtx`` mark operators. PyTorch appends to the name of each of its
ranges the number of the call, and on request the shapes of the inputs:
``aten::mm, op_id = 12, sizes = [[4, 32], [32, 10]], input_op_ids = [(3,0), (5,1)]``. Ranges of autograd have
``, seq = 7`` too (``getNvtxStr`` in torch/csrc/profiler/util.cpp). Ranges of the program
(``record_function``) and of PyTorch's own libraries are marked in the same way.

XLA marks each operation that it executes in the domain ``TSL``: ``Thunk:#name=dot,hlo_op=dot.1#``.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.columns.unique import map_unique, numbered, numbered_rows
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.nsys.export import (
    MISSING,
    NO_ID,
    PROCESS_SHIFT,
    REQUIRED,
    THREAD_BITS,
    UNREADABLE,
    NsysExport,
)
from hpcprof.profiles.readers.nsys.table_pages import BinaryColumn
from hpcprof.profiles.readers.string_table import StringTable, translate
from hpcprof.profiles.timeline import (
    LATEST,
    NO_NAME,
    NO_PROCESS,
    OWN_END,
    Ints,
    Mask,
    Operators,
    Ranges,
    Style,
)

# Event types of ENUM_NSYS_EVENT_TYPE; 70 and 71 come from NVTXT files.
PUSH_POP, DOMAIN_CREATE = 59, 75
_STYLES = {PUSH_POP: Style.PUSH_POP, 60: Style.START_END, 70: Style.PUSH_POP, 71: Style.START_END}
NAMED_EVENTS = (*_STYLES, DOMAIN_CREATE)
"""The types of the events whose names are read."""

MARK = 34

# The bits of a global thread id that name the process on its machine.
_PROCESS_BITS = 0x0000FFFFFF000000

_KEYS = ("start", "end", "eventType")
_COLUMNS = {
    **dict.fromkeys(_KEYS, REQUIRED),
    "globalTid": NO_ID,
    "endGlobalTid": NO_ID,
    "textId": NO_ID,
    "domainId": NO_ID,
    "category": NO_ID,
}


class NvtxEvents(msgspec.Struct, frozen=True):
    """Rows of NVTX_EVENTS that are ranges, create a domain, or are marks with a payload.

    ``present`` holds the names of the table's columns, ``text`` the inline text of each row, ``payload`` its
    binary data, and ``last`` the last stamp of any event, marks included. ``untyped`` counts the events whose
    type is unknown, and ``odd`` by column the values that are not integers.
    """

    present: frozenset[str]
    columns: dict[str, Ints]
    text: BinaryColumn
    payload: BinaryColumn
    last: int
    untyped: int
    odd: Mapping[str, int]


def read_events(export: NsysExport) -> NvtxEvents | None:
    """Read the events, or return None if there are none."""
    table = export.table("NVTX_EVENTS")
    if table is None:
        return None
    table.require("start", "end", "eventType")
    columns, contents, odd_counts = table.read_bulk(_COLUMNS, texts=["text"], blobs=["binaryData"])
    text, payload = contents["text"], contents["binaryData"]
    stamps = np.concatenate((columns["start"], columns["end"]))
    last = int(stamps[stamps < LATEST].max(initial=MISSING))
    untyped = int(np.count_nonzero(columns["eventType"] <= UNREADABLE))
    is_mark = (columns["eventType"] == MARK) & payload.present
    rows = np.flatnonzero(np.isin(columns["eventType"], NAMED_EVENTS) | is_mark)
    columns = {name: values[rows] for name, values in columns.items()}
    return NvtxEvents(table.columns, columns, text.take(rows), payload.take(rows), last, untyped, odd_counts)


def ranges(
    events: NvtxEvents, strings: StringTable, numbers: Mapping[int, int]
) -> tuple[Ranges, Operators, list[Loss]]:
    """Build the ranges and the operators among them, and say what is left out.

    ``strings`` receives inline texts and names with their domain's; ``numbers`` leads from the export's
    string ids to the table's numbers.
    """
    columns = events.columns
    rows = np.flatnonzero(np.isin(columns["eventType"], list(_STYLES)))
    column = {name: values[rows] for name, values in columns.items()}
    # A range without an end is still open.
    closed = column["end"] != MISSING
    marked = _names(events, rows, translate(column["textId"], numbers), strings)
    created = _domain_names(events)
    domain = _domains(created, strings, column)
    if _XLA in created.values():
        domain[marked.operator & (domain == strings.add(_XLA))] = NO_NAME
    has_thread, ended_by = column["globalTid"] != NO_ID, column["endGlobalTid"]
    by_itself = np.where(has_thread & (ended_by == column["globalTid"]), OWN_END, 0)
    all_ranges = Ranges(
        start=column["start"],
        end=np.where(closed, column["end"], events.last),
        process=np.where(has_thread, column["globalTid"] >> PROCESS_SHIFT, NO_PROCESS),
        thread=column["globalTid"] & THREAD_BITS,
        name=_with_domain(domain, marked.name, strings),
        domain=domain,
        style=np.array([_STYLES[kind] for kind in column["eventType"].tolist()], np.int64),
        closed=closed.astype(np.int64),
        one_thread=np.where(ended_by == NO_ID, 1, by_itself),
    )
    fields = {name: count for name, count in events.odd.items() if name not in _KEYS}
    untyped = losses(LossKind.ROW, Subject.EVENT, {"eventType": events.untyped})
    return *separate(all_ranges, marked), [*untyped, *losses(LossKind.FIELD, Subject.EVENT, fields)]


def _names(events: NvtxEvents, rows: Ints, registered: Ints, strings: StringTable) -> "Marked":
    inline = np.flatnonzero(registered == NO_NAME)
    written = mark_operators(events.text.take(rows[inline]).texts(), strings)
    texts = strings.array()
    used, row = numbered(registered)
    marks = mark_operators((None if n == NO_NAME else texts[n] for n in used.tolist()), strings)
    marked = Marked(marks.name[row], marks.dims[row], marks.operator[row])
    for column in ("name", "dims", "operator"):
        getattr(marked, column)[inline] = getattr(written, column)
    return marked


def _domains(
    created: Mapping[tuple[int, int], str | None], strings: StringTable, column: Mapping[str, Ints]
) -> Ints:
    """Return the name of each range's domain.

    A domain's id is unique within a process. If a process creates one twice, the first counts.
    """
    result = np.full(len(column["start"]), NO_NAME, np.int64)
    process = np.where(column["globalTid"] == NO_ID, NO_ID, column["globalTid"] & _PROCESS_BITS)
    for (identity, owner), text in created.items():
        result[(column["domainId"] == identity) & (process == owner)] = strings.add(text)
    return result


def _domain_names(events: NvtxEvents) -> dict[tuple[int, int], str | None]:
    """Return the name of each domain by its id and process; of several, the first that was created."""
    columns = events.columns
    identified = (columns["domainId"] != NO_ID) & (columns["globalTid"] != NO_ID)
    rows = np.flatnonzero((columns["eventType"] == DOMAIN_CREATE) & identified)
    rows = rows[np.argsort(columns["start"][rows], kind="stable")]
    names: dict[tuple[int, int], str | None] = {}
    for row, text in zip(rows.tolist(), events.text.take(rows).texts(), strict=True):
        key = (int(columns["domainId"][row]), int(columns["globalTid"][row]) & _PROCESS_BITS)
        names.setdefault(key, text)
    return names


def _with_domain(domain: Ints, name: Ints, strings: StringTable) -> Ints:
    """Put ``DOMAIN:`` before the names that have a domain, once for each pair that occurs."""
    result: Ints = name.copy()
    rows = np.flatnonzero((domain != NO_NAME) & (name != NO_NAME))
    texts = strings.array()
    result[rows] = map_unique(
        domain[rows] * len(texts) + name[rows],
        lambda pair: strings.add(f"{texts[pair // len(texts)]}:{texts[pair % len(texts)]}"),
    )
    return result


_APPENDED_FIELDS = re.compile(r", (?:seq|op_id|sizes) = (?=[\d\[])")
_SEQUENCE = ", seq = "
_SIZES = re.compile(r", sizes = (\[.*?\])(?=$|, input_op_ids = )", re.DOTALL)
_OPERATOR = re.compile(r"[a-z_][\w.]*::.|\w+Backward\d*$|detach_?$", re.ASCII)
"""An operator of a library of operators, a node of autograd, or one of the two without a library.

Libraries have names in lower case (``aten``, ``c10d``, ``_C``), unlike ranges such as ``FSDP::forward``.
"""
_LIBRARY = re.compile(r"\w+:(?!:)")
"""The work of a process group (``nccl:all_reduce``), which has shapes but is no operator."""


_XLA = "TSL"
"""The domain of XLA's own ranges."""
_THUNK = re.compile(r"Thunk:#(?:[^#]*,)?hlo_op=([^,#]+)[,#]")


class Operator(NamedTuple):
    """The name of an operator, and the shapes of its inputs as a JSON list, None if they are unknown."""

    name: str
    dims: str | None


def parse_operator(text: str) -> Operator | None:
    """Return the operator that a range is, by its text; None for any other range.

    It is one if XLA marks an operation, or if PyTorch wrote the text and the name is an operator's or the
    range has a number in the sequence of autograd; other ranges get no number.
    """
    thunk = _THUNK.match(text)
    if thunk is not None:
        return Operator(thunk[1], None)
    appended = _APPENDED_FIELDS.search(text)
    if appended is None:
        return None
    name, suffix = text[: appended.start()], text[appended.start() :]
    if _LIBRARY.match(name) or not (_OPERATOR.match(name) or suffix.startswith(_SEQUENCE)):
        return None
    sizes = _SIZES.search(suffix)
    return Operator(name, sizes[1].replace(", ", ",") if sizes else None)


class Marked(msgspec.Struct, frozen=True):
    """The names of ranges, and of those that are operators the shapes; all arrays of shape (n,).

    ``operator`` says which are operators. Their names are without what PyTorch appends.
    """

    name: Ints
    dims: Ints
    operator: Mask


def mark_operators(texts: Iterable[str | None], strings: StringTable) -> Marked:
    """Find the operators among ranges, and add the texts of all to the table."""
    names, dims, operator = [], [], []
    for text in texts:
        parsed = parse_operator(text) if text else None
        operator.append(parsed is not None)
        names.append(strings.add(text if parsed is None else parsed.name))
        dims.append(NO_NAME if parsed is None else strings.add(parsed.dims))
    return Marked(np.array(names, np.int64), np.array(dims, np.int64), np.array(operator, bool))


def separate(ranges: Ranges, marked: Marked) -> tuple[Ranges, Operators]:
    """Return the ranges that are no operators, and the operators.

    An operator begins and ends on one thread, outside NVTX domains other than XLA's.
    """
    whole = (ranges.closed == 1) & (ranges.one_thread == 1) & (ranges.style == Style.PUSH_POP)
    chosen = marked.operator & whole & (ranges.domain == NO_NAME)
    if not chosen.any():
        return ranges, Operators.empty()
    columns = ("start", "end", "process", "thread", "name")
    operators = Operators(
        **{name: getattr(ranges, name)[chosen] for name in columns}, dims=marked.dims[chosen]
    )
    return ranges.take(~chosen), operators


Unsigned = NDArray[np.uint64]
SchemaId = tuple[int, int]
"""A schema's domain and its id in it."""

# Before the bytes, nsys writes the number of payloads and for each its schema, size and offset from the
# beginning, all as 64-bit numbers. An event of NCCL has one payload.
PAYLOAD_HEADER = np.dtype([("count", "<u8"), ("schema", "<u8"), ("size", "<u8"), ("offset", "<u8")])

# NVTX_PAYLOAD_ENTRY_TYPE_* of nvToolsExtPayload.h, for 64-bit Linux.
_TYPES = {
    **{1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<i8", 8: "<u8", 9: "<i8", 10: "<u8"},
    **{11: "<i1", 12: "<u1", 13: "<i2", 14: "<u2", 15: "<i4", 16: "<u4", 17: "<i8", 18: "<u8"},
    **{19: "<f4", 20: "<f8", 22: "<u8", 23: "<u8"},
}


class PayloadField(msgspec.Struct, frozen=True):
    """A number in a payload: its offset in bytes and its numpy type."""

    offset: int
    kind: np.dtype[np.generic]


PayloadLayout = Mapping[str, PayloadField]
"""The numbers of a schema by the names that the program gave them."""


def layouts(export: NsysExport) -> dict[SchemaId, PayloadLayout]:
    """Return the layout of each schema; entries other than plain numbers are left out."""
    table = export.table("NVTX_PAYLOAD_SCHEMA_ENTRIES")
    if table is None or not {"domainId", "schemaId", "idx", "type", "name"} <= table.columns:
        return {}
    wanted = {"domainId": NO_ID, "schemaId": NO_ID, "idx": 0, "type": 0, "flags": 0, "offset": NO_ID}
    columns, contents = table.read(wanted, texts=["name"])
    texts = contents["name"].texts()
    enums = _enums(export)
    fields: dict[SchemaId, dict[str, PayloadField]] = {}
    ends: dict[SchemaId, int | None] = {}
    for row in np.lexsort((columns["idx"], columns["schemaId"], columns["domainId"])).tolist():
        key = (int(columns["domainId"][row]), int(columns["schemaId"][row]))
        code = int(columns["type"][row])
        name = _TYPES.get(code) or enums.get((key[0], code))
        offset, after, kind = int(columns["offset"][row]), ends.get(key, 0), np.dtype(name)
        if name is None or columns["flags"][row] or (offset <= 0 and after is None):
            ends[key] = None
            continue
        # The offset that is not stored is the next multiple of the size.
        offset = offset if offset > 0 else -(-(after or 0) // kind.itemsize) * kind.itemsize
        ends[key] = offset + kind.itemsize
        fields.setdefault(key, {})[texts[row] or ""] = PayloadField(offset, kind)
    return dict(fields)


def _enums(export: NsysExport) -> dict[SchemaId, str]:
    """Return the numpy type of each enumeration, by domain and the id that serves as its type."""
    table = export.table("NVTX_PAYLOAD_ENUMS")
    if table is None or not {"domainId", "schemaId", "size"} <= table.columns:
        return {}
    columns = table.integers({"domainId": NO_ID, "schemaId": NO_ID, "size": 0})
    rows = zip(*(columns[name].tolist() for name in ("domainId", "schemaId", "size")), strict=True)
    return {(domain, number): f"<u{size}" for domain, number, size in rows if size in (1, 2, 4, 8)}


class Payloads(msgspec.Struct, frozen=True, dict=True):
    """The payloads of one domain: one blob per event, NULL if it has none."""

    blobs: BinaryColumn
    layouts: Mapping[int, PayloadLayout]

    def values(self, *names: str) -> tuple[Unsigned, Mask]:
        """Return the integer of the first of these names in each payload, and whether there is one."""
        numbers = np.zeros(len(self.blobs), np.uint64)
        present = np.zeros(len(self.blobs), bool)
        for rows, layout, content in self._payloads_by_layout:
            field = next((layout[name] for name in names if name in layout), None)
            if field is None or field.kind.kind == "f":
                continue
            end = field.offset + field.kind.itemsize
            if end <= content.shape[1]:
                cells = np.ascontiguousarray(content[:, field.offset : end]).view(field.kind)[:, 0]
                numbers[rows] = cells.astype(np.int64).astype(np.uint64) if field.kind.kind == "i" else cells
                present[rows] = True
        return numbers, present

    @cached_property
    def _payloads_by_layout(self) -> list[tuple[Ints, PayloadLayout, NDArray[np.uint8]]]:
        """The rows of each schema and size, its layout, and their bytes of shape (rows, size)."""
        parts_by_layout: list[tuple[Ints, PayloadLayout, NDArray[np.uint8]]] = []
        length = self.blobs.sizes()
        rows = np.flatnonzero(length >= PAYLOAD_HEADER.itemsize)
        if not len(rows):
            return parts_by_layout
        content, begin, length = self.blobs.content, self.blobs.begin[rows], length[rows]
        header = _windows(content, PAYLOAD_HEADER.itemsize)[begin].view(PAYLOAD_HEADER)
        # As signed numbers: none that fits is negative.
        kinds, kind = numbered_rows(*(header[name].view(np.int64) for name in PAYLOAD_HEADER.names or ()))
        for number, (count, schema, size, offset) in enumerate(kinds.tolist()):
            layout = self.layouts.get(schema)
            if not count or size <= 0 or offset < 0 or layout is None:
                continue
            chosen = np.flatnonzero((kind == number) & (length - size >= offset))
            if len(chosen):
                parts = _windows(content, size)[begin[chosen] + offset]
                parts_by_layout.append((rows[chosen], layout, parts.view(np.uint8).reshape(-1, size)))
        return parts_by_layout


def _windows(content: NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """Return ``size`` bytes from every position of the content, as elements of one type that overlap.

    Taking elements copies them: ``_windows(content, 8)[positions].view(np.uint8).reshape(-1, 8)``.
    """
    windows: NDArray[np.void] = np.ndarray(
        (max(0, len(content) - size + 1),), f"V{size}", content, strides=(1,)
    )
    return windows
