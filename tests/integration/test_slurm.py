"""Jobs on a real Slurm of four emulated nodes, through the command line."""

from __future__ import annotations

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


def test_a_job_waits_for_another_and_is_removed_when_that_fails(slurm: Cluster, hpcprof: Hpcprof) -> None:
    first = submit(hpcprof, "--", "sleep", "300")
    second = submit(hpcprof, "--after", first, "--", "true")
    assert state(hpcprof, second)[0] == "queued"
    hpcprof("cancel", first)
    until(lambda: state(hpcprof, second)[0] == "cancelled")
    done = hpcprof("submit", "--site", "here", "--after", first, "--", "true")
    assert done.returncode == 2
    assert f"--after {first}: it is cancelled" in done.stderr


def test_a_job_that_slurm_does_not_take_is_one_sentence_and_a_failed_run(
    slurm: Cluster, hpcprof: Hpcprof
) -> None:
    done = hpcprof("submit", "--site", "here", "--queue", "nosuch", "--", "true")
    assert done.returncode == 1
    assert "Invalid partition name specified" in done.stderr
    assert state(hpcprof, "last") == ("failed", "the scheduler did not take it")


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
