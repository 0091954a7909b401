"""Rendered scripts under real shells: what the rank wrapper finds, runs and records."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcprof.runs.job import Job
from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.rendering import templates
from hpcprof.submit.rendering.templates import render, render_text
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Affinity, Launcher, LauncherName, Node, Site
from tests.jobs import job, rendered
from tests.waiting import until

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
PRINT_ARGUMENTS = "import os, sys; os.write(1, b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))"


def run_wrapper(
    shell: str, job: Job, folder: Path, environment: dict[str, str], *arguments: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    for name in ("state", "logs", "profiles"):
        (folder / name).mkdir(exist_ok=True, parents=True)
    for name, text in rendered(job, folder).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return subprocess.run(
        [shell, str(folder / "wrapper.sh"), *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        **options,
    )


# What the launchers set for rank 3 of 4 on two nodes with two ranks each, as recorded from real ones;
# inside a Slurm job, SLURM_PROCID is that of the launcher's proxy on the node.
LAUNCHERS = {
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "PMIX_RANK": "3",
    },
    "Open MPI inside Slurm": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "2",
    },
    "MPICH and Intel MPI": {
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
        "MPI_LOCALRANKID": "1",
        "MPI_LOCALNRANKS": "2",
    },
    "MPICH inside Slurm": {
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
        "MPI_LOCALRANKID": "1",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
    },
    "PALS": {"PMI_RANK": "3", "PMI_SIZE": "4", "PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1"},
    "srun with pmi2": {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"},
    "Flux": {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1"},
    "Slurm": {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"},
    "torchrun": {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"},
    "PMIx alone": {"PMIX_RANK": "3"},
}
RECORDED = json.loads((Path(__file__).parents[1] / "data/launchers/environments.json").read_text())
SHOW = ("sh", "-c", 'echo "$HPCPROF_RANK $HPCPROF_LOCAL_RANK $HPCPROF_WORLD_SIZE $HPCPROF_PROFILER"')


def wrapped(shell: str, wrapper: str, folder: Path, environment: dict[str, str], *program: str) -> str:
    """Run a wrapper around a program, by default `SHOW`, and return what the one rank printed."""
    for name in ("state", "logs", "profiles"):
        (folder / name).mkdir()
    (folder / "wrapper.sh").write_text(wrapper)
    command = [shell, str(folder / "wrapper.sh"), *(program or SHOW)]
    subprocess.run(command, env={"PATH": os.environ["PATH"], **environment}, check=True)
    (log,) = (folder / "logs").glob("*.out")
    return log.read_text()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_the_wrapper_finds_rank_and_local_rank_under(launcher: str, shell: str, tmp_path: Path) -> None:
    done = run_wrapper(shell, job(), tmp_path, LAUNCHERS[launcher], *SHOW)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "logs/rank00003.out").read_text() == "3 1 4 none\n"
    assert (tmp_path / "state/rank00003.exit").read_text() == "0\n"


def test_only_rank_0_waits_for_input_that_hydra_leaves_open(tmp_path: Path) -> None:
    silent, writer = os.pipe()
    with os.fdopen(writer, "wb") as input_of_rank_0:
        under = {"PMI_RANK": "1", "PMI_SIZE": "4"}
        done = run_wrapper("dash", job(), tmp_path, under, "cat", stdin=silent, timeout=20)
        input_of_rank_0.write(b"first")
    under["PMI_RANK"] = "0"
    run_wrapper("dash", job(), tmp_path, under, "cat", stdin=silent, timeout=20)
    os.close(silent)
    logs = {rank: (tmp_path / f"logs/rank0000{rank}.out").read_text() for rank in (0, 1)}
    assert (done.returncode, logs) == (0, {0: "first", 1: ""})


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("recorded", sorted(RECORDED))
def test_the_wrapper_finds_what_the_mpi_library_found_in_a_recorded_environment(
    recorded: str, shell: str, tmp_path: Path
) -> None:
    found = RECORDED[recorded]
    site = load_site("generic-slurm" if recorded.startswith("srun") else "local")
    shape = {"nodes": 1, "ranks_per_node": found["size"]}
    text = render(site, job(**shape), Rendering(tmp_path, ["hpcprof"], ["x"], ["true"]))["wrapper.sh"]
    assert wrapped(shell, text, tmp_path, found["environment"]) == (
        f"{found['rank']} {found['local_rank']} {found['size']} none\n"
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_an_mpirun_in_a_script_for_srun_is_believed_before_the_batch_step(shell: str, tmp_path: Path) -> None:
    found = RECORDED["sbatch_mpirun_ompi5_localonly"]
    assert found["environment"]["SLURM_PROCID"] == "0"
    asked = job(nodes=1, ranks_per_node=4)
    rendering = Rendering(tmp_path, ["hpcprof"], ["x"], ["true"])
    text = render(load_site("generic-slurm"), asked, rendering)["wrapper.sh"]
    assert wrapped(shell, text, tmp_path, found["environment"]) == "3 3 4 none\n"


def test_ranks_of_other_nodes_may_have_numbers_of_the_submitting_shell(tmp_path: Path) -> None:
    # As qsub -V passes them on to what mpiexec starts there; job.sh has unset them on its own node.
    stale = {"OMPI_COMM_WORLD_RANK": "1", "PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PMI_RANK": "0"}
    numbers = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    others = {"RANK": "9", "WORLD_SIZE": "9", "TORCHELASTIC_RUN_ID": "x"}
    site = msgspec.structs.replace(load_site("local"), launcher=Launcher(LauncherName.MPICH))
    asked = job(nodes=2, ranks_per_node=2, arguments=["sh", "-c", "echo $HPCPROF_RANK $RANK $WORLD_SIZE"])
    wrapper = rendered(asked, tmp_path, site)["wrapper.sh"]
    assert wrapped("sh", wrapper, tmp_path, {**stale, **others, **numbers}, *asked.arguments) == "2 2 4\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_wrapper_stops_with_a_sentence_when_nothing_tells_the_rank(shell: str, tmp_path: Path) -> None:
    done = run_wrapper(shell, job(), tmp_path, {}, *SHOW)
    assert done.returncode == 1
    assert done.stderr == (
        "hpcprof: no variable tells this process its rank: start it with mpiexec, as job.sh does.\n"
    )
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_wrapper_stops_when_the_launcher_started_singletons(shell: str, tmp_path: Path) -> None:
    done = run_wrapper(shell, job(), tmp_path, {"PMI_RANK": "0", "PMI_SIZE": "1"}, *SHOW)
    assert done.returncode == 1
    assert done.stderr == (
        "hpcprof: mpiexec started 1 of 4 ranks: use the launcher of the program's MPI (-o mpiexec=PATH).\n"
    )


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("selection", "profiler"), [("0-1,3", "torch"), ("0-2", "none"), ("local=1", "torch")]
)
def test_only_the_selected_ranks_run_under_the_profiler(
    shell: str, selection: str, profiler: str, tmp_path: Path
) -> None:
    chosen = job(profiler="torch", profile_ranks=selection)
    run_wrapper(shell, chosen, tmp_path, LAUNCHERS["Open MPI"], *SHOW)
    assert (tmp_path / "logs/rank00003.out").read_text() == f"3 1 4 {profiler}\n"


def in_step(local: str, node: str, sizes: str) -> dict[str, str]:
    """Return the variables of rank 1 of 4 that srun starts."""
    place = {"SLURM_LOCALID": local, "SLURM_NODEID": node, "SLURM_STEP_TASKS_PER_NODE": sizes}
    return {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", **place}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("places", "local", "node", "size"),
    [
        (in_step("1", "0", "2(x2)"), 1, 0, 2),
        (in_step("0", "1", "2(x2)"), 0, 1, 2),
        (in_step("0", "1", "1,3"), 0, 1, 3),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}, 1, 1, 4),
        ({"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "0", "PALS_NODEID": "1", "PALS_LOCAL_SIZE": "2"}, 0, 1, 2),
    ],
    ids=["block", "cyclic", "arbitrary", "pack", "pals"],
)
def test_profiled_ranks_are_chosen_by_where_they_run(
    shell: str, places: dict[str, str], local: int, node: int, size: int, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/nodes").write_text(f"other {os.uname().nodename}.cluster \n")
    show = ("sh", "-c", 'echo "$HPCPROF_PROFILER $LOCAL_WORLD_SIZE $NODE_RANK"')
    for selection in ("local=0", "local=1", "nodes=0", "nodes=1", f"local={local},nodes={node}"):
        chosen = job(profiler="torch", profile_ranks=selection)
        run_wrapper(shell, chosen, tmp_path, places, *show)
        profiled = all(part in (f"local={local}", f"nodes={node}") for part in selection.split(","))
        told = (tmp_path / "logs/rank00001.out").read_text()
        assert told == f"{'torch' if profiled else 'none'} {size} {node}\n", selection
        note = tmp_path / "state/rank00001.profiled"
        assert note.exists() is profiled
        note.unlink(missing_ok=True)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("selection", ["3", "0"])
def test_every_rank_is_told_the_steps_to_capture(shell: str, selection: str, tmp_path: Path) -> None:
    # A rank without a profiler has to pass the barriers around them too.
    asked = job(profiler="torch", profile_ranks=selection, capture_steps="2-3")
    run_wrapper(shell, asked, tmp_path, LAUNCHERS["Slurm"], "sh", "-c", "echo $HPCPROF_CAPTURE_STEPS")
    assert (tmp_path / "logs/rank00003.out").read_text() == "2-3\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_exit_code_of_the_program_is_recorded_and_passed_on(shell: str, tmp_path: Path) -> None:
    done = run_wrapper(shell, job(), tmp_path, LAUNCHERS["Slurm"], "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert (tmp_path / "state/rank00003.exit").read_text() == "7\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_nsys_stands_before_the_program_of_a_selected_rank_and_exports_afterwards(
    shell: str, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    # Stands for nsys: notes its arguments, runs the program, leaves the files that nsys leaves.
    (tools / "nsys").write_text(
        '#!/bin/sh\ncase "$*" in *--help) echo --include-blobs= ;; *) echo "$@" >>"$NOTES" ;; esac\n'
        'for a in "$@"; do case $a in --output=*) touch "${a#--output=}" ;; esac; done\n'
        'case $1 in profile) while [ "$2" != -c ]; do shift; done; exec "$@" ;; esac\n'
    )
    (tools / "nsys").chmod(0o755)
    folder = tmp_path / "a 5%h run"
    environment = {
        **LAUNCHERS["Open MPI"],
        "PATH": f"{tools}:{os.environ['PATH']}",
        "NOTES": str(tmp_path / "notes"),
    }
    chosen = job(profiler="nsys", workload="sequence-parallel", arguments=[])
    done = run_wrapper(shell, chosen, folder, environment, "echo", "x y")
    assert done.returncode == 0
    profile, export = (tmp_path / "notes").read_text().splitlines()
    output = f"{folder}/profiles/rank00003"
    assert (folder / "logs/rank00003.out").read_text() == "x y\n"
    assert "--capture-range=cudaProfilerApi --capture-range-end=stop" in profile
    # nsys takes %h for the host's name.
    assert re.search(rf"--output={output.replace('%', '%%')} /\S*sh -c", profile) and profile.endswith(
        "echo x y"
    )
    assert export.startswith("export --include-blobs=true --type=sqlite")
    assert Path(f"{output}.sqlite").exists()
    assert not Path(f"{output}.sqlite.part").exists()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("library", "family"),
    [
        ("libmpi.so.40", "openmpi"),
        ("libmpich.so.12", "mpich"),
        ("libmpi_gnu_123.so.12", "mpich"),
        ("libmpi_mpifh.so.40", None),
        ("libmpifort.so.12", None),
    ],
)
def test_nsys_is_told_the_mpi_of_the_program_and_finds_its_functions(
    shell: str, library: str, family: str | None, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / library).touch()
    (tools / "ldd").write_text(f"#!/bin/sh\necho '\t{library} => {tmp_path}/{library} (0x7f)'\n")
    (tools / "nsys").write_text(
        '#!/bin/sh\n[ "$1" = profile ] || exit 0\necho "$@"\n'
        'readlink "${LD_LIBRARY_PATH%%:*}/libmpi.so"\n'
        'while [ "$2" != -c ]; do shift; done; exec "$@"\n'
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {**LAUNCHERS["Slurm"], "PATH": f"{tools}:{os.environ['PATH']}"}
    run_wrapper(shell, job(profiler="nsys"), tmp_path, environment, "true")
    called, *lines = (tmp_path / "logs/rank00003.profiler").read_text().splitlines()
    told = [word for word in called.split() if word.startswith("--mpi-impl")]
    assert told == ([f"--mpi-impl={family}"] if family else [])
    assert (f"{tmp_path}/{library}" in lines) == (family is not None)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("symbols", "noted", "advice"),
    [
        # The module mpi of Fortran has the names in lower case.
        (
            "mpi_iprobe_ MPI_Neighbor_alltoallv MPI_Send MPI_Allreduce_init",
            ["MPI_Neighbor_alltoallv", "mpi_iprobe"],
            "Waits in it count as work.",
        ),
        ("mpi_send_f08_ mpi_finalize_f08_", ["mpi_finalize_f08 and its like"], "Use the module mpi"),
    ],
)
def test_functions_that_nsys_does_not_trace_are_noted_if_the_program_calls_them(
    shell: str, symbols: str, noted: list[str], advice: str, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tmp_path / "libmpi.so.40").touch()
    (tools / "ldd").write_text(f"#!/bin/sh\necho '\tlibmpi.so.40 => {tmp_path}/libmpi.so.40 (0x7f)'\n")
    (tools / "nsys").write_text(
        '#!/bin/sh\n[ "$1" = profile ] || exit 0\nwhile [ "$2" != -c ]; do shift; done; exec "$@"\n'
    )
    (tools / "libToolsInjectionOpenMPI64.so").write_text("PMPI_Allreduce_init\0PMPI_Send\0")
    program = Path(shutil.which("true") or "true").read_bytes()
    (tools / "solver").write_bytes(program + symbols.replace(" ", "\0").encode())
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {**LAUNCHERS["Slurm"], "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_LOCALID": "0"}
    done = run_wrapper(shell, job(profiler="nsys"), tmp_path, environment, "solver")
    assert done.returncode == 0
    assert (tmp_path / "state/rank00003.untraced").read_text().splitlines() == noted
    assert f"does not trace what the program calls: {' '.join(noted)}. {advice}" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("profiler", ["nsys", "ncu"])
def test_the_lines_of_the_profiler_go_to_a_log_of_their_own(
    shell: str, profiler: str, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / profiler).write_text(
        '#!/bin/sh\n[ "$1" != export ] || { echo exported; exit; }\n'
        "echo ==PROF== Connected; echo ==WARNING== slow >&2\n"
        'while [ "$2" != -c ]; do shift; done\n"$@"; code=$?; echo Generated; exit $code\n'
    )
    (tools / profiler).chmod(0o755)
    folder = tmp_path / "it's a run"
    environment = {**LAUNCHERS["Open MPI"], "PATH": f"{tools}:{os.environ['PATH']}"}
    program = ("sh", "-c", 'echo "$1"; echo err >&2; exit 3', "sh", "a  b")
    done = run_wrapper(shell, job(profiler=profiler), folder, environment, *program)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    logs = {path.suffix: path.read_text() for path in (folder / "logs").iterdir()}
    assert (logs[".out"], logs[".err"]) == ("a  b\n", "err\n")
    exported = "exported\n" if profiler == "nsys" else ""
    said = logs[".profiler"].partition("Generated\n")
    assert said[:2] == ("==PROF== Connected\n==WARNING== slow\n", "Generated\n")
    assert said[2].startswith(exported)


# Writes a file for the shell and one for the program, as rocprofv3 does for each process.
ROCPROFV3 = """#!/bin/sh
[ "$1" != --help ] || {{ echo '  --selected-regions [BOOL]'; exit; }}
echo "$*" >{notes}
for word in "$@"; do
    case $word in --output-directory=*) folder=${{word#*=}} ;; esac
done
while [ "$1" != -- ]; do shift; done
shift
"$@"
mkdir -p "$folder"
for file in {files}; do echo "$file" >"$folder/$file"; done
echo 'the largest file is that of the program' >>"$folder/{main}"
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("written", "main", "kept"),
    [
        ("12_results.db 13_results.db", "13_results.db", ["rank00003_results.db"]),
        (
            "12_kernel_trace.csv 12_hip_api_trace.csv 13_kernel_trace.csv",
            "12_kernel_trace.csv",
            ["rank00003_hip_api_trace.csv", "rank00003_kernel_trace.csv"],
        ),
        ("", "13_agent_info.csv", []),
    ],
)
def test_the_files_of_the_program_under_rocprofv3_get_the_name_of_its_rank(
    shell: str, written: str, main: str, kept: list[str], tmp_path: Path
) -> None:
    tools, folder, notes = tmp_path / "bin", tmp_path / "a run", tmp_path / "notes"
    tools.mkdir()
    (tools / "rocprofv3").write_text(ROCPROFV3.format(notes=notes, files=written, main=main))
    (tools / "rocprofv3").chmod(0o755)
    environment = {**LAUNCHERS["Open MPI"], "PATH": f"{tools}:{os.environ['PATH']}"}
    chosen = job(profiler="rocprofv3", workload="ddp", arguments=[])
    done = run_wrapper(shell, chosen, folder, environment, "echo", "x y")
    assert done.returncode == 0, (folder / "logs/rank00003.profiler").read_text()
    assert (folder / "logs/rank00003.out").read_text() == "x y\n"
    arguments = notes.read_text()
    assert arguments.startswith("--selected-regions --kernel-trace")
    assert "--rccl-trace" not in arguments  # The help does not list it.
    assert sorted(path.name for path in (folder / "profiles").iterdir() if path.is_file()) == kept
    aside = folder / "profiles/processes/rank00003"
    others = {*written.split()} - {name for name in written.split() if name[:2] == main[:2]}
    assert (sorted(path.name for path in aside.iterdir()) if aside.is_dir() else []) == sorted(others)
    log = (folder / "logs/rank00003.profiler").read_text()
    assert ("rocprofv3 wrote no profile" in log) is (not kept)


UNITRACE = """#!/bin/sh
[ "$1" != --help ] || {{ echo '  {knows} <path>'; exit; }}
echo "$*" >{notes}
while [ "$2" != -c ]; do
    [ "$1" != --result-dir ] || folder=$2
    [ "$1" != --output-dir-path ] || folder=$2
    shift
done
cd "$folder" 2>/dev/null || {{ mkdir -p "$folder" && cd "$folder"; }}
for file in {files}; do mkdir -p "$(dirname "$file")" && echo "{{}}" >"$file"; done
for file in {main}; do printf '%100s' main >"$file"; done
cd - >/dev/null
"$@"
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("metrics", "written", "main", "kept", "aside"),
    [
        ("", "sh.7.json app.8.json", "app.8.json", ["rank00003.unitrace.json"], ["sh.7.json"]),
        (
            "ComputeBasic",
            "rank_3.sh.7/chrome_trace.json rank_3.app.8/metrics_0.csv rank_3.app.8/metrics/metrics_1.csv",
            "rank_3.app.8/chrome_trace.json",
            ["rank00003.metrics_0.csv", "rank00003.metrics_1.csv", "rank00003.unitrace.json"],
            ["rank_3.sh.7"],
        ),
    ],
)
def test_the_files_of_the_program_under_unitrace_get_the_name_of_its_rank(
    shell: str, metrics: str, written: str, main: str, kept: list[str], aside: list[str], tmp_path: Path
) -> None:
    tools, folder, notes = tmp_path / "bin", tmp_path / "a run", tmp_path / "notes"
    tools.mkdir()
    (tools / "unitrace").write_text(
        UNITRACE.format(knows="--result-dir", notes=notes, files=written, main=main)
    )
    (tools / "unitrace").chmod(0o755)
    environment = {**LAUNCHERS["Open MPI"], "PATH": f"{tools}:{os.environ['PATH']}"}
    chosen = job(
        profiler="unitrace",
        workload="ddp",
        arguments=[],
        profiler_options=PROFILERS["unitrace"].resolve({"capture": "whole", "metrics": metrics}),
    )
    done = run_wrapper(shell, chosen, folder, environment, "echo", "x y")
    assert done.returncode == 0, (folder / "logs/rank00003.profiler").read_text()
    assert ("--metric-query --group ComputeBasic" in notes.read_text()) is bool(metrics)
    assert notes.read_text().startswith("--result-dir /") is bool(metrics)
    profiles = folder / "profiles"
    assert sorted(path.name for path in profiles.iterdir() if path.is_file()) == kept
    assert "main" in (profiles / "rank00003.unitrace.json").read_text()
    assert [path.name for path in (profiles / "processes/rank00003").iterdir()] == aside


def test_a_unitrace_without_folders_of_results_cannot_read_counters(tmp_path: Path) -> None:
    tools, folder, notes = tmp_path / "bin", tmp_path / "a run", tmp_path / "notes"
    tools.mkdir()
    (tools / "unitrace").write_text(
        UNITRACE.format(knows="--output-dir-path", notes=notes, files="", main="")
    )
    (tools / "unitrace").chmod(0o755)
    environment = {**LAUNCHERS["Open MPI"], "PATH": f"{tools}:{os.environ['PATH']}"}
    options = PROFILERS["unitrace"].resolve({"capture": "whole", "metrics": "ComputeBasic"})
    chosen = job(profiler="unitrace", workload="ddp", arguments=[], profiler_options=options)
    done = run_wrapper("sh", chosen, folder, environment, "echo", "x y")
    assert done.returncode != 0
    assert "this unitrace has no --result-dir: load a newer version" in done.stderr


# Ends before the program if it has a time limit, as nsys does with --kill=none.
STOPPING_NSYS = """#!/bin/sh
[ "$*" != "export --help" ] || exit
[ "$1" != export ] || {{ echo export >>{notes}; exit; }}
for word in "$@"; do case $word in --duration=*) limited="$limited$word " ;; esac; done
echo "limit: $limited" >>{notes}
while [ "$2" != -c ]; do shift; done
if [ -z "$limited" ]; then "$@"; exit; fi
"$@" &
while [ ! -f "$TMPDIR/pid" ]; do sleep 0.05; done
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("near", [True, False])
def test_nsys_stops_ahead_of_the_walltime_limit_and_exports_while_the_program_goes_on(
    shell: str, near: bool, tmp_path: Path
) -> None:
    tools, folder, notes = tmp_path / "bin", tmp_path / "run", tmp_path / "notes"
    tools.mkdir()
    (folder / "state").mkdir(parents=True)
    if near:
        (folder / "state/capture_until").write_text("1000\n")
    (tools / "nsys").write_text(STOPPING_NSYS.format(notes=notes))
    (tools / "nsys").chmod(0o755)
    wait = f"until [ -s {folder}/state/rank00003.stopped ]; do sleep 0.05; done; " if near else ""
    program = ("sh", "-c", f'{wait}echo "program $1" >>{notes}; echo out; exit 7', "sh", "a b")
    environment = {**LAUNCHERS["Open MPI"], "PATH": f"{tools}:{os.environ['PATH']}"}
    done = run_wrapper(shell, job(profiler="nsys"), folder, environment, *program)
    assert (done.returncode, done.stderr) == (7, "")
    assert (folder / "state/rank00003.exit").read_text() == "7\n"
    assert (folder / "logs/rank00003.out").read_text() == "out\n"
    if near:
        assert notes.read_text() == "limit: --duration=1 \nexport\nprogram a b\n"
        assert (folder / "state/rank00003.stopped").read_text() == "and written\n"
        assert "the capture was stopped and written" in (folder / "logs/rank00003.err").read_text()
    else:
        assert notes.read_text() == "limit: \nprogram a b\nexport\n"
        assert not (folder / "state/rank00003.stopped").exists()


@pytest.fixture
def nsys(tmp_path: Path) -> Path:
    """A folder with a stand-in for nsys: it notes its arguments, and its help is a file beside it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nsys").write_text(
        f'#!/bin/sh\ncase $* in *--help) cat {tools}/help; exit ;; esac\necho "$@" >>{tools}/notes\n'
    )
    (tools / "nsys").chmod(0o755)
    return tools


@pytest.mark.parametrize("shell", SHELLS)
def test_a_profiler_that_does_not_start_the_program_fails_the_rank(
    shell: str, nsys: Path, tmp_path: Path
) -> None:
    environment = {"PATH": f"{nsys}:{os.environ['PATH']}", **LAUNCHERS["Open MPI"]}
    done = run_wrapper(shell, job(profiler="nsys"), tmp_path / "run", environment, "true")
    assert done.returncode == 1
    said = (tmp_path / "run/logs/rank00003.err").read_text()
    assert "the profiler ended without starting the program: see logs/rank00003.profiler" in said


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("level", "user", "permitted"),
    [("2", 1000, True), ("3", 1000, False), (None, 1000, False), ("3", 0, True)],
)
def test_without_perf_events_the_run_goes_on_without_stacks_and_says_so_at_the_start(
    shell: str, level: str | None, user: int, permitted: bool, nsys: Path, tmp_path: Path
) -> None:
    (nsys / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (nsys / "id").chmod(0o755)
    paranoid, folder = tmp_path / "perf_event_paranoid", tmp_path / "run"
    if level:
        paranoid.write_text(f"{level}\n")
    stacks = PROFILERS["nsys"].resolve({"stacks": "true"})
    asked = job(profiler="nsys", profiler_options=stacks, arguments=["./solver"])
    wrapper = rendered(asked, folder)["wrapper.sh"]
    assert "/proc/sys/kernel/perf_event_paranoid" in wrapper
    for name in ("state", "logs", "profiles"):
        (folder / name).mkdir(parents=True)
    (folder / "wrapper.sh").write_text(wrapper.replace("/proc/sys/kernel/perf_event_paranoid", str(paranoid)))
    environment = {"PATH": f"{nsys}:{os.environ['PATH']}", **LAUNCHERS["Slurm"], "SLURM_LOCALID": "0"}
    done = subprocess.run(
        [shell, str(folder / "wrapper.sh"), "true"], env=environment, capture_output=True, text=True
    )
    flags = (nsys / "notes").read_text().splitlines()[0].split()
    said = done.stderr + "".join(path.read_text() for path in (folder / "logs").iterdir())
    assert ("--sample=process-tree" in flags, "--sample=none" in flags) == (permitted, not permitted)
    refusal = (
        f"refuses perf events (perf_event_paranoid is {level or 'unknown'}): call stacks are not recorded."
    )
    assert (refusal in said) == (not permitted)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("version", "flag"),
    [
        ("\t--gpu-metrics-device=\n", "--gpu-metrics-device=2,3"),
        ("\t--gpu-metrics-devices=\n\t--other=\n", "--gpu-metrics-devices=2,3"),
        ("\t--other=\n", None),
    ],
)
def test_a_flag_is_spelt_as_the_profilers_own_help_does(
    shell: str, version: str, flag: str | None, nsys: Path, tmp_path: Path
) -> None:
    (nsys / "help").write_text(version)
    settings = PROFILERS["nsys"].resolve({"gpu-metrics": "true"})
    asked = job(profiler="nsys", profiler_options=settings)
    environment = {"PATH": f"{nsys}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "2,3"}
    done = run_wrapper(shell, asked, tmp_path / "run", {**LAUNCHERS["Slurm"], **environment}, "true")
    if flag is None:
        assert "hpcprof: this nsys has no --gpu-metrics-devices: load a newer version." in done.stderr
        assert not (nsys / "notes").exists()
        assert "has no --gpu-metrics-devices" in (tmp_path / "run/logs/rank00003.err").read_text()
        assert (tmp_path / "run/state/rank00003.exit").read_text() == "1\n"
    else:
        assert flag in (nsys / "notes").read_text().split()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scratch_folder_of_the_node_is_made_where_it_is_missing(
    shell: str, nsys: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "local" / "scratch"
    environment = {"PATH": f"{nsys}:{os.environ['PATH']}", "TMPDIR": str(missing), **LAUNCHERS["Slurm"]}
    done = run_wrapper(shell, job(profiler="nsys"), tmp_path / "run", environment, "true")
    assert done.stderr == ""
    assert list(missing.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("profiler", "settings", "pauses"),
    [
        ("ncu", {}, True),
        ("nsys", {"gpu-metrics": "true"}, True),
        ("nsys", {}, False),
        ("none", {}, False),
    ],
)
def test_dcgm_is_paused_while_a_profiler_reads_hardware_counters_and_resumed_whatever_happens(
    shell: str, profiler: str, settings: dict[str, str], pauses: bool, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "dcgmi").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/notes\n')
    (tools / "dcgmi").chmod(0o755)
    options = PROFILERS[profiler].resolve(settings)
    asked = job(nodes=1, ranks_per_node=1, profiler=profiler, profiler_options=options, directory="/")
    site = load_site("local")
    for paused in (site, msgspec.structs.replace(site, dcgm=True)):
        for file, text in render(paused, asked, Rendering(tmp_path, ["hpcprof"], [], ["false"])).items():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        subprocess.run([shell, str(tmp_path / "job.sh")], env=environment, capture_output=True)
    notes = tmp_path / "notes"
    said = notes.read_text().splitlines() if notes.exists() else []
    assert said == (["profile --pause", "profile --resume"] if pauses else [])


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("library_path", [None, "", "/own/lib:/a lib"])
def test_the_program_gets_the_search_paths_of_the_job_whatever_the_launcher_puts_first(
    shell: str, library_path: str | None, tmp_path: Path
) -> None:
    # As Open MPI does when it is called by an absolute path.
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        "#!/bin/sh\nexport PATH=/mpi/bin:$PATH LD_LIBRARY_PATH=/mpi/lib:${LD_LIBRARY_PATH-}\n"
        'export PMI_RANK=0 PMI_SIZE=1\nshift 2\nexec "$@"\n'
    )
    mpirun.chmod(0o755)
    show = "import os; print(os.environ['PATH'], os.environ.get('LD_LIBRARY_PATH'), sep='\\n')"
    asked = job(nodes=1, ranks_per_node=1, arguments=[sys.executable, "-c", show])
    folder = tmp_path / "a run"
    folder.mkdir()
    for name, text in rendered(asked, folder, launch=[str(mpirun), "-n", "1"]).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    environment |= {} if library_path is None else {"LD_LIBRARY_PATH": library_path}
    subprocess.run([shell, str(folder / "job.sh")], env=environment, check=True)
    paths = (folder / "logs/rank00000.out").read_text().splitlines()
    assert paths == [os.environ["PATH"], str(library_path)]


SHOW_TORCH = (
    "sh",
    "-c",
    'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE/$NODE_RANK '
    '${MASTER_ADDR-none}:${MASTER_PORT-none}"',
)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_every_launchers_ranks_get_the_variables_of_torch_distributed(
    launcher: str, shell: str, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/meeting").write_text("node1:20007\n")
    run_wrapper(shell, job(), tmp_path, LAUNCHERS[launcher], *SHOW_TORCH)
    assert (tmp_path / "logs/rank00003.out").read_text() == "3/4 1/2/1 node1:20007\n"


def start_job(
    folder: Path, asked: Job, launch: list[str], launcher: str = "", **environment: str
) -> subprocess.Popen[bytes]:
    """Start the job.sh of a job whose ``launch`` gives its one rank no number."""
    site = load_site("local")
    if launcher:
        site = msgspec.structs.replace(site, launcher=Launcher(LauncherName(launcher)))
    for name, text in rendered(asked, folder, site=site, launch=launch).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    variables = {**os.environ, **environment}
    return subprocess.Popen(["/bin/bash", str(folder / "job.sh")], env=variables, start_new_session=True)


TUTORIAL = {"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "6"}
RENDEZVOUS = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}
OUTER_JOB = {
    **{"TORCHELASTIC_RUN_ID": "x", "OMPI_COMM_WORLD_RANK": "2", "OMPI_MCA_ess_base_vpid": "2"},
    **{"PMI_RANK": "3", "PMI_SIZE": "4", "PMIX_RANK": "3", "PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1"},
    **{"MPI_LOCALRANKID": "1", "FLUX_TASK_RANK": "3", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"},
    **{"HPCPROF_RANK": "3", "HPCPROF_PULSE": "12", "PBS_NODEFILE": "/nodes", "PE_HOSTFILE": "/sge"},
    **{
        "GROUP_RANK": "1",
        "NODE_RANK": "7",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "1",
    },
    **{"PET_RDZV_ENDPOINT": "10.0.0.1:1", "PET_MASTER_ADDR": "10.0.0.1", "HOROVOD_RANK": "3"},
    **{"HOROVOD_LOCAL_SIZE": "4", "PADDLE_TRAINER_ID": "1"},
    **{"HYDRA_HOST_FILE": "/hosts", "MPIEXEC_TIMEOUT": "2", "HYDRA_LAUNCHER": "ssh"},
    **{
        "TF_CONFIG": '{"task": {"index": 1}}',
        "JAX_PROCESS_ID": "1",
        "DMLC_WORKER_ID": "1",
        "CCL_LOCAL_RANK": "1",
    },
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_ranks_have_their_own_numbers_whatever_the_shell_holds(shell: str, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/meeting").write_text("node1:20007\n")
    run_wrapper(shell, job(), tmp_path, {**LAUNCHERS["Slurm"], **TUTORIAL, **RENDEZVOUS}, *SHOW_TORCH)
    assert (tmp_path / "logs/rank00003.out").read_text() == "3/4 1/2/1 node1:20007\n"


@pytest.mark.parametrize("launch", [[], ["env", "PMI_RANK=0", "PMI_SIZE=1"]])
def test_a_job_forgets_the_ranks_of_the_shell_that_submits(launch: list[str], tmp_path: Path) -> None:
    names = (*TUTORIAL, *RENDEZVOUS, *OUTER_JOB, "PET_MAX_RESTARTS")
    show = f"import os; print(*(f'{{n}}={{os.environ[n]}}' for n in {names} if n in os.environ))"
    asked = job(nodes=1, ranks_per_node=1, arguments=[sys.executable, "-c", show])
    settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "PMIX_MCA_gds": "hash", "PET_MAX_RESTARTS": "1"}
    assert start_job(tmp_path, asked, launch, **TUTORIAL, **RENDEZVOUS, **OUTER_JOB, **settings).wait() == 0
    told = dict(word.split("=") for word in (tmp_path / "logs/rank00000.out").read_text().split())
    started = {"PMI_RANK": "0", "PMI_SIZE": "1"} if launch else {}
    own = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "HPCPROF_RANK": "0"}
    own |= {"NODE_RANK": "0", "PET_MAX_RESTARTS": "1"}
    port = (tmp_path / "state/meeting").read_text().strip().partition(":")[2]
    assert told == {**own, **started, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


@pytest.mark.parametrize("profiler", ["none", "ncu"])
def test_a_program_gets_the_exported_functions_that_dash_would_drop(profiler: str, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ncu").write_text('#!/bin/bash\nwhile [ "$2" != -c ]; do shift; done; "$@"\n')
    (tools / "ncu").chmod(0o755)
    asked = job(nodes=1, ranks_per_node=1, profiler=profiler, arguments=["bash", "-c", "module load gcc"])
    shell = {"BASH_FUNC_module%%": '() { echo "module: $*"\n}', "PATH": f"{tools}:{os.environ['PATH']}"}
    (tmp_path / "own.bash").write_text(f'echo "$0" >>{tmp_path}/began\n')
    assert start_job(tmp_path, asked, [], **shell, BASH_ENV=f"{tmp_path}/own.bash").wait() == 0
    assert (tmp_path / "logs/rank00000.out").read_text() == "module: load gcc\n"
    # The user's start-up file, as that of Lmod, is for the job's script and for the program.
    began = {Path(line).name for line in (tmp_path / "began").read_text().splitlines()}
    assert began == {"job.sh", "bash", *(["ncu"] if profiler == "ncu" else [])}


@pytest.mark.parametrize("launch", [[], ["env", "PMI_RANK=0", "PMI_SIZE=1"]])
def test_a_program_gets_what_the_shell_exports_under_names_of_the_scripts(
    launch: list[str], tmp_path: Path
) -> None:
    names = ("run_dir", "name", "output", "path", "size", "elastic", "ended", "meeting", "word", "status")
    exported = {name: f"my '{name}'\nrank=1" for name in names}
    show = f"import os, json; print(json.dumps([os.environ.get(n) for n in {[*names, 'tmp', 'RANK']}]))"
    asked = job(nodes=1, ranks_per_node=1, arguments=[sys.executable, "-c", show])
    assert start_job(tmp_path, asked, launch, **exported, tmp="mine").wait() == 0
    printed = json.loads((tmp_path / "logs/rank00000.out").read_text())
    assert printed == [*exported.values(), "mine", "0"]


def test_a_value_of_the_site_comes_before_that_of_the_shell(tmp_path: Path) -> None:
    lines = ["export port=site", 'export proxy=${proxy-none} kind="${kind-none}"']
    site = msgspec.structs.replace(load_site("local"), setup=lines)
    asked = job(nodes=1, ranks_per_node=1, arguments=["sh", "-c", 'echo "$port $proxy $kind"'])
    for name, text in rendered(asked, tmp_path, site=site, launch=[]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(
        ["bash", tmp_path / "job.sh"], env={**os.environ, "port": "shell", "proxy": "mine"}, check=True
    )
    assert (tmp_path / "logs/rank00000.out").read_text() == "site mine none\n"


def test_no_command_line_has_the_value_of_a_variable_of_the_shell(nsys: Path, tmp_path: Path) -> None:
    (nsys / "nsys").write_text(f"#!/bin/sh\ntr '\\0' ' ' </proc/$$/cmdline >>{nsys}/notes\n")
    lines = ["token=secret", "export token", "level=${level:-low}", 'export SETTING="$level"']
    site = msgspec.structs.replace(load_site("local"), setup=lines)
    program = ["sh", "-c", 'echo "$token $SETTING"']
    for profiler in ("nsys", "none"):
        asked = job(nodes=1, ranks_per_node=1, profiler=profiler, arguments=program)
        folder = tmp_path / profiler
        for name, text in rendered(asked, folder, site=site, launch=[]).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        environment = {**os.environ, "PATH": f"{nsys}:{os.environ['PATH']}", "level": "high"}
        subprocess.run(["bash", folder / "job.sh"], env=environment, check=profiler == "none")
    assert "nsys" in (nsys / "notes").read_text()
    assert "secret" not in (nsys / "notes").read_text()
    assert (tmp_path / "none/logs/rank00000.out").read_text() == "secret high\n"


def test_each_further_start_of_a_job_has_folders_of_its_own(tmp_path: Path) -> None:
    asked = job(nodes=1, ranks_per_node=1, arguments=["sh", "-c", 'echo "$HPCPROF_PROFILE_OUTPUT"'])
    for folder in (tmp_path, tmp_path / "attempts/2", tmp_path / "attempts/3"):
        assert start_job(tmp_path, asked, []).wait() == 0
        written = (folder / "logs/rank00000.out").read_text()
        assert written == f"{folder}/profiles/rank00000\n"
        (tmp_path / "telemetry").mkdir(exist_ok=True)
        (tmp_path / "telemetry/mine").write_text(f"{folder}\n")
    assert (tmp_path / "state/attempt").read_text() == "3\n"
    # The samples of the last start alone are those of the run.
    for attempt, folder in ((1, tmp_path), (2, tmp_path / "attempts/2")):
        assert (tmp_path / f"attempts/{attempt}/telemetry/mine").read_text() == f"{folder}\n"


def test_a_job_that_slurm_does_not_take_back_at_its_limit_notes_why(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text("#!/bin/sh\necho 'slurm_update error: Requeue is disabled' >&2\nexit 1\n")
    scontrol.chmod(0o755)
    program = ["sh", "-c", "trap 'exit 0' TERM; sleep 30 & wait"]
    asked = job(nodes=1, ranks_per_node=1, on_timeout="resubmit", arguments=program, no_telemetry=True)
    for name, text in rendered(asked, tmp_path, site=load_site("generic-slurm"), launch=[]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    limit = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(time.time()) + 62)}
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = subprocess.run(["bash", tmp_path / "job.sh"], env={**os.environ, **limit, "PATH": path})
    assert done.returncode == 0
    assert (tmp_path / "state/not_requeued").read_text() == "slurm_update error: Requeue is disabled\n"


def test_a_worker_that_torchrun_starts_again_has_failed_no_more(tmp_path: Path) -> None:
    site = msgspec.structs.replace(load_site("local"), launcher=Launcher(LauncherName.TORCHRUN))
    asked = job(nodes=1, ranks_per_node=2, no_telemetry=True, stall_timeout=0, no_hook=True)
    for folder in ("state", "logs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "state/started").write_text("now\n")
    (tmp_path / "state/rank00001.exception").write_text("{}")
    (tmp_path / "wrapper.sh").write_text(
        rendered(asked, tmp_path, site=site, launch=["torchrun"])["wrapper.sh"]
    )
    numbers = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    environment = {"PATH": os.environ["PATH"], "TORCHELASTIC_RUN_ID": "x", **numbers}
    for code in (3, 0):
        command = ["sh", str(tmp_path / "wrapper.sh"), "sh", "-c", f"echo {code}; exit {code}"]
        assert subprocess.run(command, env=environment).returncode == code
    assert (tmp_path / "logs/rank00001.out").read_text() == "3\n0\n"
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"started", "rank00001.exit"}


def prepared(folder: Path, site: Site, program: str, **environment: str) -> int:
    """Run the job.sh of a site, with its errors in a file, as they are in a job; return its exit code."""
    asked = job(nodes=1, ranks_per_node=1, arguments=["sh", "-c", program])
    for name, text in rendered(asked, folder, site, launch=[]).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    variables = {"PATH": os.environ["PATH"], **environment}
    with (folder / "job.err").open("wb") as errors:
        return subprocess.run(["/bin/bash", str(folder / "job.sh")], env=variables, stderr=errors).returncode


@pytest.mark.parametrize("launcher", ["", "pals"])
def test_a_script_outlives_the_warning_so_that_the_program_in_it_can_save(
    launcher: str, tmp_path: Path
) -> None:
    # As Lightning does, it sets no handler where it finds one.
    saver = "import os, signal as s; assert s.getsignal(10) is s.SIG_DFL; "
    saver += "s.signal(10, lambda *_: print('saved')); os.kill(os.getpid(), 10); assert s.getsignal(10)"
    script = f'kill -s USR1 $$\n"{sys.executable}" -c "{saver}"\nkill -s USR2 $$\n'
    # As with --signal, whoever asks the scheduler for it.
    asked = job(
        nodes=1, ranks_per_node=1, arguments=["sh", "-c", script], scheduler_args=["--signal=USR1@60"]
    )
    environment = (
        LAUNCHERS["PALS"] | {"PALS_RANKID": "0", "PMI_RANK": "0", "PMI_SIZE": "1"} if launcher else {}
    )
    assert start_job(tmp_path, asked, [], launcher, **environment).wait() == 128 + signal.SIGUSR2
    assert (tmp_path / "logs/rank00000.out").read_text() == "saved\n"


def test_a_script_that_traps_the_warning_gets_it(tmp_path: Path) -> None:
    script = "trap 'echo trapped' USR1\nkill -s USR1 $$\n"
    (tmp_path / "rank.sh").write_text(script)
    for arguments in (["bash", "-c", script], ["env", "A=b", "bash", str(tmp_path / "rank.sh")]):
        asked = job(nodes=1, ranks_per_node=1, arguments=arguments, signal="USR1@60")
        assert start_job(tmp_path, asked, []).wait() == 0
        assert (tmp_path / "logs/rank00000.out").read_text() == "trapped\n"


def test_a_script_that_traps_the_warning_gets_it_where_its_runner_would_end(tmp_path: Path) -> None:
    # conda waits for the program, as does the shell that it starts.
    (tmp_path / "conda").write_text('#!/bin/sh\nshift 3\nkill -s USR1 $$\n"$@"\nexit $?\n')
    (tmp_path / "rank.sh").write_text("#!/bin/bash\ntrap 'echo trapped; exit 3' USR1\nkill -s USR1 $$\n")
    for name in ("conda", "rank.sh"):
        (tmp_path / name).chmod(0o755)
    asked = job(
        nodes=1, ranks_per_node=1, arguments=["conda", "run", "-n", "a", "./rank.sh"], signal="USR1@60"
    )
    asked = msgspec.structs.replace(asked, directory=str(tmp_path))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert start_job(tmp_path, asked, [], **environment).wait() == 3
    assert (tmp_path / "logs/rank00000.out").read_text() == "trapped\n"


def test_a_trap_in_a_script_that_another_one_calls_gets_the_warning(tmp_path: Path) -> None:
    (tmp_path / "outer.sh").write_text(f"#!/bin/bash\nkill -s USR1 $$\n{tmp_path}/inner.sh\necho $own ends\n")
    (tmp_path / "inner.sh").write_text("#!/bin/bash\ntrap 'echo trapped' USR1\nkill -s USR1 $$\n")
    (tmp_path / "own.bash").write_text("own=outer\n")
    for script in ("outer.sh", "inner.sh"):
        (tmp_path / script).chmod(0o755)
    asked = job(nodes=1, ranks_per_node=1, arguments=[f"{tmp_path}/outer.sh"], signal="USR1@60")
    environment = {"BASH_ENV": "${FOLDER}/own.bash", "FOLDER": str(tmp_path)}
    assert start_job(tmp_path, asked, [], **environment).wait() == 0
    assert (tmp_path / "logs/rank00000.out").read_text() == "trapped\nouter ends\n"


def test_a_start_of_a_job_notes_what_the_logs_had_before_it(tmp_path: Path) -> None:
    for file, text in rendered(job(nodes=1, ranks_per_node=1, arguments=["true"]), tmp_path).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "out").write_text("earlier\n")
    (tmp_path / "err").write_text("an error\n")
    with (tmp_path / "out").open("a") as out, (tmp_path / "err").open("a") as err:
        assert subprocess.run(["bash", str(tmp_path / "job.sh")], stdout=out, stderr=err).returncode == 0
    notes = [tmp_path / "state" / name for name in ("output_before", "errors_before")]
    assert [note.read_text() for note in notes] == ["8\n", "9\n"]
    # LSF keeps the output of a job elsewhere until it ends, and then appends it to the logs.
    (tmp_path / "logs/job.out").write_text("of an earlier start\n")
    logs = [tmp_path / "none", tmp_path / "logs/job.err"]
    logs[1].write_text("errors\n")
    with logs[0].open("a") as out, logs[1].open("a") as err:
        assert subprocess.run(["bash", str(tmp_path / "job.sh")], stdout=out, stderr=err).returncode == 0
    assert [note.read_text() for note in notes] == ["20\n", "7\n"]


def test_a_working_directory_that_the_node_does_not_have_is_named(tmp_path: Path) -> None:
    asked = job(nodes=1, ranks_per_node=1, arguments=["true"], directory="/nowhere/it's")
    assert start_job(tmp_path, asked, []).wait() == 1
    said = (tmp_path / "state/setup_failed").read_text()
    assert said == f"cd failed on {os.uname().nodename}: cd: /nowhere/it's: No such file or directory\n"
    assert (tmp_path / "state/finished").read_text() == "1\n"


@pytest.mark.parametrize(
    ("setup", "code", "failures"),
    [
        (["set -e", "false", "true"], 1, ["false ended with exit code 1", "false ended the job"]),
        (["exit 3"], 3, ["exit 3 ended the job"]),
        (["echo a >&2", "set -u", "b=$NOPE"], 1, ["b=$NOPE ended the job: NOPE: unbound variable"]),
        (["echo a >&2", "exit 3"], 3, ["exit 3 ended the job"]),
        (["set -ux", "b=$NOPE"], 1, ["b=$NOPE ended the job: NOPE: unbound variable"]),
        (["set -x", "false", "exit 3"], 3, ["false ended with exit code 1", "exit 3 ended the job"]),
        (["kill -s TERM $$", "sleep 9"], -signal.SIGTERM, []),
        (["set -eufC", "IFS=/,", "PATH=/opt"], 4, ["PATH has lost /usr/bin and /bin, which are put back"]),
    ],
)
def test_what_lines_of_the_site_do_to_the_shell_is_named_and_undone(
    setup: list[str], code: int, failures: list[str], tmp_path: Path
) -> None:
    site = msgspec.structs.replace(load_site("local"), setup=setup)
    assert prepared(tmp_path, site, "exit 4", SHELLOPTS="braceexpand:errexit:nounset") == code
    noted = tmp_path / "state/setup_failed"
    assert (noted.read_text().splitlines() if noted.exists() else []) == failures
    assert (tmp_path / "state/finished").exists() == (code == 4)


def test_lines_of_the_site_that_fail_are_noted_and_the_job_goes_on(tmp_path: Path) -> None:
    setup = [
        "source /nowhere/activate",
        "[ -e /nowhere ] && echo there",
        f". {tmp_path}/activate",
        "export OPTION=$(nosuchtool)",
        "for number in 1 2; do",
        "    [ $number = 3 ]",
        "done",
        "if false; then exit; fi",
        f". {tmp_path}/unlucky",
    ]
    (tmp_path / "unlucky").write_text("export OPTION=$NO_SUCH_BACKUP\nreturn 3\n")
    (tmp_path / "activate").write_text("false\ntrue\n")
    site = msgspec.structs.replace(
        load_site("local"), modules=["nosuch/1.0"], setup=setup, tmpdir=f"{tmp_path}/$NAME/${{NO_SUCH}}it's"
    )
    folder = tmp_path / "run"
    code = prepared(folder, site, "echo $TMPDIR; exit 3", NAME="a b")
    assert code == 3
    assert (folder / "logs/rank00000.out").read_text() == f"{tmp_path}/a b/it's\n"
    assert (folder / "state/setup_failed").read_text().splitlines() == [
        "module load nosuch/1.0 failed: module: command not found",
        "source /nowhere/activate failed: /nowhere/activate: No such file or directory",
        *["[ $number = 3 ] ended with exit code 1"] * 2,
        f". {tmp_path}/unlucky ended with exit code 3",
    ]


def test_ranks_of_flux_are_in_no_step_of_the_slurm_that_started_it(tmp_path: Path) -> None:
    asked = job(nodes=1, ranks_per_node=1, arguments=["sh", "-c", "env | grep ^SLURM_"])
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_TASKS_PER_NODE": "1",
        "SLURM_CONF": "/etc/slurm",
    }
    launch = ["env", "FLUX_TASK_RANK=0", "FLUX_JOB_SIZE=1"]
    assert start_job(tmp_path, asked, launch, launcher="flux", **step).wait() == 0
    assert (tmp_path / "logs/rank00000.out").read_text() == "SLURM_CONF=/etc/slurm\n"


def test_an_error_of_a_function_that_succeeds_is_noted(tmp_path: Path) -> None:
    setup = [
        "module() { echo \"ERROR: Unable to locate a modulefile for '$2'\" >&2; }",
        "conda() { echo 'EnvironmentNameNotFound: Could not find conda environment: env' >&2; }",
        "ml() { echo 'Lmod has detected the following error: unknown' >&2; return ${1-0}; }",
        "module load nosuch && conda activate env",
        "ml",
        "ml 7",
        f". {tmp_path}/modules",
        "hello() { printf '%s\\n' 'the ERRORS of last week: none' 'no ERROR.' '0 ERROR: all is well' >&2; }",
        "hello",
        "spack() { echo '==> Error: Spec matches no installed packages.' >&2; }",
        "spack load hdf5",
        "modulecmd() { echo 'ModuleCmd_Load.c(213):ERROR:105: no modulefile' >&2; }",
        "modulecmd",
        "sh -c 'echo ERROR: a warning of pip >&2'",
        "module load last",
    ]
    (tmp_path / "modules").write_text("module load inner\ntrue\n")
    site = msgspec.structs.replace(load_site("local"), setup=setup)
    assert prepared(tmp_path / "run", site, "exit 3") == 3
    assert (tmp_path / "run/state/setup_failed").read_text().splitlines() == [
        "module load nosuch failed: ERROR: Unable to locate a modulefile for 'nosuch'",
        "conda activate env failed: EnvironmentNameNotFound: Could not find conda environment: env",
        "ml failed: Lmod has detected the following error: unknown",
        "ml 7 failed: Lmod has detected the following error: unknown",
        f". {tmp_path}/modules failed: ERROR: Unable to locate a modulefile for 'inner'",
        "spack load hdf5 failed: ==> Error: Spec matches no installed packages.",
        "modulecmd failed: ModuleCmd_Load.c(213):ERROR:105: no modulefile",
        "module load last failed: ERROR: Unable to locate a modulefile for 'last'",
    ]


SAVES = """
import os, signal, sys, time
got = []
for name in ("USR1", "USR2", "ALRM", "XCPU", "TERM"):
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: got.append(signal.Signals(number).name))
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.5)
print("saved on", *got, flush=True)
"""


def standin_nsys(path: Path) -> None:
    """Write a profiler that USR1 ends before the program, and that sends TERM to the program."""
    path.write_text(
        '#!/bin/sh\n[ "$1" = profile ] || exit 0\n'
        'for word in "$@"; do case $word in --output=*) output=${word#*=} ;; esac; done\n'
        'while [ "$2" != -c ]; do shift; done; "$@" & child=$!\n'
        "trap 'sleep 0.2; kill -s TERM $(cat /proc/$child/task/$child/children)' TERM\n"
        'while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done\n'
        ': >"$output.nsys-rep"; exit "$code"\n'
    )
    path.chmod(0o755)


@pytest.mark.parametrize("group", [True, False], ids=["to all processes", "to the batch script"])
@pytest.mark.parametrize(
    ("name", "profiler"),
    [("USR1", "none"), ("USR1", "nsys"), ("XCPU", "nsys"), ("TERM", "none")],
)
def test_a_program_gets_a_signal_once_and_its_exit_code_counts(
    name: str, group: bool, profiler: str, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    standin_nsys(tmp_path / "bin/nsys")
    asked = job(nodes=1, ranks_per_node=1, profiler=profiler, arguments=[sys.executable, "-c", SAVES])
    folder = tmp_path / "run"
    script = start_job(folder, asked, [], PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    output = folder / "logs/rank00000.out"
    until(lambda: output.exists() and "ready" in output.read_text(), 60)
    os.kill(-script.pid if group else script.pid, getattr(signal, f"SIG{name}"))
    if not group:
        os.kill(script.pid, signal.SIGCONT)  # as Slurm does
    assert script.wait(60) == 0
    assert output.read_text() == f"ready\nsaved on SIG{name}\n"
    assert (folder / "state/rank00000.exit").read_text() == "0\n"
    assert (folder / "state/finished").read_text() == "0\n"
    assert (folder / "profiles/rank00000.nsys-rep").exists() == (profiler == "nsys")


@pytest.mark.parametrize("launcher", ["srun", ""], ids=["to all of a step", "to the session of job.sh"])
def test_a_program_under_a_profiler_that_sends_term_on_gets_it_once(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    standin_nsys(tmp_path / "bin/nsys")
    starts = 'grep SigIgn /proc/self/status >&2; exec "$@"'
    program = ["sh", "-c", starts, "sh", sys.executable, "-c", SAVES]
    asked = job(nodes=1, ranks_per_node=1, profiler="nsys", arguments=program)
    launch = ["env", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_LOCALID=0"] if launcher else []
    if not launcher:
        # As nsys does, it starts the program in a session of its own.
        text = (tmp_path / "bin/nsys").read_text()
        (tmp_path / "bin/nsys").write_text(text.replace('done; "$@" &', 'done; setsid "$@" &'))
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    script = start_job(tmp_path / "run", asked, launch, launcher, PATH=path)
    output = tmp_path / "run/logs/rank00000.out"
    until(lambda: output.exists() and "ready" in output.read_text(), 60)
    os.kill(-script.pid, signal.SIGTERM)
    assert script.wait(60) == 0
    assert output.read_text() == "ready\nsaved on SIGTERM\n"
    ignored = int(output.with_suffix(".err").read_text().split()[1], 16)
    assert not any(ignored >> number - 1 & 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))
    assert (tmp_path / "run/profiles/rank00000.nsys-rep").exists()


def test_a_python_that_does_not_start_keeps_no_program_from_starting(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    standin_nsys(tmp_path / "bin/nsys")
    (tmp_path / "bin/python3").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "bin/python3").chmod(0o755)
    asked = job(nodes=1, ranks_per_node=1, profiler="nsys", arguments=["echo", "ready"])
    launch = ["env", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_LOCALID=0"]
    script = start_job(tmp_path / "run", asked, launch, "srun", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert script.wait(60) == 0
    assert (tmp_path / "run/logs/rank00000.out").read_text() == "ready\n"


@pytest.mark.parametrize("group", [True, False], ids=["to all processes", "to the batch script"])
@pytest.mark.parametrize("name", ["USR2", "XCPU"])
def test_a_signal_that_ends_the_launcher_reaches_the_programs_in_its_sessions(
    name: str, group: bool, tmp_path: Path
) -> None:
    # As Hydra does, it starts ranks in sessions of their own and does not expect these signals.
    launcher = tmp_path / "launcher"
    launcher.write_text(
        "#!/bin/sh\nexport PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1\n"
        'setsid --wait "$@" & wait "$!"\n'
    )
    launcher.chmod(0o755)
    asked = job(nodes=1, ranks_per_node=1, arguments=[sys.executable, "-c", SAVES])
    # Slurm may emulate a second node on this one, whose programs are signalled from there.
    marks = {"HPCPROF_PROGRAM": f"{tmp_path}/run/profiles/rank00001", "SLURMD_NODENAME": "n2"}
    elsewhere = subprocess.Popen(["sleep", "60"], env={**os.environ, **marks})
    script = start_job(tmp_path / "run", asked, [str(launcher)], SLURMD_NODENAME="n1")
    output = tmp_path / "run/logs/rank00000.out"
    until(lambda: output.exists() and "ready" in output.read_text(), 60)
    os.kill(-script.pid if group else script.pid, getattr(signal, f"SIG{name}"))
    assert script.wait(60) == 0
    assert output.read_text() == f"ready\nsaved on SIG{name}\n"
    assert (tmp_path / "run/state/finished").read_text() == "0\n"
    assert elsewhere.poll() is None
    elsewhere.kill()
    elsewhere.wait()


@pytest.mark.parametrize(("group", "profiler"), [(True, "none"), (False, "none"), (False, "nsys")])
def test_a_signal_that_a_launcher_sends_to_the_wrapper_reaches_the_program_once(
    group: bool, profiler: str, tmp_path: Path
) -> None:
    launcher = tmp_path / "mpiexec"
    launcher.write_text(
        "#!/bin/bash\nexport PALS_RANKID=0 PALS_LOCAL_RANKID=0 PALS_LOCAL_SIZE=1 PMI_SIZE=1\n"
        f'set -m; "$@" & rank=$!; trap "kill -s USR1 {"-" if group else ""}$rank" USR1\n'
        'until wait "$rank"; code=$?; ! kill -0 "$rank" 2>/dev/null; do :; done; exit "$code"\n'
    )
    launcher.chmod(0o755)
    standin_nsys(tmp_path / "nsys")
    asked = job(nodes=1, ranks_per_node=1, profiler=profiler, arguments=[sys.executable, "-c", SAVES])
    path = f"{tmp_path}:{os.environ['PATH']}"
    script = start_job(tmp_path / "run", asked, [str(launcher)], "pals", PATH=path)
    output = tmp_path / "run/logs/rank00000.out"
    until(lambda: output.exists() and "ready" in output.read_text(), 60)
    os.kill(script.pid, signal.SIGUSR1)
    assert script.wait(60) == 0
    assert output.read_text() == "ready\nsaved on SIGUSR1\n"
    assert (tmp_path / "run/state/rank00000.exit").read_text() == "0\n"


@pytest.mark.parametrize(("then", "code"), [("exit 0", 0), ("exit 3", 1)])
def test_ranks_that_save_on_a_signal_end_well_whatever_their_launcher_says(
    then: str, code: int, tmp_path: Path
) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text(
        "#!/bin/bash\nexport OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0\n"
        "trap 'kill -- -$rank; wait $rank; exit 1' TERM\nsetsid \"$@\" & rank=$!; wait $rank\n"
    )
    launcher.chmod(0o755)
    program = f"trap '{then}' TERM; echo ready; while :; do sleep 0.1; done"
    asked = job(nodes=1, ranks_per_node=1, arguments=["sh", "-c", program])
    script = start_job(tmp_path / "run", asked, [str(launcher)])
    output = tmp_path / "run/logs/rank00000.out"
    until(lambda: output.exists() and "ready" in output.read_text(), 60)
    os.kill(script.pid, signal.SIGTERM)
    assert script.wait(60) == code
    assert (tmp_path / "run/state/finished").exists() == (code == 0)


@pytest.mark.parametrize("before", ["", "cd /;"], ids=["plain", "sandbox"])
def test_the_shell_that_pbs_starts_becomes_the_script(before: str, tmp_path: Path) -> None:
    script = tmp_path / "1.SC"
    script.write_text('#!/bin/sh\necho "$$" "$PWD" "$SHELL"\n')
    script.chmod(0o755)
    shell = tmp_path / "pbs_shell"
    shell.write_text(render_text("job/pbs_shell.sh.j2", {}))
    shell.chmod(0o755)
    given = {"PATH": os.environ["PATH"], "SHELL": str(shell)}
    with subprocess.Popen([shell], stdin=-1, stdout=-1, text=True, env=given, cwd=tmp_path) as process:
        out, _ = process.communicate(f"{before}{script}\n")
    assert out.split() == [
        str(process.pid),
        "/" if before else str(tmp_path),
        pwd.getpwuid(os.getuid()).pw_shell,
    ]


def test_a_job_that_is_ended_by_a_signal_records_no_end_of_its_own(tmp_path: Path) -> None:
    asked = job(nodes=1, ranks_per_node=1, arguments=["sh", "-c", "echo ready; exec sleep 60"])
    script = start_job(tmp_path, asked, [])
    output = tmp_path / "logs/rank00000.out"
    until(lambda: output.exists() and "ready" in output.read_text(), 60)
    os.kill(-script.pid, signal.SIGTERM)
    assert script.wait(60) == 143
    assert not (tmp_path / "state/finished").exists()
    assert (tmp_path / "state/terminated").read_text() == "TERM\n"


def test_ranks_meet_at_a_port_on_which_no_other_program_of_the_node_listens(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("here\n")
    script = render(
        load_site("generic-pbs"), job(nodes=1, ranks_per_node=1), Rendering(tmp_path, [], [], ["true"])
    )
    (tmp_path / "job.sh").write_text(script["job.sh"])
    taken = next(filter(None, map(listening, range(20000, 30000))))
    with taken:
        port = taken.getsockname()[1]
        given = {"PBS_JOBID": f"{port - 20000}.pbs", "PBS_NODEFILE": str(tmp_path / "hosts"), **os.environ}
        subprocess.run(["/bin/bash", str(tmp_path / "job.sh")], env=given, capture_output=True)
    assert port < int((tmp_path / "state/meeting").read_text().rpartition(":")[2]) < port + 1000
    # Runs of one allocation, as hpcprof run --here starts them, may begin at the same time.
    ports = set()
    for _ in range(2):
        here = {**given, "HPCPROF_JOB_DIRECTORY": str(tmp_path)}
        subprocess.run(["/bin/bash", str(tmp_path / "job.sh")], env=here, capture_output=True)
        ports.add((tmp_path / "state/meeting").read_text())
    assert len(ports) == 2


def listening(port: int) -> socket.socket | None:
    with contextlib.suppress(OSError):
        return socket.create_server(("127.0.0.1", port))
    return None


@pytest.mark.parametrize("shell", SHELLS)
def test_what_watches_a_node_ends_soon_after_its_ranks(shell: str, tmp_path: Path) -> None:
    # The other rank was killed. A launcher can wait for all that its ranks started.
    ranks = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}
    mark = os.fsencode(tmp_path / "node")
    show = f"until grep -qs {tmp_path}/node /proc/[0-9]*/cmdline; do sleep 0.1; done"
    assert run_wrapper(shell, job(nodes=1), tmp_path, ranks, "sh", "-c", show).returncode == 0
    until(lambda: not any(mark in read_bytes(path) for path in Path("/proc").glob("[0-9]*/cmdline")), 60)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


hostile = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=24)


@pytest.mark.parametrize("shell", SHELLS)
@given(arguments=hostile)
@example(arguments=["a b", "'", '"', "$(touch /tmp/x)", "`id`", "a\nb", "", "*", "\\", "{output}", "-n", "~"])
@settings(max_examples=6)
def test_arguments_arrive_as_they_were_given_and_never_run(
    shell: str, arguments: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("it's a $HOME run")
    program = [sys.executable, "-c", PRINT_ARGUMENTS, *arguments]
    asked = job(nodes=1, ranks_per_node=1, arguments=program, directory=str(folder))
    for name, text in rendered(asked, folder, launch=[], command_line=["hpcprof", *arguments]).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run([shell, str(folder / "job.sh")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    printed = (folder / "logs/rank00000.out").read_bytes()
    assert printed == b"\0".join(os.fsencode(argument) for argument in arguments)


@pytest.mark.parametrize("shell", SHELLS)
def test_ranks_share_gpus_in_blocks_unless_the_scheduler_gave_fewer(shell: str, tmp_path: Path) -> None:
    def seen(
        rank: int, ranks: int, given: str | None = None, variable: str = "CUDA_VISIBLE_DEVICES", **more: str
    ) -> str:
        asked = job(nodes=1, ranks_per_node=ranks, no_telemetry=True, stall_timeout=0)
        folder = tmp_path / f"{rank}-{ranks}-{given}-{variable}-{len(str(more))}"
        for name in ("state", "logs"):
            (folder / name).mkdir(parents=True)
        rendering = Rendering(folder, ["hpcprof"], ["mpiexec", "-n", str(ranks)], ["true"])
        site = msgspec.structs.replace(load_site("local"), node=Node(gpus=3))
        site = msgspec.structs.replace(site, affinity=Affinity(variable, ["2", "1", "0"]))
        (folder / "wrapper.sh").write_text(render(site, asked, rendering)["wrapper.sh"])
        numbers = {"PMI_RANK": rank, "PMI_SIZE": ranks, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": ranks}
        variables = {name: str(number) for name, number in numbers.items()}
        variables |= {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
        command = [
            *(shell, str(folder / "wrapper.sh"), "sh", "-c"),
            'echo $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES $ZE_AFFINITY_MASK "$ONEAPI_DEVICE_SELECTOR"',
        ]
        subprocess.run(command, env={"PATH": os.environ["PATH"], **variables, **more}, check=True)
        return (folder / f"logs/rank{rank:05d}.out").read_text().strip()

    assert [seen(rank, 3) for rank in range(3)] == ["2", "1", "0"]
    assert [seen(rank, 8) for rank in range(8)] == ["2", "2", "2", "1", "1", "1", "0", "0"]
    assert seen(1, 3, "0,1,2") == "1"
    assert [seen(1, 3, given) for given in ("4,5", "MIG-a,MIG-b,MIG-c")] == ["4,5", "MIG-a,MIG-b,MIG-c"]
    # It would choose by number from what the other one leaves: none.
    assert seen(1, 3, "2", "ROCR_VISIBLE_DEVICES") == "1"
    for selector, left in (("level_zero:3", "level_zero:*"), ("opencl:gpu", "opencl:gpu")):
        sycl = seen(1, 3, None, "ZE_AFFINITY_MASK", ONEAPI_DEVICE_SELECTOR=selector)
        assert sycl == f"1 {left}"


MPS_DAEMON = """#!/bin/sh
if [ "$1" = -d ]; then echo start >>"$LOG"; touch "$CUDA_MPS_PIPE_DIRECTORY/control"; else cat >>"$LOG"; fi
"""


def test_mps_is_started_before_the_program_and_ended_after_it(tmp_path: Path) -> None:
    daemon, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    daemon.write_text(MPS_DAEMON)
    daemon.chmod(0o755)
    variables = {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    program = "echo program >>$LOG; ls $CUDA_MPS_PIPE_DIRECTORY"
    alone = job(nodes=1, ranks_per_node=1, options={"mps": "true"}, no_telemetry=True, stall_timeout=0)
    run_wrapper("sh", alone, tmp_path, {**variables, "LOG": str(log), "PATH": path}, "sh", "-c", program)
    assert log.read_text().split() == ["start", "program", "quit"]
    assert "control" in (tmp_path / "logs/rank00000.out").read_text()
    assert not Path("/tmp", f"hpcprof-mps-{tmp_path.name}").exists()


def test_a_folder_of_mps_that_is_not_this_user_s_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "control").touch()
    link = Path("/tmp", f"hpcprof-mps-{tmp_path.name}")
    link.symlink_to(other)
    variables = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    both = job(nodes=1, ranks_per_node=2, options={"mps": "true"}, no_telemetry=True, stall_timeout=0)
    try:
        run_wrapper("sh", both, tmp_path, variables, "sh", "-c", 'echo "by ${CUDA_MPS_PIPE_DIRECTORY-none}"')
    finally:
        link.unlink()
    assert (tmp_path / "logs/rank00001.out").read_text() == "by none\n"
    assert [path.name for path in other.iterdir()] == ["control"]


TORCH = """
class Optimizer:
    def __init__(self):
        Optimizer.step = self.profile_hook_step(Optimizer.step)
    def step(self):
        pass
    @staticmethod
    def profile_hook_step(function):
        return function
"""
"""The part of ``torch.optim`` that the hook needs."""

STEPPING = """
import os, sys, time, torch
optimizer, deadline = torch.optim.Optimizer(), time.time() + 30
alone = os.environ["HPCPROF_RUN_DIR"] + "/state/alone/rank00003.json"
for step in range(int(sys.argv[1])):
    optimizer.step()
    time.sleep(0.01 * (step > 30))
    if os.path.exists(alone) or time.time() > deadline:
        break
"""

SESSION_NSYS = """#!/bin/sh
[ "$*" != "export --help" ] || exit
echo "$1" >>{notes}
case $1 in
stop) : >"{notes}.${{2#--session=}}"; exit ;;
export) for word in "$@"; do case $word in --output=*) : >"${{word#*=}}" ;; esac; done; exit ;;
esac
for word in "$@"; do case $word in --session-new=*) session=${{word#*=}} ;; esac; done
while [ "$2" != -c ]; do shift; done
"$@" &
while kill -0 $! && [ ! -e "{notes}.$session" ]; do sleep 0.05; done 2>/dev/null
"""
"""Stands for nsys, which ends with its session and leaves the program running."""


@pytest.mark.parametrize("steps", [60, 8])
def test_by_default_nsys_records_a_window_and_a_program_that_ends_before_it_whole(
    steps: int, tmp_path: Path
) -> None:
    folder, notes = tmp_path / "run", tmp_path / "notes"
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/optim.py").write_text(TORCH)
    (tmp_path / "torch/__init__.py").write_text("from torch import compiler, cuda, optim\n")
    for name in ("compiler", "cuda"):
        (tmp_path / f"torch/{name}.py").write_text("is_available = is_initialized = lambda: False\n")
    (tmp_path / "nsys").write_text(SESSION_NSYS.format(notes=notes))
    (tmp_path / "nsys").chmod(0o755)
    (tmp_path / "train.py").write_text(STEPPING)
    program = (sys.executable, str(tmp_path / "train.py"), str(steps))
    environment = {**LAUNCHERS["Open MPI"], "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    asked = job(profiler="nsys", arguments=[*program])
    done = run_wrapper("dash", asked, folder, environment, *program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "walltime limit" not in (folder / "logs/rank00003.err").read_text()
    called = notes.read_text().split()
    if steps == 8:
        assert called == ["profile", "export"] and not (folder / "state/window").exists()
        return
    assert called == ["profile", "stop", "export"] and (folder / "state/window").read_text() == "20\n"
    first, second = json.loads((folder / "state/alone/rank00003.json").read_text())
    assert (first["steps"], second["steps"]) == (5, 5) and first["elapsed_ns"] > 5e7


@pytest.mark.parametrize("code", [0, 3])
def test_a_reference_runs_the_program_first_without_the_profiler_in_a_folder_of_its_own(
    code: int, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    standin_nsys(tmp_path / "bin/nsys")
    program = f'echo "$HPCPROF_PROFILER $HPCPROF_RANK"; [ "$HPCPROF_PROFILER" = nsys ] || exit {code}'
    shape = {"nodes": 1, "ranks_per_node": 1, "profiler": "nsys"}
    asked = job(**shape, arguments=["sh", "-c", program], reference=True)
    folder = tmp_path / "run"
    script = start_job(folder, asked, [], PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert script.wait(60) == 0
    for path, profiler in ((folder, "nsys"), (folder / "reference", "none")):
        assert (path / "logs/rank00000.out").read_text() == f"{profiler} 0\n"
        began, ended = map(float, (path / "state/rank00000.times").read_text().split())
        assert 0 < began <= ended
    assert (folder / "reference/state/rank00000.exit").read_text() == f"{code}\n"
    assert (folder / "state/finished").read_text() == "0\n"


@pytest.mark.parametrize(
    ("code", "after", "noted"),
    [(0, "2 /a", "1 "), (0, "1 /a", None), (0, "2 node", None), (1, "2 node", "1 node")],
)
def test_a_rank_notes_what_the_kernel_killed_however_it_ends(
    tmp_path: Path, code: int, after: str, noted: str | None
) -> None:
    wrapper = rendered(job(), tmp_path)["wrapper.sh"]
    functions = wrapper[wrapper.index("record() {") : wrapper.index("leave() {")]
    (tmp_path / "state").mkdir()
    script = (
        f"run_dir={tmp_path} name=rank00000\n{functions}\noom_kills() {{ echo {after}; }}\n"
        f"oom_before='1 x'; record_oom {code}"
    )
    subprocess.run(["sh", "-c", script], check=False)
    note = tmp_path / "state/rank00000.oom"
    assert (note.read_text().rstrip("\n") if note.exists() else None) == noted


ALLOCATED_GPUS = {"SLURM_GPUS_PER_TASK": "a100:2", "SLURM_TASKS_PER_NODE": "2(x3)"}


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        # salloc --ntasks=1 --cpus-per-task=8
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_CPUS_PER_NODE": "8"}, "4 "),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2),6", **ALLOCATED_GPUS}, "3 4"),
        ({"SLURM_JOB_CPUS_PER_NODE": "1(x2)"}, " "),
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_CPUS_PER_NODE": "8", "HPCPROF_JOB_DIRECTORY": ""}, "8 "),
    ],
)
def test_ranks_in_an_allocation_of_other_tasks_share_its_cores_and_gpus(
    variables: dict[str, str], numbers: str
) -> None:
    site = load_site("generic-slurm")
    text = rendered(job(), Path("/run"), site, launch=["srun"])["job.sh"]
    lines = text[text.index("# The tasks of an allocation") : text.index('[ -z "${BASH_VERSION-}" ] || trap')]
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'{lines}\necho "${{SRUN_CPUS_PER_TASK-}}${{SLURM_GPUS_PER_TASK-}} ${{SLURM_GPUS_PER_NODE-}}"',
        ],
        env={"PATH": os.environ["PATH"], "HPCPROF_JOB_DIRECTORY": "/", **variables},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (f"{numbers}\n", "")


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("trap 'echo left >\"$run_dir/scratch\"' EXIT", {"state/finished": "0\n", "scratch": "left\n"}),
        ("exit 3", {"state/setup_failed": "exit 3 ended the job\n"}),
    ],
)
def test_the_group_that_may_read_runs_reads_what_a_job_wrote_under_any_umask(
    line: str, noted: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "group_may_read", lambda: True)
    site = msgspec.structs.replace(load_site("local"), setup=[line])
    texts = rendered(job(nodes=1, ranks_per_node=1), tmp_path, site, launch=[])
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["bash", "-c", 'umask 077; exec bash "$0"', tmp_path / "job.sh"], check=False)
    assert {name: (tmp_path / name).read_text() for name in noted} == noted
    assert all(
        path.stat().st_mode & (0o050 if path.is_dir() else 0o040)
        for path in tmp_path.rglob("*")
        if path.name != "scratch"
    )


def test_a_profiled_rank_runs_where_tmpdir_is_not_writable(tmp_path: Path) -> None:
    alone = job(nodes=1, ranks_per_node=1, profiler="torch")
    under = {"PMI_RANK": "0", "PMI_SIZE": "1", "TMPDIR": "/proc/nothing"}
    done = run_wrapper("dash", alone, tmp_path, under, "sh", "-c", 'echo "$TMPDIR"')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logs/rank00000.out").read_text().startswith("/tmp/hpcprof.")
