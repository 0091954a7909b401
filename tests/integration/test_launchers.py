"""Ranks of launchers that this machine lacks, by stand-ins that set their variables."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from hpcprof.submit.rendering.job_scripts import render_scripts
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Launcher, LauncherName
from tests.jobs import make_job

STAND_INS = {
    LauncherName.FLUX: "FLUX_TASK_RANK=$i FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=$i",
    LauncherName.IBRUN: "MV2_COMM_WORLD_RANK=$i MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=$i",
    LauncherName.JSRUN: "JSM_NAMESPACE_RANK=$i JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_RANK=$i",
}


@pytest.mark.parametrize("name", STAND_INS)
def test_ranks_have_the_numbers_that_a_stand_in_of_the_launcher_gives(
    name: LauncherName, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / name.value
    # Its own words end where the ranks' command begins.
    launcher.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ] && [ $1 != /bin/sh ]; do shift; done\n"
        f'for i in 0 1; do env {STAND_INS[name]} "$@" & done\nwait\n'
    )
    launcher.chmod(0o755)
    site = msgspec.structs.replace(load_site("local"), launcher=Launcher(name), options={})
    show = 'echo "$HPCPROF_RANK of $HPCPROF_WORLD_SIZE, $HPCPROF_LOCAL_RANK"'
    job = make_job(site, arguments=["sh", "-c", show], ranks_per_node=2, no_telemetry=True)
    job = msgspec.structs.replace(job, directory=str(tmp_path), stall_timeout=0)
    run = tmp_path / "run"
    run.mkdir()
    for file, text in render_scripts(site, job, run, ["hpcprof"]).items():
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).write_text(text)
    environment = {"PATH": f"{launcher.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    subprocess.run(["bash", run / "job.sh"], env=environment, check=True, capture_output=True, timeout=60)
    logs = sorted((run / "logs").glob("rank*.out"))
    assert [log.read_text() for log in logs] == ["0 of 2, 0\n", "1 of 2, 1\n"]


def test_job_sh_notes_that_no_type_of_mpi_joins_two_ranks_of_srun(tmp_path: Path) -> None:
    srun = '#!/bin/sh\ncase "$*" in *--mpi=list*) echo pmi2 pmix ;; *" true") ;; *) exit 1 ;; esac\n'
    for name, program in {"srun": srun, "python3": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "state").mkdir()
    site = load_site("generic-slurm")
    job = make_job(site, arguments=["./a.out"], ranks_per_node=2)
    text = render_scripts(site, job, tmp_path / "run", ["hpcprof"])["job.sh"]
    begin = text.index("connects() {")
    trial = text[begin : text.index("\nfi\n", begin) + 4]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "run_dir": str(tmp_path)}
    subprocess.run(["bash", "-c", trial], env=environment, check=True, timeout=60)
    noted = (tmp_path / "state/setup_failed").read_text()
    assert noted == "two MPI ranks form no job with any type of srun --mpi=list; MPI programs may fail\n"


def test_a_signal_while_job_sh_copies_its_errors_ends_no_other_process(tmp_path: Path) -> None:
    (tmp_path / "cmp").write_text("#!/bin/sh\nsleep 1\n")
    (tmp_path / "cmp").chmod(0o755)
    site = load_site("generic-pbs")
    job = make_job(site, arguments=["./a.out"], queue="q")
    text = render_scripts(site, job, tmp_path / "run", ["hpcprof"])["job.sh"]
    begin = text.index("begin_sentinel() {")
    sentinel = text[begin : text.index("\n}\n", begin) + 3]
    signalled = "begin_sentinel; sleep 0.3; kill -s CONT $sentinel; wait $sentinel"
    script = f"{sentinel}sleep 60 & {signalled}; kill %1"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "run_dir": str(tmp_path), "errors": __file__}
    subprocess.run(["bash", "-c", script], env=environment, check=True, timeout=60)


@pytest.mark.parametrize(
    ("engine", "program"), [("pyxis", "srun"), ("apptainer", "apptainer"), ("podman-hpc", "podman-hpc")]
)
def test_ranks_in_a_container_have_its_path_and_the_nodes_profiler_at_its_end(
    engine: str, program: str, tmp_path: Path
) -> None:
    tools, image, nsight, run = (tmp_path / name for name in ("bin", "image", "nsight/1.0", "run"))
    for folder in (tools, image, nsight / "bin", run):
        folder.mkdir(parents=True)
    (nsight / "bin/nsys").touch(mode=0o755)
    (tools / "nsys").symlink_to(nsight / "bin/nsys")
    (image / "nsys").write_text('#!/bin/sh\nwhile [ "${1##*/}" != sh ]; do shift; done\nexec "$@"\n')
    # The stand-in notes its words, and runs the rank with the PATH of an image.
    (tools / program).write_text(
        f'#!/bin/sh\necho "$*" >{tmp_path}/words\nwhile [ "$1" != /bin/sh ]; do shift; done\n'
        "export SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0\n"
        f'PATH={image}:/usr/bin:/bin exec "$@"\n'
    )
    for file in (image / "nsys", tools / program):
        file.chmod(0o755)
    launcher = Launcher(LauncherName.SRUN if engine == "pyxis" else LauncherName.NONE)
    options = load_site("generic-slurm").options
    site = msgspec.structs.replace(load_site("local"), options=options, tmpdir="", launcher=launcher)
    chosen = {"container": engine, "container_image": "image", "container_mounts": "/data:/data"}
    show = 'echo "$PATH"; echo "${TMPDIR%/*}"'
    job = make_job(site, arguments=["sh", "-c", show], options=chosen, profiler="nsys")
    job = msgspec.structs.replace(job, directory=str(tmp_path), stall_timeout=0, no_telemetry=True)
    for name, text in render_scripts(site, job, run, ["hpcprof"]).items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path), "TMPDIR": f"{run}/none"}
    # The stand-in of nsys writes no profile.
    subprocess.run(["bash", run / "job.sh"], env=environment, check=False, capture_output=True, timeout=60)
    path, temporary = (run / "logs/rank00000.out").read_text().splitlines()
    assert path == f"{image}:/usr/bin:/bin:/opt/hpcprof-profiler/bin"
    # The folder of the node is not in the container.
    assert temporary == "/tmp"
    words = (tmp_path / "words").read_text()
    for mount in (f"{run}:{run}", f"{tmp_path}:{tmp_path}", f"{nsight}:/opt/hpcprof-profiler", "/data:/data"):
        assert mount in words


def test_variables_of_slurm_agree_on_the_cpus_of_a_rank() -> None:
    site = load_site("generic-slurm")
    script = render_scripts(site, make_job(site, arguments=["true"]), Path("/run"), ["hpcprof"])["job.sh"]
    begin = script.index("# Since Slurm 22.05")
    lines = script[begin : script.index("\nfi\n", begin)] + "\nfi"
    show = 'echo "$SRUN_CPUS_PER_TASK $SLURM_TRES_PER_TASK"'
    for tres, said in (("cpu:1", "2 cpu:2\n"), ("cpu=8,gres/gpu:1", "2 cpu=2,gres/gpu:1\n"), ("", "2 \n")):
        variables = {"PATH": os.environ["PATH"], "SLURM_CPUS_PER_TASK": "2", "SLURM_TRES_PER_TASK": tres}
        done = subprocess.run(
            ["bash", "-c", f"{lines}\n{show}"], env=variables, capture_output=True, text=True
        )
        assert done.stdout == said
