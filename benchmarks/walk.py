"""Modules from the rows of a kernel to a cell of a report: ``python benchmarks/walk.py [EXPORT]``.

1. The most costly kernel of an nsys export without collectives is the probe: start and end of one of its rows
   until the analysis ``kernels`` returns, and from then on the sum of its durations.
2. ``hpcprof collect`` and ``hpcprof report --analysis kernels`` run in this process, with the analyses that
   ``kernels`` is not computed from left out of the count.
3. A module is a stop if one of its functions takes or returns an object that contains the probe.

Prints each stop with its functions, in the order in which the probe reaches them, and their number. Modules
of arithmetic on columns and of units are counted apart. By default the export is one of the tests.
"""

from __future__ import annotations

import dataclasses
import io
import lzma
import os
import sqlite3
import sys
import tempfile
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

import hpcprof  # noqa: E402
from hpcprof.cli.main import main as run_hpcprof  # noqa: E402
from hpcprof.common.units import format_ns  # noqa: E402

PACKAGE = Path(hpcprof.__file__).parent
EXPORT = ROOT / "tests/data/ddp_mlp_rank0.sqlite.xz"
ANALYSIS = "analysis/summaries/kernels.py"
HELPERS = ("profiles/columns/", "analysis/statistics/", "common/")
"""Modules that compute with columns of any kind, or write any figure."""

OTHERS = (
    "results/collect/kept_events.py",
    "results/collect/over_ranks.py",
    "results/collect/same_program.py",
)
_ROWS = """SELECT value, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName
WHERE value NOT LIKE '%nccl%'"""
_DEPTH, _TRIES, _ITEMS = 6, 60, 5000


class Walk:
    """Notes the functions that see the probe, while `__call__` is the profile function of Python."""

    def __init__(self, export: Path) -> None:
        durations: dict[str, list[tuple[int, int]]] = {}
        with closing(sqlite3.connect(export)) as connection:
            for name, start, end in connection.execute(_ROWS):
                durations.setdefault(name, []).append((start, end))
        rows = max(durations.values(), key=lambda spans: sum(end - start for start, end in spans))
        self.total = sum(end - start for start, end in rows)
        self.sought, self.text = {*rows[len(rows) // 2]}, ""
        self.stops: dict[str, list[str]] = {}
        self._seen: dict[Any, int] = {}

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        """Look into what a function of hpcprof takes or returns."""
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        if event not in ("call", "return") or not path.is_relative_to(PACKAGE):
            return
        module = path.relative_to(PACKAGE).as_posix()
        other = module in OTHERS or (module.startswith("analysis/") and module != ANALYSIS)
        if other and not module.startswith((*HELPERS, "analysis/framework/")):
            return
        sys.setprofile(None)
        if (module, code.co_name, event) == (ANALYSIS, "kernels", "return") and not self.text:
            self.sought, self.text = {self.total}, format_ns(self.total)
            self._seen.clear()
        count = self._seen[code] = self._seen.get(code, 0) + 1
        given = [*frame.f_locals.values()][: code.co_argcount + code.co_kwonlyargcount]
        if count <= _TRIES and self._holds(given if event == "call" else value):
            self._seen[code] = _TRIES
            names = self.stops.setdefault(module, [])
            names += [code.co_name] if code.co_name not in names and code.co_name.isidentifier() else []
        sys.setprofile(self)

    def _holds(self, value: Any, depth: int = _DEPTH) -> bool:
        kind = type(value)
        if value is None or depth < 0 or isinstance(value, type):
            return False
        if kind in (int, float, np.int64):
            return value in self.sought
        if kind is str:
            return bool(self.text) and (self.text in value or str(self.total) in value)
        if kind is np.ndarray:
            return value.dtype.kind in "iuf" and bool(np.isin(value, [*self.sought]).any())
        inside: Any = ()
        if kind in (list, tuple, set, frozenset):
            inside = [*value][:_ITEMS]
        elif isinstance(value, dict):
            inside = [*value.values()][:_ITEMS]
        elif isinstance(value, msgspec.Struct):
            inside = [getattr(value, name) for name in value.__struct_fields__]
        elif dataclasses.is_dataclass(value):
            inside = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        elif kind.__module__.startswith(("hpcprof.", "rich.")) and hasattr(value, "__dict__"):
            inside = [*vars(value).values()]
        return any(self._holds(item, depth - 1) for item in inside)


def main() -> None:
    """Trace both commands, and print the stops."""
    export = Path(sys.argv[1]) if len(sys.argv) > 1 else EXPORT
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profiles/rank0.sqlite"
        profile.parent.mkdir()
        profile.write_bytes(
            lzma.decompress(export.read_bytes()) if export.suffix == ".xz" else export.read_bytes()
        )
        os.environ |= {"XDG_CACHE_HOME": folder, "COLUMNS": "200"}
        walk = Walk(profile)
        for words in (["collect"], ["report", "--analysis", "kernels"]):
            sys.argv = ["hpcprof", *words, str(profile.parent), "--runs-dir", folder]
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
                sys.setprofile(walk)
                run_hpcprof()
            sys.setprofile(None)
    for number, (module, names) in enumerate(walk.stops.items(), 1):
        print(f"{number:2} {module}: {', '.join(names)}")
    helpers = sum(module.startswith(HELPERS) for module in walk.stops)
    print(f"{len(walk.stops)} stops, {helpers} of them helpers")


if __name__ == "__main__":
    main()
