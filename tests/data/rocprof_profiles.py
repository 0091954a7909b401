"""One small program as rocprofv3 records it: as a database of each schema, as JSON and as CSV tables.

The tables have the columns of the schemas of ROCm 7; the values are made up.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

UUID = "_0198_7f3a"
GUID = "0198-7f3a"
PID, TID, NODE = 4711, 4711, 77
CPU, GPU = 0, 4
"""The numbers of two agents; the GPU is the first of its type."""
BASE = 63_857_982_000_000
STREAM, QUEUE = 3, 17
GEMM = "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1"
KERNELS = {
    8: GEMM,
    9: "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
    10: "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
}
SECRETS = {"AWS_SECRET_ACCESS_KEY": "hunter2", "USER": "somebody"}
ENVIRONMENT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "ROCR_VISIBLE_DEVICES": "0", **SECRETS}
STEPS = 4

_Rows = list[list[Any]]


class Call(NamedTuple):
    """A call on the host; ``message`` is that of a range."""

    stack: int
    kind: str
    function: str
    start: int
    end: int
    message: str = ""


class Dispatch(NamedTuple):
    """A kernel; the grid is counted in work-items."""

    stack: int
    kernel: int
    start: int
    end: int
    workgroup: tuple[int, int, int]
    grid: tuple[int, int, int]


class Copy(NamedTuple):
    """A memory copy."""

    stack: int
    direction: str
    start: int
    end: int
    size: int


def _program() -> Iterator[Call | Dispatch | Copy]:
    for step in range(STEPS):
        at, stack = BASE + step * 1_000_000, 1 + step * 20
        yield Call(stack, "MARKER_CORE_RANGE_API", "roctxThreadRangeA", at, at + 900_000, "iteration")
        yield Call(stack + 1, "HIP_RUNTIME_API", "hipMemcpyAsync", at + 10_000, at + 30_000)
        yield Copy(stack + 1, "MEMORY_COPY_HOST_TO_DEVICE", at + 20_000, at + 60_000, 1 << 20)
        yield Call(stack + 2, "HIP_RUNTIME_API", "hipExtModuleLaunchKernel", at + 40_000, at + 45_000)
        yield Dispatch(stack + 2, 8, at + 70_000, at + 270_001, (256, 1, 1), (256 * 40, 4, 1))
        yield Call(stack + 3, "HIP_RUNTIME_API", "hipLaunchKernel", at + 50_000, at + 54_000)
        yield Dispatch(stack + 3, 9, at + 270_500, at + 300_000, (512, 1, 1), (1000, 1, 1))
        yield Call(stack + 4, "RCCL_API", "ncclAllReduce", at + 60_000, at + 80_000)
        yield Call(stack + 5, "HIP_RUNTIME_API", "hipExtLaunchKernel", at + 65_000, at + 70_000)
        yield Dispatch(stack + 5, 10, at + 300_100, at + 500_000 + step, (512, 1, 1), (512 * 16, 1, 1))
        yield Call(stack + 6, "HIP_RUNTIME_API", "hipStreamSynchronize", at + 100_000, at + 510_000)
        # A mark has no duration, and is no range.
        yield Call(stack + 7, "MARKER_CORE_RANGE_API", "roctxMarkA", at + 600_000, at + 600_000, "mark")


PROGRAM = tuple(_program())
CALLS = [one for one in PROGRAM if isinstance(one, Call)]
DISPATCHES = [one for one in PROGRAM if isinstance(one, Dispatch)]
COPIES = [one for one in PROGRAM if isinstance(one, Copy)]

_AGENT = {"cu_count": 110, "max_engine_clk_fcompute": 1700, "mem_banks": [{"size_in_bytes": 1 << 36}]}
_TRACKED = ("nid", "pid", "tid", "agent_id", "queue_id", "stream_id")
_SIZES = [f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"]


def write_database(
    path: Path, schema: str = "3.0.0", suffix: str = UUID, pid: int = PID, rank: int = 0
) -> Path:
    """Write the program as a database of a schema: 3.0.0, 3.0.5, 4.1.0 or lz4; more than one call merges."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = OFF")
        _Writer(connection, schema, suffix, pid).write({**ENVIRONMENT, "SLURM_PROCID": str(rank)})
    return path


class _Writer:
    def __init__(self, connection: sqlite3.Connection, schema: str, suffix: str, pid: int) -> None:
        self._connection, self._schema, self._suffix, self._pid = connection, schema, suffix, pid
        self._tracks: dict[tuple[Any, ...], int] = {}
        self._strings: dict[str, int] = {}

    def write(self, environment: Mapping[str, str]) -> None:
        version = "4" if self._schema == "lz4" else self._schema
        tags = {"schema_version": version, "uuid": self._suffix, "guid": GUID}
        if self._schema == "lz4":
            tags["compression"] = "lz4-frame-v1"
        self._insert("metadata", [{"tag": tag, "value": value} for tag, value in tags.items()])
        self._insert(
            "info_node", [{"id": NODE, "hostname": "frontier01234", "system_name": "Linux", "release": "6"}]
        )
        process = {"id": self._pid, "nid": NODE, "pid": self._pid, "command": "train --token hunter2"}
        self._insert(
            "info_process", [{**process, "environment": json.dumps(environment), "extdata": self._json({})}]
        )
        self._insert("info_thread", [{"id": TID, "nid": NODE, "pid": self._pid, "tid": TID}])
        agents = [
            ("CPU", CPU, 0, "EPYC", "AMD EPYC 7A53", {}),
            ("GPU", GPU, 0, "gfx90a", "AMD Instinct MI250X", _AGENT),
        ]
        self._insert(
            "info_agent",
            [
                {"id": number, "type": kind, "type_index": index, "name": name, "product_name": product}
                | {"extdata": self._json(details)}
                for kind, number, index, name, product, details in agents
            ],
        )
        self._insert(
            "info_kernel_symbol",
            [
                {"id": number, "kernel_name": f"{name}.kd", "display_name": name}
                for number, name in KERNELS.items()
            ],
        )
        self._events()
        self._insert("string", [{"id": number, "string": text} for text, number in self._strings.items()])
        if self._tracks:
            rows = [
                {"id": number, **dict(zip(_TRACKED, track, strict=True))}
                for track, number in self._tracks.items()
            ]
            self._insert("track", rows)

    def _events(self) -> None:
        events, regions, dispatches, copies = [], [], [], []
        counters: list[dict[str, Any]] = []
        categories: dict[str, int] = {}
        for number, one in enumerate(PROGRAM, 1):
            common = {"id": number, "start": one.start, "end": one.end, "event_id": number}
            message: dict[str, str] = {}
            if isinstance(one, Call):
                kind, message = one.kind, {"message": one.message} if one.message else {}
                regions.append({**common, **self._place(), "name_id": self._text(one.function)})
            elif isinstance(one, Dispatch):
                kind = "KERNEL_DISPATCH"
                sizes = dict(zip(_SIZES, (*one.workgroup, *one.grid), strict=True))
                place = self._place(agent_id=GPU, queue_id=QUEUE, stream_id=STREAM)
                dispatches.append(
                    {**common, **place, "kernel_id": one.kernel, "dispatch_id": number, **sizes}
                )
                counters += [{"event_id": number, "pmc_id": 5, "value": value} for value in (1.5, 2.0)]
            else:
                kind = "MEMORY_COPY"
                agents = {"dst_agent_id": GPU, "src_agent_id": CPU, "name_id": self._text(one.direction)}
                copies.append({**common, **self._place(stream_id=STREAM), **agents, "size": one.size})
            category = categories.setdefault(kind, len(categories) + 1)
            if self._schema != "4.1.0":
                category = self._text(kind)
            events.append(
                {"id": number, "category_id": category, "stack_id": one.stack, "extdata": self._json(message)}
            )
        if self._schema == "4.1.0":
            self._insert(
                "info_category", [{"id": number, "name": name} for name, number in categories.items()]
            )
        self._insert("event", events)
        self._insert("region", regions)
        self._insert("kernel_dispatch", dispatches)
        self._insert("memory_copy", copies)
        self._insert("info_pmc", [{"id": 5, "name": "SQ_WAVES", "symbol": "SQ_WAVES"}])
        if self._schema == "3.0.5":
            counters = [{**row, "sample_id": None} for row in counters]
            counters.append({"event_id": DISPATCHES[0].stack, "pmc_id": 5, "value": 99.0, "sample_id": 1})
        self._insert("pmc_event", counters)

    def _place(self, **more: int) -> dict[str, int]:
        place = {"nid": NODE, "pid": self._pid, "tid": TID, **more}
        if self._schema != "4.1.0":
            return place
        track = tuple(place.get(name) for name in _TRACKED)
        return {"track_id": self._tracks.setdefault(track, len(self._tracks) + 1)}

    def _text(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _json(self, value: object) -> str | bytes:
        text = json.dumps(value)
        if self._schema != "lz4":
            return text
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(text.encode())
        return bytes(sink.getvalue())

    def _insert(self, name: str, rows: list[dict[str, Any]]) -> None:
        table = f'"rocpd_{name}{self._suffix}"'
        names = [*dict.fromkeys(key for row in rows for key in row)]
        columns = ", ".join(f'"{key}"' for key in names if key != "id")
        self._connection.execute(
            f"CREATE TABLE {table} (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, {columns})"
        )
        marks = ", ".join("?" * len(names))
        listed = ", ".join(f'"{key}"' for key in names)
        values = [[row.get(key) for key in names] for row in rows]
        self._connection.executemany(f"INSERT INTO {table} ({listed}) VALUES ({marks})", values)


def results() -> dict[str, Any]:
    """Return the program as JSON results."""
    kinds = {one.kind: number for number, one in enumerate({one.kind: one for one in CALLS}.values(), 1)}
    functions: dict[str, list[str]] = {kind: [] for kind in kinds}
    for call in CALLS:
        if call.function not in functions[call.kind]:
            functions[call.kind].append(call.function)
    copies = ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]
    sections: dict[str, list[dict[str, Any]]] = {
        name: []
        for name in ("hip_api", "hsa_api", "marker_api", "rccl_api", "kernel_dispatch", "memory_copy")
    }
    section = {"HIP_RUNTIME_API": "hip_api", "MARKER_CORE_RANGE_API": "marker_api", "RCCL_API": "rccl_api"}
    for number, one in enumerate(PROGRAM, 1):
        record = {
            "start_timestamp": one.start,
            "end_timestamp": one.end,
            "thread_id": TID,
            "correlation_id": {"internal": one.stack, "external": 0},
        }
        if isinstance(one, Call):
            kind, operation = kinds[one.kind], functions[one.kind].index(one.function)
            sections[section[one.kind]].append({**record, "kind": kind, "operation": operation})
        elif isinstance(one, Dispatch):
            info = {
                "agent_id": {"handle": 9000 + GPU},
                "queue_id": {"handle": QUEUE},
                "kernel_id": one.kernel,
                "dispatch_id": number,
                "workgroup_size": dict(zip("xyz", one.workgroup, strict=True)),
                "grid_size": dict(zip("xyz", one.grid, strict=True)),
            }
            sections["kernel_dispatch"].append(
                {**record, "dispatch_info": info, "stream_id": {"handle": STREAM}}
            )
        else:
            kind, agents = len(kinds) + 1, {"dst_agent_id": 9000 + GPU, "src_agent_id": 9000 + CPU}
            sections["memory_copy"].append(
                {**record, "kind": kind, "operation": copies.index(one.direction), "bytes": one.size}
                | {key: {"handle": value} for key, value in agents.items()}
                | {"stream_id": {"handle": STREAM}}
            )
    waves = [{"counter_id": {"handle": 5}, "value": value} for value in (1.5, 2.0)]
    collected = [
        {
            "dispatch_data": {
                "start_timestamp": row["start_timestamp"],
                "end_timestamp": row["end_timestamp"],
                "correlation_id": row["correlation_id"],
                "dispatch_info": row["dispatch_info"],
            },
            "records": waves,
        }
        for row in sections["kernel_dispatch"]
    ]
    names = [
        {"kind": "NONE", "operations": []},
        *({"kind": k, "operations": f} for k, f in functions.items()),
    ]
    agent = {"id": {"handle": 9000 + GPU}, "type": 2, "name": "gfx90a", "product_name": "AMD Instinct MI250X"}
    process = {
        "metadata": {
            "node": {"hostname": "frontier01234", "system_name": "Linux", "release": "6"},
            "pid": PID,
            "command": ["train", "--token", "hunter2"],
        },
        "agents": [
            {"id": {"handle": 9000 + CPU}, "type": 1, "name": "EPYC", "logical_node_type_id": 0},
            {**agent, "logical_node_type_id": 0, **_AGENT},
        ],
        "counters": [{"id": {"handle": 5}, "name": "SQ_WAVES"}],
        "strings": {
            "buffer_records": [*names, {"kind": "MEMORY_COPY", "operations": copies}],
            "marker_api": [{"key": one.stack, "value": one.message} for one in CALLS if one.message],
        },
        "kernel_symbols": [
            {"kernel_id": number, "kernel_name": f"{name}.kd", "formatted_kernel_name": name}
            for number, name in KERNELS.items()
        ],
        "callback_records": {"counter_collection": collected},
        "buffer_records": sections,
    }
    return {"rocprofiler-sdk-tool": [process]}


def tables() -> dict[str, str]:
    """Return the program as CSV tables, by the end of the name of each file."""
    axes = [f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"]
    kernels: _Rows = [
        [
            "Kind",
            "Agent_Id",
            "Queue_Id",
            "Stream_Id",
            "Thread_Id",
            "Dispatch_Id",
            "Kernel_Id",
            "Kernel_Name",
            "Correlation_Id",
            "Start_Timestamp",
            "End_Timestamp",
            *axes,
        ]
    ]
    for number, one in enumerate(DISPATCHES, 1):
        kernels.append(
            [
                "KERNEL_DISPATCH",
                f"Agent {GPU}",
                QUEUE,
                STREAM,
                TID,
                number,
                one.kernel,
                KERNELS[one.kernel],
                one.stack,
                one.start,
                one.end,
                *one.workgroup,
                *one.grid,
            ]
        )
    counters: _Rows = [
        [
            "Correlation_Id",
            "Dispatch_Id",
            "Agent_Id",
            "Queue_Id",
            "Process_Id",
            "Thread_Id",
            "Grid_Size",
            "Kernel_Id",
            "Kernel_Name",
            "Workgroup_Size",
            "Counter_Name",
            "Counter_Value",
            "Start_Timestamp",
            "End_Timestamp",
        ]
    ]
    for number, one in enumerate(DISPATCHES, 1):
        counters.append(
            [
                one.stack,
                number,
                f"Agent {GPU}",
                QUEUE,
                PID,
                TID,
                one.grid[0] * one.grid[1],
                one.kernel,
                KERNELS[one.kernel],
                one.workgroup[0],
                "SQ_WAVES",
                3.5,
                one.start,
                one.end,
            ]
        )
    copies: _Rows = [
        [
            "Kind",
            "Direction",
            "Stream_Id",
            "Source_Agent_Id",
            "Destination_Agent_Id",
            "Correlation_Id",
            "Start_Timestamp",
            "End_Timestamp",
        ]
    ]
    copies += [
        ["MEMORY_COPY", one.direction, STREAM, f"Agent {CPU}", f"Agent {GPU}", one.stack, one.start, one.end]
        for one in COPIES
    ]
    agents: _Rows = [
        [
            "Node_Id",
            "Logical_Node_Id",
            "Agent_Type",
            "Cu_Count",
            "Max_Engine_Clk_Fcompute",
            "Name",
            "Product_Name",
        ],
        [CPU, CPU, "CPU", 64, 0, "EPYC", "AMD EPYC 7A53"],
        [GPU, GPU, "GPU", 110, 1700, "gfx90a", "AMD Instinct MI250X"],
    ]
    written = {
        "_kernel_trace.csv": kernels,
        "_counter_collection.csv": counters,
        "_memory_copy_trace.csv": copies,
        "_agent_info.csv": agents,
    }
    for suffix, kind in (("hip", "HIP"), ("rccl", "RCCL"), ("marker", "MARKER")):
        rows: _Rows = [
            [
                "Domain",
                "Function",
                "Process_Id",
                "Thread_Id",
                "Correlation_Id",
                "Start_Timestamp",
                "End_Timestamp",
            ]
        ]
        rows += [
            [one.kind, one.message or one.function, PID, TID, one.stack, one.start, one.end]
            for one in CALLS
            if one.kind.startswith(kind)
        ]
        written[f"_{suffix}_api_trace.csv"] = rows
    return {suffix: _csv(rows) for suffix, rows in written.items()}


def _csv(rows: _Rows) -> str:
    return "".join(
        ",".join(f'"{one}"' if isinstance(one, str) else str(one) for one in row) + "\n" for row in rows
    )


def write_tables(folder: Path, prefix: str = "rank0") -> Path:
    """Write the tables and return the one of kernels."""
    for suffix, text in tables().items():
        (folder / f"{prefix}{suffix}").write_text(text)
    return folder / f"{prefix}_kernel_trace.csv"
