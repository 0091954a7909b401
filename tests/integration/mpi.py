"""Start programs on MPI ranks on this machine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import hpcprof
from hpcprof.profiles.readers.results import parse_result
from hpcprof.workloads.schema import RankResult
from tests.integration.rank_server import ADDRESS, SPACE
from tests.shared_server import shared_server

PYTHON = [sys.executable, "-IS", str(Path(__file__).with_name("rank_server.py"))]
"""The interpreter of a rank that `mpi` starts."""
WORKLOAD = [*PYTHON, "-m", "hpcprof.workloads.sequence_parallel"]
# Enough for ranks that share one busy core, and far less than the half hour that gloo waits for a lost rank.
LIMIT_S = 480


@dataclass(frozen=True)
class Finished:
    """The results of a command."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def said(self) -> list[str]:
        """The lines on stderr, without MPI's own message about an abort."""
        return [line for line in self.stderr.splitlines() if not line.startswith("Abort(")]

    def results(self) -> list[RankResult]:
        """Read every results file, by name."""
        return [parse_result(path.read_text()) for path in sorted((self.folder / "results").iterdir())]


def need_mpich() -> Path:
    """Return mpiexec of the MPICH wheel; without it the test is skipped, but not in CI."""
    # Next to the interpreter, not its resolved path: a virtual environment links to a Python elsewhere.
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.is_file() and not os.environ.get("CI"):
        pytest.skip("no MPICH is installed beside this Python: pip install mpich")
    return mpiexec


def rank_server() -> str:
    """Return the address of the server of ranks."""
    # One thread: several ranks, and other tests, share the cores.
    return shared_server("tests.integration.rank_server", SPACE | {"OMP_NUM_THREADS": "1"})


def forking_python(folder: Path) -> Path:
    """Write a stand-in for Python, for ``-o python=PATH``, that the server of ranks forks."""
    path = folder / "forking-python"
    command = shlex.join([f"{ADDRESS}={rank_server()}", *PYTHON])
    path.write_text(f'#!/bin/sh\nexec env {command} "$@"\n')
    path.chmod(0o755)
    return path


def mpi(
    ranks: int,
    command: Sequence[str],
    folder: Path,
    **variables: str,
) -> Finished:
    """Run ``command`` on ``ranks`` ranks of this machine, in ``folder``."""
    mpiexec = need_mpich()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HPCPROF_")}
    root = Path(hpcprof.__file__).parents[1]
    environment |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", ADDRESS: rank_server(), **variables}
    done = subprocess.run(
        [str(mpiexec), "-iface", "lo", "-n", str(ranks), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr, folder)
