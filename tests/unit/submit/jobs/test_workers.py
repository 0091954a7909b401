"""Launchers within the program of a job."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.node import program_words
from hpcprof.submit.jobs.checks import remarks
from hpcprof.submit.jobs.workers import count_runner_words, workers_of
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site
from tests.jobs import make_job, rendered

PERLMUTTER: dict[str, Any] = {"account": "a", "queue": "debug"}


def split(command: str, nodes: int = 1, gpus: int | None = 4) -> tuple[str, int, str] | None:
    workers = workers_of(shlex.split(command), "/", nodes, gpus)
    if workers is None:
        return None
    return shlex.join(workers.launcher), workers.on_node, shlex.join(workers.program)


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("torchrun --nproc-per-node 4 a.py --lr 1", ("torchrun", 4, "python -u a.py --lr 1")),
        (
            "torchrun --nproc_per_node=gpu --role=r a.py",
            ("torchrun --role r", 4, "python -u a.py"),
        ),
        ("torchrun a.py", ("torchrun", 1, "python -u a.py")),
        (
            "torchrun --standalone --nproc-per-node 2 -m pkg.train x",
            ("torchrun", 2, "python -u -m pkg.train x"),
        ),
        ("torchrun --no-python --nproc-per-node 2 ./a.sh", ("torchrun", 2, "./a.sh")),
        ("uv run torchrun --nproc-per-node 2 a.py", ("uv run torchrun", 2, "python -u a.py")),
        ("/v/bin/torchrun --nproc-per-node 2 a.py", ("/v/bin/torchrun", 2, "/v/bin/python -u a.py")),
        (
            "python3 -m torch.distributed.run --nproc-per-node 2 a.py",
            ("python3 -m torch.distributed.run", 2, "python3 -u a.py"),
        ),
        ("accelerate launch a.py", ("accelerate launch --multi_gpu", 4, "python a.py")),
        ("accelerate launch --config_file c.yaml a.py", None),
        ("accelerate launch --cpu --num_processes 2 a.py", ("accelerate launch --cpu", 2, "python a.py")),
        ("accelerate launch --num_processes 2 a.py", ("accelerate launch --multi_gpu", 2, "python a.py")),
        ("torchrun --nproc-per-node auto a.py", ("torchrun", 4, "python -u a.py")),
        ("bash -c 'torchrun a.py'", None),
        ("python a.py", None),
        ("torchrun --help", None),
    ],
)
def test_a_launcher_of_workers_is_taken_apart(command: str, parts: tuple[str, int, str] | None) -> None:
    assert split(command) == parts


@pytest.mark.parametrize(
    ("config", "nodes", "parts"),
    [
        ("num_machines: 2\nmachine_rank: 1\nnum_processes: 4\ndistributed_type: FSDP\n", 1, ("", 2)),
        ("num_machines: 2\nnum_processes: 4\ndistributed_type: NO\n", 2, (" --multi_gpu", 2)),
        (
            "num_processes: 3\ndistributed_type: DEEPSPEED\n",
            2,
            (" --deepspeed_multinode_launcher standard", 3),
        ),
        ("num_machines: 2\nnum_processes: 3\n", 1, None),
        ("num_machines: 2\nnum_processes: 1\ndistributed_type: MULTI_GPU\n", 2, ("", 4)),
        ("num_processes: [", 1, (" --multi_gpu", 4)),
        ("- 1\n", 1, (" --multi_gpu", 4)),
    ],
)
def test_accelerates_file_says_the_workers_of_a_node_and_the_strategy_but_not_the_nodes(
    config: str, nodes: int, parts: tuple[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(config)
    found = split("accelerate launch a.py", nodes)
    assert found == (parts and (f"accelerate launch{parts[0]}", parts[1], "python a.py"))


def test_the_processes_of_accelerate_are_shared_by_the_nodes() -> None:
    assert split("accelerate launch --num_machines 2 --num_processes 8 a.py", 2) == (
        *("accelerate launch --multi_gpu", 4, "python a.py"),
    )
    with pytest.raises(UsageError, match="torchrun is told of 4 nodes, and the job has --nodes 2"):
        split("torchrun --nnodes 4 a.py", 2)


def test_workers_on_several_nodes_meet_and_see_all_gpus(tmp_path: Path) -> None:
    site = load_site("perlmutter")
    job = make_job(site, nodes=2, arguments=["torchrun", "--nproc-per-node", "4", "a.py"], **PERLMUTTER)
    assert (job.ranks, job.arguments) == (8, ["python", "-u", "a.py"])
    launch = shlex.join(launch_command(site, job))
    assert launch.startswith("srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --wait=0 sh -c ")
    assert "--nnodes=2 --rdzv-backend=c10d '--rdzv-endpoint={meeting}'" in launch
    assert remarks(job, site)[0] == "the job starts the workers of torchrun as its ranks: 4 on each node"
    aurora = load_site("aurora")
    given: dict[str, Any] = {"account": "a", "queue": "debug", "options": {"filesystems": "flare"}}
    job = make_job(aurora, arguments=["torchrun", "a.py"], **given)
    rendering = Rendering(tmp_path, ["hpcprof"], [], job.arguments)
    assert job.workers and "ZE_AFFINITY_MASK=" not in render(aurora, job, rendering)["wrapper.sh"]


def test_accelerate_gets_the_nodes_and_the_place_where_they_meet(tmp_path: Path) -> None:
    site = load_site("perlmutter")
    words = ["accelerate", "launch", "--num_processes", "4", "a.py"]
    job = make_job(site, nodes=2, arguments=words, **PERLMUTTER)
    text = rendered(job, tmp_path, launch=launch_command(site, job))["job.sh"]
    assert "--no_python --num_processes 4 --num_machines 2 --rdzv_backend c10d" in text
    assert '--main_process_ip "${meeting%:*}" --main_process_port "${meeting##*:}"' in text


def test_a_launcher_of_workers_in_a_script_has_the_whole_node() -> None:
    job = make_job(load_site("perlmutter"), arguments=["bash", "-c", "deepspeed a.py"], **PERLMUTTER)
    assert (job.ranks_per_node, job.gpus_per_rank, job.cpus_per_rank, job.workers) == (1, 4, 64, [])


def test_what_was_asked_for_one_task_is_for_all_its_workers() -> None:
    words = ["torchrun", "--nproc-per-node", "4", "a.py"]
    job = make_job(load_site("perlmutter"), arguments=words, gpus_per_rank=4, cpus_per_rank=64, **PERLMUTTER)
    assert (job.ranks_per_node, job.gpus_per_rank, job.cpus_per_rank) == (4, 1, 16)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "srun -n 4 python a.py",
            r"srun starts the ranks itself, .*\(--ranks-per-node 4 -- python a.py\)",
        ),
        ("env A=1 mpiexec ./a", r"mpiexec starts the ranks itself, .*--ranks-per-node N -- env A=1 ./a\)"),
        ("srun -N 2 -n 8 ./a 'b c'", r"\(--nodes 2 --ranks-per-node 4 -- ./a 'b c'\)"),
        ("srun --nodes=2 --ntasks=3 ./a", r"\(--nodes 2 --ranks-per-node N -- ./a\)"),
        ("flux run -n 4 ./a", r"flux starts the ranks itself, .*\(--ranks-per-node 4 -- ./a\)"),
        ("./job.sh", r"mpirun \(./job.sh, line 3\) starts ranks itself, .*to --template"),
        ("make run", r"mpiexec \(Makefile, line 2\) starts ranks itself, .*name the program that it runs"),
        ("bash -c 'for n in 1 2; do srun ./a; done'", r"srun starts the ranks itself"),
        (
            "./loop.sh",
            r"srun \(./loop.sh, line 3\) starts ranks more than once.* run --here in place of srun",
        ),
        ("./two.sh", r"mpirun \(./two.sh, line 2\) starts ranks more than once, "),
        ("bash -c 'sbatch next.sh'", "sbatch submits another job, which is no part of this run"),
        ("dask-mpi --scheduler-file a", "dask-mpi makes rank 0 the scheduler; the others work: .* 1-1"),
        (
            "python dask.py",
            "dask-mpi needs 3 ranks, as it makes rank 0 the scheduler and rank 1 the client: give",
        ),
        ("torchrun a.py", "torchrun starts the workers of a node itself, and would run 2 times on each"),
        (
            "nsys profile -o report python a.py",
            "hpcprof collects no profile of the nsys in the program, .* give --profiler nsys",
        ),
        ("python a.py", ""),
        (
            "apptainer exec --cleanenv i.sif python a.py",
            "--cleanenv of the container keeps the numbers of the ranks",
        ),
        ("singularity exec --nv -e i.sif python a.py", "-e of the container keeps"),
        ("apptainer exec --bind a --containall i.sif python a.py", "--containall of the container keeps"),
        ("xvfb-run -e log apptainer exec --nv i.sif env -C /data stdbuf -e L python a.py", ""),
    ],
)
def test_a_launcher_within_the_program_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nmpirun -n 4 ./a\n")
    Path("loop.sh").write_text("#!/bin/bash\nfor n in 1 2; do\n srun -n $n ./a\ndone\n")
    Path("two.sh").write_text("#!/bin/bash\nmpirun ./a\nmpirun ./b\n")
    Path("Makefile").write_text("run:\n\tmpiexec -n 4 ./a\n")
    Path("dask.py").write_text("from dask_mpi import initialize\n")
    site = load_site("generic-slurm")
    said = remarks(make_job(site, arguments=shlex.split(command), ranks_per_node=2), site)
    said = [remark for remark in said if "lines of ./job.sh have no effect" not in remark]
    assert len(said) == bool(sentence)
    assert not said or re.search(sentence, said[0])


@pytest.mark.parametrize(
    ("command", "nodes", "sentence"),
    [
        (
            "bash -c 'torchrun a.py'",
            2,
            "torchrun starts workers .*, and the 2 nodes run apart: name it after -- ",
        ),
        (
            "bash -c 'torchrun --nnodes=2 a.py'",
            2,
            "torchrun starts workers .* of one rank: name it after -- ",
        ),
        ("torchrun --nproc-per-node $N a.py", 1, "torchrun starts workers .* of one rank: name it after -- "),
        ("./job.sh", 2, r"accelerate in ./job.sh, line 2 starts .* 2 nodes run apart: name it after -- "),
        ("deepspeed a.py", 2, r"deepspeed starts .* run apart: leave it out \(--ranks-per-node N -- python"),
        (
            "deepspeed --hostfile=h a.py",
            2,
            "deepspeed .* rank, and each of the 2 nodes starts those of all hosts",
        ),
        ("deepspeed --hostfile h --no_ssh a.py", 2, "deepspeed .* the profile of one rank: leave it out"),
        ("composer -n 4 a.py", 1, "composer starts .* leave it out .* have RANK, LOCAL_RANK and WORLD_SIZE$"),
        (
            "ray start --head",
            2,
            r"ray starts .* apart: newer .* --address \$MASTER_ADDR:PORT --min-nodes 2 -- ",
        ),
        (
            "mpiexec -n 1 ./a : -n 1 ./b",
            1,
            r"mpiexec starts .* \(--ranks-per-node N -- bash -c 'case \$RANK in",
        ),
        ("srun --multi-prog a.conf", 1, r"srun starts .* \(--ranks-per-node N -- bash -c 'case \$RANK in"),
        ("ray job submit -- python a.py", 2, "ray gives the program to a cluster .* by ray symmetric-run"),
        ("ray symmetric-run --address a:1 -- python a.py", 2, "ray starts .* the profile of one rank$"),
        (
            "python -m accelerate.commands.launch --num_processes 4 a.py",
            2,
            "the job .* accelerate as .*: 2 on",
        ),
        (
            "torchrun --nproc-per-node 2 a.py",
            2,
            "the job starts the workers of torchrun as its ranks: 2 on each",
        ),
    ],
)
def test_workers_within_one_rank_are_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, nodes: int, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text("#!/bin/bash\naccelerate launch a.py\n")
    site = load_site("generic-slurm")
    (said,) = remarks(make_job(site, arguments=shlex.split(command), nodes=nodes), site)
    assert re.match(sentence, said)


def test_a_script_is_read_once_though_many_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("go.sh").write_text("#!/bin/sh\npython train.py\n")
    Path("train.py").write_text("import jax\n")
    read: list[str] = []

    def note(path: str, *options: Any, **more: Any) -> Any:
        if Path(path).parent == tmp_path:
            read.append(Path(path).name)
        return open(path, *options, **more)  # noqa: PTH123

    monkeypatch.setattr(program_words, "open", note, raising=False)
    for command in (["./go.sh"], ["python", "train.py"]):
        job = make_job(load_site("local"), arguments=command, profiler="nsys", signal="USR1@60")
        remarks(job, load_site("local"))
        rendered(job, tmp_path)
    assert sorted(read) == ["go.sh", "train.py"]


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("conda run -n env ./train.sh", 4),
        ("env A=b conda run -n env bash train.sh", 6),
        ("env A=b uv run train.py", 0),
        ("uv run -m train", 0),
        ("vtune -collect hotspots -- ./train.sh", 0),
        ("./train.sh env", 0),
        ("bash -c 'conda run -n env ./train.sh'", 0),
        ("conda run -n env apptainer exec image ./train.sh", 0),
    ],
)
def test_the_words_of_runners_before_a_program_are_counted_outside_of_images(
    command: str, count: int
) -> None:
    asked = make_job(load_site("generic-slurm"), arguments=shlex.split(command))
    assert count_runner_words(asked) == count


@pytest.mark.parametrize("program", ["bash job.slurm", "./job.slurm", "nice bash -e job.slurm 3"])
def test_directives_of_a_script_that_is_only_run_are_told_to_have_no_effect(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "job.slurm"
    site = load_site("generic-slurm")
    job = make_job(site, arguments=program.split())
    script.write_text("#!/bin/bash\n#SBATCH --nodes=4\nset -e\npython train.py $1\n")
    assert any(remark.startswith("the #SBATCH lines of ") for remark in remarks(job, site))
    script.write_text("#!/bin/bash\n# SBATCH lines are elsewhere\npython train.py\n")
    assert remarks(job, site) == []
    script.unlink()
    os.mkfifo(script)  # it has no text before it is written, and is read once
    assert remarks(job, site) == []
