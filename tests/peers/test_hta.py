"""Our figures against HolisticTraceAnalysis itself, in an environment of its own: ``make peers``."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcprof.profiles.readers.kineto.reader import read
from tests.peers import parity

pytestmark = pytest.mark.peers

DATA = Path(__file__).parents[1] / "data"
FIGURES = Path(__file__).parent / "hta_figures.py"
REQUIREMENT = "HolisticTraceAnalysis==0.5.0"
# Read now: the environment of a test is cleaned.
ENVIRONMENT = os.environ.get("HPCPROF_PEERS_DIR")
TRACES = os.environ.get("HPCPROF_PEERS_TRACES")


@pytest.fixture(scope="session")
def hta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install it, or take what an earlier run installed, and return the Python that has it."""
    folder = Path(ENVIRONMENT) if ENVIRONMENT else tmp_path_factory.mktemp("peers")
    place = folder / REQUIREMENT
    python = place / "bin" / "python"
    ready = place / "installed"
    if not ready.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT]
        subprocess.run(pip, check=True)
        ready.touch()
    return python


def figures(python: Path, folder: Path, rounding: str) -> dict[str, Any]:
    """Run it on a folder."""
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "0" if rounding == "rounded" else "1"}
    done = subprocess.run(
        [python, FIGURES, folder], check=True, capture_output=True, text=True, env=environment
    )
    found: dict[str, Any] = json.loads(done.stdout)["figures"]
    return found


def of_fixtures(python: Path, folder: Path) -> Iterator[tuple[str, str, str, Path, dict[str, Any]]]:
    """Yield trace, variant, rounding, the folder and its figures."""
    for trace in ("allocator_rank0.pt.trace.json.gz", "ddp_steps_rank0.pt.trace.json.gz"):
        for variant, path in parity.variants(DATA / trace, folder / trace).items():
            for rounding in ("rounded", "exact"):
                yield trace, variant, rounding, path, figures(python, path, rounding)


def test_the_figures_that_the_other_tests_keep_are_its_figures(hta: Path, tmp_path: Path) -> None:
    kept: dict[str, Any] = json.loads(lzma.decompress((DATA / "hta_expected.json.xz").read_bytes()))
    for trace, variant, rounding, _, found in of_fixtures(hta, tmp_path):
        assert kept[trace][variant][rounding] == found


@pytest.mark.skipif(TRACES is None, reason="HPCPROF_PEERS_TRACES names no folder of traces")
def test_a_folder_of_traces_gives_its_figures(hta: Path) -> None:
    folder = Path(TRACES or "")
    timelines = [read(path) for path in sorted(folder.glob("*.trace.json*"))]
    microseconds, exact = (figures(hta, folder, rounding) for rounding in ("rounded", "exact"))
    for timeline in timelines:
        assert timeline.origin.rank is not None
        parity.check_rounded(timeline, microseconds, timeline.origin.rank)
        parity.check_exact(timeline, exact, timeline.origin.rank)
    parity.check_classes(timelines, exact)
