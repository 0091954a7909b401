"""Modules in the working folder, which may be somebody else's: hpcprof runs none of them."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from hpcprof.common.processes import NO_WORKING_FOLDER, without_working_folder
from hpcprof.serve import sql

_MODULES = ("json", "multiprocessing", "struct", "hpcprof", "msgspec", "torch", "mpi4py", "runpy", "signal")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Return the names of the modules of the working folder that were imported."""
    mark = tmp_path / "ran"
    mark.mkdir()
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in _MODULES:
        (folder / f"{name}.py").write_text(f"open({str(mark / name)!r}, 'w').close(); raise SystemExit(3)\n")
    monkeypatch.chdir(folder)
    yield lambda: sorted(path.name for path in mark.iterdir())


def test_a_query_imports_nothing_from_the_working_folder(ran: Callable[[], list[str]]) -> None:
    question = '{"sql": "SELECT 1", "db": null, "runs_dir": ".", "runs": null, "seconds": 9, '
    question += '"most_rows": 9, "most_bytes": 999}'
    done = subprocess.run(sql._command(), input=question, capture_output=True, text=True, timeout=60)
    assert ran() == [] and '"error"' in done.stdout, done.stderr


def test_what_doctor_starts_imports_nothing_from_the_working_folder(ran: Callable[[], list[str]]) -> None:
    program = NO_WORKING_FOLDER + "import json, struct; print(json.dumps(1))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran() == [] and done.stdout == "1\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH is of Python 3.11")
def test_workers_import_nothing_from_the_working_folder(ran: Callable[[], list[str]]) -> None:
    server, tracker = forkserver.ForkServer(), resource_tracker.ResourceTracker()
    with without_working_folder():
        server.ensure_running()
        tracker.ensure_running()
    try:
        assert multiprocessing.get_context("forkserver") and ran() == []
    finally:
        server._stop()  # type: ignore[attr-defined]
        tracker._stop()  # type: ignore[attr-defined]
    assert ran() == []
