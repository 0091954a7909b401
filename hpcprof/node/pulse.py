"""The pulse of a rank: the times of its steps, whether it waits for others, and evidence if the run stalls.

A step ends when an optimizer of PyTorch steps, or where the program marks it (`hpcprof.workloads.capture`, in
JAX ``jax.profiler.StepTraceAnnotation``). The wrapper of the node looks for progress. The name of this
module's thread carries what only the process knows: ``hp``, then ``w`` if the rank waits in a collective of
PyTorch, ``r`` if not and ``u`` if it has none, then a number that grows with each step and each collective
that ends. When the wrappers find that no rank makes progress, they write ``state/stalled``, and each process
puts its stacks and its last collectives into ``stall/``.
"""

from __future__ import annotations

import _thread
import atexit
import faulthandler
import functools
import json
import os
import pickle
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_OWNER = "HPCPROF_PULSE"
"""The environment variable with the number of the process that has the pulse of the rank."""

_STALL_FILE = "stalled"
_FOLDER = "stall"
_MAX_INTERVAL_S = 10.0
_LOOKS_PER_STALL = 12
"""Minimum number of looks at the program within the time after which a run counts as stalled."""

_MAX_DELAY_S = 10.0
"""The interpreter is stuck if nothing runs for this long beyond the time of a stall."""

_DEVICES = ("torch.cuda", "torch.xpu")
_RENDEZVOUS_FILES = tuple(
    f"/torch/distributed/{name}.py" for name in ("distributed_c10d", "rendezvous", "device_mesh")
)

_RECORDERS = ("_dump_nccl_trace", "_dump_fr_trace")
_MAX_COLLECTIVES = 500
_MAX_FRAMES = 60
_COUNTER_BASE = 10**10


class Pulse:
    """Counts the steps of this process, watches its collectives, and writes evidence of a stall.

    The run counts as stalled after ``timeout_s`` without progress; 0 for never. ``lines`` writes the lines
    of steps, with ``begin``, ``end``, ``leave_out`` and ``flush``. The functions of ``on_end`` are called at
    the end of each step, with the number of ended steps.
    """

    def __init__(self, run_directory: Path, rank: int, timeout_s: float, lines: Any) -> None:
        self.run = run_directory
        self.rank = rank
        self._timeout_s = timeout_s
        self._period_s = (
            min(_MAX_INTERVAL_S, max(timeout_s / _LOOKS_PER_STALL, 0.1)) if timeout_s else _MAX_INTERVAL_S
        )
        self.lines = lines
        self._process = os.getpid()
        self._steps = 0
        self._last_step: int | None = None
        self._stack: int | None = None
        self._thread_name = ""
        self.on_end: list[Callable[[int], None]] = []

    def stepped(self, _: Any) -> None:
        """Count a step of the program."""
        self.ended()

    def ended(self, number: int | None = None) -> None:
        """Count a step that has ended; ``number`` is the program's own, if it has one."""
        if os.getpid() != self._process or marked_steps() is not None:
            return
        number = self._steps if number is None else number
        if self._steps:
            self.lines.end(number)
        else:  # the first step began before anything could be noted, or compiled
            self.lines.begin()
        self._last_step = number
        self._steps += 1
        for tell in self.on_end:
            tell(self._steps)

    def start(self) -> None:
        """Begin to watch, in a thread that ends with the program; its last steps are noted then."""
        atexit.register(self.lines.flush)
        if self._timeout_s:
            self._keep_stacks()
            _thread.start_new_thread(self._watch, ())

    def _keep_stacks(self) -> None:
        """Let Python write all stacks to a file in memory, for the wrapper, if the interpreter is stuck."""
        try:
            self._stack = os.memfd_create("hpcprof-stack")
        except (AttributeError, OSError):
            return
        later = faulthandler.dump_traceback_later

        # Python has one timer for this, which the program may need itself.
        @functools.wraps(later)
        def leave_timer_to_program(*args: Any, **kwargs: Any) -> None:
            self._stack = None
            later(*args, **kwargs)

        faulthandler.dump_traceback_later = leave_timer_to_program
        self._arm = functools.partial(later, exit=False)

    def _watch(self) -> None:
        looked = ended = None
        progress, quiet, written = 0, 0.0, 0
        waits: bool | None = False
        while True:
            if self._stack is not None:
                self._arm(self._timeout_s + _MAX_DELAY_S, file=self._stack)
            steps = self._all_steps()
            # Asking for the collectives takes a lock, so that is done only while no step ends.
            counted, waits = collectives() if quiet > self._timeout_s / 4 else (None, False)
            waits = waits or (True if quiet and waits_in_rendezvous() else waits)
            moved = steps != looked or (None not in (ended, counted) and counted != ended)
            looked, ended = steps, counted
            if moved:
                progress, quiet = progress + 1, 0.0
            else:
                self.lines.flush()
            self._set_thread_name(progress, waits)
            # Once per stall, by the time of its file: ranks may have progressed since an earlier one.
            if quiet > self._timeout_s / 2 and (since := self._stalled_since()) not in (0, written):
                self._write_evidence()
                written = since
            time.sleep(self._period_s)
            quiet += self._period_s

    def _stalled_since(self) -> int:
        """Return the time at which the run was called stalled, in ns of its file system; 0 if it is not."""
        with suppress(OSError):
            return (self.run / "state" / _STALL_FILE).stat().st_mtime_ns
        return 0

    def _all_steps(self) -> int:
        marked = marked_steps()
        return self._steps if marked is None else marked.ended

    def _set_thread_name(self, progress: int, waits: bool | None) -> None:
        """Write the name of this thread, which has 15 characters."""
        name = f"hp{'u' if waits is None else 'w' if waits else 'r'}{progress % _COUNTER_BASE}"
        if name == self._thread_name:
            return
        self._thread_name = name
        with suppress(OSError):
            Path(f"/proc/self/task/{_thread.get_native_id()}/comm").write_text(name, encoding="utf-8")

    def _write_evidence(self) -> None:
        marked = marked_steps()
        last = self._last_step if marked is None else marked.last
        values = {"rank": self.rank, "time": time.time(), "last_step": last, "steps": self._all_steps()}
        self._write("json", {**values, "threads": stacks()})
        record = flight_record()
        if record is not None:
            self._write("flight.json", record)

    def _write(self, suffix: str, values: dict[str, Any]) -> None:
        path = self.run / _FOLDER / f"rank{self.rank:05d}.{suffix}"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with suppress(OSError, ValueError, TypeError):
            path.parent.mkdir(exist_ok=True)
            temporary.write_text(json.dumps(values), encoding="utf-8")
            temporary.replace(path)


def marked_steps() -> Any:
    """Return the writer of the steps that the program marks itself; None if it marks none."""
    module = sys.modules.get("hpcprof.node.step_lines")
    return getattr(module, "current", None)


def main_thread() -> int:
    """Return the number of the main thread, also in a program that has not imported ``threading``."""
    threading: Any = sys.modules.get("threading")
    return int(threading.main_thread().ident) if threading else _importing_thread


def stacks() -> list[dict[str, Any]]:
    """Return the frames of each thread, the innermost first; the frames of the main thread come first."""
    threading: Any = sys.modules.get("threading")
    names = {thread.ident: thread.name for thread in threading.enumerate()} if threading else {}
    main = main_thread()
    threads = []
    for ident, frame in sys._current_frames().items():
        if ident == _thread.get_ident():
            continue
        frames: list[dict[str, Any]] = []
        at: Any = frame
        while at is not None and len(frames) < _MAX_FRAMES:
            code = at.f_code
            frames.append({"name": code.co_name, "filename": code.co_filename, "line": at.f_lineno})
            at = at.f_back
        threads.append({"name": names.get(ident, ""), "main": ident == main, "frames": frames})
    return sorted(threads, key=lambda thread: not thread["main"])


def _last_collectives(with_stacks: bool) -> dict[str, Any] | None:
    """Return the last collectives of all flight recorders of PyTorch (NCCL has its own); None without any."""
    recorder: Any = sys.modules.get("torch._C._distributed_c10d")
    distributed: Any = sys.modules.get("torch.distributed")
    whole: dict[str, Any] | None = None
    for name in _RECORDERS:
        dump = getattr(recorder, name, None)
        if dump is None or distributed is None:
            continue
        try:
            if not distributed.is_initialized():
                return None
            # PyTorch made this pickle a moment ago in this process.
            record: dict[str, Any] = pickle.loads(dump(True, with_stacks, False))
            entries = record["entries"]
        except Exception:
            continue  # the recorder is off, or has nothing yet
        if whole is None:
            whole = record
        else:
            whole["pg_config"] = {**dict(whole.get("pg_config") or {}), **dict(record.get("pg_config") or {})}
            whole["entries"] = [*whole["entries"], *entries]
    return whole


def _has_ended(entry: dict[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def collectives() -> tuple[int, bool | None]:
    """Return the number of ended collectives, and whether one has not ended; None without collectives."""
    dump = _last_collectives(with_stacks=False)
    if not dump:
        return 0, None
    entries = dump["entries"]
    open_now = sum(not _has_ended(entry) for entry in entries)
    # Old entries are overwritten, but the number of the last entry counts all before it.
    last: dict[Any, int] = {}
    for entry in entries:
        group = str(entry.get("profiling_name")).partition(":")[0], entry.get("pg_id")
        last[group] = max(last.get(group, 0), int(entry.get("op_id") or 0))
    return sum(last.values()) - open_now, open_now > 0


def waits_in_rendezvous() -> bool:
    """Return whether a rank with a GPU waits in PyTorch for other ranks without a collective of NCCL."""
    frame = sys._current_frames().get(main_thread())
    devices = (sys.modules.get(name) for name in _DEVICES)
    on_gpus = any(device is not None and device.is_initialized() for device in devices)
    return on_gpus and frame is not None and frame.f_code.co_filename.endswith(_RENDEZVOUS_FILES)


def flight_record() -> dict[str, Any] | None:
    """Return the last collectives with their stacks, and the ranks of each group, as JSON can hold them."""
    dump = _last_collectives(with_stacks=True)
    if dump is None:
        return None
    entries = dump["entries"]
    unfinished = [entry for entry in entries if not _has_ended(entry)]
    ended = [entry for entry in entries if _has_ended(entry)]
    dump["entries"] = ended[-max(1, _MAX_COLLECTIVES - len(unfinished)) :] + unfinished[:_MAX_COLLECTIVES]
    for entry in dump["entries"]:
        entry["frames"] = list(entry.get("frames") or [])[:_MAX_FRAMES]
    groups = dict(dump.get("pg_config") or {})
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    for group, ranks in getattr(world, "pg_group_ranks", {}).items():
        # For a group without this rank, PyTorch has a number, which has no name.
        name = world.pg_names.get(group)
        if name is not None:
            description = str(getattr(group, "group_desc", ""))
            groups[str(name)] = {"name": str(name), "desc": description, "ranks": sorted(ranks)}
    dump["pg_config"] = groups
    return dump


def watch_optimizers(
    torch: Any, stepped: Callable[[Any], None], on_creation: Callable[[], None] | None = None
) -> None:
    """Call ``stepped`` at each step of the program, and ``on_creation`` when an optimizer is made.

    Several optimizers that take turns make one step together. It ends at the first call of all, and then each
    time that an optimizer is called again since the last end. ``stepped`` gets that optimizer.

    PyTorch wraps the ``step`` of each class of optimizers, when the first one is made, to call hooks inside a
    range. Work of a hook would be in the middle of that range, so the wrapper is wrapped.
    """
    optimizer = torch.optim.Optimizer
    wrap = getattr(optimizer, "profile_hook_step", None)
    if wrap is None:  # before PyTorch 2.0
        return
    compiling = torch.compiler.is_compiling if hasattr(torch.compiler, "is_compiling") else lambda: False
    depth = _thread._local()
    in_turn: set[int] = set()

    def ends(optimizer: Any) -> bool:
        if in_turn and id(optimizer) not in in_turn:
            in_turn.add(id(optimizer))
            return False
        in_turn.clear()
        in_turn.add(id(optimizer))
        return True

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = wrap(step)

        @functools.wraps(wrapped)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return wrapped(*args, **kwargs)
            outermost, depth.inside = not getattr(depth, "inside", False), True
            try:
                result = wrapped(*args, **kwargs)
            finally:
                depth.inside = not outermost
            if outermost and ends(args[0]):
                stepped(args[0])
            return result

        return counted

    optimizer.profile_hook_step = staticmethod(profile_hook_step)
    if on_creation is None:
        return
    make = optimizer.__init__

    @functools.wraps(make)
    def make_and_tell(*args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)
        on_creation()

    optimizer.__init__ = make_and_tell


def watch_jax(jax: Any, ended: Callable[[int | None], None]) -> None:
    """Call ``ended`` at the end of each step that a program in JAX marks, with its number if known."""
    step = jax.profiler.StepTraceAnnotation
    make, leave = step.__init__, step.__exit__
    numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @functools.wraps(make)
    def make_and_note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if isinstance(kwargs.get("step_num"), int):
            with suppress(TypeError):  # it allows no weak references
                numbers[self] = kwargs["step_num"]

    def leave_and_tell(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if not any(error):
            ended(numbers.get(self))
        return result

    step.__init__, step.__exit__ = make_and_note, leave_and_tell


def _is_launcher() -> bool:
    """Return whether this process only starts the ranks, as torchrun does."""
    words = getattr(sys, "orig_argv", sys.argv)[1:4]
    return any(word.startswith("torch.distributed.") or Path(word).name == "torchrun" for word in words)


_importing_thread = _thread.get_ident()
_installed: list[Pulse] = []


def install(lines: Callable[[Any, int], Any]) -> Pulse | None:
    """Begin to watch the program of a rank, once; ``lines(run, rank)`` makes the writer of its steps."""
    if _installed and os.environ.get(_OWNER) == str(os.getpid()):
        return _installed[0]
    run = os.environ.get("HPCPROF_RUN_DIR", "")
    # The workers of torchrun are ranks of their own.
    rank = os.environ.get("RANK" if "TORCHELASTIC_RUN_ID" in os.environ else "HPCPROF_RANK", "")
    if not run or not rank.isdigit() or _is_launcher():
        return None
    # Processes that the program starts inherit the variable; only one that replaces it has the same number.
    if os.environ.setdefault(_OWNER, str(os.getpid())) != str(os.getpid()):
        return None
    timeout = os.environ.get("HPCPROF_STALL_TIMEOUT", "0")
    pulse = Pulse(Path(run), int(rank), float(timeout), lines(Path(run), int(rank)))
    pulse.start()
    _installed.append(pulse)
    marked = marked_steps()
    if marked is not None:
        follow_marks(marked)
    return pulse


def leave_out(ns: int) -> None:
    """Leave a time that has just passed out of the step under way: a recording held the program up."""
    for pulse in _installed:
        pulse.lines.leave_out(ns)


def follow_marks(lines: Any) -> None:
    """Pass the steps that the program marks itself to the observers of optimizer steps."""
    for pulse in _installed:
        lines.on_end = pulse.on_end
