"""Kernels, memory operations and API calls of an nsys export."""

from collections.abc import Mapping

import numpy as np

from hpcprof.profiles.columns.unique import distinct, map_unique, numbered_rows
from hpcprof.profiles.host_memory import host_memory
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.nsys.export import (
    NO_ID,
    PROCESS_SHIFT,
    REQUIRED,
    THREAD_BITS,
    BulkColumns,
    ExportTable,
    NsysExport,
)
from hpcprof.profiles.readers.string_table import StringTable, translate
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    NO_PROCESS,
    ApiCalls,
    Category,
    IntColumns,
    Ints,
    Kernels,
    MemoryOperations,
    Operations,
    OsCalls,
    along_axes,
    concatenate,
    empty_columns,
)

_CALL = {
    "start": REQUIRED,
    "end": REQUIRED,
    "globalTid": NO_ID,
    "correlationId": NO_CORRELATION,
    "nameId": NO_ID,
}
_OPERATION = {
    "start": REQUIRED,
    "end": REQUIRED,
    "deviceId": 0,
    "streamId": 0,
    "correlationId": NO_CORRELATION,
    "globalPid": NO_ID,
}
_GRID = ("gridX", "gridY", "gridZ")
_BLOCK = ("blockX", "blockY", "blockZ")
_KERNEL = {**_OPERATION, "demangledName": NO_ID, **dict.fromkeys((*_GRID, *_BLOCK), 1)}
_COPY = {**_OPERATION, "bytes": -1, "copyKind": 0, "srcKind": NO_ID, "dstKind": NO_ID}
_SET = {**_OPERATION, "bytes": -1, "memKind": NO_ID}

_OS_CALL = {"start": REQUIRED, "end": REQUIRED, "globalTid": NO_ID, "nameId": NO_ID}

_CALLS, _KERNELS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"
_OS_CALLS = "OSRT_API"
_COPIES, _SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
OPERATIONS = (_KERNELS, _COPIES, _SETS)
"""The tables of work on the GPU."""

# CUpti_ActivityMemcpyKind, for exports that have no table of labels.
_COPY_LABELS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
# ENUM_CUDA_MEM_KIND, for the same.
_MEMORY_LABELS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
_LAUNCH_ERRORS = {
    9: "invalid grid or block",
    98: "no code for this GPU",
    209: "no code for this GPU",
    222: "PTX of a newer toolkit than the driver's",
    701: "too many registers or too much shared memory",
}
"""Errors of launches whose work is not done. Other calls return them to programs that only ask."""
_STICKY_ERRORS = {
    700: "illegal memory access",
    715: "illegal instruction",
    716: "misaligned address",
    719: "failed launch",
}
"""Errors of kernels: the next call that meets one returns it, and so does each call after it."""
_MAX_CUT_SHARE = 1e-4
"""Maximum share of launches without a kernel for which no results are read: a capture cuts off the last."""

BULK: dict[str, Mapping[str, int | None]] = {
    _CALLS: _CALL,
    _KERNELS: _KERNEL,
    _COPIES: _COPY,
    _SETS: _SET,
    _OS_CALLS: _OS_CALL,
}
"""The columns of the large tables, the largest first."""


def read_calls(export: NsysExport) -> tuple[IntColumns, list[Loss]]:
    """Read the API calls, and say what is left out."""
    table = export.table(_CALLS)
    if table is None:
        return empty_columns(_CALL), []
    table.require("nameId")
    return with_odd_fields(table.read_bulk(_CALL), Subject.CALL)


def failed_calls(export: NsysExport, calls: IntColumns, kernels: int) -> list[Loss]:
    """Count the calls that did no work, by their error, in an export with fewer kernels than launches.

    ``calls`` are the columns of all calls. One loss stands for all calls that meet the error of a kernel.
    """
    names = calls["nameId"]
    texts = export.strings(distinct(names))
    is_launch = np.isin(names, [number for number, text in texts.items() if "Launch" in text])
    launches = np.count_nonzero(is_launch)
    table = export.table(_CALLS)
    missing = launches - kernels > _MAX_CUT_SHARE * launches
    if table is None or "returnValue" not in table.columns or not missing:
        return []
    returned = table.read_bulk({"returnValue": 0}).integers["returnValue"]
    counts = {
        f"{code} of CUDA ({text})": np.count_nonzero(returned[is_launch] == code)
        for code, text in _LAUNCH_ERRORS.items()
    }
    failures = losses(LossKind.FAILED, Subject.LAUNCH, counts, int(launches))
    for code, text in _STICKY_ERRORS.items():
        if len(failed := np.flatnonzero(returned == code)):
            first = texts[names[failed[calls["start"][failed].argmin()]]]
            detail = f"{code} of CUDA ({text}), the first in {first}: what was launched last did not end"
            failures.append(Loss(LossKind.FAILED, Subject.CALL, len(failed), len(names), detail))
    return failures


def api_calls(columns: IntColumns, name: Ints) -> ApiCalls:
    """Build the calls from their columns, which they take, and the numbers of their names."""
    thread = columns["globalTid"]
    process = _process(thread)
    thread &= THREAD_BITS
    return ApiCalls(
        start=columns["start"],
        end=columns["end"],
        process=process,
        thread=thread,
        name=name,
        correlation=columns["correlationId"],
    )


def read_os_calls(export: NsysExport, strings: StringTable) -> tuple[OsCalls, list[Loss]]:
    """Read the calls of the operating system's runtime (``--trace=osrt``), and say what is left out."""
    table = export.table(_OS_CALLS)
    if table is None:
        return OsCalls.empty(), []
    columns, lost = with_odd_fields(table.read_bulk(_OS_CALL), Subject.OS_CALL)
    texts = sorted(export.strings(distinct(columns["nameId"])).items())
    thread, name = columns["globalTid"], translate(columns["nameId"], {i: strings.add(t) for i, t in texts})
    return OsCalls(columns["start"], columns["end"], _process(thread), thread & THREAD_BITS, name), lost


def read_kernels(export: NsysExport, only_process: int) -> tuple[IntColumns, list[Loss]]:
    """Read the kernels, and say what is left out.

    ``only_process`` is the process of the kernels of old exports, which do not record it.
    """
    table = export.table(_KERNELS)
    if table is None:
        return empty_columns((*_KERNEL, "process")), []
    table.require("demangledName")
    return read_operations(table, _KERNEL, only_process, Subject.KERNEL)


def kernels(columns: IntColumns, name: Ints, category: Ints) -> Kernels:
    """Build the kernels from their columns, the numbers of their names and their categories."""
    return Kernels(
        **_shared_columns(columns),
        name=name,
        category=category,
        grid=along_axes([columns[axis] for axis in _GRID]),
        block=along_axes([columns[axis] for axis in _BLOCK]),
    )


def read_memory(
    export: NsysExport, strings: StringTable, only_process: int
) -> tuple[MemoryOperations, list[Loss]]:
    """Read memory copies, then sets, named as by ``nsys stats``, and say what is left out."""
    tables, lost = [MemoryOperations.empty()], list[Loss]()
    kinds_of_memory = _labels(export, "ENUM_CUDA_MEM_KIND", _MEMORY_LABELS)
    copies = export.table(_COPIES)
    if copies is not None:
        columns, lost = read_operations(copies, _COPY, only_process, Subject.COPY)
        kinds, row = np.unique(columns["copyKind"], return_inverse=True)
        labels = _labels(export, "ENUM_CUDA_MEMCPY_OPER", _COPY_LABELS)
        names = (f"[CUDA memcpy {labels.get(kind, _COPY_LABELS[0])}]" for kind in kinds.tolist())
        host = _host_memory(kinds_of_memory, columns["srcKind"], columns["dstKind"])
        tables.append(_memory(columns, strings.add_all(names)[row], host))
    sets = export.table(_SETS)
    if sets is not None:
        columns, more = read_operations(sets, _SET, only_process, Subject.SET)
        lost += more
        host = _host_memory(kinds_of_memory, columns["memKind"])
        tables.append(_memory(columns, np.full(len(host), strings.add("[CUDA memset]")), host))
    return concatenate(MemoryOperations, tables), lost


def read_graphs(export: NsysExport, strings: StringTable, only_process: int) -> tuple[Operations, list[Loss]]:
    """Read the CUDA graphs that were traced as a whole, and say what is left out."""
    table = export.table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    if table is None:
        return Operations.empty(), []
    columns, lost = read_operations(table, {**_OPERATION, "graphId": NO_ID}, only_process, Subject.GRAPH)
    name = map_unique(columns["graphId"], lambda graph: strings.add(f"CUDA graph {graph}"))
    category = np.full(len(name), int(Category.COMP))
    hidden = losses(LossKind.GRAPH, Subject.GRAPH, {"": len(name)})
    return Operations(**_shared_columns(columns), name=name, category=category), [*lost, *hidden]


def _labels(export: NsysExport, name: str, otherwise: Mapping[int, str]) -> dict[int, str]:
    """Return the labels of an enumeration by id, those known here where the export has none."""
    table = export.table(name)
    if table is None or not {"id", "label"} <= table.columns:
        return dict(otherwise)
    columns, texts = table.read({"id": NO_ID}, texts=["label"])
    labels = zip(columns["id"].tolist(), texts["label"].texts(), strict=True)
    return {**otherwise, **{kind: label for kind, label in labels if label is not None}}


def _host_memory(labels: Mapping[int, str], *sides: Ints) -> Ints:
    """Return the kind of the host's memory of each row, whose kinds of memory are those of all sides."""
    kinds, row = numbered_rows(*sides)
    return np.array([host_memory(map(labels.get, kind)) for kind in kinds.tolist()], np.int64)[row]


def _memory(columns: IntColumns, name: Ints, host: Ints) -> MemoryOperations:
    category = np.full(len(name), int(Category.MEM))
    shared = _shared_columns(columns) | {"bytes": columns["bytes"], "host_memory": host}
    return MemoryOperations(**shared, name=name, category=category)


def read_operations(
    table: ExportTable, wanted: Mapping[str, int | None], only_process: int, subject: Subject
) -> tuple[IntColumns, list[Loss]]:
    """Read a large table of what CUPTI recorded, with the column ``process``, and say what is left out.

    ``wanted`` are its columns with their defaults, as for `ExportTable.read`; they include start and end.
    """
    columns, lost = with_odd_fields(table.read_bulk(wanted), subject)
    columns["process"] = process_of(table, columns["globalPid"], only_process)
    return columns, lost


def process_of(table: ExportTable, ids: Ints, only_process: int) -> Ints:
    """Return the process of the global ids of a table, the only one if old exports do not record it."""
    return _process(ids) if "globalPid" in table.columns else _constant_column(only_process, len(ids))


def _process(ids: Ints) -> Ints:
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (NO_ID, NO_ID)
    if low != NO_ID and low >> PROCESS_SHIFT == high >> PROCESS_SHIFT:
        return _constant_column(low >> PROCESS_SHIFT, len(ids))
    return np.where(ids != NO_ID, ids >> PROCESS_SHIFT, NO_PROCESS)


def _constant_column(value: int, rows: int) -> Ints:
    return np.broadcast_to(np.int64(value), (rows,))


def _shared_columns(columns: IntColumns) -> IntColumns:
    return {
        "start": columns["start"],
        "end": columns["end"],
        "device": columns["deviceId"],
        "stream": columns["streamId"],
        "correlation": columns["correlationId"],
        "process": columns["process"],
    }


def with_odd_fields(table: BulkColumns, subject: Subject) -> tuple[IntColumns, list[Loss]]:
    """Return the columns, and count the odd fields but the times, which are checked with all others."""
    odd_counts = {name: count for name, count in table.odd.items() if name not in ("start", "end")}
    return table.integers, losses(LossKind.FIELD, subject, odd_counts, len(table.integers["start"]))
