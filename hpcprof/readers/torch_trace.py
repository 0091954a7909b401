"""Reader of PyTorch profiler traces (``*.trace.json``, ``*.pt.trace.json``, either with ``.gz``)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcprof import kernel_classes
from hpcprof.errors import DamagedInput
from hpcprof.readers.names import rank_from_name
from hpcprof.readers.strings import StringTable
from hpcprof.readers.torch_events import Rows, collect
from hpcprof.timeline import (
    NO_NAME,
    ApiCalls,
    Category,
    Fact,
    Gpu,
    Ints,
    Kernels,
    MemoryOperations,
    Origin,
    Ranges,
    Style,
    Timeline,
)

_GZIP = b"\x1f\x8b"
_VERSIONS = {
    "cuda_driver_version": "CUDA driver",
    "cuda_runtime_version": "CUDA runtime",
    "cupti_version": "CUPTI",
    "nccl_version": "NCCL",
}


def read(path: Path) -> Timeline:
    """Read a trace that the PyTorch profiler exported.

    Times are exact to the nanosecond. Ranges are the annotations on the host (``record_function``),
    all of style push/pop. Events that lack a field are left out and counted in ``Origin.notes``.

    Raises
    ------
    DamagedInput
        In one sentence that names the file and what is wrong with it.
    UsageError
        If the user's table of kernel classes is wrong.
    """
    trace = _load(path)
    events = collect(trace["traceEvents"])
    strings = StringTable()
    # The GPU's events do not tell the process, and a trace is of one.
    processes = np.unique(events.calls.column("process"))
    process = int(processes[0]) if len(processes) == 1 else 0
    kernels = _operations(events.kernels, strings, process)
    classes = kernel_classes.classify(strings.array(), kernel_classes.load())
    memory = _operations(events.memory, strings, process)
    calls, ranges = events.calls, events.ranges
    table = Ranges(
        **_on_host(ranges, strings),
        domain=np.full(len(ranges), NO_NAME),
        style=np.full(len(ranges), int(Style.PUSH_POP)),
        closed=np.ones(len(ranges), np.int64),
        one_thread=np.ones(len(ranges), np.int64),
    )
    return Timeline(
        origin=_origin(path, trace, events.notes),
        kernels=Kernels(
            **kernels,
            category=classes[kernels["name"]] if len(classes) else np.empty(0, np.int64),
            grid=events.kernels.triple("grid"),
            block=events.kernels.triple("block"),
        ),
        memops=MemoryOperations(
            **memory,
            category=np.full(len(events.memory), int(Category.MEM)),
            bytes=events.memory.column("bytes"),
        ),
        calls=ApiCalls(**_on_host(calls, strings), correlation=calls.column("correlation")),
        ranges=table,
        strings=strings.array(),
    )


def _load(path: Path) -> dict[str, Any]:
    """Read the JSON; decimals stay text, so that no digit is lost."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw.startswith(_GZIP) else raw).decode("utf-8", "replace")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedInput(f"{path} is damaged or truncated: {error}.") from None
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror}.") from None
    if not text.strip():
        raise DamagedInput(f"{path} is empty.")
    try:
        trace = json.loads(text, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise DamagedInput(f"{path} is no valid JSON: {error}.") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise DamagedInput(f"{path} is no PyTorch profiler trace: it has no list of traceEvents.")
    return trace


def _origin(path: Path, trace: dict[str, Any], notes: tuple[str, ...]) -> Origin:
    distributed = trace.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    rank = _natural(distributed.get("rank"))
    devices = trace.get("deviceProperties")
    gpus = tuple(_gpus(devices if isinstance(devices, list) else []))
    return Origin(
        path=path,
        kind="torch",
        rank=rank_from_name(path) if rank is None else rank,
        world_size=_natural(distributed.get("world_size")),
        device_names=tuple(gpu.name for gpu in gpus),
        start_utc_ns=_natural(trace.get("baseTimeNanoseconds")),
        gpus=gpus,
        facts=tuple(_versions({**trace, **distributed})),
        notes=notes,
    )


def _natural(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _gpus(devices: Iterable[Any]) -> Iterator[Gpu]:
    for position, device in enumerate(devices):
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            number = _natural(device.get("id"))
            major, minor = _natural(device.get("computeMajor")), _natural(device.get("computeMinor"))
            yield Gpu(
                device=position if number is None else number,
                name=device["name"],
                compute_capability=None if major is None or minor is None else f"{major}.{minor}",
                sm_count=_natural(device.get("numSms")),
                memory_bytes=_natural(device.get("totalGlobalMem")),
            )


def _versions(properties: Mapping[str, Any]) -> Iterator[Fact]:
    for key, name in _VERSIONS.items():
        value = properties.get(key)
        if isinstance(value, (str, int)):
            yield Fact("version", name, str(value))


def _on_host(rows: Rows, strings: StringTable) -> dict[str, Ints]:
    columns = {name: rows.column(name) for name in ("start", "end", "process", "thread")}
    return columns | {"name": strings.add_all(rows.values("name"))}


def _operations(rows: Rows, strings: StringTable, process: int) -> dict[str, Ints]:
    columns = {name: rows.column(name) for name in ("start", "end", "device", "stream", "correlation")}
    return columns | {
        "name": strings.add_all(rows.values("name")),
        "process": np.full(len(rows), process),
    }
