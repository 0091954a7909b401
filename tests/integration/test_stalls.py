"""Runs that stand still: real ranks with collectives of gloo, watched by their wrappers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcprof.runs.directory import all_runs
from hpcprof.runs.live_steps import read_live_steps
from tests.command_server import CommandServer
from tests.conftest import Hpcprof
from tests.integration.mpi import forking_python, need_mpich
from tests.waiting import until

pytestmark = pytest.mark.slow

PROGRAM = """\
import ctypes, os, signal, sys, time
import torch, torch.distributed as dist
kind = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
groups = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [2, 0])] if kind == "cycle" else []
def load(step):
    if kind == "stuck" and (step, rank) == (3, 2):
        ctypes.PyDLL(None).sleep(1000)  # holds the interpreter's lock
    if kind == "stopped" and (step, rank) == (3, 1):
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "busy" and (step, rank) == (3, 0):
        os.nice(19)  # other tests come first
        until = time.monotonic() + 14  # longer than the run may stand still
        while time.monotonic() < until: sum(range(1000))
    if kind == "pause" and step == 3:
        time.sleep(14)  # the run counts as stalled, and its evidence is not complete yet
def reduce(step):
    if step == 3 and kind == "order" and rank == 1:
        dist.broadcast(torch.ones(4), 0)
    if step == 3 and kind == "cycle":
        dist.all_reduce(torch.ones(1), group=groups[rank])
        dist.all_reduce(torch.ones(1), group=groups[(rank + 2) % 3])
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
for step in range(6):
    load(step)
    model(torch.randn(4, 8)).sum().backward()
    reduce(step)
    optimizer.step(); optimizer.zero_grad()
dist.barrier()
# Tearing down gloo's threads aborts about one of eight processes of torch 2.13, also without hpcprof.
os._exit(0)
"""
LINES = {line.strip(): number for number, line in enumerate(PROGRAM.splitlines(), 1)}
STALLS = ("stuck", "stopped", "order", "cycle")


STALL = ("--stall-timeout", "10s", "--on-stall")


@dataclass(frozen=True)
class Jobs:
    """The jobs of these tests, which run at the same time, since each waits for most of a minute.

    ``waiting`` has the commands that wait for the end of their jobs, by the name of their folder.
    """

    folder: Path
    hpcprof: Callable[..., str]
    waiting: dict[str, subprocess.Popen[str]]

    def ended(self, *names: str) -> dict[str, Path]:
        """Wait for jobs, and return their runs by name."""
        runs = {run.id.split("-")[2]: run for run in all_runs(self.folder / "runs")}
        until(lambda: all(runs[name].state_file("finished") is not None for name in names), 400)
        return {name: runs[name].path for name in names}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> Iterator[Jobs]:
    """The jobs, once those of PyTorch have begun their steps."""
    folder = tmp_path_factory.mktemp("stalls")

    def hpcprof(*arguments: str) -> str:
        done = command_server.run([*arguments], folder, 480)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait(name: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        (folder / name).mkdir()
        (folder / name / "stuck.py").write_text(STUCK_IN_NCCL)
        return subprocess.Popen(
            [sys.executable, "-m", "hpcprof", *arguments],
            cwd=folder / name,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    sleeps = ("--", "sleep", "1000")
    tell = folder / "tell"
    tell.write_text(f"#!/bin/sh\ncat >>{folder}/messages; echo >>{folder}/messages\n")
    tell.chmod(0o755)
    waiting = {
        "again": wait("again", "submit", "--wait", *STALL, "resubmit", *sleeps),
        "told": wait("told", "run", "--notify", str(tell), *STALL, "stop", *sleeps),
    }
    (folder / "train.py").write_text(PROGRAM)
    python = str(forking_python(folder))
    ranks = dict.fromkeys(STALLS, 3) | {"busy": 2, "pause": 2}
    for kind in ranks:
        hpcprof(
            *("submit", "--ranks-per-node", str(ranks[kind]), *STALL, "stop", "--job-name", kind),
            *("--", python, "train.py", kind),
        )
    runs = [*all_runs(folder / "runs")]
    # Ranks that poll use whole CPUs, so they begin when the others have imported torch.
    until(lambda: sum(len(read_live_steps(run)) for run in runs) == sum(ranks.values()), 400)
    library = folder / "libnccl.so.2"
    library.write_bytes(b"library")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    program = ("--", sys.executable, "-S", "stuck.py", port, str(library))
    waiting["nccl"] = wait(
        *("nccl", "submit", "--wait", *STALL, "stop", *program), NCCL_RAS_ADDR=f"localhost:{port}"
    )
    (folder / "solve.py").write_text(MPI_PROGRAM)
    for kind in ("polling", "computing") if READS_STACKS else ():
        hpcprof(
            *("submit", "-o", f"mpiexec={need_mpich()}", "--ranks-per-node", "2", *STALL, "stop"),
            *("--job-name", kind, "--", sys.executable, "solve.py", kind),
        )
    yield Jobs(folder, hpcprof, waiting)
    for command in waiting.values():
        command.communicate()


@pytest.fixture(scope="module")
def stalled(jobs: Jobs) -> dict[str, dict[str, Any]]:
    """The explanations of runs, one for each kind of stall and two that are none."""
    found = {}
    for kind, path in jobs.ended(*STALLS, "busy", "pause").items():
        exit_code = (path / "state/finished").read_text().strip()
        told = json.loads(jobs.hpcprof("explain", kind, "--format", "json"))
        found[kind] = {**told, "exit_code": exit_code, "path": path}
    return found


def test_a_rank_whose_interpreter_is_stuck_holds_the_others_up(stalled: dict[str, Any], jobs: Jobs) -> None:
    stall = stalled["stuck"]["stall"]
    assert (stall["kind"], stall["ranks"], stall["waiting"]) == ("never_came", [2], [0, 1])
    (place,) = stall["where"]
    line = LINES["ctypes.PyDLL(None).sleep(1000)  # holds the interpreter's lock"]
    assert (place["function"], Path(place["file"]).name, place["line"]) == ("load", "train.py", line)
    assert stall["collective"]["name"] == "all_reduce"
    shown = " ".join(jobs.hpcprof("status", "stuck").split())
    assert "stalled: Rank 2 holds the others up in load (train.py:" in shown


def test_a_stopped_rank_is_told(stalled: dict[str, Any]) -> None:
    stall = stalled["stopped"]["stall"]
    assert (stall["kind"], stall["ranks"], stall["waiting"]) == ("stopped", [1], [0, 2])


def test_another_operation_under_one_number_is_told_with_both_lines(stalled: dict[str, Any]) -> None:
    stall = stalled["order"]["stall"]
    assert (stall["kind"], stall["ranks"]) == ("desynchronized", [1])
    sides = {side["name"]: (side["ranks"], side["where"]["line"]) for side in stall["collective"]["sides"]}
    assert sides == {
        "all_reduce": ([0, 2], LINES["dist.all_reduce(parameter.grad)"]),
        "broadcast": ([1], LINES["dist.broadcast(torch.ones(4), 0)"]),
    }


def test_groups_that_wait_for_each_other_are_a_cycle(stalled: dict[str, Any]) -> None:
    stall = stalled["cycle"]["stall"]
    assert (stall["kind"], stall["ranks"]) == ("cycle", [0, 1, 2])


def test_a_busy_step_is_no_stall(stalled: dict[str, Any]) -> None:
    assert stalled["busy"]["stall"] is None
    assert stalled["busy"]["exit_code"] == "0"


def test_a_run_that_goes_on_while_its_evidence_is_gathered_is_not_ended(stalled: dict[str, Any]) -> None:
    assert (stalled["pause"]["exit_code"], stalled["pause"]["stall"]) == ("0", None)
    assert not (stalled["pause"]["path"] / "state/stall_stop").exists()


def test_a_stalled_job_ends_with_status_5_and_names_its_step_times(stalled: dict[str, Any]) -> None:
    for kind in STALLS:
        told = stalled[kind]
        assert (told["exit_code"], told["findings"]) == ("5", [])
        assert told["stall"]["since"]
        assert told["step"]["ranks"] == 3
        assert all((told["path"] / file).is_file() for file in told["stall"]["evidence"])


MPI_PROGRAM = """\
import os, sys, time
from mpi4py import MPI
os.nice(19)  # ranks that poll leave the CPUs to other tests
comm = MPI.COMM_WORLD
def load():
    if sys.argv[1] == "polling": time.sleep(1000)
    until = time.monotonic() + 14
    while time.monotonic() < until: sum(range(1000))
for step in range(5):
    comm.Barrier()
if comm.rank == 1: load()
comm.Barrier()
"""
MPI_LINES = {line.strip(): number for number, line in enumerate(MPI_PROGRAM.splitlines(), 1)}


READS_STACKS = shutil.which("gdb") or shutil.which("eu-stack")


@pytest.mark.skipif(not READS_STACKS, reason="no gdb, no eu-stack")
def test_ranks_that_poll_in_mpi_wait_and_one_that_computes_does_not(jobs: Jobs) -> None:
    """MPICH polls: a rank that waits uses a whole CPU."""
    runs = jobs.ended("polling", "computing")
    stall = json.loads(jobs.hpcprof("explain", "polling", "--format", "json"))["stall"]
    assert (stall["kind"], stall["ranks"], stall["waiting"]) == ("never_came", [1], [0])
    assert stall["collective"]["name"] == "MPI_Barrier"
    (place,) = stall["where"]
    line = MPI_LINES['if sys.argv[1] == "polling": time.sleep(1000)']
    assert (place["function"], Path(place["file"]).name, place["line"]) == ("load", "solve.py", line)
    assert (runs["computing"] / "state/finished").read_text().strip() == "0"
    assert not (runs["computing"] / "state/stalled").exists()


MPI_UNDER_NSYS = """\
#include <mpi.h>
#include <unistd.h>
static MPI_Comm half;
static void load(void) { sleep(1000); }
static void reduce(void) { double in = 1, out; MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, half); }
int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &half);
    for (int step = 0; step < 5; step++) { MPI_Barrier(MPI_COMM_WORLD); reduce(); }
    if (rank == 2) load();
    reduce();
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}
"""


@pytest.mark.skipif(
    not all(map(shutil.which, ("nsys", "gdb", "mpicc.mpich", "mpiexec.mpich"))),
    reason="no nsys, gdb or MPICH",
)
def test_calls_that_nsys_recorded_give_the_communicators_and_the_last_calls(tmp_path: Path) -> None:
    (tmp_path / "solve.c").write_text(MPI_UNDER_NSYS)
    subprocess.run(["mpicc.mpich", "-g", "solve.c", "-o", "solve"], cwd=tmp_path, check=True)
    job = ("--ranks-per-node", "4", "--profiler", "nsys", "--stall-timeout", "10s", "--on-stall", "stop")
    mpiexec = f"mpiexec={shutil.which('mpiexec.mpich')}"
    command = [sys.executable, "-m", "hpcprof", "submit", "--wait", "-o", mpiexec, *job, "--", "./solve"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "Rank 2 holds the others up in load (solve.c:4). Ranks 0, 1, 3 wait in MPI_" in done.stderr
    last = "MPI_Allreduce of ranks 2,3, MPI_Barrier of MPI_COMM_WORLD, MPI_Allreduce of ranks 2,3 at 20"
    assert f"Rank 2 last ended {last}" in done.stderr
    (run,) = all_runs(tmp_path / "runs")
    assert [len(list((run.path / "profiles").glob(f"*.{kind}"))) for kind in ("nsys-rep", "sqlite")] == [4, 4]


def test_only_a_command_that_waits_submits_a_stalled_job_again(hpcprof: Hpcprof) -> None:
    refused = hpcprof("submit", *STALL, "resubmit", "--", "true")
    assert (refused.returncode, "cannot queue a job again" in refused.stderr) == (2, True)


def test_a_stalled_job_is_submitted_again_once_by_the_command_that_waits(jobs: Jobs) -> None:
    again = jobs.waiting["again"]
    printed, said = again.communicate()
    assert (again.returncode, len(list(all_runs(jobs.folder / "again/runs")))) == (5, 2)
    assert "submitted it again as" in printed
    assert said.count("stalled: ") == 2, said
    command = [sys.executable, "-m", "hpcprof", "status", "--watch", "last"]
    watched = subprocess.run(command, cwd=jobs.folder / "again", capture_output=True, text=True, check=False)
    assert (watched.returncode, "stalled: " in watched.stdout) == (5, True), watched.stdout


def test_a_job_that_makes_no_progress_tells_it_once_and_ends_with_status_5(jobs: Jobs) -> None:
    jobs.waiting["told"].communicate()
    assert jobs.waiting["told"].returncode == 5
    messages = [json.loads(line) for line in (jobs.folder / "messages").read_text().splitlines()]
    assert [message["event"] for message in messages] == ["started", "stalled", "ended"]
    assert "stalled and was ended" in messages[2]["text"]


STUCK_IN_NCCL = """\
import mmap, os, pickle, socket, sys, threading, time
def dump():  # as the thread of PyTorch that looks after NCCL's groups
    stem, target = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"], os.environ["TORCH_FR_DUMP_TEMP_FILE"]
    os.mkfifo(stem + "0.pipe")
    pipe = os.open(stem + "0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    while not os.read(pipe, 128): time.sleep(0.1)
    entry = {"process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce",
             "collective_seq_id": 3}
    record = {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [entry]}
    with open(target + "0", "wb") as file: pickle.dump(record, file)
def monitor():
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    client, _ = server.accept()
    client.sendall(b"Job summary after " + client.recv(100))
    client.close()
library = open(sys.argv[2], "rb")
mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
for one in (dump, monitor): threading.Thread(target=one, daemon=True).start()
time.sleep(1000)
"""


def test_pytorch_and_nccl_are_asked_where_the_interpreter_is_stuck(jobs: Jobs) -> None:
    command = jobs.waiting["nccl"]
    _, said = command.communicate()
    (run,) = all_runs(jobs.folder / "nccl/runs")
    assert command.returncode == 5
    assert "Rank 0 waits in all_reduce, number 3 of group default_pg." in said
    (ras,) = (run.path / "stall").glob("*.ras")
    assert ras.read_text() == "Job summary after verbose status\n"
    # Nothing of it stays outside of the evidence.
    assert not list((run.path / "state/dumps").iterdir())
