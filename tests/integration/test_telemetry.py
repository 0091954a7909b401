"""The sampler beside real processes, and the way from a run to the tables of its nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpcprof.node import telemetry
from hpcprof.profiles.readers.telemetry import read_telemetry
from hpcprof.runs.directory import all_runs
from tests.conftest import Hpcprof
from tests.data.nsys_metrics import CLOCK, MS, SENT, gpu, nic, write

pytestmark = pytest.mark.slow


def test_the_sampler_follows_a_rank_and_ends_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    program = """if True:
        import sys, time
        from pathlib import Path
        Path(sys.argv[1], "file").write_bytes(bytearray(40 << 20))
        samples = Path(sys.argv[1], "telemetry/n1.jsonl")
        while not samples.exists() or b"rank2" not in samples.read_bytes():
            time.sleep(0.1)
        data, until = bytearray(40 << 20), time.process_time() + 0.7
        while time.process_time() < until:
            pass
        time.sleep(1.5)
    """
    rank = subprocess.Popen(
        [sys.executable, "-IS", "-c", program, str(tmp_path)],
        env={"HPCPROF_RUN_DIR": str(tmp_path), "HPCPROF_RANK": "2", "CUDA_VISIBLE_DEVICES": "0"},
    )
    script = """if True:
        import sys
        from hpcprof.node import telemetry
        telemetry._MAX_CPU_SHARE = 1.0  # Or a busy machine makes it look for ranks once a minute.
        telemetry.Sampler(sys.argv[1], "n1").run()
    """
    sampler = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env={"PATH": os.defpath})
    assert rank.wait() == 0
    (tmp_path / "state/rank00002.exit").write_text("0\n")
    assert sampler.wait(timeout=240) == 0
    (node,) = read_telemetry(tmp_path)
    assert node.damaged == 0 and node.ranks[2].cores
    cpu = node.series["rank2", "cpu_s"].values
    assert 0.4 < cpu[-1] - cpu[0] < 2.0 and (np.diff(cpu) >= 0).all()
    assert node.series["rank2", "written_bytes"].values[-1] >= 40 << 20
    assert node.series["rank2", "resident_bytes"].values.max() >= 40 << 20
    assert node.series["node", "busy_s"].values[-1] > 0 and node.limits["memory_bytes"] > 0
    assert "NVIDIA GPUs" in node.missing or node.gpus


def test_the_sampler_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    script = "import sys; from hpcprof.node.telemetry import Sampler; Sampler(sys.argv[1], 'n1').run()"
    sampler = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    while not (tmp_path / "telemetry/n1.jsonl").exists():
        time.sleep(0.02)
    sampler.send_signal(signal.SIGTERM)
    assert sampler.wait(timeout=240) == 0
    assert read_telemetry(tmp_path)[0].damaged == 0


def test_a_file_that_stays_open_says_what_is_now_and_nothing_once_its_process_is_gone(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE)
    stat, file = f"/proc/{program.pid}/stat", tmp_path / "file"
    assert telemetry._read_open_file(stat) and stat in telemetry._open_files
    program.communicate(b"\n")
    assert telemetry._read_open_file(stat) == "" and stat not in telemetry._open_files
    file.write_text("1")
    assert telemetry._read_open_file(str(file)) == "1"
    file.write_text("22")
    assert telemetry._read_open_file(str(file)) == "22"
    os.close(telemetry._open_files.pop(str(file)))


def test_a_run_without_a_profiler_has_tables_of_its_nodes(
    tmp_path: Path, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    busy = "import time\nfor _ in range(12): sum(range(10**6)); time.sleep(0.2)"
    job = ["--site", "local", "--wait", "--ranks-per-node", "2"]
    assert hpcprof("submit", *job, "--", sys.executable, "-c", busy).returncode == 0
    # Nothing has to be collected first.
    memory = json.loads(hpcprof("report", "--analysis", "host_memory", "--format", "json").stdout)
    assert [row["rank"] for row in memory] == [0, 1]
    assert "; its nodes, memory and files were collected; no step times" in hpcprof("collect").stdout
    resources = json.loads(hpcprof("report", "--analysis", "job_resources", "--format", "json").stdout)
    assert [row["resource"] for row in resources] == ["cores", "memory (GiB)", "walltime (min)"]
    assert 0 < resources[0]["used_mean"] < 2.0
    samples = json.loads(hpcprof("report", "--analysis", "telemetry", "--format", "json").stdout)
    assert {row["device"] for row in samples if row["metric"] == "cpu"} == {"rank0", "rank1"}
    assert "Resources of the job" in hpcprof("report").stdout
    counted = hpcprof("query", "select count(*) n from analysis_telemetry", "--format", "csv").stdout
    assert counted.split() == ["n", str(len(samples))]
    # What was read once is not read again: these samples would have no rows.
    (run,) = all_runs(tmp_path / "runs")
    (file,) = (run.path / "telemetry").iterdir()
    text = file.read_text()
    file.write_text("x" * len(text))
    hpcprof("collect")
    again = hpcprof("query", "select count(*) n from analysis_telemetry", "--format", "csv").stdout
    assert again == counted
    file.write_text(f"{text}[0]\n")
    hpcprof("collect")
    assert "1 line of samples could not be read" in hpcprof("report", "--analysis", "telemetry").stdout


def test_metrics_in_profiles_are_rows_of_the_same_table(
    tmp_path: Path, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    for rank, clock in ((0, 1755), (1, 1410)):
        samples = [(105 * MS, rank, CLOCK, clock), (117 * MS, rank, CLOCK, clock - 5), (1, rank, 99, 1)]
        write(tmp_path / f"job/rank{rank}.sqlite", gpu(samples) | nic([(112 * MS, 118 * MS, SENT, 7)]))
    assert hpcprof("collect", "job").returncode == 0
    shown = hpcprof("report", "job", "--analysis", "telemetry", "--format", "json").stdout
    columns = ("rank", "device", "first_step", "metric", "unit", "mean")
    assert [tuple(row[name] for name in columns) for row in json.loads(shown)] == [
        row
        for rank, clock in ((0, 1755.0), (1, 1410.0))
        for row in (
            (rank, f"gpu{rank}", 0, "GPC Clock Frequency", "MHz", clock),
            (rank, f"gpu{rank}", 1, "GPC Clock Frequency", "MHz", clock - 5),
            (rank, "nic:mlx5_0", 1, "IB: Bytes sent", "bytes/ms", 7.0),
        )
    ]
    shown = hpcprof("report", "job", "--analysis", "clocks", "--format", "json").stdout
    clocks = [(row["rank"], row["gpu"], row["first_step"], row["sm_mhz_mean"]) for row in json.loads(shown)]
    assert clocks == [(0, 0, 0, 1755.0), (0, 0, 1, 1750.0), (1, 1, 0, 1410.0), (1, 1, 1, 1405.0)]
    counted = hpcprof("query", "--events", "select count(*) n from device_samples", "job", "--format", "csv")
    assert counted.stdout.split() == ["n", "6"]
    lost = "2 of 6 samples of GPUs and NICs have no valid metricId"
    assert lost in hpcprof("report", "job", "--analysis", "telemetry").stdout


def test_without_telemetry_nothing_is_sampled(
    tmp_path: Path, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hpcprof("submit", "--site", "local", "--wait", "--no-telemetry", "--", "sleep", "0.1")
    (run,) = all_runs(tmp_path / "runs")
    assert not (run.path / "telemetry").exists()


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_node_without_python_runs_the_program_and_says_what_is_missing(
    shell: str, tmp_path: Path, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hpcprof("submit", "--site", "local", "--wait", "--no-hook", "--", "true")
    (run,) = all_runs(tmp_path / "runs")
    wrapper = run.path / "wrapper.sh"
    text = wrapper.read_text()
    (tmp_path / "empty").mkdir()
    wrapper.write_text(text.replace("/usr/bin:/bin:/usr/local/bin", str(tmp_path / "empty")))
    assert wrapper.read_text() != text
    # A program that ends at once may end before anything beside it has started.
    waits = f"while [ ! -s {tmp_path}/said ]; do sleep 0.05; done"
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run([shell, str(wrapper), "sh", "-c", waits], stderr=said, timeout=60)
    says = "has no python3: it is not sampled, and nothing notices a stall there.\n"
    assert (tmp_path / "said").read_text() == f"hpcprof: {os.uname().nodename} {says}"
    assert done.returncode == 0
