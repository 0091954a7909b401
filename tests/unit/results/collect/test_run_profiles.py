"""The profiles of a run, and the files beside them."""

from __future__ import annotations

from pathlib import Path

from hpcprof.results.collect.run_profiles import foreign_files
from hpcprof.runs.directory import Run


def test_files_of_other_tools_beside_profiles_are_named(tmp_path: Path) -> None:
    for name in ("a.nvprof", "results.csv", "trace.json", "notes.txt"):
        (tmp_path / name).write_text('"Index","KernelName","gpu-id"\n' if name.endswith(".csv") else "{}")
    nvprof, rocprof = foreign_files(Run("a-1", tmp_path))
    assert nvprof.startswith("a.nvprof is left out: it is a profile of nvprof")
    assert rocprof.startswith("results.csv is left out: it is a table of rocprof")
    assert not foreign_files(Run("a-1", tmp_path, files=(tmp_path / "a.sqlite",)))
