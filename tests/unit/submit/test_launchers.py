"""The command that starts the ranks."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.launchers import (
    RENDEZVOUS,
    check_starts_ranks,
    find_mpiexec,
    launch_command,
    on_each_node,
)
from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.schedulers.slurm import SlurmScheduler
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Launcher, LauncherName, Node, Site
from tests.jobs import make_job

LOCAL = load_site("local")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python in an environment of its own, and a PATH with an mpiexec in another place."""
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
    elsewhere = tmp_path / "path/mpiexec"
    elsewhere.touch()
    elsewhere.chmod(0o755)
    monkeypatch.setenv("PATH", str(elsewhere.parent))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/python"))
    return tmp_path / "venv/python"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            LauncherName.MPICH,
            ["-launcher", "rsh", "-bind-to", "core"],
            ["mpiexec", "-launcher", "rsh", "-n", "2"],
        ),
        (LauncherName.OPENMPI, ["--mca", "plm", "rsh", "-v"], ["mpirun", "--mca", "plm", "rsh", "-n"]),
        (LauncherName.SRUN, ["--mpi=pmi2", "--gpus-per-task=1"], ["srun", "--nodes=2"]),
    ],
)
def test_a_process_on_each_node_is_started_the_way_the_site_reaches_nodes(
    name: LauncherName, arguments: list[str], words: list[str]
) -> None:
    site = msgspec.structs.replace(load_site("generic-slurm"), launcher=Launcher(name, arguments=arguments))
    command = on_each_node(site, make_job(site, arguments=["a.out"], nodes=2))
    assert command[: len(words)] == words
    assert not {"-bind-to", "core", "-v", "--mpi=pmi2", "--gpus-per-task=1"} & {*command}


def test_mpiexec_is_found_beside_python_before_the_path(python: Path) -> None:
    assert find_mpiexec() == str(python.parent.parent / "path/mpiexec")
    python.with_name("mpiexec").touch()
    assert find_mpiexec() == str(python.with_name("mpiexec"))


def test_an_mpiexec_of_the_users_choice_comes_before_both(python: Path) -> None:
    job = make_job(LOCAL, arguments=["x"], ranks_per_node=3, options={"mpiexec": "/opt/mpi/mpiexec"})
    assert launch_command(LOCAL, job) == ["/opt/mpi/mpiexec", "-n", "3"]


def test_one_rank_starts_without_a_launcher_unless_one_is_asked_for(python: Path) -> None:
    assert find_mpiexec() is not None
    assert launch_command(LOCAL, make_job(LOCAL, arguments=["x"])) == []
    assert launch_command(LOCAL, make_job(LOCAL, workload="sequence-parallel", arguments=[])) == []
    chosen = make_job(LOCAL, arguments=["x"], options={"mpiexec": "/opt/mpi/mpiexec"})
    assert launch_command(LOCAL, chosen) == ["/opt/mpi/mpiexec", "-n", "1"]
    bound = site_with("local", arguments=["--bind-to", "none"])
    assert launch_command(bound, make_job(bound, arguments=["x"]))[-4:] == ["--bind-to", "none", "-n", "1"]


def test_without_mpiexec_several_ranks_are_refused(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r"no mpiexec beside .*install hpcprof"):
        launch_command(LOCAL, make_job(LOCAL, arguments=["x"], ranks_per_node=2))


def site_with(base: str, **launcher: object) -> Site:
    site = load_site(base)
    return msgspec.structs.replace(site, launcher=msgspec.structs.replace(site.launcher, **launcher))


def test_torchrun_starts_once_on_each_of_several_nodes_which_meet_at_the_first() -> None:
    slurm = site_with("generic-slurm", name=LauncherName.TORCHRUN)
    job = make_job(slurm, arguments=["x"], nodes=3, ranks_per_node=4)
    argv = launch_command(slurm, job)
    assert argv[:4] == ["srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1"]
    # Slurm signals all processes of a step: torchrun ignores what is for its workers.
    deaf = argv.index("sh")
    assert argv[deaf + 2 : deaf + 5] == ["trap '' USR1 USR2 ALRM XCPU; exec \"$@\"", "hpcprof", "torchrun"]
    assert {"--no-python", "--nproc-per-node=4", "--nnodes=3", f"--rdzv-endpoint={RENDEZVOUS}"} <= set(argv)
    script = render_scripts(slurm, job, Path("/run"), ["hpcprof"])["job.sh"]
    assert 'first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)' in script
    assert "meeting=$first_node:" in script
    assert '--rdzv-endpoint="$meeting"' in script


def test_torchrun_on_one_node_meets_nobody() -> None:
    slurm = site_with("generic-slurm", name=LauncherName.TORCHRUN)
    argv = launch_command(slurm, make_job(slurm, arguments=["x"], ranks_per_node=4))
    assert argv[:4] == ["torchrun", "--no-python", "--nproc-per-node=4", "--standalone"]
    # job.sh keeps the workers' signals from torchrun, and each worker has their default actions again.
    assert argv[4:7] == ["python3", "-IS", "-c"] and "signal.SIG_DFL" in argv[7]


def test_under_pbs_the_mpi_of_the_site_starts_the_torchruns() -> None:
    pbs = site_with("generic-pbs", name=LauncherName.TORCHRUN, starter=LauncherName.PALS)
    job = make_job(pbs, arguments=["x"], nodes=2)
    assert launch_command(pbs, job)[:5] == ["mpiexec", "-n", "2", "--ppn", "1"]
    assert 'head -n 1 "$PBS_NODEFILE"' in render_scripts(pbs, job, Path("/run"), ["hpcprof"])["job.sh"]
    with pytest.raises(UsageError, match=r"launcher.starter of site generic-pbs is srun, which cannot start"):
        make_job(site_with("generic-pbs", name=LauncherName.TORCHRUN), arguments=["x"], nodes=2)


def test_a_mpiexec_of_the_users_choice_starts_the_ranks_of_pbs() -> None:
    pbs = load_site("generic-pbs")
    job = make_job(pbs, arguments=["x"], nodes=2, options={"mpiexec": "/opt/mpich/bin/mpiexec"})
    assert launch_command(pbs, job) == ["/opt/mpich/bin/mpiexec", "-n", "2", "-ppn", "1"]
    assert on_each_node(pbs, job)[0] == "/opt/mpich/bin/mpiexec"


def test_ranks_that_share_gpus_are_counted_for_each_gpu() -> None:
    frontier = load_site("frontier")
    job = msgspec.structs.replace(make_job(frontier, arguments=["x"], account="a"), ranks_per_node=16)
    argv = launch_command(frontier, job)
    assert "--ntasks-per-gpu=2" in argv
    assert not any(word.startswith("--gpus-per-task") for word in argv)
    assert "--cpus-per-task=3" in SlurmScheduler().directives(frontier, job)


def test_srun_waits_for_ranks_however_long_after_the_first_unless_the_user_limits_it() -> None:
    site = load_site("generic-slurm")
    given = {"--wait=0", "--kill-on-bad-exit=1"}
    assert {*launch_command(site, make_job(site, arguments=["x"], nodes=2))} > given
    assert "--wait=0" in on_each_node(site, make_job(site, arguments=["x"], nodes=2))
    own = make_job(site, arguments=["x"], launcher_args=["-W30", "--kill-on-bad-exit=0"])
    assert not {*launch_command(site, own)} & given
    profiled = launch_command(site, make_job(site, arguments=["x"], profiler="nsys"))
    assert "--wait=0" in profiled and "--kill-on-bad-exit=1" not in profiled


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "4"}, "srun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun"),
        ({"PMI_SIZE": "2"}, "mpiexec"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PTY_PORT": "4"}, ""),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8", "PMI_SIZE": "1"}, ""),
        ({"SLURM_STEP_NUM_TASKS": "", "PMI_SIZE": "unknown"}, ""),
    ],
)
def test_a_command_that_a_launcher_has_started_several_times_is_refused(
    environment: dict[str, str], name: str
) -> None:
    with pytest.raises(UsageError, match=f"^{name} has started hpcprof") if name else nullcontext():
        check_starts_ranks(environment)


def test_flux_ends_other_ranks_only_if_no_profiler_writes() -> None:
    flux = site_with("generic-slurm", name=LauncherName.FLUX)
    flux = msgspec.structs.replace(flux, node=Node(cores=96, gpus=4))
    job = make_job(flux, arguments=["x"], nodes=2, ranks_per_node=4)
    shape = ["--nodes=2", "--ntasks=8", "--cores-per-task=24", "--gpus-per-task=1"]
    assert launch_command(flux, job) == [
        *["flux", "run", *shape],
        *["-o", "exit-timeout=none", "-o", "exit-on-error"],
    ]
    profiled = make_job(flux, arguments=["x"], nodes=2, ranks_per_node=4, profiler="nsys")
    assert "exit-on-error" not in launch_command(flux, profiled)


def test_flux_shares_out_the_nodes_whose_cores_are_unknown() -> None:
    tuolumne = load_site("tuolumne")
    argv = launch_command(tuolumne, make_job(tuolumne, arguments=["x"], account="a", ranks_per_node=4))
    assert "--exclusive" in argv
    assert "gpu-affinity=per-task" in argv
    assert not any(word.startswith("--gpus-per-task") for word in argv)
    one = make_job(tuolumne, arguments=["x"], account="a", gpus_per_rank=1)
    assert "--gpus-per-task=1" in launch_command(tuolumne, one)


def test_ibrun_takes_nodes_and_ranks_from_the_job() -> None:
    vista = load_site("vista")
    assert launch_command(vista, make_job(vista, arguments=["x"], nodes=2)) == ["ibrun"]


def test_jsrun_has_a_resource_set_for_each_rank_or_each_node() -> None:
    site = site_with("generic-slurm", name=LauncherName.JSRUN)
    job = make_job(site, arguments=["x"], nodes=2, ranks_per_node=6)
    assert {"--nrs=2", "--tasks_per_rs=6", "--cpu_per_rs=ALL_CPUS"} <= set(launch_command(site, job))
    known = msgspec.structs.replace(site, node=Node(cores=42, gpus=6))
    argv = launch_command(known, job)
    assert argv[1:] == [
        *["--nrs=12", "--rs_per_host=6", "--tasks_per_rs=1"],
        *["--cpu_per_rs=7", "--gpu_per_rs=1", "--bind=packed:7"],
    ]


def test_options_of_the_launcher_follow_those_of_the_site() -> None:
    site = site_with("generic-slurm", arguments=["--exclusive"])
    given = ("--cpu-bind=none", "--comment=two words")
    job = make_job(site, arguments=["x"], launcher_args=given)
    assert launch_command(site, job)[:4] == ["srun", "--exclusive", *given]
    with pytest.raises(UsageError, match="--launcher-arg -x: site local has no launcher"):
        launch_command(
            site_with("local", name=LauncherName.NONE), make_job(site, arguments=["x"], launcher_args=("-x",))
        )


@pytest.mark.parametrize("name", ["lumi", "perlmutter", "polaris"])
def test_the_users_binding_replaces_that_of_the_site(name: str) -> None:
    site = load_site(name)
    binding = "--cpu-bind=none"
    job = make_job(
        site,
        arguments=["x"],
        account="a",
        queue=site.queue or next(iter(site.queues)),
        ranks_per_node=len(site.affinity.devices) or 4,
        options={"filesystems": "home"} if name == "polaris" else {},
        launcher_args=[binding, "--cpus-per-task=4"],
    )
    words = launch_command(site, job)
    assert [word for word in words if word.startswith("--cpu-bind")] == [binding]


def test_srun_has_the_cpus_of_a_rank_also_where_no_directive_asked_for_them() -> None:
    # In the allocation of run --here; with the option it also minds no variables of another number.
    site = load_site("generic-slurm")
    assert "--cpus-per-task=3" in launch_command(site, make_job(site, arguments=["true"], cpus_per_rank=3))
