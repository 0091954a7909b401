"""Logs of NCCL's Inspector: from a program or a folder to bandwidth and the late rank."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcprof as api
from tests.conftest import Hpcprof
from tests.data import inspector_log

PROGRAM = """\
import os, shutil, sys
folder, rank = os.environ["NCCL_INSPECTOR_DUMP_DIR"], os.environ["RANK"]
assert os.environ["NCCL_PROFILER_PLUGIN"] == "inspector" and os.environ["NCCL_INSPECTOR_ENABLE"] == "1"
if os.path.exists(f"{sys.argv[1]}/n1-pid{rank}.log"):
    os.makedirs(folder)
    shutil.copy(f"{sys.argv[1]}/n1-pid{rank}.log", folder)
"""


def write_logs(folder: Path, *, timed: bool = True) -> Path:
    folder.mkdir()
    for rank in range(4):
        (folder / f"n1-pid{rank}.log").write_text(inspector_log.of_slow_rank(rank, timed=timed))
    return folder


def check(folder: Path, name: str) -> None:
    """Check what the analyses say of rank 2, for which the others wait."""
    run = api.open(name, runs_dir=folder / "runs")
    (summary,) = run.collectives_summary().to_dict("records")
    assert (summary["count"], summary["latency_p50_ns"], summary["spread_p50_ns"]) == (40, 500_000, 300_000)
    assert summary["busbw_p50_gbps"] == pytest.approx(1.5 * (1 << 20) / 500_000, rel=1e-5)
    assert [row["rank"] for row in run.skew().to_dict("records") if row["times_last"]] == [2]


@pytest.mark.parametrize("timed", [True, False])
def test_a_folder_of_logs_tells_bandwidth_and_the_late_rank_also_without_times(
    hpcprof: Hpcprof, tmp_path: Path, timed: bool
) -> None:
    logs = write_logs(tmp_path / "logs", timed=timed)
    done = hpcprof("collect", str(logs))
    assert ("have no readable time" in done.stderr) is not timed
    check(tmp_path, str(logs))


def test_a_program_runs_with_the_inspector(hpcprof: Hpcprof, tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs")
    (tmp_path / "train.py").write_text(PROGRAM)
    submit = ("submit", "--inspector", "--wait", "--ranks-per-node")
    hpcprof(*submit, "4", "--", "python3", "train.py", str(logs))
    hpcprof("collect", "last")
    check(tmp_path, "last")
    nothing = "the Inspector wrote no log: NCCL found no libnccl-profiler-inspector.so"
    waited = hpcprof(*submit, "1", "--", "python3", "train.py", "/nothing")
    assert (waited.returncode, f"warning: {nothing}" in waited.stderr) == (0, True)
    assert nothing in " ".join(hpcprof("status", "last").stdout.split())
    done = hpcprof("collect", "last")
    assert done.returncode == 1
    assert nothing in done.stderr


def test_the_inspector_runs_without_a_profiler(hpcprof: Hpcprof) -> None:
    done = hpcprof("submit", "--inspector", "--profiler", "nsys", "--", "true")
    assert "--inspector and --profiler nsys: NCCL's Inspector runs alone; leave one out." in done.stderr
    done = hpcprof("submit", "--inspector", "--capture-steps", "3", "--", "true")
    assert "records every step: leave --capture-steps out" in done.stderr
