"""The hook of a rank's program: it waits for torch, mpi4py and JAX, and for the exception that ends the rank.

``sitecustomize`` beside this file starts it. When the program has imported one of these packages, its pulse
begins and, in a rank that the profiler of PyTorch or JAX was chosen for, the recorder.

The program gets the modules that it would get without the hook, also where its own ``json.py`` or
``queue.py`` has a name of the standard library. So this file imports nothing but what is part of the
interpreter, and `load` takes out of ``sys.modules`` what the hook's other files have imported.
"""

from __future__ import annotations

import _frozen_importlib_external
import _signal  # type: ignore[import-not-found]  # typeshed has no stub
import _thread
import atexit
import faulthandler
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any

_TORCH_HOOK, _JAX_HOOK = "hpcprof_hooks.torch_hook", "hpcprof_hooks.jax_hook"
_UNCAUGHT = "hpcprof_uncaught"
_PULSE, _STEP_LINES = "hpcprof_pulse", "hpcprof_step_lines"
_ON_REQUEST, _RECORDING = "hpcprof_on_request", "hpcprof_recording"
_MEMORY = "hpcprof_memory_history"

_WATCHED = {"torch": "torch.optim", "jax": "jax.profiler", "mpi4py": "mpi4py", "mpi4py.MPI": "mpi4py.MPI"}
"""The packages that are watched, and a module of each that the program's own of that name has not."""

_folder = ""
_standard_path: list[str] = []


class _StandardModules:
    """A finder of the hook's files and of the standard library, for one thread; others import as ever.

    As a context, it hides the program's modules that have names of standard modules; at its end it removes
    the modules imported in it from ``sys.modules``, except the hook's files.
    """

    def __init__(self) -> None:
        self._thread = _thread.get_ident()
        self._hidden: dict[str, ModuleType] = {}
        self._imported: set[str] = set()
        self._folders = set(sys.path_importer_cache)

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module that is not part of the interpreter."""
        if _thread.get_ident() != self._thread:
            return None
        if name.startswith("hpcprof_"):
            return _standard_spec(name, path or [_folder])
        self._imported.add(name)
        if name in sys.builtin_module_names:
            return None
        spec = _standard_spec(name, path or _standard_path)
        if spec is None:  # another finder would find the program's own
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec

    def __enter__(self) -> None:
        roots = {name for name in list(sys.modules) if "." not in name}
        foreign = {name for name in roots if _is_foreign(name)}
        for name in [name for name in list(sys.modules) if name.partition(".")[0] in foreign]:
            self._hidden[name] = sys.modules.pop(name)
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        for name in list(sys.modules):
            root = name.partition(".")[0]
            if name in self._imported or (root in self._imported and root != name):
                _forget(name)
        sys.modules.update(self._hidden)
        for folder in set(sys.path_importer_cache) - self._folders:
            del sys.path_importer_cache[folder]


def _standard_spec(name: str, path: Any) -> ModuleSpec | None:
    return _frozen_importlib_external.PathFinder.find_spec(name, path)


def _is_foreign(name: str) -> bool:
    """Return whether a module that has been imported is another than the standard one of its name."""
    origin = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None)
    if name in sys.builtin_module_names or origin in ("built-in", "frozen"):
        return False
    spec = _standard_spec(name, _standard_path)
    return spec is not None and spec.loader is not None and spec.origin != origin


def _forget(name: str) -> None:
    module = sys.modules.pop(name)
    package, _, child = name.rpartition(".")
    if getattr(sys.modules.get(package), child, None) is module:
        delattr(sys.modules[package], child)


def load(name: str) -> Any:
    """Import a file of the hook, which imports nothing but the hook and the standard library."""
    with _StandardModules():
        __import__(name)
    return sys.modules[name]


class _Finder:
    """Finds modules as the other finders do, and watches those of `_WATCHED` once they are imported."""

    def __init__(self) -> None:
        self._names = set(_WATCHED)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a package to watch, whose loader also begins that; None for any other module."""
        if name not in self._names:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        # A namespace, such as a folder that happens to be called torch, has no loader.
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "__dict__"):
            self._watch_after(spec.loader, name)
        return spec

    def _watch_after(self, loader: Any, name: str) -> None:
        """Have the package watched after the next module that the loader executes."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if name in self._names and _WATCHED[name] in sys.modules:
                self._names.discard(name)
                _guarded(*_WATCHES[name], module)

        # Tracebacks and warnings leave out the frames of imports.
        importing = _frozen_importlib_external.cache_from_source.__code__.co_filename
        exec_module.__code__ = exec_module.__code__.replace(co_filename=importing)
        loader.exec_module = exec_module


def _guarded(action: str, function: Callable[..., object], *arguments: object) -> None:
    """Call a function; the program must never fail because of it."""
    try:
        function(*arguments)
    except Exception as error:
        os.write(2, f"hpcprof: {action}: {error!r}.\n".encode(errors="replace"))


def _is_here(name: str) -> bool:
    """Return whether the run has a module or package of the hook."""
    path = os.path.join(_folder, *name.split("."))
    return os.path.exists(f"{path}.py") or os.path.isdir(path)


def _is_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _watch_torch(torch: ModuleType) -> None:
    _guarded("the steps of this rank are not counted", _start_pulse, torch)
    if _is_here(_TORCH_HOOK) and os.environ.get("HPCPROF_PROFILER") != "none":
        load(f"{_TORCH_HOOK}.watch").start(torch, load(_PULSE), _is_child())


def _watch_jax(jax: ModuleType) -> None:
    _guarded("the steps of this rank are not counted", _start_pulse, None, jax)
    if _is_here(_JAX_HOOK) and os.environ.get("HPCPROF_PROFILER") == "jax" and not _is_child():
        load(_JAX_HOOK).start(jax)


def _note_mpi(mpi: Any) -> None:
    """Note of how many MPI ranks this rank is one, or 0 if the program initializes MPI later."""
    run, rank, ranks = (os.environ.get(f"HPCPROF_{name}", "") for name in ("RUN_DIR", "RANK", "WORLD_SIZE"))
    # The workers of torchrun need no MPI job.
    if not run or not rank.isdigit() or "TORCHELASTIC_RUN_ID" in os.environ or _is_child():
        return
    size = mpi.COMM_WORLD.size if mpi.Is_initialized() else 0
    note = os.path.join(run, "state", f"rank{int(rank):05d}.mpi")
    if os.path.exists(note):  # a launcher in the program has started several ranks
        return
    with open(note, "w") as file:
        file.write(f"{size}\n")
    if size == 1 and ranks.isdigit() and int(ranks) > 1:
        os.write(
            2, f"hpcprof: rank {rank} is an MPI job of its own (rank 0 of 1, not of {ranks}).\n".encode()
        )


_WATCHES = {
    "torch": ("the PyTorch profiler was not set up", _watch_torch),
    "jax": ("the JAX profiler was not set up", _watch_jax),
    "mpi4py": ("the steps of this rank are not counted", lambda _: _start_pulse()),
    "mpi4py.MPI": ("the size of the MPI job is not noted", _note_mpi),
}
"""The function that watches a package, and what an error in it means."""


def _start_pulse(torch: ModuleType | None = None, jax: ModuleType | None = None) -> None:
    if not _is_here(_STEP_LINES):
        return
    pulse = load(_PULSE)
    watched = pulse.install(load(_STEP_LINES).StepLines)
    if watched is not None and jax is not None:
        pulse.watch_jax(jax, watched.ended)
    if watched is not None and torch is not None:
        load(_ON_REQUEST).install(torch, load(_RECORDING), watched)
        pulse.watch_optimizers(torch, watched.stepped)
        if _is_here(_MEMORY):
            load(_MEMORY).install(torch, watched)


def _uncaught() -> BaseException | None:
    """Return the exception that ends this process; None if there is none, or if the user interrupted it."""
    error, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    # An exception that a callback or a console printed was raised below a function that went on.
    # A SyntaxError of the script itself has no traceback, and from Python 3.13 one in a console.
    if trace is None and isinstance(error, SyntaxError):
        return error if os.path.basename(error.filename or "") == os.path.basename(sys.argv[0]) else None
    if not isinstance(error, BaseException) or trace is None or trace.tb_frame.f_back is not None:
        return None
    return None if isinstance(error, (KeyboardInterrupt, SystemExit)) else error


def _watch_exceptions() -> None:
    """Have the exception noted that ends this process, if it is the program of a rank; not in its forks."""
    run, started_as = (os.environ.get(name, "") for name in ("HPCPROF_RUN_DIR", "HPCPROF_RANK"))
    # The workers of torchrun are ranks of their own.
    worker = "TORCHELASTIC_RUN_ID" in os.environ
    rank = os.environ.get("RANK", "") if worker else started_as
    process = os.getpid()
    if not run or not rank.isdigit() or not started_as.isdigit():
        return
    # A process that the program starts has its variables; the process that replaces it by exec has the same
    # number.
    owner = f"HPCPROF_EXCEPTION_OF_{'WORKER' if worker else 'RANK'}"
    if os.environ.setdefault(owner, str(process)) != str(process):
        return
    earlier = os.path.join(run, "state", f"rank{int(rank):05d}.exception")
    if os.path.exists(earlier):
        _guarded("an earlier exception stays noted", lambda: load(_UNCAUGHT).forget_retried(earlier))
    show = sys.excepthook

    def note(error: BaseException | None, exits: bool) -> None:
        if error is not None and os.getpid() == process:
            values = run, int(rank), int(started_as)
            _guarded("the exception is not noted", lambda: load(_UNCAUGHT).ended_by(error, *values, exits))

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            show(kind, error, trace)
        finally:
            if _uncaught() is error:
                note(error, exits=False)

    # Programs compare the two, and set the first to the second.
    sys.excepthook = sys.__excepthook__ = excepthook
    # A program may have an excepthook of its own. The first exit handler to be registered runs last.
    atexit.register(lambda: note(_uncaught(), exits=True))


def _tell_default_of(name: str) -> None:
    """Have the program told that a signal has its default action, though it was started to ignore it.

    Libraries such as Lightning set a handler only where they find no other.
    """
    number, ask = getattr(_signal, f"SIG{name}"), _signal.getsignal

    def getsignal(signalnum: int) -> Any:
        handler = ask(signalnum)
        return _signal.SIG_DFL if signalnum == number and handler == _signal.SIG_IGN else handler

    _signal.getsignal = getsignal


def _write_stacks_on_signal() -> None:
    """Have Python write the stacks of all threads into memory on the signal that the stall watch sends.

    It does so also where the interpreter is stuck. The file is named by the process, since forks share it.
    """
    try:
        stacks = os.memfd_create(f"hpcprof-stack-{os.getpid()}")
        faulthandler.register(_signal.SIGRTMAX - 5, file=stacks)
    except (AttributeError, OSError, RuntimeError):
        pass  # not on Linux, or not in CPython


def watch(folder: str) -> None:
    """Begin to watch, with the files of the hook in ``folder``."""
    global _folder
    _folder = folder
    library = os.path.dirname(os.__file__)
    _standard_path.extend(
        entry for entry in sys.path if entry == library or os.path.basename(entry) == "lib-dynload"
    )
    if any(map(_is_here, (_TORCH_HOOK, _STEP_LINES, _JAX_HOOK))):
        sys.meta_path.insert(0, _Finder())
    if _is_here(_UNCAUGHT):
        _watch_exceptions()
    if os.environ.get("HPCPROF_STALL_TIMEOUT", "0") != "0":
        _write_stacks_on_signal()
    if outlived := os.environ.get("HPCPROF_OUTLIVED_SIGNAL"):
        _guarded("signals keep the action of the shell", _tell_default_of, outlived)
