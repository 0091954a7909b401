"""A copy of a PyTorch trace that holds only what is on a list.

What a field is called decides whether it is copied. Stamps are copied as they are written, digit by digit.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hpcprof.errors import DamagedInput
from hpcprof.scrub.names import Names

_GZIP = b"\x1f\x8b"
_COMPRESSION = 6
_NO_CATEGORY, _OTHERS = "events of no category", "events of other categories"


class _Event(msgspec.Struct, gc=False):
    """The fields of an event that are copied; msgspec passes over all others."""

    ph: str
    cat: str
    name: str
    pid: int | str | UnsetType = UNSET
    tid: int | str | UnsetType = UNSET
    ts: Raw | UnsetType = UNSET
    dur: Raw | UnsetType = UNSET
    id: int | UnsetType = UNSET
    bp: str | UnsetType = UNSET
    args: dict[str, Any] | UnsetType = UNSET


class _Trace(msgspec.Struct):
    """The fields of a trace that are copied, those that tell the rank before the events."""

    traceEvents: list[Raw]  # as in the file
    schemaVersion: Any = None
    distributedInfo: Any = None
    deviceProperties: Any = None
    cuda_driver_version: Any = None
    cuda_runtime_version: Any = None
    cupti_version: Any = None
    baseTimeNanoseconds: Any = None


_CATEGORIES = (
    *("cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset"),
    *("cuda_runtime", "cuda_driver", "cuda_sync", "cpu_instant_event", "overhead", "ac2g", "fwdbwd", "Trace"),
)
_ARGUMENTS = frozenset(
    (
        "External id",
        "Record function id",
        "Sequence number",
        "Fwd thread id",
        "Ev Idx",
        "Input Dims",
        "queued",
        "device",
        "context",
        "stream",
        "correlation",
        "registers per thread",
        "shared memory",
        "blocks per SM",
        "warps per SM",
        "grid",
        "block",
        "est. achieved occupancy %",
        "cbid",
        "bytes",
        "memory bandwidth (GB/s)",
        "Bytes",
        "Device Type",
        "Device Id",
        "Total Allocated",
        "Total Reserved",
        "wait_on_stream",
        "wait_on_cuda_event_record_corr_id",
        "wait_on_cuda_event_id",
        "Collective name",
        "dtype",
        "In msg nelems",
        "Out msg nelems",
        "In split size",
        "Out split size",
        "Group size",
        "Rank",
        "Global rank start",
        "Global rank stride",
        "Process Group Name",
        "Process Group Ranks",
    )
)
_DISTRIBUTED = ("rank", "world_size", "backend", "nccl_version", "pg_count")
_GROUP = ("pg_name", "backend_config", "pg_size", "ranks")
_DEVICE = (
    "id",
    "name",
    "totalGlobalMem",
    "computeMajor",
    "computeMinor",
    "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor",
    "regsPerBlock",
    "regsPerMultiprocessor",
    "warpSize",
    "sharedMemPerBlock",
    "sharedMemPerBlockOptin",
    "sharedMemPerMultiprocessor",
    "numSms",
)
_SPANS = ("Spans", "PyTorch Profiler")
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
# Words, numbers and lists of them: no path.
_PLAIN = re.compile(r"[\w.:,\[\] ()+-]{0,400}", re.ASCII)


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy a trace to ``target`` and return what was left out, each with how often.

    Raises
    ------
    DamagedInput
        If the trace cannot be read.
    """
    try:
        trace = msgspec.json.decode(_text(path), type=_Trace)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DamagedInput(f"{path} is no PyTorch profiler trace: {error}.") from None
    head = {
        "schemaVersion": trace.schemaVersion,
        "distributedInfo": _distributed(trace.distributedInfo),
        "deviceProperties": _devices(trace.deviceProperties),
        "cuda_driver_version": trace.cuda_driver_version,
        "cuda_runtime_version": trace.cuda_runtime_version,
        "cupti_version": trace.cupti_version,
        "baseTimeNanoseconds": trace.baseTimeNanoseconds,
        "displayTimeUnit": "ms",
    }
    known = {k: v for k, v in head.items() if v is not None and (isinstance(v, (dict, list)) or _is_plain(v))}
    left_out: dict[str, int] = {}
    # No name and no time stamp of the file inside.
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) if path.suffix == ".gz" else raw as file,
    ):
        file.write(msgspec.json.encode(known)[:-1] + b',"traceEvents":[')
        separator = b"\n"
        for event in _cleaned(trace.traceEvents, names, left_out):
            file.write(separator + msgspec.json.encode(event))
            separator = b",\n"
        file.write(b"\n]}\n")
    return [f"{count} {what}" for what, count in sorted(left_out.items())]


def _text(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw.startswith(_GZIP) else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedInput(f"{path} is damaged or truncated: {error}.") from None
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror}.") from None
    return text.decode("utf-8", "replace").encode()


def _cleaned(events: Iterable[Raw], names: Names, left_out: dict[str, int]) -> Iterator[_Event]:
    decoder = msgspec.json.Decoder(_Event)
    for raw in events:
        try:
            event = decoder.decode(raw)
        except msgspec.MsgspecError:
            left_out[_NO_CATEGORY] = left_out.get(_NO_CATEGORY, 0) + 1
            continue
        if event.cat not in _CATEGORIES or len(event.ph) != 1:
            left_out[_OTHERS] = left_out.get(_OTHERS, 0) + 1
            continue
        event.name = names.cleaned(event.name)
        event.pid, event.tid = _place(event.pid), _place(event.tid)
        event.ts, event.dur = _time(event.ts), _time(event.dur)
        event.bp = event.bp if event.bp == "e" else UNSET
        if isinstance(event.args, dict):
            event.args = _chosen(event.args, _ARGUMENTS)
        yield event


def _place(value: int | str | UnsetType) -> int | str | UnsetType:
    """Return a process or thread: a number, or the profiler's own row."""
    return value if isinstance(value, int) or value in _SPANS else UNSET


def _time(value: Raw | UnsetType) -> Raw | UnsetType:
    """Return a time as it is written, if it is a number."""
    return value if isinstance(value, Raw) and _NUMBER.fullmatch(bytes(value)) else UNSET


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return _PLAIN.fullmatch(value) is not None
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, (int, float))


def _chosen(fields: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: fields[key] for key in keys if key in fields and _is_plain(fields[key])}


def _distributed(info: object) -> dict[str, Any] | None:
    if not isinstance(info, dict):
        return None
    chosen = _chosen(info, _DISTRIBUTED)
    if isinstance(info.get("pg_config"), list):
        groups = (group for group in info["pg_config"] if isinstance(group, dict))
        chosen["pg_config"] = [_chosen(group, _GROUP) for group in groups]
    return chosen


def _devices(devices: object) -> list[dict[str, Any]] | None:
    if not isinstance(devices, list):
        return None
    return [_chosen(device, _DEVICE) for device in devices if isinstance(device, dict)]
