"""Programs behind runners, shells and scripts, and the MPI libraries that they are linked with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from hpcprof.node.program_words import (
    Mpi,
    commands,
    family_of,
    launcher_of,
    library_beside,
    tracing_libraries,
    untraced_calls,
)


def run_by(command: str, folder: Path) -> list[str]:
    return [shlex.join(inner.words) for inner in commands(shlex.split(command), str(folder))]


@pytest.mark.parametrize(
    "runner",
    [
        "env -u A X=1",
        "nice -n 5",
        "nice",
        "numactl --cpunodebind=0 -m 0",
        "taskset -c 0-3",
        "taskset 0xf",
        "timeout -k 5 1h",
        "stdbuf -oL",
        "uv run --with mpi4py --extra gpu",
        "conda run --no-capture-output -n env",
        "pixi run -e gpu",
        "apptainer exec --nv -B /a:/b image.sif",
        "singularity --debug exec image.sif",
        "podman-hpc run --rm --gpu -v /a:/a image:tag",
        "env X=1 nice numactl -N 0",
        "sh -c 'exec env X=1 \"$@\"' sh",
        "env -S 'X=1 nice'",
        "gdb -batch -ex run --args",
        "xvfb-run -a -s '-screen 0'",
        "nsys profile -t cuda -o x",
        "ncu --set full",
        "hatch run",
    ],
)
def test_the_program_behind_runners_is_found(tmp_path: Path, runner: str) -> None:
    assert run_by(f"{runner} python train.py --lr 1", tmp_path)[-1] == "python train.py --lr 1"


def test_the_words_before_the_program_start_another_one_in_the_same_environment(tmp_path: Path) -> None:
    words = shlex.split("env X=1 uv run --with a train.py")
    *_, last = commands(words, str(tmp_path))
    assert (last.words, last.before) == (["python", "train.py"], ("env", "X=1", "uv", "run", "--with", "a"))


BINDING = """#!/bin/bash
# it's the site's: python is chosen below
shift
export CUDA_VISIBLE_DEVICES=$((3 - SLURM_LOCALID))  # srun sets it
cat <<< "srun is not run here"
if [ -n "$X" ]; then
    exec numactl -N 0 \\
        "$@"
fi
"""


def test_plain_values_of_a_scripts_variables_are_read(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("LAUNCH='mpiexec -n 4' # all\nexport A=$(b)\n${LAUNCH} ./a $A\n")
    *_, last = commands(["bash", "run.sh"], str(tmp_path))
    assert (last.words, launcher_of(last)) == (["mpiexec", "-n", "4", "./a", "$A"], "mpiexec")


def test_a_script_is_read_with_its_arguments_and_says_the_line(tmp_path: Path) -> None:
    (tmp_path / "bind.sh").write_text(BINDING)
    found = list(commands(["./bind.sh", "first", "./ring", "-n"], str(tmp_path)))
    ring = next(command for command in found if command.name == "ring")
    assert ring.words == ["./ring", "-n"]
    assert ring.place == "./bind.sh, line 7"
    assert not any(map(launcher_of, found))
    assert "./ring" in run_by("bash bind.sh x ./ring", tmp_path)


def test_an_unknown_program_may_run_the_words_after_it(tmp_path: Path) -> None:
    (tmp_path / "bind").write_bytes(b"\x7fELF")
    assert run_by("./bind --gpu 1 python3 -u a.py", tmp_path)[-1] == "python3 -u a.py"
    assert run_by("./bind ring", tmp_path) == ["./bind ring"]


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("srun -n 4 python a.py", "srun"),
        ("env A=1 mpiexec.hydra -n 2 ./a", "mpiexec.hydra"),
        ("bash -c 'cd x; mpirun -n 2 ./a > out 2>&1'", "mpirun"),
        ("python -u -m torch.distributed.run --nproc-per-node 4 a.py", "torchrun"),
        ("accelerate launch a.py", "accelerate"),
        ("accelerate config", ""),
        ("uv run accelerate-launch a.py", "accelerate"),
        ("python3 -m deepspeed.launcher.runner a.py", "deepspeed"),
        ("ray symmetric-run --address a:1 -- ./a", "ray"),
        ("colossalai check", ""),
        ("lightning run model train.py", "lightning"),
        ("tune run --nproc_per_node 4 full_finetune_distributed", "tune"),
        ("tune ls", ""),
        ("axolotl train c.yml", "axolotl"),
        ("llamafactory-cli train c.yml", "llamafactory-cli"),
        ("llamafactory-cli chat c.yml", ""),
        ("ray start --head", "ray"),
        ("bash -c 'out=$(srun hostname)'", "srun"),
        ("bash -c 'echo srun is here; command -v srun'", ""),
        ("python srun.py", ""),
    ],
)
def test_a_launcher_within_the_program_is_found(tmp_path: Path, command: str, launcher: str) -> None:
    found = [name for inner in commands(shlex.split(command), str(tmp_path)) if (name := launcher_of(inner))]
    assert found == ([launcher] if launcher else [])


MAKEFILE = """MPIRUN ?= mpirun
.PHONY: all run
all: ring
ring: ring.c
\tmpicc ring.c -o ring
run: ring inner
\t@$(MPIRUN) -n $(NP) ./ring
inner:
\tfor n in 1 2; do srun -n $$n ./b; done
other:
\t$(MAKE) run
"""
DRIVER = '''"""Usage: srun -n 4 python drive.py"""
import os, shlex, subprocess
command = ["srun", "-n", str(ranks), "./a"]
for _ in range(3):
    subprocess.run(command + options, check=True)
line = f"mpirun -n {ranks} ./b"
subprocess.Popen(shlex.split(line))
os.system("flux run -n %d ./c" % ranks)
print("srun is not run")
'''


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        ("make", []),
        (
            "make run -j 4 NP=2",
            ["Makefile, line 7: mpirun -n 2 ./ring", "Makefile, line 9: srun -n '$n' ./b, again"],
        ),
        ("make MPIRUN=srun -f Makefile ring", []),
        (
            "gmake other NP=3",
            ["Makefile, line 7: mpirun -n 3 ./ring", "Makefile, line 9: srun -n '$n' ./b, again"],
        ),
        (
            "uv run drive.py",
            [
                "drive.py, line 5: srun -n ./a, again",
                "drive.py, line 7: mpirun -n ./b",
                "drive.py, line 8: flux run -n %d ./c",
            ],
        ),
        (
            "python -m drive",
            ["drive.py, line 5: srun -n ./a, again", "drive.py, line 7: mpirun -n ./b"],
        ),
        ("""python3 -c 'import os; os.execvp("srun", ["srun", "./a"])'""", [": srun srun ./a"]),
        ("""python3 -c 'from dask_mpi import initialize'""", [": dask-mpi"]),
        ("python missing.py", []),
        ("bash -c 'seq 3 | xargs -n 1 srun ./a'", [": srun ./a, again"]),
        ("ray job list", []),
        ("ray job submit -- python a.py", [": ray job submit -- python a.py"]),
    ],
)
def test_recipes_of_make_and_programs_in_python_are_looked_through(
    tmp_path: Path, command: str, launches: list[str]
) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "drive.py").write_text(DRIVER)
    found = [
        f"{inner.place}: {shlex.join(inner.words)}{', again' * inner.repeated}"
        for inner in commands(shlex.split(command), str(tmp_path))
        if launcher_of(inner)
    ]
    assert sorted(found)[: len(launches)] == launches
    assert bool(found) == bool(launches)


def test_a_script_that_runs_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "again.sh").write_text('#!/bin/sh\nexec ./again.sh "$@"\n')
    assert len(run_by("./again.sh x", tmp_path)) < 20


def test_a_script_is_not_read_for_each_time_that_its_usage_names_it(tmp_path: Path) -> None:
    usage = "".join(f"  ./run.sh --option{number} FILE\n" for number in range(3))
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\ncat <<U\n{usage}U\nopen('x')\nxdg-open x\n")
    (tmp_path / "run.sh").chmod(0o755)
    found = [command.words[0] for command in commands(["./run.sh"], str(tmp_path))]
    assert found.count("./run.sh") == 1 + 3 + 9


def test_scripts_whose_usages_name_each_other_end(tmp_path: Path) -> None:
    names = ("build.sh", "run.sh", "submit.sh")
    usage = "".join(f"  ./{name} --option{number} FILE\n" for name in names for number in range(5))
    for name in names:
        (tmp_path / name).write_text(f"#!/bin/bash\n# {name}\ncat <<U\n{usage}U\n./{name}.x\n")
        (tmp_path / name).chmod(0o755)
    assert [*commands(["./run.sh"], str(tmp_path))][-1].words == ["./run.sh.x"]


@pytest.mark.skipif(not Path("/usr/bin/ldd").exists(), reason="its C library is another")
def test_scripts_of_the_system_are_read_only_as_the_program_itself(tmp_path: Path) -> None:
    assert len(list(commands(["/usr/bin/ldd"], str(tmp_path)))) > 1
    (tmp_path / "run.sh").write_text("#!/bin/bash\n/usr/bin/ldd ./a.out\n")
    (tmp_path / "run.sh").chmod(0o755)
    assert run_by("./run.sh", tmp_path) == ["./run.sh", "/usr/bin/ldd ./a.out"]


@pytest.mark.parametrize(
    ("library", "family"),
    [
        ("/usr/lib/libmpi.so.40.30.4", "openmpi"),
        ("libmpi.so.20", "openmpi"),
        ("/opt/cray/lib/libmpi_nvidia.so.12", "mpich"),
        ("libmpich.so.12.1.6", "mpich"),
        ("libmpi_abi.so.0", "mpich"),
        ("libmpi.so", ""),
    ],
)
def test_the_family_follows_from_the_version_of_the_library(library: str, family: str) -> None:
    assert family_of(library) == family


def test_the_library_of_a_launcher_is_that_of_its_installation(tmp_path: Path) -> None:
    for name in ("bin/mpiexec", "lib/libmpi.so.12.5.0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert library_beside(str(tmp_path / "bin/mpiexec")) == str(tmp_path / "lib/libmpi.so.12.5.0")
    (tmp_path / "lib/libmpi.so.40.1.0").touch()
    assert library_beside(str(tmp_path / "bin/mpiexec")) == ""
    assert library_beside("/usr/bin/srun") == library_beside("") == ""


def test_only_calls_that_the_injected_library_lacks_are_untraced(tmp_path: Path) -> None:
    module, library, program, nsys = (
        tmp_path / name for name in ("MPI.so", "libmpi.so", "ring", "inject.so")
    )
    module.write_bytes(b"\0MPI_Send_c\0MPI_Iprobe\0")
    library.write_bytes(b"\0MPI_Send_c\0")
    program.write_bytes(b"\0MPI_Iprobe\0MPI_Mprobe\0MPI_Send\0")
    nsys.write_bytes(b"\0MPI_Mprobe\0")
    assert untraced_calls(Mpi(str(library), str(module)), [str(nsys)])[0] == "MPI_Send_c and its like"
    assert untraced_calls(Mpi(str(library), "", str(program)), [str(nsys)])[0] == "MPI_Iprobe"
    assert untraced_calls(Mpi(str(library), str(module)), []) == ("", "")
    program.write_bytes(b"\0MPI_Reduce_scatter_block\0mpi_win_fence_\0MPI_Reduce_scatter\0")
    nsys.write_bytes(b"\0MPI_Reduce_scatter\0")
    called = untraced_calls(Mpi(str(library), "", str(program)), [str(nsys)])[0]
    assert called == "MPI_Reduce_scatter_block|mpi_win_fence"
    program.write_bytes(
        program.read_bytes() + b"_ZN3MPI3Win5FenceEi\0"
    )  # of the C++ bindings, which name all
    assert untraced_calls(Mpi(str(library), "", str(program)), [str(nsys)])[0] == ""


def test_the_libraries_of_eztrace_are_beside_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, library = (tmp_path / name for name in ("bin/eztrace", "lib/x86_64/libeztrace-openmpi.so"))
    for path in (command, library, library.with_name("libeztrace-openmp.so")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    monkeypatch.setenv("PATH", str(command.parent))
    monkeypatch.setenv("HPCPROF_PROFILER", "eztrace")
    assert [*map(os.path.realpath, tracing_libraries())] == [str(library)]
