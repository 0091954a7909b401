"""A program in C, built as its documentation says, under EZTrace."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Hpcprof

pytest.importorskip("otf2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("eztrace", "mpicc.openmpi", "mpirun.openmpi"))),
        reason="needs EZTrace and Open MPI",
    ),
]
STENCIL = Path(__file__).parents[2] / "examples/mpi-stencil/stencil.c"


def test_an_mpi_program_without_a_gpu_is_profiled_as_it_is(
    hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pause of the machine that is longer than all steps would leave none.
    text = STENCIL.read_text(encoding="utf-8").replace("STEPS = 200", "STEPS = 100")
    (tmp_path / "stencil.c").write_text(text, encoding="utf-8")
    subprocess.run(["mpicc.openmpi", "-O2", "stencil.c", "-o", "stencil"], cwd=tmp_path, check=True)
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "1")
    if os.geteuid() == 0:
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    done = hpcprof("run", "--ranks-per-node", "2", "--profiler", "eztrace", "--", "./stencil", "1")
    assert done.returncode == 0, done.stderr
    printed = [float(ms) for ms in re.findall(r"step, (\S+) ms of it computing", done.stdout)]
    assert len(printed) == 2
    report = hpcprof("report", "--analysis", "pop", "--format", "csv").stdout
    balance = {row["scope"]: float(row["load_balance_pct"]) for row in csv.DictReader(report.splitlines())}
    # What it does before and between its steps is not in the time that it prints; balanced ranks have 100.
    assert balance["run"] == pytest.approx(100 * sum(printed) / 2 / max(printed), abs=5)
    assert set(balance) == {"run", "step"}
    report = hpcprof("report", "--analysis", "mpi_matrix", "--format", "csv").stdout
    assert [row["messages"] for row in csv.DictReader(report.splitlines())] == ["200", "200"]
