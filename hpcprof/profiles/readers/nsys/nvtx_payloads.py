"""The payloads of NVTX events in an nsys export, decoded by the layouts in the export itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.readers.nsys.binary_column import BinaryColumn
from hpcprof.profiles.readers.nsys.export import NO_ID, NsysExport
from hpcprof.profiles.timeline import Ints

Unsigned = NDArray[np.uint64]
Key = tuple[int, int]
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


@dataclass(frozen=True)
class Field:
    """A number in a payload: its offset in bytes and its numpy type."""

    offset: int
    kind: np.dtype[np.generic]


Layout = Mapping[str, Field]
"""The numbers of a schema by the names that the program gave them."""


def layouts(export: NsysExport) -> dict[Key, Layout]:
    """Return the layout of each schema; entries other than plain numbers are left out."""
    table = export.table("NVTX_PAYLOAD_SCHEMA_ENTRIES")
    if table is None or not {"domainId", "schemaId", "idx", "type", "name"} <= table.columns:
        return {}
    wanted = {"domainId": NO_ID, "schemaId": NO_ID, "idx": 0, "type": 0, "flags": 0, "offset": NO_ID}
    columns, others = table.read(wanted, texts=["name"])
    texts = others["name"].texts()
    enums = _enums(export)
    found: dict[Key, dict[str, Field]] = {}
    ends: dict[Key, int | None] = {}
    for row in np.lexsort((columns["idx"], columns["schemaId"], columns["domainId"])).tolist():
        key = (int(columns["domainId"][row]), int(columns["schemaId"][row]))
        code = int(columns["type"][row])
        name = _TYPES.get(code) or enums.get((key[0], code))
        plain = name is not None and not columns["flags"][row]
        offset = _offset(int(columns["offset"][row]), ends.get(key, 0), np.dtype(name) if plain else None)
        if not plain or offset is None:
            ends[key] = None
            continue
        field = Field(offset, np.dtype(name))
        ends[key] = offset + field.kind.itemsize
        found.setdefault(key, {})[texts[row] or ""] = field
    return dict(found)


def _offset(stored: int, after: int | None, kind: np.dtype[np.generic] | None) -> int | None:
    """Return an entry's offset: the stored one, else the next multiple of its size.

    The first entry's offset is 0 and is not stored.
    """
    if stored > 0 or kind is None or after is None:
        return stored if stored > 0 else None
    return -(-after // kind.itemsize) * kind.itemsize


def _enums(export: NsysExport) -> dict[Key, str]:
    """Return the numpy type of each enumeration, by domain and the id that serves as its type."""
    table = export.table("NVTX_PAYLOAD_ENUMS")
    if table is None or not {"domainId", "schemaId", "size"} <= table.columns:
        return {}
    columns = table.integers({"domainId": NO_ID, "schemaId": NO_ID, "size": 0})
    rows = zip(*(columns[name].tolist() for name in ("domainId", "schemaId", "size")), strict=True)
    return {(domain, number): f"<u{size}" for domain, number, size in rows if size in (1, 2, 4, 8)}


@dataclass(frozen=True)
class Payloads:
    """The payloads of one domain: one blob per event, NULL if it has none."""

    blobs: BinaryColumn
    layouts: Mapping[int, Layout]

    def values(self, *names: str) -> tuple[Unsigned, NDArray[np.bool_]]:
        """Return the integer of the first of these names in each payload, and whether there is one."""
        numbers = np.zeros(len(self.blobs), np.uint64)
        present = np.zeros(len(self.blobs), bool)
        for rows, layout, content in self._alike:
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
    def _alike(self) -> list[tuple[Ints, Layout, NDArray[np.uint8]]]:
        """The rows of each schema and size, its layout, and their bytes of shape (rows, size)."""
        found: list[tuple[Ints, Layout, NDArray[np.uint8]]] = []
        length = self.blobs.sizes()
        known = np.flatnonzero(length >= PAYLOAD_HEADER.itemsize)
        if not len(known):
            return found
        content, begin, length = self.blobs.content, self.blobs.begin[known], length[known]
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
                found.append((known[chosen], layout, parts.view(np.uint8).reshape(-1, size)))
        return found


def _windows(content: NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """Return ``size`` bytes from every position of the content, as elements of one type that overlap.

    Taking elements copies them: ``_windows(content, 8)[positions].view(np.uint8).reshape(-1, 8)``.
    """
    found: NDArray[np.void] = np.ndarray(
        (max(0, len(content) - size + 1),), f"V{size}", content, strides=(1,)
    )
    return found
