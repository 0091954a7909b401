"""Profiles of torch_npu for Ascend's NPUs: folders ``*_ascend_pt``, of which ``trace_view.json`` is read.

Events belong to processes by their names. "Ascend Hardware" has the tasks of streams, "Communication" (or
"HCCL") the operations of HCCL and their tasks, "CANN" the host's calls, and "Python" operators and ranges.
An arrow ``HostToDevice`` goes from inside a call to the task that it launches. All are turned into the events
that Kineto writes. Sources: Ascend/pytorch, torch_npu/profiler/analysis; Ascend/msprof.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.gzip_file import open_packed
from hpcprof.profiles.losses import LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import ProfilePart, rank_from_name
from hpcprof.profiles.readers.kineto import ASCEND, ASCEND_TRACE
from hpcprof.profiles.readers.kineto.arguments import parsed_object
from hpcprof.profiles.readers.kineto.json_stream import Batch, Event, TraceStream
from hpcprof.profiles.readers.kineto.reader import damage_as_sentence, read_trace
from hpcprof.profiles.readers.kineto.stamps import nanoseconds
from hpcprof.profiles.timeline import Gpu, Timeline

_DEVICE, _HOST, _PYTHON = "Ascend Hardware", "CANN", "Python"
_COMMUNICATION = ("Communication", "HCCL")
_REPEATED_TRACK = "Overlap Analysis"
_COPY = re.compile(r"MEMCPY_\w+|MEM_ASYNC|SDMA\w*|PCIE_DMA\w*")
_NO_WORK = re.compile(
    r"(?:EVENT|NOTIFY|CAPTURE|MODEL|PROFILER|STREAM|LABEL)_\w+|WRITE_VALUE\w*|PLACE_HOLDER\w*|CALLBACK\w*"
)
"""Types of tasks that wait, record or start others."""
_NUMBERED_NAME = re.compile(r"(hcom_\w+?__\d+)(?:_\d+)+")
_RANK_OF_FILE = re.compile(r"profiler_info_(\d{1,9})\.json")
_FIRST_STREAM = 1 << 20
"""The streams of HCCL's groups are numbered from here."""
_Place = tuple[bytes, bytes, bytes]
"""The process, thread and start of an event, as written."""


def _is_folder(path: Path) -> bool:
    return path.name.lower().endswith(ASCEND.folder_suffix) and path.is_dir()


def trace_of(path: Path) -> Path:
    """Return the trace of a folder, else the file itself."""
    if not _is_folder(path):
        return path
    trace = path / "ASCEND_PROFILER_OUTPUT" / ASCEND_TRACE
    if not trace.is_file():
        raise DamagedInput(
            f"{path} has no ASCEND_PROFILER_OUTPUT/{ASCEND_TRACE}: analyse it with torch_npu, with "
            "ExportType.Text (its databases are not read)."
        )
    return trace


def files_of_folder(path: Path, part: ProfilePart | None) -> list[Path]:
    """Return the trace of a folder; none for a file."""
    return [trace_of(path)] if _is_folder(path) else []


def identify_rank(path: Path) -> int | None:
    """Return the rank in the name of the folder's ``profiler_info_RANK.json``, else of the profile."""
    folder = path if _is_folder(path) else path.parent.parent
    matches = [_RANK_OF_FILE.fullmatch(file.name) for file in folder.glob("profiler_info_*.json")]
    ranks = [int(match[1]) for match in matches if match]
    return ranks[0] if len(ranks) == 1 else rank_from_name(path)


def read(path: Path) -> Timeline:
    """Read a folder or a trace; times count from 1970."""
    file = trace_of(path)
    trace = _Trace(file)
    timeline = read_trace(file, trace.translated)
    devices = tuple(Gpu(number, "Ascend NPU") for number in sorted({*trace.devices.values()}))
    unread = losses(LossKind.CATEGORY, Subject.EVENT, dict(sorted(trace.unread.items())))
    origin = replace(
        timeline.origin,
        path=path,
        kind=ASCEND.name,
        rank=identify_rank(path),
        start_utc_ns=0,
        gpus=devices,
        losses=(*timeline.origin.losses, *unread),
    )
    return replace(timeline, origin=origin)


class _Trace:
    """The processes, threads and launches of a trace, and its events as Kineto would have written them."""

    def __init__(self, path: Path) -> None:
        self.devices: dict[bytes, int] = {}
        self.unread: Counter[str] = Counter()
        self._processes: dict[bytes, str] = {}
        self._commands: set[str] = set()
        """The operations that the queue of tasks has: they are operators."""
        self._groups: set[tuple[bytes, bytes]] = set()
        self._tasks: set[tuple[str, str]] = set()
        """The tasks of collectives, by stream and number."""
        self._launch: dict[_Place, int] = {}
        """The number of the launching call of each task, and of the call itself."""
        for event in _events(path):
            self._take_name(event)
        devices = [pid for pid, name in self._processes.items() if name == _DEVICE]
        self.devices = {pid: number for number, pid in enumerate(devices)}
        self._python = next((pid for pid, name in self._processes.items() if name == _PYTHON), None)
        if not self._processes:
            raise DamagedInput(f"{path} is not a trace of torch_npu: it names no process.")
        self._link(path)

    def _take_name(self, event: Event) -> None:
        if event.cat == "dequeue":
            self._commands.add((event.name or "").partition("@")[2])
        name = (parsed_object(bytes(event.args)) or {}).get("name") if event.ph == "M" else None
        if event.name == "process_name" and isinstance(name, str):
            self._processes[bytes(event.pid)] = name
        elif event.name == "thread_name" and isinstance(name, str) and "Communication" in name:
            self._groups.add((bytes(event.pid), bytes(event.tid)))

    def _link(self, path: Path) -> None:
        """Give the call around the begin of each arrow, and the task at its end, the same number."""
        ends: dict[bytes, _Place] = {}
        threads: dict[tuple[bytes, bytes], list[tuple[int, int, bytes | _Place]]] = defaultdict(list)
        for event in _events(path):
            arrow = event.cat == "HostToDevice"
            if arrow and event.ph == "f":
                ends[bytes(event.id)] = _place(event)
            elif arrow or (event.ph == "X" and self._processes.get(bytes(event.pid)) == _HOST):
                place, span = _place(event), _span(event)
                if span:
                    threads[place[:2]].append((*span, bytes(event.id) if arrow else place))
            elif event.ph == "X" and self._is_collective_task(event):
                arguments = parsed_object(bytes(event.args)) or {}
                self._tasks.add((str(arguments.get("stream id")), str(arguments.get("task id"))))
        for thread in threads.values():
            calls: list[tuple[int, _Place]] = []
            for start, end, name in sorted(
                thread, key=lambda item: (item[0], isinstance(item[2], bytes), -item[1])
            ):
                while calls and calls[-1][0] < start:
                    calls.pop()
                if not isinstance(name, bytes):
                    calls.append((end, name))
                elif calls and name in ends:
                    self._launch[ends[name]] = self._launch.setdefault(calls[-1][1], len(self._launch))

    def _is_collective_task(self, event: Event) -> bool:
        """Return whether an event is a task of an operation of HCCL."""
        return (
            self._processes.get(bytes(event.pid)) in _COMMUNICATION
            and (bytes(event.pid), bytes(event.tid)) not in self._groups
            and not (event.name or "").startswith("hcom_")
        )

    def translated(self, batch: Batch) -> Batch:
        """Return the events of a batch as Kineto would have written them, without those that are not read."""
        return [
            event if event is None else converted
            for event in batch
            for converted in self._kineto_events(event)
        ]

    def _kineto_events(self, event: Event | None) -> Iterator[Event | None]:
        if event is None or event.ph in ("s", "f"):
            yield _plain_event(event) if event else None
            return
        if event.ph != "X":
            return
        process = self._processes.get(bytes(event.pid), "")
        if process == _DEVICE:
            yield from self._task(event)
        elif process in _COMMUNICATION:
            if not self._is_collective_task(event):
                yield self._collective(event)
        elif process == _HOST:
            pid = event.pid if self._python is None else msgspec.Raw(self._python)
            yield _plain_event(event, cat="cuda_runtime", pid=pid, args=self._launch_event(event))
        elif process == _PYTHON:
            if event.cat == "dequeue":
                # The thread of the queue launches what operators of other threads have put into it.
                yield _plain_event(event, cat="cpu_op")
            elif event.cat in ("cpu_op", "python_function", "user_annotation"):
                yield _plain_event(event, cat=self._python_category(event))
        elif process != _REPEATED_TRACK:
            self.unread[process] += 1

    def _python_category(self, event: Event) -> str | None:
        """Return Kineto's category of an operator or a range; torch_npu has one for both."""
        name = event.name or ""
        if event.cat == "cpu_op" and not (name in self._commands or name.startswith("aclnn")):
            return "Operator"
        return event.cat

    def _task(self, event: Event) -> Iterator[Event]:
        arguments = parsed_object(bytes(event.args)) or {}
        kind = str(arguments.get("Task Type", ""))
        copies = _COPY.fullmatch(kind) is not None
        is_hccl = (str(arguments.get("Stream Id")), str(arguments.get("Task Id"))) in self._tasks
        if not _NO_WORK.fullmatch(kind) and not (copies and is_hccl):
            device, stream = self.devices[bytes(event.pid)], arguments.get("Stream Id")
            written = self._launch_event(
                event, device=device, **({} if stream is None else {"stream": stream})
            )
            yield _plain_event(event, cat="gpu_memcpy" if copies else "kernel", args=written)

    def _collective(self, event: Event) -> Event:
        """Return an operation of HCCL as a kernel, without its number in its group."""
        numbered = _NUMBERED_NAME.fullmatch(event.name or "")
        tid = bytes(event.tid)
        stream = _FIRST_STREAM + (int(tid) if tid.isdigit() else 0)
        arguments = msgspec.json.encode({"device": 0, "stream": stream})
        return _plain_event(
            event, cat="kernel", name=numbered[1] if numbered else event.name, args=msgspec.Raw(arguments)
        )

    def _launch_event(self, event: Event, **arguments: Any) -> msgspec.Raw:
        if (number := self._launch.get(_place(event))) is not None:
            arguments["correlation"] = number
        return msgspec.Raw(msgspec.json.encode(arguments))


def _events(path: Path) -> Iterator[Event]:
    """Yield the events of a trace; raise `DamagedInput` if it is none."""
    with open_packed(path) as file, damage_as_sentence(path):
        for batch in TraceStream(file).batches():
            yield from filter(None, batch)


def _place(event: Event) -> _Place:
    return bytes(event.pid), bytes(event.tid), bytes(event.ts).strip(b'"')


def _span(event: Event) -> tuple[int, int] | None:
    """Return start and end in ns; None for damage, which the tables count."""
    try:
        start = nanoseconds(bytes(event.ts).decode().strip('"'))
        return start, start + (nanoseconds(bytes(event.dur).decode().strip('"')) if event.ph == "X" else 0)
    except ValueError:
        return None


def _plain_event(event: Event, **changes: Any) -> Event:
    """Return an event with changes and with numbers where torch_npu writes texts of them."""
    for name in ("ts", "dur"):
        changes[name] = msgspec.Raw(bytes(getattr(event, name)).strip(b'"'))
    return msgspec.structs.replace(event, **changes)
