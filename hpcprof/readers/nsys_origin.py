"""Who wrote an nsys export: rank, host, devices, version and start time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import or_, select

from hpcprof.readers.names import rank_from_name
from hpcprof.readers.nsys_export import Export
from hpcprof.timeline import Origin

# In the order in which they are trusted: a launcher's variable says more than the batch system's,
# which is the same on all ranks where another launcher started them.
_RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
    "RANK",
)
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE", "SLURM_NTASKS", "WORLD_SIZE")


def origin(export: Export, notes: Iterable[str]) -> Origin:
    """Describe the export. Of the recorded environment only rank and world size are kept."""
    environment = _environment(export)
    ranks = _mpi_ranks(export)
    rank = ranks[0] if len(ranks) == 1 else None
    if not ranks:
        rank = _first(environment, _RANKS)
    listed = ", ".join(map(str, ranks))
    return Origin(
        path=export.path,
        kind="nsys",
        rank=rank_from_name(export.path) if rank is None else rank,
        world_size=_first(environment, _SIZES),
        host=_text(export, "TARGET_INFO_SYSTEM_ENV", "Hostname"),
        device_names=_devices(export),
        profiler_version=_text(export, "META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION"),
        start_utc_ns=_start(export),
        notes=(*notes, *([f"It holds several MPI ranks: {listed}."] if len(ranks) > 1 else [])),
    )


def _mpi_ranks(export: Export) -> list[int]:
    source = export.source("MPI_RANKS")
    return sorted(set(source.ints({"rank": None})["rank"].tolist())) if source else []


def _environment(export: Export) -> dict[str, int]:
    """Return the variables that tell rank and size, and no other."""
    found: dict[str, int] = {}
    for item in _environment_items(export):
        name, _, value = item.partition("=")
        value = value.strip().strip('"')
        if name in (*_RANKS, *_SIZES) and value.isascii() and value.isdigit() and len(value) < 10:
            found.setdefault(name, int(value))
    return found


def _environment_items(export: Export) -> Iterator[str]:
    """Yield ``NAME=value`` of the processes' environment, then of the device's."""
    source = export.source("META_DATA_CAPTURE")
    if source and {"name", "value"} <= source.columns:
        capture = source.clause
        # Filtered in the query: the rest of the environment is never read.
        known = or_(*(capture.c.value.startswith(f"{n}=", autoescape=True) for n in (*_RANKS, *_SIZES)))
        query = select(capture.c.value).where(capture.c.name.endswith("ENVIRONMENT_VARIABLE"), known)
        yield from (str(value) for (value,) in export.rows(query))
    yield from (_text(export, "TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment") or "").split(";")


def _first(environment: dict[str, int], names: Iterable[str]) -> int | None:
    return next((environment[name] for name in names if name in environment), None)


def _text(export: Export, table: str, name: str) -> str | None:
    """Return the first value of a table of names and values."""
    source = export.source(table)
    if source is None or not {"name", "value"} <= source.columns:
        return None
    pairs = source.clause
    value = next(export.rows(select(pairs.c.value).where(pairs.c.name == name)), (None,))[0]
    return str(value) if value else None


def _devices(export: Export) -> tuple[str, ...]:
    """Return the names of the node's GPUs in the order of their ids."""
    source = export.source("TARGET_INFO_GPU")
    if source is None or "name" not in source.columns:
        return ()
    gpus = source.clause
    query: Any = select(gpus.c.name)
    if "id" in source.columns:
        query = query.order_by(gpus.c.id)
    return tuple(str(name) for (name,) in export.rows(query))


def _start(export: Export) -> int | None:
    source = export.source("TARGET_INFO_SESSION_START_TIME")
    if source is None or "utcEpochNs" not in source.columns:
        return None
    stamps = source.ints({"utcEpochNs": 0})["utcEpochNs"]
    return int(stamps[0]) or None
