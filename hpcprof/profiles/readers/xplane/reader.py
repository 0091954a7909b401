"""Reader of the profiles that JAX and XLA write (``*.xplane.pb``).

A file is one process. The planes of GPUs have a line for each stream, the host's plane one for each thread
(`hpcprof.profiles.readers.xplane.host`). Times count from the start of the profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.readers.xplane import XPLANE
from hpcprof.profiles.readers.xplane.gpus import gpus_of, whole, work_of
from hpcprof.profiles.readers.xplane.hlo import programs_of
from hpcprof.profiles.readers.xplane.host import on_host
from hpcprof.profiles.readers.xplane.planes import Plane, Stat, space_of
from hpcprof.profiles.readers.xplane.wire import Damage
from hpcprof.profiles.timeline import Fact, Origin, Timeline

_HOST, _METADATA, _ENVIRONMENT = "/host:", "/host:metadata", "Task Environment"
_GPU = re.compile(r"/device:GPU:(\d{1,9})")
_VERSION = re.compile(r"(\w+)_version")

_EPOCH = 1 << 60
"""Times in ns from here on are counted from 1970."""


def read(path: Path) -> Timeline:
    """Read a profile of JAX, which holds one process.

    Raises
    ------
    DamagedInput
        If the file is not a whole profile.
    UsageError
        If the user's table of kernel classes is wrong.
    """
    with reading(path):
        data = path.read_bytes()
    try:
        planes, host = space_of(data)
        if not planes:
            raise Damage
        return _timeline(path, {plane.name: plane for plane in planes}, host)
    except Damage:
        raise DamagedInput(f"{path} is damaged, truncated, or no profile of JAX.") from None


def _timeline(path: Path, planes: Mapping[str, Plane], host: str | None) -> Timeline:
    strings, lost = StringTable(), list[Loss]()
    about = planes[_METADATA].stats if _METADATA in planes else {}
    programs, damaged = programs_of(planes[_METADATA].metadata.values() if _METADATA in planes else ())
    lost += losses(LossKind.ROW, Subject.MODULE, {"HLO": damaged}, len(programs) + damaged)
    gpus = {int(found[1]): plane for name, plane in planes.items() if (found := _GPU.fullmatch(name))}
    others = {
        name: len(plane.start)
        for name, plane in planes.items()
        if name.startswith("/device:") and not _GPU.fullmatch(name)
    }
    lost += losses(LossKind.CATEGORY, Subject.EVENT, others)
    hosts = [plane for name, plane in planes.items() if name.startswith(_HOST) and name != _METADATA]
    processes = (whole(stats, "process_id") for stats in (about, *(plane.stats for plane in hosts)))
    process = next((number for number in processes if number is not None), 0)
    kernels, memory = work_of(gpus, strings, process, lost)
    tables = on_host(hosts, strings, programs, process, kernels, len(gpus), lost)
    devices = gpus_of(gpus)
    return Timeline(
        origin=Origin(
            path=path,
            kind=XPLANE.name,
            rank=rank_from_name(path),
            host=host,
            device_names=tuple(gpu.name for gpu in devices),
            start_utc_ns=_start(planes),
            gpus=devices,
            facts=tuple(_versions(about)),
            losses=tuple(lost),
        ),
        kernels=kernels,
        memops=memory,
        calls=tables.calls,
        ranges=tables.ranges,
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
    return whole(environment, "profile_start_time")


def _versions(about: Mapping[str, Stat]) -> Iterator[Fact]:
    for key, value in about.items():
        found = _VERSION.fullmatch(key)
        if found and isinstance(value, str) and value != found[1]:
            yield Fact("version", found[1], value)
