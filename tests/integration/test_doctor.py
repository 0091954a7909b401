"""The doctor's own commands on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.submit.doctor import Inspected, Status, checks, machine, mpi, node_evidence
from hpcprof.submit.doctor.machine import ask
from hpcprof.submit.doctor.node_evidence import _LOCAL_COMMAND
from hpcprof.submit.launchers import find_mpiexec
from hpcprof.submit.sites.files import load_site

TORCH = '["2.13.0", ["nccl", "gloo"], "12.8", 4]'


def test_a_command_that_hangs_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "COMMAND_SECONDS", 0.1)
    answer = ask(["sleep", "600"])
    assert (answer.exit_code, answer.ok) == (None, False)
    assert answer.why == "sleep did not finish within 0 s and was killed"


def test_a_missing_command_is_an_answer() -> None:
    answer = ask(["/nowhere/x"])
    assert (answer.exit_code, answer.ok) == (None, False)
    assert answer.why == "cannot start /nowhere/x: No such file or directory"


def test_the_last_line_of_a_command_says_why_it_failed() -> None:
    assert ask(["sh", "-c", "echo starting; echo 'no licence.' >&2; exit 3"]).why == "no licence"
    assert ask(["sh", "-c", "exit 3"]).why == "exit code 3"


@pytest.mark.slow
def test_two_real_ranks_are_started_here() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if find_mpiexec() is None:
        pytest.skip("no mpiexec is installed")
    finding = mpi.mpi(Inspected(load_site("local"), Path("runs")))
    assert finding.status is Status.OK, finding


def test_the_torch_of_another_python_is_read_without_importing_it_here(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{TORCH}'\n")
    python.chmod(0o755)
    finding = checks.torch(Inspected(load_site("local"), Path("runs"), python=str(python)))
    assert finding.observation == "2.13.0, backends nccl, gloo, 4 GPUs."


def test_the_doctor_imports_no_torch() -> None:
    code = "import sys, hpcprof.cli.doctor; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert ask([sys.executable, "-c", code], dict(os.environ)).exit_code == 0


def test_the_evidence_of_this_node_is_tried() -> None:
    found = {one.name: one.status for one in node_evidence(Inspected(load_site("local"), Path("runs")))}
    assert found["processes on a node"] is Status.OK
    tools = any(map(shutil.which, ("gdb", "eu-stack")))
    assert found["native stacks on a node"] is (Status.OK if tools else Status.WARNING)


def test_a_node_that_nobody_grants_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = node_evidence(Inspected(load_site("generic-pbs"), tmp_path))
    assert (found.status, "Nothing was tried" in found.observation) == (Status.WARNING, True)


def test_py_spy_is_tried_on_a_program_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text('#!/bin/sh\ngrep -q python "/proc/$4/cmdline" && echo "Thread $4 (idle)"\n')
    tool.chmod(0o700)
    (tmp_path / "python3").symlink_to(sys.executable)
    for name in ("cat", "grep", "head", "sh", "sleep", "tr", "uname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run(_LOCAL_COMMAND, capture_output=True, text=True, check=False)
    assert "traces\tpy-spy\n" in done.stdout
