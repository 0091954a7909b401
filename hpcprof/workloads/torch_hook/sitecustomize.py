"""Start of Python in the programs of a rank.

It runs the ``sitecustomize`` that Python would have run otherwise. It then watches for the exception that
ends the rank. When the program has imported torch, mpi4py or JAX, its pulse begins and, in a rank that the
profiler of PyTorch or JAX was chosen for, the recorder. hpcprof copied this file into the run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "hpcprof_torch_hook"
_UNCAUGHT = "hpcprof_uncaught"
_PULSE, _STEP_LINES = "hpcprof_pulse", "hpcprof_step_lines"
_JAX_HOOK = "hpcprof_jax_hook"
_ON_REQUEST, _RECORDING = "hpcprof_on_request", "hpcprof_recording"
_MEMORY = "hpcprof_memory_history"


def run_next() -> None:
    """Run the next ``sitecustomize`` on the path, in the place of this one; its errors are its own."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class Finder:
    """Finds a module as the other finders do, and calls a function with it once it has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of the module, whose loader also calls the function; None for any other module."""
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        # A namespace, such as a folder that happens to be called torch, has no loader.
        if spec is None or spec.loader is None or not hasattr(spec.loader, "__dict__"):
            return spec
        self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        """Have a loader call the function after the next module that it executes."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            sys.meta_path.remove(self)
            self._then(module)

        loader.exec_module = exec_module


def _is_here(name: str) -> bool:
    return os.path.exists(os.path.join(_FOLDER, name))


def _records() -> bool:
    return _is_here(_PACKAGE) and os.environ.get("HPCPROF_PROFILER") != "none"


def _watch_torch(torch: ModuleType) -> None:
    _start_pulse(torch=torch)
    if _records():
        _start_recorder(torch)


def _watch_jax(jax: ModuleType) -> None:
    """Count the steps of JAX, and start its recorder; the program must never fail because of it."""
    _start_pulse(jax=jax)
    if not _is_here(f"{_JAX_HOOK}.py") or os.environ.get("HPCPROF_PROFILER") != "jax":
        return
    try:
        importlib.import_module(_JAX_HOOK).start(jax)
    except Exception as error:
        os.write(2, f"hpcprof: the JAX profiler was not set up: {error!r}.\n".encode())


def _start_pulse(torch: ModuleType | None = None, jax: ModuleType | None = None) -> None:
    """Begin to watch, and to count steps; the program must never fail because of it."""
    if not _is_here(f"{_STEP_LINES}.py"):
        return
    try:
        pulse = importlib.import_module(_PULSE)
        watched = pulse.install(importlib.import_module(_STEP_LINES).StepLines)
        if watched is not None and jax is not None:
            pulse.watch_jax(jax, watched.ended)
        if watched is not None and torch is not None:
            on_request = importlib.import_module(_ON_REQUEST)
            on_request.install(torch, importlib.import_module(_RECORDING), watched)
            pulse.watch_optimizers(torch, watched.stepped)
            if _is_here(f"{_MEMORY}.py"):
                importlib.import_module(_MEMORY).install(torch, watched)
    except Exception as error:
        os.write(2, f"hpcprof: the steps of this rank are not counted: {error!r}.\n".encode())


def _start_recorder(torch: ModuleType) -> None:
    """Start the recorder, a package beside this file; the program must never fail because of it."""
    try:
        folder = os.path.join(_FOLDER, _PACKAGE)
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None
        sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
        importlib.import_module(f"{_PACKAGE}.watch").start(torch)
    except Exception as error:
        os.write(2, f"hpcprof: the PyTorch profiler was not set up: {error!r}.\n".encode())


if __name__ == "sitecustomize":
    try:
        run_next()
    finally:
        if _records() or _is_here(f"{_STEP_LINES}.py"):
            sys.meta_path.insert(0, Finder("torch", _watch_torch))
            sys.meta_path.insert(0, Finder("mpi4py", lambda _: _start_pulse()))
        if _is_here(f"{_JAX_HOOK}.py") or _is_here(f"{_STEP_LINES}.py"):
            sys.meta_path.insert(0, Finder("jax", _watch_jax))
        if _is_here(f"{_UNCAUGHT}.py"):
            importlib.import_module(_UNCAUGHT).install()
