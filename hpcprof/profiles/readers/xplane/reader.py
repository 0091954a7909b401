"""Reader of the profiles that JAX and XLA write (``*.xplane.pb``).

A file is one process. The planes of GPUs have a line for each stream, the host's plane one for each thread
(`hpcprof.profiles.readers.xplane.host`). Times count from the start of the profile.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.profiles import kernel_classification
from hpcprof.profiles.columns.unique import map_unique
from hpcprof.profiles.host_memory import HostMemory, host_memory
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.readers.xplane import XPLANE
from hpcprof.profiles.readers.xplane.hlo import programs_of
from hpcprof.profiles.readers.xplane.host import host_tables
from hpcprof.profiles.readers.xplane.planes import NOT_GIVEN, Plane, Stat, read_planes
from hpcprof.profiles.readers.xplane.tpu import tpu_tables
from hpcprof.profiles.readers.xplane.wire import Damage
from hpcprof.profiles.timeline import (
    NO_BYTES,
    Category,
    Fact,
    Gpu,
    IntColumns,
    Ints,
    Kernels,
    MemoryOperations,
    Origin,
    Ranges,
    Timeline,
    concatenate,
)

_STREAM = re.compile(r"Stream #(\d{1,9})")
_SHAPE = re.compile(r"\bgrid:(\d{1,10}),(\d{1,10}),(\d{1,10}) block:(\d{1,10}),(\d{1,10}),(\d{1,10})")
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d{1,18})")
_SIDES = re.compile(r"\bkind_src:(\w+) kind_dst:(\w+)")
_COPY = re.compile(r"Memcpy([HDP])2([HDP])|Copy(Host|Device)To(Host|Device)")
_SIDE = {"H": "Host", "D": "Device", "P": "Device"}
_KHZ = 1000


def work_of(
    planes: Mapping[int, Plane], strings: StringTable, process: int
) -> tuple[Kernels, MemoryOperations]:
    """Return the kernels and the memory operations of GPUs, given their planes by device.

    ``strings`` receives their names.
    """
    kernels, memory = list[Kernels](), list[MemoryOperations]()
    for device, plane in sorted(planes.items()):
        streams = [_STREAM.match(line.name) for line in plane.lines]
        stream = np.array([int(match[1]) if match else NOT_GIVEN for match in streams], np.int64)[plane.line]
        in_stream = stream != NOT_GIVEN
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
        kernels.append(_kernels(plane, columns, np.flatnonzero(in_stream & ~moves), strings))
        memory.append(_memory(plane, columns, np.flatnonzero(in_stream & moves), strings))
    return concatenate(Kernels, kernels), concatenate(MemoryOperations, memory)


def _kernels(plane: Plane, columns: IntColumns, rows: Ints, strings: StringTable) -> Kernels:
    # HIP's loader gives the symbol of a kernel's descriptor.
    name = map_unique(
        plane.metadata_id[rows], lambda key: strings.add(plane.metadata_name(key).removesuffix(".kd") or None)
    )
    texts, position = plane.texts("kernel_details")
    shapes = [
        tuple(map(int, match.groups())) if (match := _SHAPE.search(text)) else (1,) * 6 for text in texts
    ]
    shape = np.array([*shapes, (1,) * 6], np.int64)[position[rows]]
    return Kernels(
        **{key: values[rows] for key, values in columns.items()},
        name=name,
        category=kernel_classification.classes_of(name, strings.array()),
        grid=np.ascontiguousarray(shape[:, :3]),
        block=np.ascontiguousarray(shape[:, 3:]),
    )


def _memory(plane: Plane, columns: IntColumns, rows: Ints, strings: StringTable) -> MemoryOperations:
    platform = "HIP" if plane.stats.get("device_vendor") == "AMD" else "CUDA"
    name = map_unique(
        plane.metadata_id[rows], lambda key: strings.add(_memory_name(plane.metadata_name(key), platform))
    )
    size, kind = np.full(len(rows), NO_BYTES), np.full(len(rows), int(HostMemory.UNKNOWN))
    for stat in ("memcpy_details", "memset_details"):
        texts, position = plane.texts(stat)
        sizes = [int(match[1]) if (match := _SIZE.search(text)) else NO_BYTES for text in texts]
        sides = [_SIDES.search(text) for text in texts]
        kinds = [
            host_memory(map(str.title, names.groups())) if names else HostMemory.UNKNOWN for names in sides
        ]
        has_size = position[rows] != NOT_GIVEN
        size[has_size] = np.array(sizes, np.int64)[position[rows][has_size]]
        kind[has_size] = np.array(kinds, np.int64)[position[rows][has_size]]
    return MemoryOperations(
        **{key: values[rows] for key, values in columns.items()},
        name=name,
        category=np.full(len(rows), int(Category.MEM)),
        bytes=size,
        host_memory=kind,
    )


def _memory_name(name: str, platform: str) -> str:
    match = _COPY.match(name)
    if match is None:
        return f"[{platform} memset]" if name.startswith("Memset") else name
    sides = [_SIDE.get(side, side) for side in match.groups() if side]
    return f"[{platform} memcpy {sides[0]}-to-{sides[1]}]"


def gpus_of(planes: Mapping[int, Plane]) -> tuple[Gpu, ...]:
    """Return the GPUs in the order of their numbers; XLA before JAX 0.11 does not record their names."""
    return tuple(_gpu(device, plane.stats) for device, plane in sorted(planes.items()))


def _gpu(device: int, stats: Mapping[str, Stat]) -> Gpu:
    units, clock = natural_number(stats, "core_count"), natural_number(stats, "clock_rate")
    major, minor = (natural_number(stats, f"compute_cap_{part}") for part in ("major", "minor"))
    vendor, named = stats.get("device_vendor"), stats.get("gpu_device_name", stats.get("device_type_string"))
    described = f"{vendor} GPU" if isinstance(vendor, str) else "GPU"
    described += f" with {units} units" if units else ""
    return Gpu(
        device=device,
        name=named if isinstance(named, str) and named else described,
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        sm_count=units,
        clock_hz=clock * _KHZ if clock else None,
        memory_bytes=natural_number(stats, "memory_size"),
        memory_bytes_per_s=natural_number(stats, "memory_bandwidth"),
    )


def natural_number(stats: Mapping[str, Stat], name: str) -> int | None:
    """Return a statistic that is a natural number, else None."""
    value = stats.get(name)
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else None


_HOST, _METADATA, _ENVIRONMENT = "/host:", "/host:metadata", "Task Environment"
_DEVICE = re.compile(r"/device:(GPU|TPU):(\d{1,9})")
_VERSION = re.compile(r"(\w+)_version")

_EPOCH = 1 << 60
"""Times in ns from here on are counted from 1970."""


def read(path: Path) -> Timeline:
    """Read a profile of JAX, which holds one process."""
    with reading(path):
        data = path.read_bytes()
    try:
        planes, host = read_planes(data)
        if not planes:
            raise Damage
        return _timeline(path, {plane.name: plane for plane in planes}, host)
    except Damage:
        raise DamagedInput(f"{path} is damaged, truncated, or not a JAX profile.") from None


def _timeline(path: Path, planes: Mapping[str, Plane], host: str | None) -> Timeline:
    strings, lost = StringTable(), list[Loss]()
    metadata = planes[_METADATA].stats if _METADATA in planes else {}
    programs, damaged = programs_of(planes[_METADATA].metadata.values() if _METADATA in planes else ())
    lost += losses(LossKind.ROW, Subject.MODULE, {"HLO": damaged}, len(programs) + damaged)
    devices: dict[str, dict[int, Plane]] = {"GPU": {}, "TPU": {}}
    unread = {}
    for name, plane in planes.items():
        if match := _DEVICE.fullmatch(name):
            devices[match[1]][int(match[2])] = plane
        elif name.startswith("/device:"):
            unread[name] = len(plane.start)
    gpus, tpus = devices["GPU"], devices["TPU"]
    lost += losses(LossKind.CATEGORY, Subject.EVENT, unread)
    hosts = [plane for name, plane in planes.items() if name.startswith(_HOST) and name != _METADATA]
    for subject, read in ((Subject.KERNEL, [*gpus.values(), *tpus.values()]), (Subject.EVENT, hosts)):
        untimed = sum(plane.untimed for plane in read)
        lost += losses(
            LossKind.ROW, subject, {"duration": untimed}, untimed + sum(len(plane.start) for plane in read)
        )
    processes = (
        natural_number(stats, "process_id") for stats in (metadata, *(plane.stats for plane in hosts))
    )
    process = next((number for number in processes if number is not None), 0)
    kernels, memory = work_of(gpus, strings, process)
    tpu = tpu_tables(tpus, hosts, strings, process)
    # A process may see GPUs that others use.
    used = {device: plane for device, plane in (gpus | tpus).items() if len(plane.start)}
    tables = host_tables(hosts, strings, programs, process, kernels, [*used.values()])
    return Timeline(
        origin=Origin(
            path=path,
            kind=XPLANE.name,
            rank=rank_from_name(path),
            host=host,
            start_utc_ns=_start(planes),
            gpus=gpus_of(used or gpus | tpus),
            facts=tuple(_versions(metadata)),
            losses=(*lost, *tpu.losses),
        ),
        kernels=concatenate(Kernels, (kernels, tpu.kernels)),
        memops=concatenate(MemoryOperations, (memory, tpu.memory)),
        calls=tables.calls,
        ranges=concatenate(Ranges, (tables.ranges, tpu.ranges)),
        operators=tables.operators,
        collectives=tables.collectives,
        host_collectives=tables.host_collectives,
        strings=strings.array(),
    )


def _start(planes: Mapping[str, Plane]) -> int | None:
    """Return the UTC time of the clock's zero; old versions of XLA count from 1970."""
    if max((line.start_ns for plane in planes.values() for line in plane.lines), default=0) >= _EPOCH:
        return 0
    environment = planes[_ENVIRONMENT].stats if _ENVIRONMENT in planes else {}
    return natural_number(environment, "profile_start_time")


def _versions(metadata: Mapping[str, Stat]) -> Iterator[Fact]:
    for key, value in metadata.items():
        match = _VERSION.fullmatch(key)
        if match and isinstance(value, str) and value != match[1]:
            yield Fact("version", match[1], value)
