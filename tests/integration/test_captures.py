"""Running jobs that record some steps and go on: real ranks with collectives of gloo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.runs.directory import all_runs
from hpcprof.runs.live_steps import read_live_steps
from tests.command_server import CommandServer
from tests.integration.mpi import forking_python
from tests.integration.slurm_cluster import cluster_or_skip
from tests.waiting import until

pytestmark = pytest.mark.slow

PROGRAM = """\
import os, pathlib, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kind, end = sys.argv[1], pathlib.Path("end")
step, over = 0, torch.zeros(1)
while not over and step < 6000:
    time.sleep(0.12 if kind == "slow" and step >= 60 else 0.02)
    model(torch.randn(4, 8)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step(); optimizer.zero_grad()
    step += 1
    over = torch.ones(1) * end.exists()
    dist.broadcast(over, 0)
dist.barrier()
# Tearing down gloo's threads aborts about one of eight processes of torch 2.13, also without hpcprof.
os._exit(0)
"""


TWO = ("--ranks-per-node", "2")


class Job:
    """A job of two ranks, until `end`."""

    def __init__(self, folder: Path, server: CommandServer, kind: str, *options: str) -> None:
        self.folder, self.server = folder, server
        (folder / "train.py").write_text(PROGRAM)
        self.hpcprof("submit", *options, "--", str(forking_python(folder)), "train.py", kind)
        (self.run,) = all_runs(folder / "runs")

    def hpcprof(self, *arguments: str, code: int = 0) -> str:
        """Run a command, and return what it prints."""
        done = self.server.run([*arguments], self.folder, 480)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def end(self) -> None:
        """Have the program end, which it must do by itself."""
        (self.folder / "end").touch()
        until(lambda: self.run.state_file("finished") is not None, 120)
        assert self.run.state_file("finished") == "0"


@pytest.fixture(scope="module", autouse=True)
def slower(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> Job:
    """A job whose steps have become slower; it records them beside the other tests."""
    job = Job(tmp_path_factory.mktemp("slow"), command_server, "slow", *TWO, "--capture-when", "slow:100")
    until(lambda: max((rank[-1].step for rank in read_live_steps(job.run).values()), default=0) >= 60, 200)
    return job


def test_a_running_job_records_the_same_steps_on_all_ranks_and_goes_on(
    tmp_path: Path, command_server: CommandServer
) -> None:
    job = Job(tmp_path, command_server, "even", *TWO)
    until(lambda: len(read_live_steps(job.run)) == 2, 120)
    job.hpcprof("capture", "last", "--steps", "3")
    traces = sorted(path.name for path in (job.run.path / "profiles").iterdir())
    assert traces == ["rank00000.trace.json.gz", "rank00001.trace.json.gz"]
    before = read_live_steps(job.run)[0][-1].step
    until(lambda: read_live_steps(job.run)[0][-1].step > before, 60)
    assert "rank 5 noted no step" in job.hpcprof("capture", "last", "--ranks", "5", code=2)
    job.hpcprof("capture", "last", "--ranks", "1", "--steps", "2")
    assert [path.name for path in (job.run.path / "profiles").iterdir()] == ["rank00001.trace.json.gz"]
    job.hpcprof("capture", "last", "--steps", "3")
    job.end()
    # The scheduler may not know of the end yet.
    told = job.hpcprof("capture", "last", code=1)
    assert "only a running job" in told or "its job has ended" in told
    job.hpcprof("collect", "last")
    explained = json.loads(job.hpcprof("explain", "last", "--format", "json"))
    assert (explained["step"]["steps"], explained["step"]["ranks"]) == (3, 2)


def test_a_job_of_slurm_records_the_same_steps_on_all_nodes_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_server: CommandServer
) -> None:
    with cluster_or_skip(tmp_path / "slurm") as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
        job = Job(
            *(tmp_path, command_server, "even", "--site", "generic-slurm", "--nodes", "2"),
            *("--walltime", "10m"),
        )
        until(lambda: len(read_live_steps(job.run)) == 2, 120)
        job.hpcprof("capture", "last", "--steps", "3", "--ranks", "1")
        (trace,) = (job.run.path / "profiles").iterdir()
        assert trace.name == "rank00001.trace.json.gz"
        before = read_live_steps(job.run)[0][-1].step
        until(lambda: read_live_steps(job.run)[0][-1].step > before, 60)
        job.end()


def test_steps_that_become_slower_are_recorded_and_explained(slower: Job) -> None:
    answers = slower.run.path / "state/captures"
    until(
        lambda: (
            len([*answers.glob("*.json")]) == 2 and "recorded" in (answers / "rank00000.json").read_text()
        ),
        200,
    )
    slower.end()
    slower.hpcprof("collect", "last")
    found = json.loads(slower.hpcprof("explain", "last", "--format", "json"))["slower"]
    # A busy machine may have slowed some steps before the program did.
    assert 40 <= found["since"] <= 62
    assert found["percent"] > 100
    assert "Since step " in slower.hpcprof("explain", "last")
