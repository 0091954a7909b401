"""Copies a PyTorch trace, with only the fields that are listed here.

Stamps are copied as they are written, digit by digit.
"""

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.gzip_file import open_packed
from hpcprof.profiles.readers.kineto.events import is_module
from hpcprof.profiles.readers.kineto.json_stream import NO_VALUE, Batch, Event, TraceStream
from hpcprof.profiles.readers.kineto.reader import damage_as_sentence
from hpcprof.profiles.scrub.names import Names

_COMPRESSION = 6
_NO_CATEGORY, _OTHER_EVENTS = "events of no category", "events of other categories"


class _LinkedEvent(Event):
    bp: Raw = NO_VALUE


class _Event(msgspec.Struct, gc=False):
    ph: str
    cat: str
    name: str
    pid: Raw | UnsetType = UNSET
    tid: Raw | UnsetType = UNSET
    ts: Raw | UnsetType = UNSET
    dur: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    bp: Raw | UnsetType = UNSET
    args: dict[str, Any] | UnsetType = UNSET


_PROPERTIES = (
    *("schemaVersion", "cuda_driver_version", "cuda_runtime_version", "cupti_version"),
    "baseTimeNanoseconds",
)
_CATEGORIES = (
    *("cpu_op", "user_annotation", "gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset"),
    "cuda_graph",
    *("xpu_runtime", "xpu_driver"),
    *("cuda_runtime", "cuda_driver", "cuda_sync", "cpu_instant_event", "overhead", "ac2g", "fwdbwd", "Trace"),
)
_NUMERIC_ARGUMENTS = (
    *("External id", "Record function id", "Sequence number", "Fwd thread id", "Ev Idx", "Input Dims"),
    *("queued", "device", "context", "stream", "correlation", "cbid", "bytes", "memory bandwidth (GB/s)"),
    *("registers per thread", "shared memory", "blocks per SM", "warps per SM", "grid", "block"),
    *("est. achieved occupancy %", "Bytes", "Device Type", "Device Id", "Total Allocated", "Total Reserved"),
    *("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id"),
    *("In msg nelems", "Out msg nelems", "In split size", "Out split size", "Group size", "Rank", "Src Rank"),
    *("Dst Rank", "Global rank start", "Global rank stride", "Process Group Ranks"),
)
_DISTRIBUTED_KEYS = ("rank", "world_size", "nccl_version", "pg_count")
_GROUP_KEYS = ("pg_size", "ranks")
_BACKEND = re.compile(
    r"(?:(?:cpu|cuda|xpu|hpu|mtia|mps):)?(?:nccl|gloo|mpi|ucc|xccl|hccl|fake|undefined)", re.ASCII
)
_TYPE = re.compile(
    r"(?:c10::)?(?:Float8_\w{1,12}|BFloat16|Half|Float|Double|Complex\w{1,12})"
    r"|(?:c10::)?(?:Byte|Char|Bool|U?Int(?:16|32|64)?|Long|Short)"
    r"|(?:long|unsigned|signed|short|int|char|float|double|bool| ){1,24}"
    r"|(?:Tensor|Scalar|Generic)(?:List)?|",
    re.ASCII,
)
"""The types that PyTorch itself names; a tensor of none has an empty type."""
_SIZES_OR_FLAGS = re.compile(r"\[[-\d, ]*\]|-?\d+|True|False|\[(?:True|False|, )*\]", re.ASCII)
"""The inputs of a convolution that are copied: stride, padding and the like."""
_DEVICE_KEYS = (
    *("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "warpSize", "numSms"),
    *("maxThreadsPerBlock", "maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor"),
    *("sharedMemPerBlock", "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor"),
)
# A process or thread: a number, or the profiler's own row.
_PROCESS_OR_THREAD = re.compile(rb'-?\d+|"Spans"|"PyTorch Profiler"')
_END_PHASE = re.compile(rb'"e"')
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
# Names of GPUs, and versions; no paths.
_PLAIN_TEXT = re.compile(r"[\w.:,\[\] ()+-]{0,80}", re.ASCII)
# Numbers as text: traces of ROCm have "0x0", and lists of ranks and sizes are texts.
_NUMBERS = re.compile(r"0x[0-9a-fA-F]{1,16}|[\d\[\], .+-]{0,4000}", re.ASCII)


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy a trace to ``target`` and return what was left out, with counts.

    The trace is read and written in pieces, so memory does not grow with it. Properties before the events,
    such as the rank, stay before them in the copy. Raises DamagedInput if the trace cannot be read; the
    incomplete copy must then be deleted.
    """
    left_out: Counter[str] = Counter()
    # Without the name and time stamp of the file.
    with (
        open_packed(path) as source,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) if path.suffix == ".gz" else raw as file,
    ):
        stream = TraceStream(source, _LinkedEvent)
        before: dict[str, Any] | None = None
        separator = b"\n"
        for batch in _batches(stream, path):
            if before is None:
                before = _properties(stream.properties, names)
                file.write(
                    msgspec.json.encode({**before, "displayTimeUnit": "ms"})[:-1] + b',"traceEvents":['
                )
            for event in _clean_events(batch, names, left_out):
                file.write(separator + msgspec.json.encode(event))
                separator = b",\n"
        after = {
            k: v
            for k, v in _properties(stream.properties, names).items()
            if before is None or k not in before
        }
        file.write(b"\n]" + (b"," + msgspec.json.encode(after)[1:-1] if after else b"") + b"}\n")
    return [f"{count} {kind}" for kind, count in sorted(left_out.items())]


def _batches(stream: TraceStream, path: Path) -> Iterator[Batch]:
    with damage_as_sentence(path):
        yield from stream.batches()


def _properties(trace: Mapping[str, Any], names: Names) -> dict[str, Any]:
    plain = {key: trace[key] for key in _PROPERTIES if trace.get(key) is not None and _is_plain(trace[key])}
    nested = {
        "distributedInfo": _distributed_info(trace.get("distributedInfo"), names),
        "deviceProperties": _devices(trace.get("deviceProperties")),
    }
    return plain | {key: value for key, value in nested.items() if value is not None}


def _clean_events(batch: Batch, names: Names, left_out: Counter[str]) -> Iterator[_Event]:
    for event in batch:
        if not isinstance(event, _LinkedEvent) or event.ph is None or event.cat is None or event.name is None:
            left_out[_NO_CATEGORY] += 1
        elif not (event.cat in _CATEGORIES or is_module(event)) or len(event.ph) != 1:
            left_out[_OTHER_EVENTS] += 1
        else:
            yield _Event(
                event.ph,
                event.cat,
                names.cleaned(event.name),
                pid=_raw_if(_PROCESS_OR_THREAD, event.pid),
                tid=_raw_if(_PROCESS_OR_THREAD, event.tid),
                ts=_raw_if(_NUMBER, event.ts),
                dur=_raw_if(_NUMBER, event.dur),
                id=_raw_if(_NUMBER, event.id),
                bp=_raw_if(_END_PHASE, event.bp),
                args=_arguments(event.args, names, convolution="conv" in event.name),
            )


def _raw_if(kind: re.Pattern[bytes], value: Raw) -> Raw | UnsetType:
    return value if kind.fullmatch(bytes(value)) else UNSET


def _arguments(written: Raw, names: Names, *, convolution: bool) -> dict[str, Any] | UnsetType:
    try:
        arguments = msgspec.json.decode(written)
    except (msgspec.MsgspecError, RecursionError):
        return UNSET
    if not isinstance(arguments, dict):
        return UNSET
    fields = _numeric_fields(arguments, _NUMERIC_ARGUMENTS)
    types = arguments.get("Input type")
    if isinstance(types, list) and all(map(_is_type, types)):
        fields["Input type"] = types
    values = arguments.get("Concrete Inputs")
    if convolution and isinstance(values, list):
        fields["Concrete Inputs"] = [
            v if isinstance(v, str) and _SIZES_OR_FLAGS.fullmatch(v) else "" for v in values
        ]
    if _is_type(arguments.get("dtype")):
        fields["dtype"] = arguments["dtype"]
    if kind := operation(str(arguments.get("Collective name", ""))):
        fields["Collective name"] = kind
    if "Process Group Name" in arguments:
        fields["Process Group Name"] = _group_name(arguments["Process Group Name"], names)
    return fields or UNSET


def _is_type(value: object) -> bool:
    return isinstance(value, str) and _TYPE.fullmatch(value) is not None


def _group_name(name: object, names: Names) -> str:
    """Return the name of a process group: PyTorch numbers its groups, and programs may name theirs."""
    text = str(name)
    return text if text.isascii() and text.isdigit() else names.numbered("group", text)


def _numeric_fields(fields: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: fields[key] for key in keys if key in fields and _is_numeric(fields[key])}


def _is_numeric(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_numeric, value))
    if isinstance(value, str):
        return _NUMBERS.fullmatch(value) is not None
    return isinstance(value, int | float)


def _is_plain(value: object) -> bool:
    return _PLAIN_TEXT.fullmatch(value) is not None if isinstance(value, str) else _is_numeric(value)


def _distributed_info(info: object, names: Names) -> dict[str, Any] | None:
    if not isinstance(info, dict):
        return None
    chosen = _numeric_fields(info, _DISTRIBUTED_KEYS) | _backend_field(info, "backend")
    if isinstance(info.get("pg_config"), list):
        groups = (group for group in info["pg_config"] if isinstance(group, dict))
        chosen["pg_config"] = [
            {"pg_name": _group_name(group.get("pg_name", ""), names)}
            | _backend_field(group, "backend_config")
            | _numeric_fields(group, _GROUP_KEYS)
            for group in groups
        ]
    return chosen


def _backend_field(fields: Mapping[str, Any], key: str) -> dict[str, str]:
    value = fields.get(key)
    is_backend = isinstance(value, str) and all(map(_BACKEND.fullmatch, value.split(",")))
    return {key: str(value)} if is_backend else {}


def _devices(devices: object) -> list[dict[str, Any]] | None:
    if not isinstance(devices, list):
        return None
    return [
        {key: device[key] for key in _DEVICE_KEYS if key in device and _is_plain(device[key])}
        for device in devices
        if isinstance(device, dict)
    ]
