"""The same jobs on every scheduler: this machine, a stand-in for PBS, and a real Slurm."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from hpcprof.common.errors import SchedulerError
from hpcprof.runs.directory import Run, all_runs, find_run, find_runs
from hpcprof.runs.live_steps import read_live_steps
from hpcprof.serve.app import serve_store
from hpcprof.serve.guard import LOCAL_NAMES, Access, all_names
from hpcprof.submit.launchers import ROOT_VARIABLES
from hpcprof.submit.runs.failures import describe_status
from hpcprof.submit.schedulers import polling
from hpcprof.submit.schedulers.base import JobState, JobStatus, user_name
from hpcprof.submit.schedulers.pbs import PbsScheduler
from hpcprof.submit.schedulers.polling import poll
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.submission import submit
from tests.conftest import Hpcprof
from tests.data.many_ranks import write_all
from tests.integration.mpi import forking_python, need_mpich
from tests.integration.slurm_cluster import Cluster, cluster_or_skip, free_ports
from tests.integration.test_failing_ranks import NSYS
from tests.integration.test_study import NSYS as RECORDED_NSYS
from tests.integration.test_study import install
from tests.jobs import make_job
from tests.waiting import until

pytestmark = pytest.mark.slow

STANDIN = Path(__file__).parents[1] / "standins" / "pbs"
WAIT_FOR_GO = 'while [ ! -e "$HPCPROF_RUN_DIR/go" ]; do sleep 0.05; done'

SLURM_SITE = """\
extends: generic-slurm
launcher: {name: srun, arguments: [--mpi=pmi2]}
environment: {FI_TCP_IFACE: lo, OMP_NUM_THREADS: "1"}
"""
# PBS passes no variables on: where mpiexec is Open MPI's, these allow root and more ranks than cores.
PBS_SITE = f"""\
extends: generic-pbs
launcher: {{name: mpiexec}}
environment: {{{", ".join(f'{name}: "{value}"' for name, value in ROOT_VARIABLES.items())}, \
OMPI_MCA_rmaps_base_oversubscribe: "1"}}
"""


def by_us(site: str) -> str:
    """Return who cancelled a job: what PBS itself says, or the note of the command."""
    return "by tester@pbshost" if site == "pbs" else f"by {user_name(os.getuid())}, with hpcprof cancel"


@pytest.fixture(autouse=True)
def _no_silence_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the clusters of other tests, which may have been silent a short while ago."""
    monkeypatch.setattr(polling, "_silent_schedulers", {})


@pytest.fixture(scope="session")
def running_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_or_skip(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def slurm(running_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A site ``slurm`` in ``tmp_path``, on the real Slurm."""
    monkeypatch.setenv("SLURM_CONF", str(running_slurm.configuration))
    write_site(tmp_path, "slurm", SLURM_SITE)
    monkeypatch.chdir(tmp_path)
    return running_slurm


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site ``pbs`` in ``tmp_path``; the folder of its server."""
    server = tmp_path / "pbs-server"
    server.mkdir()
    monkeypatch.setenv("PBS_STANDIN", str(server))
    monkeypatch.setenv("PBS_STANDIN_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{STANDIN}:{os.environ['PATH']}")
    write_site(tmp_path, "pbs", PBS_SITE)
    monkeypatch.chdir(tmp_path)
    return server


@pytest.fixture(params=["local", "pbs", "slurm"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "local":
        request.getfixturevalue(request.param)
    monkeypatch.chdir(tmp_path)
    return str(request.param)


def write_site(folder: Path, name: str, text: str) -> None:
    (folder / "site_configs").mkdir(exist_ok=True)
    (folder / "site_configs" / f"{name}.yaml").write_text(text)


def last(hpcprof: Hpcprof) -> tuple[str, str]:
    """Return the state and the detail that ``status`` shows of the last run."""
    shown = hpcprof("status", "last").stdout.splitlines()
    _, state, *detail = " ".join(shown[1:]).split()
    return state, " ".join(detail)


def the_run() -> Run:
    return find_run("last", Path("runs"))


def submitted(site: str, *program: str, after: Sequence[Run] = ()) -> Run:
    """Submit a program within this process."""
    loaded = load_site(site)
    job = make_job(loaded, arguments=list(program), walltime="5m", after=[run.id for run in after])
    return submit(loaded, job, Path("runs"), ["hpcprof"])


def submitted_on_two_nodes(*program: str) -> Run:
    """Submit a program with a rank on each of two nodes of the real Slurm."""
    site = load_site("slurm")
    job = make_job(site, arguments=list(program), walltime="5m", nodes=2)
    return submit(site, job, Path("runs"), ["hpcprof"])


def job_id(run: Run) -> str:
    assert run.manifest is not None
    return run.manifest.scheduler_job_id


def status(run: Run) -> JobStatus:
    assert run.manifest is not None
    return find_scheduler(run.manifest.site.scheduler).client().poll([run])[run.id]


def state(run: Run) -> JobState:
    return status(run).state


def test_a_job_waits_runs_and_completes_with_the_logs_of_every_rank(site: str, hpcprof: Hpcprof) -> None:
    script = f"echo rank $HPCPROF_RANK; {WAIT_FOR_GO}"
    done = hpcprof("submit", "--site", site, "--ranks-per-node", "2", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert last(hpcprof)[0] in ("queued", "running")
    until(lambda: last(hpcprof)[0] == "running")
    run = the_run()
    (run.path / "go").touch()
    until(lambda: last(hpcprof)[0] == "completed")
    assert [run.state_file(name) for name in ("finished", "rank00000.exit", "rank00001.exit")] == ["0"] * 3
    assert (run.path / "logs/rank00001.out").read_text() == "rank 1\n"
    until(lambda: (run.path / "logs/job.out").exists())  # PBS brings it after the end


@pytest.mark.parametrize("site", ["pbs", "slurm"], indirect=True)
def test_the_submitting_shell_changes_neither_the_job_nor_what_its_ranks_get(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "SBATCH_JOB_NAME=x SBATCH_ARRAY_INX=0-2 SBATCH_EXPORT=NONE SLURM_EXPORT_ENV=NONE SLURM_NTASKS=7"
    for setting in f"{options} SLURM_ARRAY_TASK_ID=5 PBS_DPREFIX=#XX".split():
        monkeypatch.setenv(*setting.split("=", 1))
    loaded = load_site(site)
    loaded = msgspec.structs.replace(loaded, environment={"SITE": "yes"}, setup=["export SETUP=too"])
    asked: dict[str, Any] = {"scheduler_args": ["--export=NONE"]} if site == "slurm" else {}
    program = ["sh", "-c", "echo $SITE $SETUP ${SLURM_ARRAY_TASK_ID-}"]
    job = make_job(loaded, arguments=program, walltime="5m", name="mine", ranks_per_node=2, **asked)
    run = submit(loaded, job, Path("runs"), ["hpcprof"])
    until(lambda: state(run) is JobState.COMPLETED)
    assert [(run.path / f"logs/rank0000{rank}.out").read_text() for rank in (0, 1)] == ["yes too\n"] * 2
    show = {"slurm": ["scontrol", "show", "job"], "pbs": ["qstat", "-x", "-f", "-F", "json"]}[site]
    shown = subprocess.run([*show, job_id(run)], capture_output=True, text=True).stdout
    assert re.search(r"Job_?Name\W+mine\b", shown)
    assert shown.count("JobId=") <= 1  # no array


ORDINARY_DDP = """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.ones(2, 4)).sum().backward()
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}", flush=True)
dist.barrier()
# Tearing down gloo's threads aborts about one of eight processes of torch 2.13, also without hpcprof.
os._exit(0)
"""


def test_an_ordinary_script_of_torch_distributed_runs_unchanged(
    site: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (tmp_path / "train.py").write_text(ORDINARY_DDP)
    shape = ["--nodes", "2" if site == "slurm" else "1", "--ranks-per-node", "2"]
    ranks = 4 if site == "slurm" else 2
    python = str(forking_python(tmp_path))
    done = hpcprof("submit", "--site", site, *shape, "--wait", "--", python, "train.py")
    assert done.returncode == 0, done.stderr
    total = ranks * (ranks + 1) // 2
    assert said(the_run()) == [f"rank {rank} of {ranks}: {total}\n" for rank in range(ranks)]


def test_a_rank_that_fails_fails_the_run_and_is_named(site: str, hpcprof: Hpcprof) -> None:
    script = '[ "$HPCPROF_RANK" = 1 ] && { echo out of cheese >&2; exit 3; }; exit 0'
    done = hpcprof("submit", "--site", site, "--ranks-per-node", "2", "--wait", "--", "sh", "-c", script)
    assert done.returncode == 1
    assert "failed: exit code 3" in done.stderr
    assert "rank 1 failed first: exit code 3\n  out of cheese" in done.stderr


CRASHING = """\
import os, signal
from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize("site", ["local", "slurm"], indirect=True)
@pytest.mark.parametrize("profiler", ["none", "nsys"])
def test_a_rank_that_crashes_ends_an_mpi_job_is_named_and_costs_no_profile(
    site: str, profiler: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crash.py").write_text(CRASHING)
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(NSYS)
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}:{os.environ['PATH']}")
    shape = ["--nodes", "2" if site == "slurm" else "1", "--ranks-per-node", "2", "--profiler", profiler]
    options = ["--profiler-option", "trace=mpi"] if profiler == "nsys" else []
    # Without an end of its own, the job would last for its walltime, an hour.
    for _ in range(3):
        done = hpcprof("submit", "--site", site, *shape, *options, "--wait", "--", sys.executable, "crash.py")
        # On two nodes of one machine, UCX now and then aborts inside MPI_Init: it reads a damaged address.
        if "UCP_OBJECT_VERSION" not in done.stderr:
            break
    assert done.returncode == 1
    named = "rank 1 failed first: exit code 139 (SIGSEGV, segmentation fault)"
    assert named in done.stderr
    assert named in last(hpcprof)[1]
    ranks = 4 if site == "slurm" else 2
    assert len(list((the_run().path / "profiles").glob("*.sqlite"))) == (ranks if profiler == "nsys" else 0)


def test_a_plain_script_of_the_users_completes_with_its_output_in_the_logs(
    site: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.sh.j2"
    mine.write_text("#!/bin/bash\n#SBATCH --time=5\necho the plain output\nexit {{ job.arguments[1] }}\n")
    done = hpcprof("submit", "--site", site, "--template", str(mine), "--wait", "--", "exit", "0")
    assert done.returncode == 0, done.stderr
    # PBS delivers the output some seconds after the job has ended.
    until(lambda: "the plain output\n" in hpcprof("logs").stdout)
    done = hpcprof("submit", "--site", site, "--template", str(mine), "--wait", "--", "exit", "3")
    assert (done.returncode, "exit code 3" in done.stderr) == (1, True), done.stderr


def test_cancelling_ends_a_running_job_and_leaves_an_ended_one(site: str, hpcprof: Hpcprof) -> None:
    hpcprof("submit", "--site", site, "--", "sleep", "300")
    until(lambda: last(hpcprof)[0] == "running")
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")
    assert last(hpcprof) == ("cancelled", by_us(site))


def test_a_job_of_slurm_tells_that_it_succeeded_or_was_cancelled(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    told = tmp_path / "told"
    tell = tmp_path / "tell"
    tell.write_text(f'#!/bin/sh\nm=$(cat); echo "$m" >>{told}\n')
    tell.chmod(0o755)

    def texts() -> list[str]:
        lines = told.read_text().splitlines() if told.exists() else []
        return [json.loads(line)["text"].partition(" ")[2].partition(" ")[2] for line in lines]

    target = ("--site", "slurm", "--notify", str(tell))
    assert hpcprof("submit", *target, "--wait", "--", "true").returncode == 0
    until(lambda: texts() == ["started on slurm", "succeeded on slurm"])
    told.unlink()
    hpcprof("submit", *target, "--", "sleep", "300")
    until(lambda: texts() == ["started on slurm"])
    hpcprof("cancel", "last")
    until(lambda: texts() == ["started on slurm", "was ended by the scheduler on slurm"])


def test_a_job_over_its_walltime_is_a_timeout(
    site: str, hpcprof: Hpcprof, request: pytest.FixtureRequest
) -> None:
    walltime = "60s" if site == "slurm" else "1s"  # Slurm counts whole minutes
    hpcprof("submit", "--site", site, "--walltime", walltime, "--", "sleep", "300")
    if site == "slurm":
        until(lambda: last(hpcprof)[0] == "running")
        running: Cluster = request.getfixturevalue("slurm")
        running.command("scontrol", "update", f"jobid={job_id(the_run())}", "EndTime=now+1")
    until(lambda: last(hpcprof)[0] not in ("queued", "running"))
    assert last(hpcprof) == (
        "timeout",
        f"the walltime limit ({'00:01:00' if site == 'slurm' else '00:00:01'}) was exceeded",
    )
    assert the_run().state_file("finished") != "0"  # job.sh may outlive its ranks, and note their end


# Steps until it may go.
TRAINING = """
import os, pathlib, time, torch
from hpcprof.workloads.capture import Capture
from hpcprof.workloads.rankenv import RankEnvironment
environment = RankEnvironment.from_environment(os.environ)
with Capture(environment, rank=0, barrier=lambda: None) as capture:
    while not (environment.run_dir / "go").exists():
        with capture.step():
            time.sleep(0.05)
"""


def test_ahead_of_the_walltime_limit_the_trace_is_written_and_said(
    site: str,
    hpcprof: Hpcprof,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The limit is near from the first step on.
    monkeypatch.setattr("hpcprof.submit.rendering.templates.capture_lead", lambda walltime: walltime + 5)
    loaded = load_site(site)
    (tmp_path / "train.py").write_text(TRAINING)
    arguments = [str(forking_python(tmp_path)), "train.py"]
    job = make_job(loaded, arguments=arguments, walltime="5m", profiler="torch")
    run = submit(loaded, job, Path("runs"), ["hpcprof"])
    until(lambda: (run.path / "state/rank00000.stopped").exists())
    assert [path.name for path in (run.path / "profiles").iterdir()] == ["rank00000.trace.json.gz"]
    stopped = "the capture was stopped after 1 step and written"
    said = f"the walltime limit was near: {stopped}"
    until(lambda: last(hpcprof) == ("running", said))
    if site == "slurm":
        running: Cluster = request.getfixturevalue("slurm")
        running.command("scontrol", "update", f"jobid={job_id(run)}", "EndTime=now+1")
        until(lambda: last(hpcprof)[0] != "running")
        exceeded = "the walltime limit (00:05:00) was exceeded"
        assert last(hpcprof) == ("timeout", f"{exceeded}; before that {stopped}")
    else:
        (run.path / "go").touch()
        until(lambda: last(hpcprof)[0] != "running")
        assert last(hpcprof) == ("completed", said)


def test_slurm_queues_a_stalled_job_again_once(slurm: Cluster, hpcprof: Hpcprof) -> None:
    shape = ("--nodes", "4", "--ranks-per-node", "1", "--walltime", "20m")
    stalls = ("--stall-timeout", "10s", "--on-stall", "resubmit")
    hpcprof("submit", "--site", "slurm", *shape, *stalls, "--", "sleep", "1000")
    run = the_run()
    until(lambda: bool(run.state_file("resubmitted")))
    # Slurm begins such a job again after two minutes.
    until(lambda: last(hpcprof)[1].startswith("queued again after a stall"))
    assert (run.path / "stall/rank00000.process").exists()
    hpcprof("cancel", "last")


def test_slurm_profilers_stop_by_the_limit_that_the_job_has_now(slurm: Cluster, hpcprof: Hpcprof) -> None:
    loaded = load_site("slurm")
    job = make_job(loaded, arguments=["sh", "-c", WAIT_FOR_GO], walltime="1h", profiler="torch")
    slurm.command("scontrol", "update", "NodeName=n[1-4]", "State=DRAIN", "Reason=test")
    run = submit(loaded, job, Path("runs"), ["hpcprof"])
    slurm.command("scontrol", "update", f"jobid={job_id(run)}", "TimeLimit=10")
    slurm.command("scontrol", "update", "NodeName=n[1-4]", "State=RESUME")
    began = time.time()
    until(lambda: run.state_file("capture_until") is not None)
    (run.path / "go").touch()
    assert 300 < int(run.state_file("capture_until") or 0) - began < 600
    until(lambda: last(hpcprof)[0] == "completed")


def test_a_job_runs_after_one_that_succeeds_and_never_after_one_that_fails(site: str) -> None:
    first = submitted(site, "sh", "-c", WAIT_FOR_GO)
    if site == "local":
        with pytest.raises(SchedulerError, match="no queue"):
            submitted(site, "true", after=[first])
        (first.path / "go").touch()
        return
    second = submitted(site, "true", after=[first])
    until(lambda: state(first) is JobState.RUNNING)
    until(lambda: "waits for another job" in status(second).reason)
    assert state(second) is JobState.QUEUED
    (first.path / "go").touch()
    until(lambda: state(second).ended)
    assert state(second) is JobState.COMPLETED

    failing = submitted(site, "sh", "-c", f"{WAIT_FOR_GO}; exit 3")
    orphan = submitted(site, "true", after=[failing])
    (failing.path / "go").touch()
    until(lambda: state(orphan).ended)
    assert (state(failing), state(orphan)) == (JobState.FAILED, JobState.CANCELLED)
    assert "did not succeed" in status(orphan).reason


@pytest.mark.parametrize(
    ("site", "executor"), [("pbs", []), ("slurm", ["--executor", "mpi", "--jobs", "2"])], indirect=["site"]
)
def test_a_collect_is_a_job_that_waits_for_its_run(
    site: str, executor: list[str], hpcprof: Hpcprof, tmp_path: Path
) -> None:
    if executor:
        need_mpich()
    write_all(tmp_path / "made", 3, 200)
    script = f'{WAIT_FOR_GO}; cp "$0"/* "$HPCPROF_RUN_DIR/profiles"'
    shape = ["--ranks-per-node", "1", "--walltime", "5m"]
    hpcprof("submit", "--site", site, *shape, "--", "sh", "-c", script, str(tmp_path / "made"))
    run = the_run()
    done = hpcprof("collect", "--submit", *executor, "--walltime", "5m")
    assert done.returncode == 0, done.stderr
    (collect,) = all_runs(run.path / "collect")
    assert the_run().id == run.id
    assert state(collect) is JobState.QUEUED
    (run.path / "go").touch()
    until(lambda: state(collect).ended)
    assert state(collect) is JobState.COMPLETED, (collect.path / "logs/rank00000.err").read_text()
    assert "3 profiles collected, 0 unchanged, 0 skipped" in (collect.path / "logs/rank00000.out").read_text()
    assert "0 profiles collected, 3 unchanged" in hpcprof("collect").stdout


@pytest.mark.parametrize("site", ["pbs", "slurm"], indirect=True)
def test_a_refused_job_leaves_no_run(site: str, hpcprof: Hpcprof) -> None:
    done = hpcprof("submit", "--site", site, "--queue", "nosuch", "--", "true")
    assert done.returncode == 1
    assert {"slurm": "invalid partition specified: nosuch", "pbs": "the queue does not exist: Unknown queue"}[
        site
    ] in done.stderr
    assert hpcprof("list").stdout.startswith("no runs in runs yet: ")
    assert not list(Path("runs").iterdir())


@contextmanager
def client_killed_after(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill each hpcprof that submits when the scheduler has taken its job."""
    real = shutil.which(program)
    assert real is not None
    killer = folder / "killer" / program
    killer.parent.mkdir()
    killer.write_text(f'#!/bin/sh\n"{real}" "$@" >/dev/null\nkill -9 "$PPID"\n')
    killer.chmod(0o755)
    with monkeypatch.context() as changed:
        changed.setenv("PATH", f"{killer.parent}:{os.environ['PATH']}")
        yield


SUBMITTERS = {"pbs": "qsub", "slurm": "sbatch"}


@pytest.mark.parametrize("site", ["pbs", "slurm"], indirect=True)
def test_a_running_job_whose_client_was_killed_is_found_by_its_own_note_and_cancelled(
    plain: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_killed_after(SUBMITTERS[plain], tmp_path, monkeypatch):
        assert hpcprof("submit", "--site", plain, "--", "sleep", "300").returncode == -signal.SIGKILL
    run = the_run()
    assert not job_id(run)
    until(lambda: bool(run.state_file("started")))
    note = run.state_file("job_id")
    assert note
    until(lambda: last(hpcprof) == ("running", ""))
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")
    assert last(hpcprof) == ("cancelled", by_us(plain))


@pytest.mark.parametrize("site", ["pbs", "slurm"], indirect=True)
def test_a_queued_job_whose_client_was_killed_is_found_by_its_script_and_cancelled(
    site: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More nodes, or more time, than there are: it stays in the queue.
    write_site(tmp_path, site, f"extends: generic-{site}\n")
    too_much = {"pbs": ("--queue", "prod", "--nodes", "9"), "slurm": ("--walltime", "2h")}[site]
    with client_killed_after(SUBMITTERS[site], tmp_path, monkeypatch):
        done = hpcprof("submit", "--site", site, *too_much, "--", "true")
        assert done.returncode == -signal.SIGKILL
    until(lambda: "never" in last(hpcprof)[1])
    run = the_run()
    assert (run.state_file("started"), bool(run.job_id)) == (None, True)
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")


@pytest.mark.parametrize("site", ["pbs", "slurm"], indirect=True)
def test_an_array_whose_client_was_killed_is_found_and_cancelled_member_by_member(
    plain: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_killed_after(SUBMITTERS[plain], tmp_path, monkeypatch):
        words = ["--site", plain, "--walltime", "5m", "--array", "--at-once", "1", "-P", "n=1,2,3"]
        assert hpcprof("sweep", *words, "--", "sh", "-c", "sleep 30{n}").returncode == -signal.SIGKILL
    runs = all_runs(Path("runs"))
    assert len(runs) == 3
    until(lambda: states(runs) == ["running", "queued", "queued"])
    assert len({run.job_id for run in runs}) == 3
    assert hpcprof("cancel", runs[1].id).stdout == f"{runs[1].id} cancelled\n"
    assert hpcprof("cancel", sweep_id(runs)).stdout.count("cancelled\n") == 3


@pytest.mark.parametrize("site", ["local", "pbs", "slurm"], indirect=True)
def test_a_run_that_the_scheduler_never_got_is_no_queued_ghost(
    site: str, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = find_scheduler(load_site(site).scheduler).client()
    monkeypatch.setattr(type(client), "submit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        submitted(site, "true")
    assert last(hpcprof) == ("failed", "it was not submitted: it was interrupted")
    note = the_run().path / "state/submitting"
    note.write_text(note.read_text().partition("\n")[0].replace(f" {os.getpid()} ", " 4711 "))
    ended = f"process 4711 on {platform.node()} ended while it submitted the run"
    assert last(hpcprof) == ("failed", f"{ended}, and the scheduler has no job of it")
    assert hpcprof("cancel", "last").stdout.endswith("failed\n")


def swept(hpcprof: Hpcprof, site: str, values: str, program: str, *options: str) -> list[Run]:
    """Submit ``sh -c program`` for each value of {n} as an array, and return its runs."""
    words = ["--site", site, "--walltime", "5m", "--array", *options, "-P", f"n={values}"]
    done = hpcprof("sweep", *words, "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    return find_runs(done.stdout.split()[-1], Path("runs"))


def sweep_id(runs: Sequence[Run]) -> str:
    return runs[0].id.removesuffix(".0")


def states(runs: Sequence[Run]) -> list[str]:
    assert runs[0].manifest is not None
    found = find_scheduler(runs[0].manifest.site.scheduler).client().poll(runs)
    return [found[run.id].state.value for run in runs]


@pytest.fixture
def plain(site: str) -> str:
    """The site with one rank and no launcher, which starts fastest."""
    write_site(Path(), site, f"extends: generic-{site}\nlauncher: {{name: none}}\n")
    return site


arrays = pytest.mark.parametrize("site", ["pbs", "slurm"], indirect=True)


def test_local_a_sweep_is_no_array(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("sweep", "--array", "-P", "n=1,2", "--", "echo", "{n}")
    assert (done.returncode, "site local has no job arrays" in done.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()


@arrays
def test_the_output_of_a_plain_script_in_an_array_is_in_the_logs_of_its_runs(
    site: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.sh.j2"
    mine.write_text("#!/bin/bash\n#SBATCH --time=5\necho this is {{ job.arguments[1] }}\n")
    words = ("--site", site, "--template", str(mine), "--array", "-P", "n=1,2", "--", "echo", "{n}")
    done = hpcprof("sweep", *words)
    assert done.returncode == 0, done.stderr
    one, two = re.findall(r"^submitted (\S+)", done.stdout, re.MULTILINE)
    until(lambda: "this is 1\n" in hpcprof("logs", one).stdout)
    until(lambda: "this is 2\n" in hpcprof("logs", two).stdout)
    assert not [*tmp_path.glob("slurm-*"), *tmp_path.glob("*.o[0-9]*")]


@arrays
def test_the_members_of_an_array_run_so_many_at_once_and_end_each_for_itself(
    plain: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = {"pbs": "qsub", "slurm": "sbatch"}[plain]
    calls = counted(command, tmp_path, monkeypatch)
    program = f"echo this is {{n}}; {WAIT_FOR_GO}; [ {{n}} != c ] || exit 3"
    runs = swept(hpcprof, plain, "a,b,c,d", program, "--at-once", "2")
    assert len(calls.read_text().splitlines()) == 1
    until(lambda: states(runs) == ["running", "running", "queued", "queued"])
    until(lambda: bool(status(runs[3]).reason))
    for run in runs:
        (run.path / "go").touch()
    until(lambda: all(status(run).state.ended for run in runs))
    assert states(runs) == ["completed", "completed", "failed", "completed"]
    assert status(runs[2]).exit_code == 3
    assert [run.state_file("finished") for run in runs] == ["0", "0", "3", "0"]
    for run, name in zip(runs, "abcd", strict=True):
        assert (run.path / "logs/rank00000.out").read_text() == f"this is {name}\n"
        until((run.path / "logs/job.err").exists)  # PBS brings it after the end
    assert len({job_id(run) for run in runs}) == 4
    shown = hpcprof("status", sweep_id(runs)).stdout
    assert [shown.count(word) for word in ("completed", "failed")] == [3, 1]
    assert hpcprof("logs", runs[1].id).stdout.endswith("this is b\n")


@arrays
def test_a_member_and_then_all_of_an_array_are_cancelled(plain: str, hpcprof: Hpcprof) -> None:
    runs = swept(hpcprof, plain, "1,2,3,4", "sleep 300; : {n}", "--at-once", "2")
    until(lambda: states(runs) == ["running", "running", "queued", "queued"])
    assert hpcprof("cancel", runs[3].id).stdout == f"{runs[3].id} cancelled\n"
    assert hpcprof("cancel", runs[0].id).stdout == f"{runs[0].id} cancelled\n"
    until(lambda: states(runs) == ["cancelled", "running", "running", "cancelled"])
    assert hpcprof("cancel", sweep_id(runs)).stdout == "".join(f"{run.id} cancelled\n" for run in runs)
    # PBS says nothing of a member that never ran.
    assert [status(run).reason for run in runs] == [*[by_us(plain)] * 3, by_us("slurm")]
    assert hpcprof("cancel", sweep_id(runs)).stdout.count("cancelled") == 4


@arrays
def test_a_member_is_resubmitted_as_a_job_of_its_own(plain: str, hpcprof: Hpcprof) -> None:
    runs = swept(hpcprof, plain, "1,2", "exit {n}")
    until(lambda: states(runs) == ["failed", "failed"])
    done = hpcprof("resubmit", runs[1].id, "--wait")
    assert "failed: exit code 2" in done.stderr
    again = the_run()
    assert again.id not in [run.id for run in runs]
    assert "[" not in job_id(again)
    assert "_" not in job_id(again)
    here, there = ((run.path / "job.sh").read_text().splitlines()[2:] for run in (again, runs[1]))
    assert [line.replace(again.id, runs[1].id) for line in here] == there


@arrays
def test_an_array_waits_for_a_run_and_is_removed_with_it(plain: str, hpcprof: Hpcprof) -> None:
    first = submitted(plain, "sh", "-c", WAIT_FOR_GO)
    runs = swept(hpcprof, plain, "1,2", ": {n}", "--after", first.id)
    until(lambda: "waits for another job" in status(runs[1]).reason)
    assert states(runs) == ["queued", "queued"]
    (first.path / "go").touch()
    until(lambda: states(runs) == ["completed", "completed"])

    failing = submitted(plain, "sh", "-c", f"{WAIT_FOR_GO}; exit 3")
    orphans = swept(hpcprof, plain, "1,2", ": {n}", "--after", failing.id)
    (failing.path / "go").touch()
    until(lambda: states(orphans) == ["cancelled", "cancelled"])
    assert "did not succeed" in status(orphans[1]).reason


def test_slurm_a_run_waits_for_a_member_or_a_whole_array(slurm: Cluster, hpcprof: Hpcprof) -> None:
    write_site(Path(), "slurm", "extends: generic-slurm\nlauncher: {name: none}\n")
    runs = swept(hpcprof, "slurm", "1,2,3,4", f"{WAIT_FOR_GO}; : {{n}}", "--at-once", "1")
    until(lambda: states(runs) == ["running", "queued", "queued", "queued"])
    after = submitted("slurm", "true", after=[runs[1]])
    orphan = submitted("slurm", "true", after=[runs[3]])
    done = hpcprof("submit", "--site", "slurm", "--after", sweep_id(runs), "--", "true")
    assert done.returncode == 0, done.stderr
    last_of_all = the_run()
    assert last_of_all.manifest is not None
    assert last_of_all.manifest.job.after == [run.id for run in runs]
    # One that waits is cancelled, which Slurm alone would take for an end like any other.
    hpcprof("cancel", runs[3].id)
    until(lambda: states([orphan, last_of_all]) == ["cancelled", "cancelled"])
    for run in runs:
        (run.path / "go").touch()
    until(lambda: states([after]) == ["completed"])
    assert states(runs)[1] == "completed"


def test_pbs_a_run_is_not_submitted_after_an_array_that_has_not_ended(pbs: Path, hpcprof: Hpcprof) -> None:
    write_site(Path(), "pbs", "extends: generic-pbs\nlauncher: {name: none}\n")
    runs = swept(hpcprof, "pbs", "1,2", f"{WAIT_FOR_GO}; : {{n}}")
    # The server lists the members of an array a moment after it has taken the array.
    until(lambda: states(runs) == ["running", "running"])
    for reference in (runs[1].id, sweep_id(runs)):
        done = hpcprof("submit", "--site", "pbs", "--after", reference, "--", "true")
        assert done.returncode == 1
        assert "is a member of an array" in done.stderr, done.stderr
    for run in runs:
        (run.path / "go").touch()
    until(lambda: states(runs) == ["completed", "completed"])
    done = hpcprof("submit", "--site", "pbs", "--after", sweep_id(runs), "--wait", "--", "true")
    assert done.returncode == 0, done.stderr


@arrays
def test_an_array_larger_than_the_scheduler_takes_is_refused_before_anything_is_made(
    plain: str, hpcprof: Hpcprof
) -> None:
    values = ",".join(map(str, range(21)))
    done = hpcprof("sweep", "--site", plain, "--array", "-P", f"n={values}", "--", "echo", "{n}")
    assert done.returncode == 2
    assert "21 runs exceed the scheduler's limit of 20 for one job array" in done.stderr
    assert not Path("runs").exists()


@arrays
def test_the_members_of_an_array_are_polled_by_one_question(
    plain: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = swept(hpcprof, plain, ",".join(map(str, range(8))), ": {n}")
    calls = counted({"pbs": "qstat", "slurm": "squeue"}[plain], tmp_path, monkeypatch)
    assert len(states(runs)) == 8
    assert len(calls.read_text().splitlines()) == 1
    until(lambda: states(runs) == ["completed"] * 8)


def test_pbs_a_job_that_can_never_run_says_so(pbs: Path, hpcprof: Hpcprof) -> None:
    write_site(Path(), "pbs", "extends: generic-pbs\n")
    done = hpcprof("submit", "--site", "pbs", "--queue", "prod", "--nodes", "9", "--", "true")
    assert done.returncode == 0, done.stderr
    assert last(hpcprof) == ("queued", "it can never run: Not enough total nodes available")
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")


def test_pbs_a_new_site_has_the_active_environment_and_the_probe_names_the_launcher_of_jobs(
    pbs: Path, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpiexec = need_mpich()
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("FI_TCP_IFACE", "lo")
    done = hpcprof("sites", "new", "found", "--from", "generic-pbs", "--probe")
    assert f"MPI: Jobs run {mpiexec}, which starts 2 ranks of one job." in done.stdout, done.stderr
    assert load_site("found").setup == [f"source {sys.prefix}/bin/activate"]
    assert f"Jobs run {mpiexec}; no ranks" in " ".join(hpcprof("doctor", "--site", "found").stdout.split())
    # Without it, the job has the PATH of its node.
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:{os.environ['PATH']}")
    said = " ".join(hpcprof("doctor", "--site", "generic-pbs").stdout.split())
    assert f"{mpiexec} was found, but PBS passes no environment on" in said
    assert not list(Path().glob(".hpcprof-probe-*"))


def test_pbs_a_new_site_where_there_is_no_slurm_extends_that_of_pbs(
    pbs: Path, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for program in ("sh", "cat"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", f"{STANDIN}:{tmp_path}/bin")
    done = hpcprof("sites", "new", "found")
    assert done.returncode == 0, done.stderr
    assert load_site("found").scheduler == "pbs"


def test_pbs_a_dead_node_of_a_running_job_is_said(pbs: Path, hpcprof: Hpcprof) -> None:
    hpcprof("submit", "--site", "pbs", "--", "sleep", "300")
    until(lambda: last(hpcprof) == ("running", ""))
    recorded = Path(__file__).parents[1] / "data/schedulers/pbs/pbsnodes_l.txt"
    (pbs / "nodes-down").write_text(recorded.read_text().replace("pn4", "pn1"))
    assert last(hpcprof) == ("running", "pn1 is down, so the job cannot continue")
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")


def test_pbs_an_array_is_cancelled_to_the_last_member_after_another_was_cancelled(
    pbs: Path, hpcprof: Hpcprof
) -> None:
    write_site(Path(), "pbs", "extends: generic-pbs\nlauncher: {name: none}\n")
    runs = swept(hpcprof, "pbs", "1,2,3,4", "sleep 30{n}")
    until(lambda: states(runs) == ["running"] * 4)
    assert hpcprof("cancel", runs[2].id).stdout.endswith("cancelled\n")
    done = hpcprof("cancel", sweep_id(runs))
    assert (done.returncode, done.stdout.count("cancelled\n")) == (0, 4), done.stderr
    assert states(runs) == ["cancelled"] * 4
    assert sum('"qdel' in line for line in (pbs / "calls").read_text().splitlines()) == 3


@pytest.fixture
def pbs_without_history(pbs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (pbs / "nohistory").touch()
    monkeypatch.setattr(PbsScheduler, "keeps_history", True)
    write_site(Path(), "pbs", "extends: generic-pbs\nlauncher: {name: none}\n")
    return pbs


def test_pbs_without_history_a_run_is_running_completes_and_is_cancelled(
    pbs_without_history: Path, hpcprof: Hpcprof
) -> None:
    hpcprof("submit", "--site", "pbs", "--", "sh", "-c", WAIT_FOR_GO)
    until(lambda: last(hpcprof)[0] == "running")
    assert last(hpcprof) == ("running", "")
    (the_run().path / "go").touch()
    until(lambda: last(hpcprof)[0] == "completed")
    assert hpcprof("submit", "--site", "pbs", "--wait", "--", "true").returncode == 0
    hpcprof("submit", "--site", "pbs", "--", "sleep", "300")
    until(lambda: last(hpcprof)[0] == "running")
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")


def test_pbs_a_launcher_that_waits_for_ranks_is_quoted_while_it_does(
    pbs: Path, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    launcher = tmp_path / "mpiexec"
    launcher.write_text("#!/bin/sh\necho Host key verification failed. >&2\nexec sleep 300\n")
    launcher.chmod(0o755)
    options = ("--site", "pbs", "--ranks-per-node", "2", "-o", f"mpiexec={launcher}")
    hpcprof("render", *options, "--output", "mine", "--", "true")
    script = tmp_path / "mine/job.sh"
    script.write_text(script.read_text().replace("sleep 60", "sleep 0.2"))
    hpcprof("submit", *options, "--script", str(script), "--", "true")
    failed = "ssh to another node failed (Host key verification failed)"
    until(lambda: failed in last(hpcprof)[1])
    assert last(hpcprof)[0] == "running"
    hpcprof("cancel", "last")


def test_pbs_without_history_a_job_that_leaves_no_finished_file_has_failed_after_a_minute(
    pbs_without_history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted("pbs", "sh", "-c", "kill -9 0")
    until(lambda: "does not list it" in status(run).reason)
    assert state(run) is JobState.RUNNING
    assert not PbsScheduler.keeps_history
    words = (pbs_without_history / "calls").read_text().splitlines()
    assert sum('"-x"' in line for line in words) == 1
    monkeypatch.setattr("hpcprof.submit.schedulers.run_state.UNRECORDED_SECONDS", -1.0)
    assert (state(run), status(run).reason.partition(":")[0]) == (JobState.FAILED, "ended without a record")


def test_pbs_without_history_a_job_beyond_its_walltime_is_known_by_what_pbs_wrote_to_its_errors(
    pbs_without_history: Path,
) -> None:
    loaded = load_site("pbs")
    job = make_job(loaded, arguments=["sleep", "300"], walltime="2s")
    run = submit(loaded, job, Path("runs"), ["hpcprof"])
    until(lambda: state(run) is JobState.TIMEOUT)
    assert status(run).reason == "the walltime limit (00:00:02) was exceeded"


def test_pbs_without_history_a_plain_script_has_ended_with_its_output_as_evidence(
    pbs_without_history: Path, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.sh.j2"
    mine.write_text("#!/bin/bash\necho all done\n")
    loaded = load_site("pbs")
    job = make_job(loaded, arguments=["true"], walltime="5m")
    run = submit(loaded, job, Path("runs"), ["hpcprof"], mine)
    seen = []

    def gone() -> bool:
        seen.append(state(run))
        return "does not list it" in status(run).reason

    until(gone)
    assert seen == sorted(seen, key=[JobState.QUEUED, JobState.RUNNING].index)
    until((run.path / "logs/job.out").exists)
    monkeypatch.setattr("hpcprof.submit.schedulers.run_state.UNRECORDED_SECONDS", -1.0)
    shown = poll([run])[run.id]
    assert str(shown).startswith("ended: result unknown: the scheduler no longer lists it")
    assert describe_status(run, shown).endswith("it last printed 'all done'")


def test_pbs_without_history_the_doctor_says_what_is_lost(
    pbs_without_history: Path, hpcprof: Hpcprof
) -> None:
    assert "PBS keeps no job history" in hpcprof("doctor", "--site", "pbs").stdout


def test_slurm_an_outage_is_said_at_once_and_leaves_nothing_behind(slurm: Cluster, hpcprof: Hpcprof) -> None:
    script = f'touch "$HPCPROF_RUN_DIR/begun"; {WAIT_FOR_GO}'
    hpcprof("submit", "--site", "slurm", "--walltime", "5m", "--", "sh", "-c", script)
    run = the_run()
    # A job is running before its srun has asked the controller for a step, without which no rank starts.
    until((run.path / "begun").exists)
    with slurm.without_controller():
        down = "Slurm did not answer: Slurmctld(primary)"
        for words in (
            ["submit", "--site", "slurm", "--walltime", "5m", "--", "true"],
            ["sweep", "--site", "slurm", "--walltime", "5m", "--array", "-P", "n=1,2", "--", "echo", "{n}"],
            ["cancel", "last"],
            ["sites", "new", "away", "--probe"],
        ):
            done = hpcprof(*words)
            assert (done.returncode, down in done.stderr) == (1, True), done.stderr
        assert [path.name for path in Path("runs").iterdir()] == [run.id]
        assert last(hpcprof)[0] == "unknown"
        (run.path / "go").touch()
        until(lambda: last(hpcprof)[0] == "completed")
    assert last(hpcprof)[0] == "completed"
    until(lambda: state(run) is JobState.COMPLETED)


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for nsys whose profiles were recorded once."""
    (tmp_path / "tools").mkdir()
    install(tmp_path / "tools", "nsys", RECORDED_NSYS)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")


PRINT_RANK = (
    "import os; from mpi4py import MPI; w = MPI.COMM_WORLD; os.write(1, b'%d of %d' % (w.rank, w.size))"
)


def said(run: Run) -> list[str]:
    return [path.read_text() for path in sorted((run.path / "logs").glob("rank*.out"))]


@pytest.mark.usefixtures("slurm", "nsys")
def test_slurm_chosen_ranks_of_an_mpi_program_on_two_nodes_are_profiled_and_collected(
    hpcprof: Hpcprof,
) -> None:
    need_mpich()
    shape = ["--nodes", "2", "--ranks-per-node", "2", "--profiler", "nsys", "--profile-ranks", "local=0"]
    program = [sys.executable, "-c", PRINT_RANK]
    done = hpcprof("submit", "--site", "slurm", *shape, "--wait", "--", *program)
    assert done.returncode == 0, done.stderr + done.stdout
    run = the_run()
    # Slurm takes the two that are free: the job of an earlier test may still be ending on one.
    assert re.fullmatch(r"n\[\d[-,]\d\]", run.state_file("nodes") or "")
    assert said(run) == ["0 of 4", "1 of 4", "2 of 4", "3 of 4"]
    assert {path.stem for path in (run.path / "profiles").iterdir()} == {"rank00000", "rank00002"}
    assert hpcprof("collect").returncode == 0
    kernels = json.loads(hpcprof("report", "--analysis", "kernels", "--format", "json").stdout)
    assert {row["rank"] for row in kernels} == {0, 2}


WATCHED = """
import os, time
from pathlib import Path
from hpcprof.node import step_lines

rank = int(os.environ["HPCPROF_RANK"])
if rank == 1:  # as if it had ended its last step half a minute ago
    step_lines.time = lambda: time.time() - 30
lines = step_lines.StepLines(Path(os.environ["HPCPROF_RUN_DIR"]), rank)
step = 0
while not Path("end").exists():
    lines.begin()
    time.sleep(0.02)
    if rank != 1 or step == 0:
        lines.end(step)
        step += 1
"""


def test_slurm_steps_of_two_nodes_are_watched_while_they_run_and_a_stopped_rank_is_named(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    (tmp_path / "watched.py").write_text(WATCHED)
    run = submitted_on_two_nodes("python", "watched.py")
    until(lambda: [steps[-1].step > 0 for steps in read_live_steps(run).values()] == [True, False])
    warning = r"Rank 1 has ended no step for \d+ s, while others go on\."
    name, detail = last(hpcprof)
    assert name == "running"
    # A busy machine also has slow steps.
    assert re.match(
        rf"steps 0 to \d+ on 2 ranks, now [\d.]+ ms a step \(median of the last \d+ steps?\)\. {warning}",
        detail,
    ), detail
    app = serve_store(Path("runs"), None, Access(all_names(LOCAL_NAMES), False, None, port=80))
    with TestClient(app, base_url="http://localhost") as client:
        shown = client.get(f"/api/runs/{run.id}/live").json()
        assert client.get(f"/runs/{run.id}/live").status_code == 200
    assert (shown["state"], [*shown["steps"]]) == ("running", ["0", "1"])
    (said,) = [text for text in shown["warnings"] if text.startswith("Rank")]
    assert re.fullmatch(warning, said)
    (tmp_path / "end").touch()
    until(lambda: state(run) is JobState.COMPLETED)
    name, detail = last(hpcprof)
    assert name == "completed"
    assert re.fullmatch(
        r"steps 0 to \d+ on 2 ranks, [\d.]+ ms a step \((\d+ of )?\d+ steps? of the program; median about "
        r"[\d.]+ ms\)(, \d+ % slower than at the start)?",
        detail,
    )


def test_slurm_ranks_of_the_wheels_mpi_form_one_job_without_an_option(
    slurm: Cluster, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mpich()
    monkeypatch.setenv("FI_TCP_IFACE", "lo")
    shape = ["--site", "generic-slurm", "--nodes", "2", "--ranks-per-node", "2", "--walltime", "5m", "--wait"]
    done = hpcprof("submit", *shape, "--", sys.executable, "-c", PRINT_RANK)
    assert done.returncode == 0, done.stderr + done.stdout
    assert said(the_run()) == ["0 of 4", "1 of 4", "2 of 4", "3 of 4"]
    assert (
        the_run().path / "logs/job.out"
    ).read_text() == "hpcprof: srun starts the ranks with --mpi=pmi2.\n"


def test_slurm_an_mpi_type_that_does_not_fit_is_named_with_the_option_that_cures_it(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    need_mpich()
    shape = ["--site", "generic-slurm", "--ranks-per-node", "2", "--walltime", "5m", "--wait"]
    options = ["-o", "mpi=none", "-o", f"python={forking_python(tmp_path)}"]
    done = hpcprof("submit", *shape, *options, "--workload", "ddp", "--", "--model", "mlp")
    assert done.returncode == 1
    assert "rank 0: MPI has 1 rank, but srun started 2 (--mpi=none): mpi4py uses MPICH" in done.stderr
    assert "give -o mpi=pmi2" in done.stderr


def test_slurm_a_probe_of_two_ranks_finds_the_mpi_type_of_a_new_site(
    slurm: Cluster, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mpich()
    monkeypatch.setenv("FI_TCP_IFACE", "lo")
    done = hpcprof("sites", "new", "probed", "--probe")
    assert done.returncode == 0, done.stderr
    assert "form one job with srun --mpi=pmi2." in done.stdout
    assert load_site("probed").options["mpi"].default == "pmi2"
    until(lambda: not slurm.command("squeue", "--noheader", "--name=hpcprof-probe").strip())
    shape = ["--site", "probed", "--ranks-per-node", "2", "--walltime", "5m", "--wait"]
    done = hpcprof("submit", *shape, "--", sys.executable, "-c", PRINT_RANK)
    assert done.returncode == 0, done.stderr + done.stdout
    assert said(the_run()) == ["0 of 2", "1 of 2"]


def test_slurm_a_new_sites_job_gets_the_gpus_of_its_nodes(slurm: Cluster, hpcprof: Hpcprof) -> None:
    done = hpcprof("sites", "new", "found", "--from", "generic-slurm")
    assert done.returncode == 0, done.stderr
    assert "node_request: gpus-per-node" in Path("site_configs/found.yaml").read_text()
    done = hpcprof("submit", "--site", "found", "--nodes", "2", "--walltime", "5m", "--", "sleep", "300")
    assert done.returncode == 0, done.stderr
    shown = slurm.command("scontrol", "show", "job", job_id(the_run()))
    assert "TresPerNode=gres:gpu:2" in shown
    hpcprof("cancel", "last")


def test_slurm_a_job_gets_the_resources_that_were_asked_for(slurm: Cluster, hpcprof: Hpcprof) -> None:
    asked = [
        "--cpus-per-rank",
        "2",
        "--gpus-per-rank",
        "1",
        "--mem",
        "500M",
        "--scheduler-arg=--exclude=n[1-2]",
    ]
    program = 'echo "$(nproc) $SLURM_CPUS_PER_TASK $SLURM_NTASKS $CUDA_VISIBLE_DEVICES"'
    done = hpcprof(
        "submit", "--site", "slurm", "--ranks-per-node", "2", *asked, "--wait", "--", "sh", "-c", program
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert the_run().state_file("nodes") == "n3"
    assert " 2 2 0,1" in (the_run().path / "logs" / "rank00001.out").read_text()
    shown = slurm.command("scontrol", "show", "job", job_id(the_run()))
    for part in (
        "CPUs/Task=2",
        "NumCPUs=4",
        "MinMemoryNode=500M",
        "TresPerNode=gres:gpu:2",
        "ExcNodeList=n[1-2]",
    ):
        assert part in shown, shown
    done = hpcprof("submit", "--site", "slurm", "--constraint", "nothing", "--", "true")
    assert (done.returncode, "--constraint" in done.stderr or "feature" in done.stderr) == (1, True), (
        done.stderr
    )
    again = hpcprof("resubmit", "last", "--wait")
    assert again.returncode == 0, again.stderr
    assert "MinMemoryNode=500M" in slurm.command("scontrol", "show", "job", job_id(the_run()))


def test_slurm_torchrun_starts_the_ranks_of_two_nodes(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    # The names of emulated nodes stand for no address: they meet on the loopback interface instead.
    (port,) = free_ports(1)
    arguments = f'["--local-addr=127.0.0.1", "--rdzv-endpoint=127.0.0.1:{port}"]'
    site = f"extends: generic-slurm\nlauncher: {{name: torchrun, arguments: {arguments}}}\n"
    write_site(tmp_path, "torchrun", site)
    shape = ["--site", "torchrun", "--nodes", "2", "--ranks-per-node", "2", "--profile-ranks", "local=1"]
    show = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $HPCPROF_RANK $HPCPROF_LOCAL_RANK $HPCPROF_PROFILER"'
    done = hpcprof("submit", *shape, "--profiler", "torch", "--wait", "--", "sh", "-c", show)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [words.split() for words in said(the_run())] == [
        ["0", "4", "0", "0", "0", "none"],
        ["1", "4", "1", "1", "1", "torch"],
        ["2", "4", "0", "2", "0", "none"],
        ["3", "4", "1", "3", "1", "torch"],
    ]


@pytest.mark.usefixtures("slurm", "nsys")
def test_slurm_members_of_an_array_are_mpi_programs_whose_profiles_are_collected(hpcprof: Hpcprof) -> None:
    need_mpich()
    shape = ["--site", "slurm", "--nodes", "2", "--profiler", "nsys", "--array", "-P", "n=1,2"]
    done = hpcprof("sweep", *shape, "--", sys.executable, "-c", PRINT_RANK, "{n}")
    assert done.returncode == 0, done.stderr
    runs = find_runs(done.stdout.split()[-1], Path("runs"))
    until(lambda: all(status(run).state.ended for run in runs))
    assert states(runs) == ["completed", "completed"]
    assert [said(run) for run in runs] == [["0 of 2", "1 of 2"]] * 2
    collected = hpcprof("collect", sweep_id(runs)).stdout
    assert [f"{run.id}: 2 profiles collected" in collected for run in runs] == [True, True]
    kernels = hpcprof("report", runs[1].id, "--analysis", "kernels", "--format", "json").stdout
    assert {row["rank"] for row in json.loads(kernels)} == {0, 1}


def test_slurm_a_job_that_can_never_run_says_so(slurm: Cluster, hpcprof: Hpcprof) -> None:
    hpcprof("submit", "--site", "slurm", "--walltime", "2h", "--", "true")
    until(lambda: "never" in last(hpcprof)[1])
    state, reason = last(hpcprof)
    # Slurm names the limit first, and may later say less.
    limit = "it can never run: its walltime exceeds the partition's limit (PartitionTimeLimit)"
    less = "it can never run: it asks for more than the partition has or permits (PartitionConfig)"
    assert (state, reason) in [("queued", limit), ("queued", less)]
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")


@pytest.mark.parametrize(
    ("directive", "state", "words"),
    [
        ("--no-requeue", "failed", "a node of the job failed"),
        # Its output says so, unless it was ended before that was written.
        ("--requeue", "queued", "queued again(: the node that ran it| after its node) was lost"),
    ],
)
def test_slurm_a_lost_node_fails_a_job_or_queues_it_again(
    directive: str, state: str, words: str, slurm: Cluster, hpcprof: Hpcprof
) -> None:
    write_site(Path(), "slurm", f'{SLURM_SITE}directives: ["{directive}"]\n')
    hpcprof("submit", "--site", "slurm", "--", "sleep", "300")
    until(lambda: last(hpcprof)[0] == "running")
    until(lambda: bool(the_run().state_file("nodes")))
    node = the_run().state_file("nodes") or ""
    slurm.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        # The reason of a job that was queued again comes a moment after its state.
        until(lambda: (found := last(hpcprof))[0] == state and bool(re.search(words, found[1])))
    finally:
        hpcprof("cancel", "last")
        until(lambda: slurm.idle_nodes() == slurm.nodes)  # its daemon is well, so it comes back by itself


def test_slurm_jobs_are_polled_by_one_squeue(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site(tmp_path, "slurm", "extends: generic-slurm\nlauncher: {name: none}\n")
    calls = counted("squeue", tmp_path, monkeypatch)
    many = [submitted("slurm", "true") for _ in range(8)]
    assert not calls.exists()
    scheduler = find_scheduler(load_site("slurm").scheduler).client()
    polls = 0

    def all_completed() -> bool:
        nonlocal polls
        polls += 1
        return all(status.state is JobState.COMPLETED for status in scheduler.poll(many).values())

    until(all_completed)
    assert len(calls.read_text().splitlines()) == polls


def test_slurm_a_controller_that_does_not_answer_leaves_the_state_unknown(
    slurm: Cluster, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hpcprof("submit", "--site", "slurm", "--", "sleep", "300")
    lines = slurm.configuration.read_text().splitlines()
    elsewhere = tmp_path / "slurm.conf"
    changed = {"SlurmctldPort": "9", "MessageTimeout": "100"}
    pairs = [line.partition("=") for line in lines]
    elsewhere.write_text("\n".join("".join((k, e, changed.get(k, v))) for k, e, v in pairs))
    with monkeypatch.context() as away:
        away.setenv("SLURM_CONF", str(elsewhere))
        state, detail = last(hpcprof)
        began = time.monotonic()
        assert poll([the_run()], seconds=2)[the_run().id].state is JobState.UNKNOWN
        # Of the 100 s for which squeue waits; the rest is for a busy machine.
        assert time.monotonic() - began < 80
    assert (state, detail) == ("unknown", "squeue did not answer within 3.5 s.")
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")


def test_slurm_with_accounting_ended_jobs_that_have_left_the_queue_keep_their_state(
    tmp_path: Path, hpcprof: Hpcprof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_site(tmp_path, "slurm", "extends: generic-slurm\nlauncher: {name: none}\n")
    with cluster_or_skip(tmp_path / "slurm", "slurmdbd") as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
        sweep = swept(hpcprof, "slurm", "1,2,3,4,5", "sleep {n}00", "--at-once", "2")
        until(lambda: states(sweep)[:2] == ["running", "running"])
        slurm.command("scancel", job_id(sweep[3]))
        slurm.command("scancel", job_id(sweep[0]).partition("_")[0])
        good = submitted("slurm", "true")
        bad = submitted("slurm", "sh", "-c", "kill -SEGV $$")
        gone = submitted("slurm", "sleep", "300")
        until(lambda: state(gone) is JobState.RUNNING)
        find_scheduler(load_site("slurm").scheduler).client().cancel(gone)
        # The controller forgets ended jobs once a minute at most.
        until(lambda: not slurm.command("squeue", "--noheader", "--states=all").strip(), seconds=200)
        # Those that had not run share a line of sacct; one cancelled by itself while it waited has none.
        until(lambda: [states(sweep)[index] for index in (0, 1, 2, 4)] == ["cancelled"] * 4)
        assert status(sweep[3]).state is not JobState.COMPLETED
        assert [status(run).state for run in (good, bad, gone)] == [
            JobState.COMPLETED,
            JobState.FAILED,
            JobState.CANCELLED,
        ]
        (bad.path / "state/finished").unlink()
        (gone.path / "state/cancelled").unlink()
        assert status(bad).exit_code == 11  # 139, of which sacct subtracts 128
        assert status(gone).state is JobState.CANCELLED
        (good.path / "state/finished").unlink()
        assert status(good).state is not JobState.COMPLETED


def counted(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a wrapper on the PATH that notes each call of a program in the file returned."""
    calls, wrapper = folder / "calls", folder / "bin" / program
    wrapper.parent.mkdir()
    real = next(p for f in os.environ["PATH"].split(":") if os.access(p := f"{f}/{program}", os.X_OK))
    wrapper.write_text(f'#!/bin/sh\necho called >>"{calls}"\nexec "{real}" "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    return calls
