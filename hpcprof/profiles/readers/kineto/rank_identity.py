"""The kind and the rank of a trace, found without reading all of it."""

import re
from collections.abc import Iterator
from pathlib import Path

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.gzip_file import content_of, open_packed, reading_packed
from hpcprof.profiles.readers.declaration import SeveralRanks, rank_from_name
from hpcprof.profiles.readers.kineto import MERGED

# Kineto writes distributedInfo before the events, after the properties of up to 16 devices.
_HEAD_BYTES = 1 << 18
# Other programs write Chrome's events too, with other categories and without Kineto's metadata.
_KINETO_WORDS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo)"\s*:'
    rb'|"cat"\s*:\s*"(?:user_annotation|cuda_runtime|cuda_driver|hip_runtime|xpu_runtime|python_function|ac2g)"'
)
# Merged traces are looked at as far as this for the processes in them.
_MAX_MERGED_BYTES = 4 << 20
_PID = rb'"pid"\s*:\s*"?(\d{1,9}\b|(?:\[|(?i:rank))[^"]*)'
_CALL = rb'"cat"\s*:\s*"(?:cuda|hip|xpu)_runtime"[^{}]*?"name"\s*:\s*"\w*Launch'
_RANK = rb'(?:[^{}]*\{[^{}]*?"rank"\s*:\s*(\d{1,5})\b)?'
"""The rank of an event among its arguments, as TraceLens writes it where it merges traces."""
_LAUNCH = re.compile(_CALL + rb'\w*"[^{}]*?' + _PID + _RANK)
# Slow, as every event has a pid: looked for where no launch has the order of Kineto.
_PID_FIRST = re.compile(_PID + rb"[^{}]*?" + _CALL + _RANK)
_LABELLED_PROCESS = re.compile(
    rb'"?(?:\[((?:[A-Z]{1,4}\d{1,3}-?){1,4})\] |(?i:rank)[ _-]?(\d{1,5})\D*)(\d{1,9})?"?'
)
"""A process as tools label it where they merge traces: ``[TP01-DP00] 4711`` of SGLang, ``rank1: 4711``."""
_LABEL = re.compile(rb"([A-Z]+)(\d{1,9})")
_DISTRIBUTED_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d{1,9})\b')


def identify_rank(path: Path) -> int | None:
    """Return the rank in a trace, else in its name; None if neither has one."""
    match = _DISTRIBUTED_INFO.search(content_of(path, _HEAD_BYTES))
    return int(match[1]) if match else rank_from_name(path)


def several_ranks(path: Path) -> SeveralRanks | None:
    """Return the processes that launch kernels in a trace that a tool merged; None if there is one.

    Kineto records one process. The others that a tool merges with it, such as data loaders, launch nothing.
    """
    return SeveralRanks.of_processes(dict(_launching_processes(path)))


def _launching_processes(path: Path) -> Iterator[tuple[int, int | None]]:
    """Yield the processes of launches, with their ranks where the trace has them.

    SGLang merges whole traces one after another: all of them are read.
    """
    with open_packed(path) as file, reading_packed(path):
        while text := file.read(_MAX_MERGED_BYTES):
            # The last event may be cut off.
            events = text[: text.rfind(b"}") + 1]
            for written, rank in _LAUNCH.findall(events) or _PID_FIRST.findall(events):
                process = int(written) if written.isdigit() else labelled_process(written)
                if process is not None:
                    yield process, int(rank) if rank else None
            if b'"[' not in text:
                return


def labelled_process(written: bytes) -> int | None:
    """Return a number of a labelled process, ascending with its DP, EP, PP and TP; None for another text."""
    match = _LABELLED_PROCESS.fullmatch(written)
    if match is None:
        return None
    number = int(match[2] or 0)
    for _, place in sorted(_LABEL.findall(match[1] or b"")):
        number = number * 1000 + int(place)
    return int(number * 10**6 + int(match[3] or 0) % 10**6)


def is_trace(path: Path) -> bool:
    """Return whether a file is a trace, by what it begins with."""
    try:
        return path.name != MERGED and _KINETO_WORDS.search(content_of(path, _HEAD_BYTES)) is not None
    except DamagedInput:
        return False
