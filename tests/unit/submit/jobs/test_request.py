"""What a user asks for becomes a site and a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.job_file import dump_job_file
from hpcprof.submit.jobs.request import merged, resolve

FILE = """\
site: local
program: [python, train.py]
nodes: 1
ranks_per_node: 2
profiler: torch
profiler_options: {with_stack: "true", wait: "1", active: "2"}
options: {mpiexec: /opt/mpi/mpiexec}
job_name: from-the-file
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(FILE)
    return path


def test_a_request_without_a_size_is_one_rank_on_this_machine_without_a_profiler() -> None:
    site, job = resolve(JobSpec(program=("true",)))
    assert (site.name, job.nodes, job.ranks_per_node, job.profiler) == ("local", 1, 1, "none")


def test_a_job_file_fills_in_what_was_not_given(file: Path) -> None:
    _, job = resolve(JobSpec(job_file=file, ranks_per_node=4, profiler_options={"wait": "0"}))
    assert (job.arguments, job.ranks, job.name) == (["python", "train.py"], 4, "from-the-file")
    assert (job.profiler_options["wait"], job.profiler_options["with_stack"]) == ("0", "true")
    assert job.options["mpiexec"] == "/opt/mpi/mpiexec"


def test_a_given_program_replaces_that_of_the_job_file(file: Path) -> None:
    _, job = resolve(JobSpec(job_file=file, program=("true",)))
    assert job.arguments == ["true"]


def test_a_merged_request_saved_as_a_job_file_is_the_same_job(file: Path, tmp_path: Path) -> None:
    asked = JobSpec(
        job_file=file, walltime="90m", capture_steps="2-3", profiler_options={"active": "0", "wait": "0"}
    )
    saved = tmp_path / "saved.yaml"
    saved.write_text(dump_job_file(merged(asked)))
    assert resolve(JobSpec(job_file=saved)) == resolve(asked)


RESOURCES = """\
site: generic-slurm
program: [python, train.py]
cpus_per_rank: 8
gpus_per_rank: 0
mem: 64G
constraint: a100
scheduler_args: [--exclude=n3, --nice=5]
"""


def test_resources_of_a_job_file_are_filled_in_saved_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(RESOURCES)
    _, job = resolve(JobSpec(job_file=path, mem="1T", scheduler_args=("--nice=9",)))
    assert (job.cpus_per_rank, job.gpus_per_rank, job.mem, job.constraint) == (8, 0, "1T", "a100")
    assert job.scheduler_args == ["--nice=9"]
    saved = tmp_path / "saved.yaml"
    saved.write_text(dump_job_file(merged(JobSpec(job_file=path))))
    assert resolve(JobSpec(job_file=saved)) == resolve(JobSpec(job_file=path))


def test_no_gpus_are_asked_for_and_not_left_out() -> None:
    asked = JobSpec(program=("true",), gpus_per_rank=0, scheduler_args=("--exclude=n3",))
    assert asked.given() == ["program", "gpus_per_rank", "scheduler_args"]
    assert asked.to_arguments()[:4] == ["--gpus-per-rank", "0", "--scheduler-arg", "--exclude=n3"]


def test_what_was_given_is_known_before_the_job_file_is_read(tmp_path: Path) -> None:
    asked = JobSpec(job_file=tmp_path / "missing.yaml", nodes=2, template=tmp_path / "mine.sh.j2")
    assert asked.given() == ["job_file", "nodes"]


def test_an_error_names_the_line_of_the_job_file_that_gave_the_value(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("program: [x]\nprofile_ranks: '7'\nprofiler: nsys\noptions:\n  mpi: a\n")
    with pytest.raises(UsageError, match=r"option 'mpi'.*\(options\.mpi = a in .*job\.yaml, line 5\)"):
        resolve(JobSpec(job_file=path))
    path.write_text("program: [x]\nprofile_ranks: '7'\n")
    with pytest.raises(UsageError, match=r"profile-ranks 7: .*\(profile_ranks = 7 in .*job\.yaml, line 2\)"):
        resolve(JobSpec(job_file=path))
    with pytest.raises(UsageError, match=r"profile-ranks 9: .* ranks 0 to 0\.$"):
        resolve(JobSpec(job_file=path, profile_ranks="9"))


def test_a_job_without_a_node_or_a_rank_is_refused() -> None:
    with pytest.raises(UsageError, match="--nodes 0: write a whole number from 1"):
        resolve(JobSpec(program=("true",), nodes=0))
    with pytest.raises(UsageError, match="--ranks-per-node 0: write a whole number from 1"):
        resolve(JobSpec(program=("true",), ranks_per_node=0))


def test_the_site_file_comes_before_the_name_of_a_site(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: local\n")
    assert resolve(JobSpec(program=("true",), site="polaris", site_file=path))[0].name == "mine"


def test_a_request_names_the_arguments_of_the_command_that_asks_for_the_same() -> None:
    asked = JobSpec(
        program=("echo", "a b"), nodes=2, options={"k": "v"}, after=("x", "y"), runs_dir=Path("elsewhere")
    )
    assert asked.to_arguments() == [
        *("--nodes", "2", "-o", "k=v", "--after", "x", "--after", "y", "--runs-dir", "elsewhere"),
        *("--", "echo", "a b"),
    ]
