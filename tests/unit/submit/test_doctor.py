"""The doctor: each check on machines that are made up, and the whole on this one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpcprof.cli.doctor import command
from hpcprof.submit.doctor import (
    CHECKS,
    CheckResult,
    Inspected,
    Status,
    checks,
    examine,
    mpi,
)
from hpcprof.submit.doctor.machine import Answer
from hpcprof.submit.doctor.node_evidence import judge_node, native_stacks
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Site

DOWN = "Slurmctld(primary) at head is DOWN\n********\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n********\n"


def made_up(
    answers: dict[str, Answer] | None = None,
    files: dict[str, str] | None = None,
    site: str | Site = "local",
    **changes: Any,
) -> Inspected:
    """Return a machine that has the commands and files given, and plenty of space."""
    known = answers or {}

    def run(words: Sequence[str], environment: object = None, seconds: float = 0) -> Answer:
        return known[Path(words[0]).name]

    values: dict[str, Any] = {
        "site": load_site(site) if isinstance(site, str) else site,
        "runs": Path("runs"),
        "python": "/usr/bin/python",
        "run": run,
        "which": lambda name: f"/usr/bin/{name}" if name in known else None,
        "read": lambda path: (files or {}).get(str(path)),
        "free": lambda path: 2**40,
        "mpiexec": lambda: "/usr/bin/mpiexec" if "mpiexec" in known else None,
        "environment": {},
        "user": 1000,
    }
    return Inspected(**{**values, **changes})


def site_with(tmpdir: str) -> Site:
    return replace(load_site("generic-slurm"), tmpdir=tmpdir)


SLURM = {"sbatch": Answer(0), "squeue": Answer(0), "scancel": Answer(0)}
PBS = {"qsub": Answer(0), "qdel": Answer(0)}
PARAMETERS = "/proc/driver/nvidia/params"
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
TWO = "rank 1 of 2\nrank 0 of 2\n"
NSYS_2025 = "NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0\n"
NSYS_2023 = "NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0\n"
TORCH = '["2.13.0", ["nccl", "gloo"], "12.8", 4]'

CASES: list[tuple[str, Callable[[Inspected], CheckResult], Inspected, Status, str]] = [
    ("no batch system", checks.scheduler, made_up(), Status.OK, "without a batch system"),
    (
        "no Slurm",
        checks.scheduler,
        made_up(site="generic-slurm"),
        Status.BROKEN,
        "Not on the PATH: sbatch, squeue, scancel.",
    ),
    (
        "Slurm that answers",
        checks.scheduler,
        made_up(
            {**SLURM, "scontrol": Answer(0, "Slurmctld(primary) at head is UP\n")},
            site="generic-slurm",
        ),
        Status.OK,
        "Slurm answers",
    ),
    (
        "Slurm without its controller",
        checks.scheduler,
        made_up({**SLURM, "scontrol": Answer(1, DOWN)}, site="generic-slurm"),
        Status.BROKEN,
        "scontrol ping failed: Slurmctld(primary) at head is DOWN.",
    ),
    (
        "qstat of Grid Engine",
        checks.scheduler,
        made_up({**PBS, "qstat": Answer(1, 'ERROR! invalid option argument "-B"\n')}, site="generic-pbs"),
        Status.BROKEN,
        'qstat refuses -B -f -F json (ERROR! invalid option argument "-B"), so it belongs to another batch',
    ),
    (
        "PBS without job history",
        checks.scheduler,
        made_up(
            {**PBS, "qstat": Answer(0, '{"Server": {"pbs": {"max_array_size": 10000}}}')},
            site="generic-pbs",
        ),
        Status.WARNING,
        "PBS keeps no job history",
    ),
    (
        "PBS with job history",
        checks.scheduler,
        made_up({**PBS, "qstat": Answer(0, '{\t"job_history_enable":\t"True"}')}, site="generic-pbs"),
        Status.OK,
        "PBS answers",
    ),
    ("no MPI", mpi.mpi, made_up(), Status.ABSENT, "mpiexec is not on the PATH"),
    (
        "an MPI that works",
        mpi.mpi,
        made_up({"mpiexec": Answer(0, TWO)}),
        Status.OK,
        "2 ranks of one job",
    ),
    (
        "the MPI of another library",
        mpi.mpi,
        made_up({"mpiexec": Answer(0, "rank 0 of 1\nrank 0 of 1\n")}),
        Status.BROKEN,
        "starts 2 jobs of one rank",
    ),
    (
        "an MPI that hangs",
        mpi.mpi,
        made_up({"mpiexec": Answer(None, stderr="mpiexec did not finish within 30 s and was killed.")}),
        Status.BROKEN,
        "did not finish within 30 s and was killed",
    ),
    (
        "Open MPI as root",
        mpi.mpi,
        made_up({"mpiexec": Answer(1, stderr="mpirun has detected an attempt to run as root.")}),
        Status.BROKEN,
        "is Open MPI's, which refuses to run as root",
    ),
    (
        "a node of a job that starts no ranks",
        mpi.mpi,
        made_up(
            {"mpiexec": Answer(1, stderr="not on a compute node")},
            site="generic-pbs",
            environment={"PBS_JOBID": "1.pbs"},
        ),
        Status.WARNING,
        "not on a compute node",
    ),
    (
        "a Python without mpi4py",
        mpi.mpi,
        made_up({"mpiexec": Answer(1, stderr="ModuleNotFoundError: No module named 'mpi4py'")}),
        Status.WARNING,
        "no mpi4py",
    ),
    ("no driver", checks.gpus, made_up(), Status.ABSENT, "nvidia-smi is not on the PATH"),
    (
        "GPUs",
        checks.gpus,
        made_up({"nvidia-smi": Answer(0, "NVIDIA H200, 580.65\n" * 4)}),
        Status.OK,
        "4 x NVIDIA H200, driver 580.65",
    ),
    (
        "a driver that is broken",
        checks.gpus,
        made_up({"nvidia-smi": Answer(9, "NVIDIA-SMI has failed because it couldn't communicate")}),
        Status.BROKEN,
        "couldn't communicate",
    ),
    (
        "no profiler of MPI",
        checks.mpi_profiling,
        made_up(),
        Status.ABSENT,
        "None of nsys, unitrace, eztrace and scorep",
    ),
    (
        "nsys for MPI",
        checks.mpi_profiling,
        made_up({"nsys": Answer(0, NSYS_2025), "python": Answer(0, "4.1.2 5 0\n")}),
        Status.OK,
        "records programs of Open MPI, MPICH",
    ),
    (
        "EZTrace for MPI",
        checks.mpi_profiling,
        made_up({"eztrace": Answer(0), "eztrace_avail": Answer(0, 'posixio\t"I/O"\nopenmpi\t"MPI"\n')}),
        Status.OK,
        "EZTrace records programs of Open MPI as they are, of Python by the file behind python3",
    ),
    ("unitrace for MPI", checks.mpi_profiling, made_up({"unitrace": Answer(0)}), Status.OK, "unitrace"),
    (
        "an nsys without large counts",
        checks.mpi_profiling,
        made_up({"nsys": Answer(0, NSYS_2023), "python": Answer(0, "4.1.2 5 0\n")}),
        Status.WARNING,
        "does not record the messages of this mpi4py",
    ),
    (
        "an MPI without large counts",
        checks.mpi_profiling,
        made_up({"nsys": Answer(0, NSYS_2023), "python": Answer(0, "4.1.2 3 1\n")}),
        Status.OK,
        "as they are.",
    ),
    (
        "no mpi4py",
        checks.mpi_profiling,
        made_up({"nsys": Answer(0, NSYS_2023), "python": Answer(1, stderr="No module named 'mpi4py'")}),
        Status.OK,
        "as they are.",
    ),
    ("nsys is not on the PATH", checks.nsys, made_up(), Status.ABSENT, "nsys is not on the PATH"),
    (
        "nsys",
        checks.nsys,
        made_up({"nsys": Answer(0, NSYS_2025)}),
        Status.OK,
        "Nsight Systems 2025.3.1.90.",
    ),
    (
        "ncu",
        checks.ncu,
        made_up({"ncu": Answer(0, "NVIDIA (R) Nsight Compute\nVersion 2025.2.1.0 (build 35987062)\n")}),
        Status.OK,
        "Nsight Compute 2025.2.1.0.",
    ),
    (
        "ncu that is broken",
        checks.ncu,
        made_up({"ncu": Answer(127, stderr="no host")}),
        Status.BROKEN,
        "no host",
    ),
    ("counters without a driver", checks.counters, made_up(), Status.ABSENT, "No NVIDIA driver"),
    (
        "counters for administrators",
        checks.counters,
        made_up(files={PARAMETERS: "A: 1\nRmProfilingAdminOnly: 1\n"}),
        Status.WARNING,
        "ERR_NVGPUCTRPERM",
    ),
    (
        "counters for root",
        checks.counters,
        made_up(files={PARAMETERS: "RmProfilingAdminOnly: 1\n"}, user=0),
        Status.OK,
        "may read",
    ),
    (
        "counters for all",
        checks.counters,
        made_up(files={PARAMETERS: "RmProfilingAdminOnly: 0\n"}),
        Status.OK,
        "may read",
    ),
    ("no perf events", checks.perf_events, made_up(), Status.ABSENT, "no perf_event_paranoid"),
    ("perf events", checks.perf_events, made_up(files={PARANOID: "2\n"}), Status.OK, "is 2"),
    ("closed", checks.perf_events, made_up(files={PARANOID: "4\n"}), Status.WARNING, "cannot sample"),
    (
        "no tool for stacks",
        native_stacks,
        made_up({"sh": Answer(0, "node\tn1\n")}),
        Status.WARNING,
        "n1 has none of eu-stack",
    ),
    (
        "stacks that take too long",
        native_stacks,
        made_up({"sh": Answer(None, stderr="sh did not answer")}),
        Status.WARNING,
        "were tried: sh did not answer",
    ),
    (
        "gdb",
        native_stacks,
        made_up({"sh": Answer(0, "node\tn1\ntraces\tgdb\n")}),
        Status.OK,
        "gdb reads native stacks on n1",
    ),
    (
        "gdb that may not trace",
        native_stacks,
        made_up({"sh": Answer(0, "node\tn1\nscope\t1\nrefused\tgdb\n")}),
        Status.WARNING,
        "ptrace_scope is 1",
    ),
    ("a long TMPDIR", checks.tmpdir, made_up(site=site_with("/" + "x" * 60)), Status.WARNING, "is too long"),
    (
        "a hopeless TMPDIR",
        checks.tmpdir,
        made_up(site=site_with("/" + "x" * 106)),
        Status.BROKEN,
        "is too long",
    ),
    ("a TMPDIR on the node", checks.tmpdir, made_up(site=site_with("/local")), Status.OK, "on the node"),
    (
        "no TMPDIR",
        checks.tmpdir,
        made_up(environment={"TMPDIR": "/nowhere"}),
        Status.BROKEN,
        "No such file or directory",
    ),
    ("a full TMPDIR", checks.tmpdir, made_up(free=lambda path: 2**20), Status.WARNING, "0.0 GiB left"),
    ("a TMPDIR", checks.tmpdir, made_up(), Status.OK, "/tmp has 1024 GiB left"),
    ("no DCGM", checks.dcgm, made_up(), Status.ABSENT, "no monitoring has to be paused"),
    ("DCGM that rests", checks.dcgm, made_up({"dcgmi": Answer(1)}), Status.OK, "not running"),
    ("DCGM that runs", checks.dcgm, made_up({"dcgmi": Answer(0)}), Status.WARNING, "may hold"),
    (
        "torch",
        checks.torch,
        made_up({"python": Answer(0, TORCH)}),
        Status.OK,
        "backends nccl, gloo, 4 GPUs",
    ),
    (
        "no torch",
        checks.torch,
        made_up({"python": Answer(1, stderr="ModuleNotFoundError: No module named 'torch'")}),
        Status.ABSENT,
        "cannot import torch",
    ),
    (
        "torch that is broken",
        checks.torch,
        made_up({"python": Answer(1, stderr="ImportError: libcudart.so")}),
        Status.BROKEN,
        "libcudart",
    ),
    (
        "torch for the CPU beside GPUs",
        checks.torch,
        made_up({"python": Answer(0, '["2.13.0+cpu", ["gloo"], "", 0]'), "nvidia-smi": Answer(0)}),
        Status.WARNING,
        "build for CPUs",
    ),
    (
        "torch that sees no GPU",
        checks.torch,
        made_up({"python": Answer(0, '["2.13.0", ["nccl"], "12.8", 0]'), "nvidia-smi": Answer(0)}),
        Status.WARNING,
        "sees none",
    ),
    ("space", checks.runs, made_up(), Status.OK, "runs has 1024.0 GiB left"),
    ("little space", checks.runs, made_up(free=lambda path: 2**31), Status.WARNING, "2.0 GiB"),
    ("no space", checks.runs, made_up(free=lambda path: 0), Status.BROKEN, "0.0 GiB"),
]


@pytest.mark.parametrize(
    ("check", "on", "status", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_check_says_what_it_saw(
    check: Callable[[Inspected], CheckResult], on: Inspected, status: Status, says: str
) -> None:
    finding = check(on)
    assert (finding.status, says in finding.observation) == (status, True), finding
    assert finding.observation.endswith(".")


@pytest.mark.parametrize(("check", "on"), [case[1:3] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_wrong_has_a_remedy_of_one_sentence(
    check: Callable[[Inspected], CheckResult], on: Inspected
) -> None:
    finding = check(on)
    if finding.status in (Status.WARNING, Status.BROKEN):
        assert finding.remedy.endswith(".")
        assert finding.remedy.count(". ") == 0


def test_archives_of_score_p_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    on = made_up({"scorep": Answer(0)})
    for found, status in ((None, Status.WARNING), (object(), Status.OK)):
        monkeypatch.setattr(checks, "find_spec", lambda name, found=found: found)
        finding = checks.mpi_profiling(on)
        assert finding.status is status
        assert "Score-P" in finding.observation
    image = made_up({"nsys": Answer(0, NSYS_2025)}, site="kubernetes")
    assert checks.mpi_profiling(image).status is Status.ABSENT


def test_every_check_of_the_table_is_tried_here() -> None:
    assert {case[1] for case in CASES} == set(CHECKS.values())


def test_ranks_start_in_a_job_while_the_other_checks_run() -> None:
    asked = threading.Event()

    def scheduler(_: Inspected) -> CheckResult:
        asked.set()
        return CheckResult(Status.OK, "")

    def mpi(_: Inspected) -> CheckResult:
        return CheckResult(Status.OK if asked.wait(10) else Status.BROKEN, "")

    found = examine(made_up(site="generic-slurm", probe=True), {"MPI": mpi, "scheduler": scheduler})
    assert [(one.name, one.status) for one in found] == [("MPI", Status.OK), ("scheduler", Status.OK)]


def test_a_check_that_hangs_is_said_and_does_not_hold_up_the_others() -> None:
    hanging = {"stuck": lambda m: threading.Event().wait(), "TMPDIR": checks.tmpdir}
    stuck, other = examine(made_up(), hanging, seconds=2)  # type: ignore[arg-type]
    assert (stuck.status, stuck.observation) == (Status.BROKEN, "The check did not finish within 2 s.")
    assert other.status is Status.OK


def test_a_check_that_fails_is_a_finding() -> None:
    def wrong(on: Inspected) -> CheckResult:
        raise KeyError("x")

    (finding,) = examine(made_up(), {"wrong": wrong})
    assert finding.status is Status.BROKEN
    assert "KeyError" in finding.observation


def test_the_longest_path_of_a_socket_is_as_long_as_the_check_believes() -> None:
    with socket.socket(socket.AF_UNIX) as longest, pytest.raises(FileNotFoundError):
        longest.bind("/nowhere/".ljust(checks.SOCKET_PATH, "x"))
    with socket.socket(socket.AF_UNIX) as longer, pytest.raises(OSError, match="too long"):
        longer.bind("/nowhere/".ljust(checks.SOCKET_PATH + 1, "x"))


def test_the_doctor_exits_1_only_if_something_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(status: Status) -> int:
        finding = CheckResult(status, "It is so.")
        monkeypatch.setattr("hpcprof.cli.doctor.examine", lambda on, table: iter([finding]))
        return CliRunner().invoke(command, []).exit_code

    assert [ask(status) for status in Status] == [0, 0, 1, 0]


def test_the_doctor_has_help_with_an_example() -> None:
    done = CliRunner().invoke(command, ["--help"])
    assert done.exit_code == 0
    assert "hpcprof doctor --site mycluster --probe" in done.output


NODE = "node\tn3\ntool\tpython3\nscope\t1\nparanoid\t2\n"


@pytest.mark.parametrize(
    ("more", "name", "status", "says"),
    [
        ("", "processes on a node", Status.OK, "n3 shows progress"),
        ("unreadable\tio\n", "processes on a node", Status.WARNING, "nobody read io of a process"),
        ("traces\tgdb\n", "native stacks on a node", Status.OK, "gdb reads native stacks on n3."),
        ("traces\tpy-spy\n", "native stacks on a node", Status.OK, "on n3, of programs in Python alone."),
        ("refused\tgdb\n", "native stacks on a node", Status.WARNING, "processes on n3 (ptrace_scope is 1)"),
        ("", "native stacks on a node", Status.WARNING, "none of eu-stack, gdb and py-spy"),
        (
            "memory\t/sys/fs/cgroup/a/memory.events\n",
            "out of memory on a node",
            Status.OK,
            "/a/memory.events",
        ),
        ("", "out of memory on a node", Status.ABSENT, "no counter"),
        (
            "tool\tnvidia-smi\n",
            "monitors on a node",
            Status.OK,
            "NVIDIA's GPUs and NCCL's monitor (RAS); perf",
        ),
    ],
)
def test_the_evidence_of_a_node_is_judged(more: str, name: str, status: Status, says: str) -> None:
    (found,) = [one for one in judge_node(NODE + more) if one.name == name]
    assert (found.status, says in found.observation) == (status, True), found
