"""The type of srun --mpi: which one a job names, and when job.sh finds it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpcprof.submit.launchers import launch_command
from hpcprof.submit.mpi_types import fixed_type, parse_mpi_types, two_ranks
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site, site_files
from hpcprof.submit.sites.model import Site
from tests.jobs import make_job
from tests.unit.submit.schedulers.recorded import recorded_machine

SLURM = load_site("generic-slurm")
PYTHON = ["/opt/env/bin/python3.11", "train.py"]
TRIAL = "python3 /run/hook/hpcprof_program_words.py joins"


def script(site: Site, program: list[str], ranks: int = 2, **options: str) -> str:
    job = make_job(site, arguments=program, ranks_per_node=ranks, options=options)
    return render(site, job, Rendering(Path("/run"), ["hpcprof"], launch_command(site, job), program))[
        "job.sh"
    ]


def with_arguments(*arguments: str) -> Site:
    launcher = msgspec.structs.replace(SLURM.launcher, arguments=list(arguments))
    return msgspec.structs.replace(SLURM, launcher=launcher)


@pytest.mark.parametrize(
    ("printed", "types"),
    [
        (recorded_machine("srun_mpi_list.txt"), ["cray_shasta", "pmi2", "pmix"]),
        ("srun: MPI types are...\nsrun: openmpi\nsrun: none\nsrun: pmi2\n", ["pmi2"]),
        ("\tnone\n\tpmix_v3\n\tpmix_v4\n", ["pmix_v3", "pmix_v4"]),
        ("MPI plugin types are...\n\tnone\n", []),
        ("", []),
    ],
)
def test_the_types_that_connect_ranks_are_read_from_the_list(printed: str, types: list[str]) -> None:
    assert parse_mpi_types(printed) == types


@pytest.mark.parametrize(
    ("arguments", "type_"),
    [(["--mpi=pmi2"], "pmi2"), (["--mpi", "pmix"], "pmix"), (["--mpi"], ""), (["--mpibind=on"], "")],
)
def test_a_type_among_the_launchers_arguments_is_found(arguments: list[str], type_: str) -> None:
    assert fixed_type(with_arguments("--gpu-bind=none", *arguments)) == type_


def test_a_type_that_the_job_names_is_given_to_srun_after_the_arguments_of_the_site() -> None:
    site = with_arguments("--mpi=pmi2")
    job = make_job(site, arguments=["./a.out"], options={"mpi": "pmix"})
    assert launch_command(site, job)[:3] == ["srun", "--mpi=pmi2", "--mpi=pmix"]
    for value in ("auto", ""):
        job = make_job(SLURM, arguments=["./a.out"], options={"mpi": value})
        assert not any("--mpi" in word for word in launch_command(SLURM, job))


@pytest.mark.parametrize("program", [PYTHON, ["./a.out"], ["uv", "run", "python", "train.py"]])
def test_job_sh_finds_the_type_for_several_ranks_of_any_program(program: list[str]) -> None:
    text = script(SLURM, program)
    words = " ".join(program)
    assert f'srun --nodes=1 --ntasks=2 --ntasks-per-node=2 "$@" {TRIAL} {words}' in text
    assert f"if python3 /run/hook/hpcprof_program_words.py has {words} 2>/dev/null && ! connects" in text
    assert text.index(TRIAL) < text.index('"$run_dir/wrapper.sh"')


@pytest.mark.parametrize(
    ("site", "program", "ranks", "options"),
    [
        (SLURM, PYTHON, 1, {}),
        (SLURM, PYTHON, 2, {"mpi": "pmi2"}),
        (SLURM, PYTHON, 2, {"mpi": ""}),
        (with_arguments("--mpi=pmi2"), PYTHON, 2, {}),
        (load_site("local"), PYTHON, 1, {}),
        (load_site("generic-pbs"), PYTHON, 2, {}),
    ],
)
def test_job_sh_leaves_the_type_alone_where_it_is_known_or_one_rank_runs(
    site: Site, program: list[str], ranks: int, options: dict[str, str]
) -> None:
    assert TRIAL not in script(site, program, ranks, **options)


def test_two_ranks_are_tried_on_two_nodes_where_the_job_has_as_many() -> None:
    arguments = ["--gpus-per-task=1"]
    assert (
        " ".join(two_ranks(arguments, 1)) == "srun --gpus-per-task=1 --nodes=1 --ntasks=2 --ntasks-per-node=2"
    )
    assert (
        " ".join(two_ranks(arguments, 9)) == "srun --gpus-per-task=1 --nodes=2 --ntasks=2 --ntasks-per-node=1"
    )


def test_sites_whose_own_mpi_is_known_keep_slurms_default_and_accept_a_type() -> None:
    named = [load_site(name) for name in site_files() if name not in ("generic-slurm", "local")]
    for site in named:
        if site.scheduler == "slurm":
            assert site.options["mpi"].default == ""
