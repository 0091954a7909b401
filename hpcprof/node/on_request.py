"""Record steps of a running program with the PyTorch profiler, on request or when its steps become slower.

A request is the file ``state/capture.json`` of the run, with the keys of `Request`; it must belong to the
user of the program, and nothing in it is executed. A thread looks for it once a second. The request names the
first step, so that all ranks record the same ones. Each rank answers in ``state/captures/``.
"""

from __future__ import annotations

import _thread
import atexit
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

REQUEST, ANSWERS, SLOWER = "capture.json", "captures", "slower.json"
"""Files in ``state/``, and the folder there."""

MAX_CAPTURE_STEPS = 1000
LEAD_S, LEAD_STEPS = 5.0, 3
"""Minimum time and number of steps between a request and its first step: ranks look once a second."""

_LOOK_S = 1.0
_MAX_REQUEST_BYTES = 1 << 16
_NEVER = sys.maxsize

_RECENT_STEPS, _MIN_STEPS = 20, 40
"""Number of recent steps that are compared with the steps before, and minimum number of all steps."""

_MAX_WALLS, _MAX_EXACT_WALLS = 4096, 1024
"""Maximum number of remembered step times, and of the last ones that are kept when some are dropped."""

_SLOW_STEPS, _SLOW_REQUESTS = 5, 2


class Request(NamedTuple):
    """The steps to record, and the ranks."""

    number: int
    """Higher than that of the request before."""
    first: int
    steps: int
    """The number of the first step, and how many."""
    ranks: list[tuple[int, int]]
    """Spans of ranks, the last rank included; an empty list means all."""

    def is_for(self, rank: int) -> bool:
        """Return whether a rank is to record."""
        return not self.ranks or any(low <= rank <= high for low, high in self.ranks)


class _CannotRecord(Exception):
    """The reason why a request cannot be met, apart from errors of the profiler."""


def parse_request(text: str | bytes) -> Request:
    """Return a request; raises ValueError if the text is something else."""
    values = json.loads(text)
    if not isinstance(values, dict) or set(values) != set(Request._fields):
        raise ValueError("its keys are not those of a request")
    number, first, steps, spans = (values[name] for name in Request._fields)
    if not isinstance(spans, list) or any(not isinstance(span, list) or len(span) != 2 for span in spans):
        raise ValueError("its ranks are not spans")
    numbers = (number, first, steps, *(rank for span in spans for rank in span))
    if any(type(value) is not int or value < 0 for value in numbers):
        raise ValueError("it has something else than whole numbers")
    if not 0 < steps <= MAX_CAPTURE_STEPS:
        raise ValueError(f"it asks for {steps} steps")
    return Request(number, first, steps, [(low, high) for low, high in spans])


def read_request(path: Path) -> Request | None:
    """Return the request in a file of this user, or None; raises ValueError for any other file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if os.fstat(file).st_uid != os.getuid():
            raise ValueError("another user wrote it")
        return parse_request(os.read(file, _MAX_REQUEST_BYTES))
    finally:
        os.close(file)


def write_request(state: Path, request: Request) -> None:
    """Write a request into ``state/`` of a run."""
    _replace(state / REQUEST, request._asdict())


def _replace(path: Path, values: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(values) + "\n", encoding="utf-8")
    temporary.replace(path)


def first_step(ended: int, wall_ns: float) -> int:
    """Return a step that begins when all ranks have seen a request, after ``ended`` of ``wall_ns`` each."""
    return ended + max(LEAD_STEPS, int(LEAD_S * 1e9 / max(wall_ns, 1)) + 1)


class OnRequest:
    """Records the steps that a request names, in the thread that takes them.

    ``recording`` is the module of `hpcprof.node.hooks.torch_hook.recording`. Rank 0 requests a recording when
    its steps take ``slower_pct`` longer than before; 0 for never.
    """

    def __init__(self, torch: Any, recording: Any, run: Path, rank: int, slower_pct: float) -> None:
        self._torch, self._recording = torch, recording
        self._state, self._rank = run / "state", rank
        output = Path(os.environ.get("HPCPROF_PROFILE_OUTPUT", run / "profiles/rank"))
        self._trace = output.with_name(f"rank{rank:05d}.trace.json.gz")
        self._slower_pct = slower_pct if rank == 0 else 0.0
        self._process = os.getpid()
        self._seen: tuple[int, int] | None = None
        self._number = 0
        self._request: Request | None = None
        self._due = _NEVER
        self._active: Any = None
        self._steps = 0
        self._walls: list[int] = []
        self._mark = 0
        self._requested = 0

    def start(self) -> None:
        """Begin to look for requests; those of an earlier start of the job do not count."""
        with suppress(ValueError):
            earlier = read_request(self._state / REQUEST)
            self._number = earlier.number if earlier is not None else 0
        atexit.register(self._close)
        _thread.start_new_thread(self._watch, ())

    def ended(self, steps: int) -> None:
        """Note that a step has ended; ``steps`` counts the ended ones."""
        self._steps = steps
        if self._slower_pct:
            self._measure()
        if steps >= self._due and os.getpid() == self._process:
            try:
                self._advance(steps)
            except Exception as error:
                self._fail(str(error) if isinstance(error, _CannotRecord) else repr(error))

    def _advance(self, steps: int) -> None:
        request, active = self._request, self._active
        assert request is not None
        if active is None:
            self._check(request, steps)
            self._active = self._recording.Recording(self._torch, {})
            self._due = request.first
            if steps < request.first:
                return
            active = self._active
        if active.thread != _thread.get_ident():
            return
        if active.began is None:
            active.begin()
        else:
            active.end_mark()
        if steps >= request.first + request.steps:
            self._finish(request)
        else:
            active.mark(steps)
            self._due = steps + 1

    def _check(self, request: Request, steps: int) -> None:
        if steps > request.first:
            raise _CannotRecord(f"step {request.first} had begun before the request was seen")
        if self._torch.autograd._profiler_enabled():
            raise _CannotRecord("the program runs the PyTorch profiler itself")
        cuda = self._torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            raise _CannotRecord("a CUDA graph is being captured")

    def _finish(self, request: Request) -> None:
        active, self._active, self._due, self._request = self._active, None, _NEVER, None
        active.stop()
        self._walls = []  # what was recorded took longer
        active.write(self._trace)
        self._answer("recorded", request, last=request.first + active.steps - 1)

    def _fail(self, reason: str) -> None:
        request, active = self._request, self._active
        self._request, self._active, self._due = None, None, _NEVER
        if active is not None:
            with suppress(Exception):
                active.stop()
        if request is not None:
            self._answer("failed", request, error=reason)

    def _answer(self, state: str, request: Request, **more: Any) -> None:
        values = {"number": request.number, "state": state, "first": request.first, **more}
        with suppress(OSError):
            (self._state / ANSWERS).mkdir(exist_ok=True)
            _replace(self._state / ANSWERS / f"rank{self._rank:05d}.json", values)

    def _close(self) -> None:
        """Write what has been recorded when the program ends, and answer an open request."""
        request, active = self._request, self._active
        if os.getpid() != self._process or request is None:
            return
        try:
            if active is not None and active.steps and active.thread == _thread.get_ident():
                self._finish(request)
            else:
                self._fail(f"the program ended after step {self._steps - 1}")
        except Exception as error:
            self._fail(repr(error))

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            try:
                self._look()
                if self._slower_pct and self._request is None:
                    self._judge()
            except Exception:
                continue  # it is only about measurements of the program

    def _look(self) -> None:
        """Take up a request that is new."""
        try:
            status = (self._state / REQUEST).stat()
        except OSError:
            return
        previous, self._seen = self._seen, (status.st_mtime_ns, status.st_ino)
        request = read_request(self._state / REQUEST) if previous != self._seen else None
        if request is None or request.number <= self._number:
            return
        self._number = request.number
        if not request.is_for(self._rank):
            # Traces of different steps are not of one recording.
            with suppress(OSError):
                self._trace.unlink()
            return
        if self._request is not None:
            self._answer("failed", request, error="an earlier request is still being recorded")
            return
        self._answer("accepted", request)
        self._request = request
        # The step before the first one warms the profiler up.
        self._due = max(0, request.first - 1)

    def _measure(self) -> None:
        now = time.perf_counter_ns()
        if self._mark and self._active is None:
            self._walls.append(now - self._mark)
        self._mark = now
        if len(self._walls) > _MAX_WALLS:
            self._walls = [*self._walls[:-_MAX_EXACT_WALLS:2], *self._walls[-_MAX_EXACT_WALLS:]]

    def _judge(self) -> None:
        """Request a recording if the last steps took much longer than those before."""
        walls, steps = list(self._walls), self._steps
        if self._requested >= _SLOW_REQUESTS or len(walls) < _MIN_STEPS:
            return
        before = _median(walls[1:-_RECENT_STEPS])
        recent = _median(walls[-_RECENT_STEPS:])
        limit = before * (1 + self._slower_pct / 100)
        if recent <= limit:
            return
        # Four of five steps in a row are slow from then on: single long steps are none of it.
        first = len(walls) - _RECENT_STEPS
        while first > 0 and sorted(walls[first - 1 : first + 4])[1] > limit:
            first -= 1
        while walls[first] <= limit or sorted(walls[first : first + 5])[1] <= limit:
            first += 1
        self._requested += 1
        since, percent = steps - len(walls) + first, 100 * (recent / before - 1)
        values = {"since": since, "percent": percent, "before_ns": before, "after_ns": recent}
        _replace(self._state / SLOWER, values)
        request = Request(self._number + 1, first_step(steps, recent), _SLOW_STEPS, ranks=[])
        write_request(self._state, request)


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def install(torch: Any, recording: Any, pulse: Any) -> None:
    """Begin to look for requests, if no other profiler runs in this rank."""
    if os.environ.get("HPCPROF_PROFILER", "none") != "none":
        return
    slower_pct = float(os.environ.get("HPCPROF_CAPTURE_SLOWER") or 0)
    recorder = OnRequest(torch, recording, pulse.run, pulse.rank, slower_pct)
    pulse.on_end.append(recorder.ended)
    recorder.start()
