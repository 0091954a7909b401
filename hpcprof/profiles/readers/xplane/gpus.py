"""The planes of GPUs: kernels, copies and sets, by stream."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from hpcprof.profiles import kernel_classification
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.host_memory import HostMemory, host_memory
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.readers.xplane.planes import NOT_GIVEN, Plane, Stat
from hpcprof.profiles.timeline import (
    NO_BYTES,
    Category,
    Gpu,
    IntColumns,
    Ints,
    Kernels,
    MemoryOperations,
    concatenate,
    plausible,
)

_STREAM = re.compile(r"Stream #(\d{1,9})")
_SHAPE = re.compile(r"\bgrid:(\d{1,10}),(\d{1,10}),(\d{1,10}) block:(\d{1,10}),(\d{1,10}),(\d{1,10})")
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d{1,18})")
_SIDES = re.compile(r"\bkind_src:(\w+) kind_dst:(\w+)")
_COPY = re.compile(r"Memcpy([HDP])2([HDP])|Copy(Host|Device)To(Host|Device)")
_SIDE = {"H": "Host", "D": "Device", "P": "Device"}
_KHZ = 1000


def work_of(
    planes: Mapping[int, Plane], strings: StringTable, process: int, lost: list[Loss]
) -> tuple[Kernels, MemoryOperations]:
    """Return the kernels and the memory operations of GPUs, given their planes by device.

    ``strings`` receives their names, ``lost`` what is left out.
    """
    kernels, memory = [Kernels.empty()], [MemoryOperations.empty()]
    for device, plane in sorted(planes.items()):
        streams = [_STREAM.match(line.name) for line in plane.lines]
        stream = np.array([int(found[1]) if found else NOT_GIVEN for found in streams], np.int64)[plane.line]
        valid = plausible(plane.start, plane.end) & (plane.duration >= 0)
        of_stream = stream != NOT_GIVEN
        lost += losses(
            LossKind.ROW,
            Subject.KERNEL,
            {"duration_ps": np.count_nonzero(of_stream & ~valid)},
            int(np.count_nonzero(of_stream)),
        )
        moves = plane.has("memcpy_details") | plane.has("memset_details")
        moves |= plane.matching(lambda name: _COPY.match(name) or name.startswith("Memset"))
        columns = {
            "start": plane.start,
            "end": plane.end,
            "device": np.full(len(stream), device),
            "stream": stream,
            "correlation": plane.numbers("correlation_id"),
            "process": np.full(len(stream), process),
        }
        kernels.append(_kernels(plane, columns, np.flatnonzero(of_stream & valid & ~moves), strings))
        memory.append(_memory(plane, columns, np.flatnonzero(of_stream & valid & moves), strings))
    return concatenate(Kernels, kernels), concatenate(MemoryOperations, memory)


def _kernels(plane: Plane, columns: IntColumns, rows: Ints, strings: StringTable) -> Kernels:
    used, row = numbered(plane.metadata_id[rows])
    # HIP's loader gives the symbol of a kernel's descriptor.
    names = strings.add_all(plane.metadata_name(key).removesuffix(".kd") or None for key in used.tolist())
    texts, position = plane.texts("kernel_details")
    shapes = [
        tuple(map(int, found.groups())) if (found := _SHAPE.search(text)) else (1,) * 6 for text in texts
    ]
    shape = np.array([*shapes, (1,) * 6], np.int64)[position[rows]]
    name = names[row]
    return Kernels(
        **{key: values[rows] for key, values in columns.items()},
        name=name,
        category=kernel_classification.classes_of(name, strings.array()),
        grid=np.ascontiguousarray(shape[:, :3]),
        block=np.ascontiguousarray(shape[:, 3:]),
    )


def _memory(plane: Plane, columns: IntColumns, rows: Ints, strings: StringTable) -> MemoryOperations:
    platform = "HIP" if plane.stats.get("device_vendor") == "AMD" else "CUDA"
    used, row = numbered(plane.metadata_id[rows])
    names = strings.add_all(_memory_name(plane.metadata_name(key), platform) for key in used.tolist())
    size, kind = np.full(len(rows), NO_BYTES), np.full(len(rows), int(HostMemory.UNKNOWN))
    for stat in ("memcpy_details", "memset_details"):
        texts, position = plane.texts(stat)
        sizes = [int(found[1]) if (found := _SIZE.search(text)) else NO_BYTES for text in texts]
        sides = [_SIDES.search(text) for text in texts]
        kinds = [
            host_memory(map(str.title, found.groups())) if found else HostMemory.UNKNOWN for found in sides
        ]
        given = position[rows] != NOT_GIVEN
        size[given] = np.array(sizes, np.int64)[position[rows][given]]
        kind[given] = np.array(kinds, np.int64)[position[rows][given]]
    return MemoryOperations(
        **{key: values[rows] for key, values in columns.items()},
        name=names[row],
        category=np.full(len(rows), int(Category.MEM)),
        bytes=size,
        host_memory=kind,
    )


def _memory_name(name: str, platform: str) -> str:
    """Return the name of a copy or set as the other readers write it."""
    found = _COPY.match(name)
    if found is None:
        return f"[{platform} memset]" if name.startswith("Memset") else name
    sides = [_SIDE.get(side, side) for side in found.groups() if side]
    return f"[{platform} memcpy {sides[0]}-to-{sides[1]}]"


def gpus_of(planes: Mapping[int, Plane]) -> tuple[Gpu, ...]:
    """Return the GPUs in the order of their numbers; XLA does not record their names."""
    return tuple(_gpu(device, plane.stats) for device, plane in sorted(planes.items()))


def _gpu(device: int, stats: Mapping[str, Stat]) -> Gpu:
    units, clock = whole(stats, "core_count"), whole(stats, "clock_rate")
    major, minor = (whole(stats, f"compute_cap_{part}") for part in ("major", "minor"))
    vendor = str(stats.get("device_vendor", ""))
    return Gpu(
        device=device,
        name=f"{vendor} GPU with {units} units".strip() if units else f"{vendor} GPU".strip(),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        sm_count=units,
        clock_hz=clock * _KHZ if clock else None,
        memory_bytes=whole(stats, "memory_size"),
        memory_bytes_per_s=whole(stats, "memory_bandwidth"),
    )


def whole(stats: Mapping[str, Stat], name: str) -> int | None:
    """Return a statistic that is a natural number, else None."""
    value = stats.get(name)
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else None
