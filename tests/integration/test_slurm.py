"""Jobs on a real Slurm of four emulated nodes, through the command line."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Hpcprof
from tests.integration.slurm_cluster import Cluster, Unavailable, cluster

pytestmark = pytest.mark.slow

SITE = """\
extends: generic-slurm
launcher: {name: srun, arguments: ["--mpi=pmi2"]}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster; without Slurm the tests are skipped, but not in CI."""
    try:
        with cluster(tmp_path_factory.mktemp("slurm")) as started:
            yield started
    except Unavailable as missing:
        assert not os.environ.get("CI"), f"CI installs Slurm: {missing}"
        pytest.skip(str(missing))


@pytest.fixture
def slurm(running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, with a site of it in the working directory."""
    monkeypatch.setenv("SLURM_CONF", str(running.configuration))
    (tmp_path / "site_configs").mkdir()
    (tmp_path / "site_configs/here.yaml").write_text(SITE)
    return running


def submit(hpcprof: Hpcprof, *arguments: str) -> str:
    done = hpcprof("submit", "--site", "here", "--walltime", "5m", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1]


def state(hpcprof: Hpcprof, run: str) -> tuple[str, str]:
    words = " ".join(hpcprof("status", run).stdout.splitlines()[1:]).split(maxsplit=2)
    return words[1], words[2] if len(words) > 2 else ""


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.2)


def job_id(tmp_path: Path, run: str) -> str:
    found: str = json.loads((tmp_path / "runs" / run / "run.json").read_text())["scheduler_job_id"]
    return found


def test_two_nodes_run_four_ranks_of_one_mpi_job_and_the_chosen_ranks_are_profiled(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    shape = ["--nodes", "2", "--ranks-per-node", "2"]
    profiler = ["--profiler", "torch", "--profile-ranks", "local=0"]
    run = submit(hpcprof, *shape, *profiler, "--wait", "--workload", "sequence-parallel")
    folder = tmp_path / "runs" / run
    results = [json.loads(path.read_text()) for path in sorted((folder / "results").iterdir())]
    assert [(r["rank"], r["world_size"], r["local_rank"]) for r in results] == [
        (0, 4, 0),
        (1, 4, 1),
        (2, 4, 0),
        (3, 4, 1),
    ]
    assert sorted(path.name for path in (folder / "profiles").iterdir()) == [
        "rank00000.trace.json.gz",
        "rank00002.trace.json.gz",
    ]
    assert (folder / "state/nodes").read_text().startswith("n[")
    assert hpcprof("collect", run).returncode == 0
    assert "4 ranks" not in hpcprof("report", run).stdout.splitlines()[0]


def test_a_failing_rank_fails_the_run_with_its_exit_code(slurm: Cluster, hpcprof: Hpcprof) -> None:
    done = hpcprof("submit", "--site", "here", "--wait", "--", "sh", "-c", "echo no cheese >&2; exit 3")
    assert done.returncode == 1
    assert "failed: exit code 3" in done.stderr
    assert "no cheese" in done.stderr


def test_a_job_is_cancelled(slurm: Cluster, hpcprof: Hpcprof) -> None:
    run = submit(hpcprof, "--", "sleep", "300")
    until(lambda: state(hpcprof, run)[0] == "running")
    assert hpcprof("cancel", run).stdout.endswith("cancelled\n")


def test_a_job_over_its_walltime_is_a_timeout(slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path) -> None:
    run = submit(hpcprof, "--", "sleep", "300")
    until(lambda: state(hpcprof, run)[0] == "running")
    slurm.command("scontrol", "update", f"jobid={job_id(tmp_path, run)}", "EndTime=now+1")
    # Slurm looks for jobs over their limit every half minute.
    until(lambda: state(hpcprof, run)[0] not in ("running", "queued"), seconds=150)
    found, reason = state(hpcprof, run)
    assert (found, "walltime" in reason) == ("timeout", True)


def test_a_job_waits_for_another_and_is_removed_when_that_fails(slurm: Cluster, hpcprof: Hpcprof) -> None:
    first = submit(hpcprof, "--", "sleep", "300")
    second = submit(hpcprof, "--after", first, "--", "true")
    assert state(hpcprof, second)[0] == "queued"
    hpcprof("cancel", first)
    until(lambda: state(hpcprof, second)[0] == "cancelled")
    done = hpcprof("submit", "--site", "here", "--after", first, "--", "true")
    assert done.returncode == 2
    assert f"--after {first}: it is cancelled" in done.stderr


def test_a_job_that_can_never_run_says_so(slurm: Cluster, hpcprof: Hpcprof) -> None:
    run = submit(hpcprof, "--nodes", "2", "--walltime", "20h", "--", "true")
    until(lambda: "never" in state(hpcprof, run)[1])
    assert state(hpcprof, run)[0] == "queued"
    hpcprof("cancel", run)


def test_a_job_whose_node_is_lost_is_queued_again(slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path) -> None:
    run = submit(hpcprof, "--", "sleep", "300")
    until(lambda: state(hpcprof, run)[0] == "running")
    node = (tmp_path / "runs" / run / "state/nodes").read_text().strip()
    try:
        slurm.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        until(lambda: state(hpcprof, run)[0] == "queued")
    finally:
        hpcprof("cancel", run)
        # The node comes back by itself (ReturnToService).
        until(lambda: slurm.idle_nodes() == slurm.nodes)


def test_a_job_that_slurm_does_not_take_is_one_sentence_and_a_failed_run(
    slurm: Cluster, hpcprof: Hpcprof
) -> None:
    done = hpcprof("submit", "--site", "here", "--queue", "nosuch", "--", "true")
    assert done.returncode == 1
    assert "Invalid partition name specified" in done.stderr
    assert state(hpcprof, "last") == ("failed", "the scheduler did not take it")


def test_an_unreachable_slurm_is_unknown_and_never_failed(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(hpcprof, "--wait", "--", "true")
    configuration = tmp_path / "slurm.conf"
    text = slurm.configuration.read_text()
    port = text.split("SlurmctldPort=")[1].split()[0]
    configuration.write_text(text.replace(f"SlurmctldPort={port}", "SlurmctldPort=1"))
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    found, reason = state(hpcprof, run)
    assert found == "unknown"
    assert "Unable to contact slurm controller" in reason


def test_a_hundred_jobs_are_tracked_by_one_question_a_poll(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ",".join(map(str, range(100)))
    done = hpcprof("sweep", "--site", "here", "--walltime", "5m", "-P", f"i={values}", "--", "echo", "{i}")
    assert done.stdout.count("submitted") == 100, done.stderr
    tools, calls = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    for name in ("squeue", "sacct"):
        (tools / name).write_text(f'#!/bin/sh\necho {name} >>{calls}\nexec {shutil.which(name)} "$@"\n')
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert len(hpcprof("list").stdout.splitlines()) == 101
    assert calls.read_text().split().count("squeue") == 1
    assert calls.read_text().split().count("sacct") <= 1
    until(lambda: hpcprof("list").stdout.count("completed") == 100, seconds=120)
