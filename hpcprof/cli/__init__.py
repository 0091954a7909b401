"""The ``hpcprof`` command: one file per command, which parses, calls one function and prints."""

import os
import sys
from pathlib import Path
from types import TracebackType

_FOLDERS_OF_SHELL = {folder.rstrip("/") for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
# Modules of a cluster put packages for another Python there: hpcprof takes those beside it first.
_FOREIGN_FOLDERS = _FOLDERS_OF_SHELL - {"", str(Path(__file__).parents[2])}
sys.path.sort(key=_FOREIGN_FOLDERS.__contains__)


def _before_main(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Say in a sentence that Ctrl-C came while the modules of a command were imported."""
    if kind is KeyboardInterrupt:
        print("\nhpcprof: interrupted.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, where)


sys.excepthook = _before_main
