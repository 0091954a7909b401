"""Start of Python in the programs of a rank.

It runs the ``sitecustomize`` that Python would have run otherwise. Of several ranks it then watches for the
exception that ends one of them. In a rank that the PyTorch profiler was chosen for, it waits for the program
to import torch. hpcprof copied this file into the run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "hpcprof_torch_hook"
_UNCAUGHT = "hpcprof_uncaught"


def run_next() -> None:
    """Run the next ``sitecustomize`` on the path, in the place of this one; its errors are its own."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class TorchFinder:
    """Finds torch as the other finders do, and starts the recorder once torch has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of torch, whose loader also starts the recorder; None for any other module."""
        if name != "torch":
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
        """Have a loader start the recorder after the next module that it executes, which is torch."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            sys.meta_path.remove(self)
            _start_recorder(module)

        loader.exec_module = exec_module


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
        if os.path.isdir(os.path.join(_FOLDER, _PACKAGE)) and os.environ.get("HPCPROF_PROFILER") != "none":
            sys.meta_path.insert(0, TorchFinder())
        if os.path.isfile(os.path.join(_FOLDER, f"{_UNCAUGHT}.py")):
            importlib.import_module(_UNCAUGHT).install()
