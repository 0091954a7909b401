"""The examples for other tools, with their real packages in an environment of its own: ``make peers``."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import hpcprof

pytestmark = pytest.mark.peers

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
DATA = Path(__file__).parents[1] / "data"
REQUIREMENTS = ("mlflow-skinny==3.17.2", "wandb==0.31.0", "reframe-hpc==4.10.4", "pytest==9.2.0")
# Read now: the environment of a test is cleaned.
ENVIRONMENT = os.environ.get("HPCPROF_PEERS_DIR")


@pytest.fixture(scope="session")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the tools, or take what an earlier run installed, beside this environment's packages."""
    folder = Path(ENVIRONMENT) if ENVIRONMENT else tmp_path_factory.mktemp("peers")
    place = folder / "integrations"
    ready = place / "-".join(["installed", *REQUIREMENTS])
    if not ready.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        (packages,) = place.glob("lib/python*/site-packages")
        here = sysconfig.get_path("purelib")
        (packages / "hpcprof.pth").write_text(f"import site; site.addsitedir({here!r})\n", encoding="utf-8")
        ready.touch()
    return place / "bin"


@pytest.fixture
def run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A collected run in the working folder, whose step takes 126.2 ms."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").mkdir()
    for rank in (0, 1):
        packed = (DATA / f"ddp_cap2_rank{rank}.sqlite.xz").read_bytes()
        (tmp_path / f"profiles/rank{rank}.sqlite").write_bytes(lzma.decompress(packed))
    hpcprof.collect_profiles(tmp_path / "profiles")
    return hpcprof.open().id


def run(bin_folder: Path, *words: str | Path, **variables: str) -> str:
    """Run a command with the tools and ``hpcprof`` on its path, and return what it printed."""
    path = f"{bin_folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, **variables, "PATH": path}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_mlflow_has_the_step_time(bin_folder: Path, run_id: str, tmp_path: Path) -> None:
    store = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    run(bin_folder, bin_folder / "python", EXAMPLES / "log_to_mlflow.py", "last", **store)
    (metric,) = (tmp_path / "mlruns").rglob("metrics/step_p50_ns")
    (name,) = (tmp_path / "mlruns").rglob("tags/mlflow.runName")
    assert name.read_text() == run_id
    assert float(metric.read_text().split()[1]) == hpcprof.open(run_id).explain().step.wall_p50_ns


def test_weights_and_biases_has_the_step_time_and_the_kernels(
    bin_folder: Path, run_id: str, tmp_path: Path
) -> None:
    example = EXAMPLES / "log_to_wandb.py"
    run(bin_folder, bin_folder / "python", example, run_id, WANDB_MODE="offline", HOME=str(tmp_path))
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/kernels*.json")
    assert len(json.loads(table.read_text())["data"]) == len(hpcprof.open(run_id).kernels())


def test_reframe_reports_the_step_time(bin_folder: Path, run_id: str, tmp_path: Path) -> None:
    said = run(
        bin_folder,
        *(bin_folder / "reframe", "-c", EXAMPLES / "reframe_check.py", "-r", "--performance-report"),
        *("--prefix", tmp_path / "reframe"),
        RUN=run_id,
        HPCPROF_RUNS=str(tmp_path / "runs"),
        HOME=str(tmp_path),
    )
    assert "PASSED" in said and f"{hpcprof.open(run_id).explain().step.wall_p50_ns}" in said


def test_pytest_checks_the_costs(bin_folder: Path, run_id: str) -> None:
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    said = run(bin_folder, bin_folder / "python", *options, EXAMPLES / "test_costs.py", RUN=run_id)
    assert "1 passed" in said
