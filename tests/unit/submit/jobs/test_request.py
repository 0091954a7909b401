"""A user's request becomes a site and a job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.common.units import parse_memory
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.job_file import dump_job_file
from hpcprof.submit.jobs.merge import merged
from hpcprof.submit.jobs.request import resolve
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site, load_site_file
from hpcprof.submit.sites.model import Site
from tests.jobs import make_job, rendered

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
    with pytest.raises(UsageError, match=r"profile-ranks 9: .* rank 0 alone\.$"):
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


SLURM = "extends: generic-slurm\nnode: {cores: 64, gpus: 4}\n"
PBS = "extends: generic-pbs\nnode: {cores: 64, gpus: 4}\n"


def loaded(folder: Path, text: str) -> Site:
    path = folder / "mine.yaml"
    path.write_text(text)
    return load_site_file(path)


def scripts(site: Site, **asked: Any) -> tuple[list[str], str]:
    """Return the directives of job.sh, without what they begin with, and wrapper.sh."""
    job = make_job(site, **{"arguments": ["true"], "ranks_per_node": 2, **asked})
    texts = render(site, job, Rendering(Path("/run"), ["hpcprof"], launch_command(site, job), ["true"]))
    return re.findall(r"^#(?:SBATCH|PBS) (.*)", texts["job.sh"], re.MULTILINE), texts["wrapper.sh"]


def requests(site: Site, **asked: Any) -> list[str]:
    """Return the directives that the same job without ``asked`` does not have."""
    plain, _ = scripts(site)
    return [line for line in scripts(site, **asked)[0] if line not in plain]


ASKED = {
    "cpus_per_rank": 8,
    "gpus_per_rank": 1,
    "mem": "64GB",
    "constraint": "a100|h100",
    "scheduler_args": ["--exclude=n[1-3]", "-w n4"],
}


def test_slurm_gets_a_directive_for_each_resource(tmp_path: Path) -> None:
    assert requests(loaded(tmp_path, SLURM), **ASKED, reservation="school") == [
        "--gpus-per-node=2",
        "--cpus-per-task=8",
        "--mem=64G",
        "--constraint=a100|h100",
        "--reservation=school",
        "--exclude=n[1-3]",
        "-w n4",
    ]


def test_pbs_gets_the_resources_of_a_node_in_the_chunk(tmp_path: Path) -> None:
    asked = {**ASKED, "constraint": "gpu_type=a100", "scheduler_args": ["-l place=pack"]}
    assert requests(loaded(tmp_path, PBS), **asked) == [
        "-l select=1:ncpus=16:ngpus=2:mpiprocs=2:mem=64gb:gpu_type=a100",
        "-l place=pack",
    ]


def test_nothing_else_changes_where_one_resource_is_asked_for(tmp_path: Path) -> None:
    assert requests(loaded(tmp_path, SLURM), mem="1G") == ["--mem=1G"]
    assert requests(loaded(tmp_path, PBS), mem="1G") == ["-l select=1:ncpus=64:ngpus=4:mpiprocs=2:mem=1gb"]


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("node_request: gres\n", 2, ["--gres=gpu:4"]),
        ("node_request: none\n", 1, ["--gpus-per-node=2"]),
        ('directives: ["--gres=gpu:a100:4"]\n', 1, ["--gres=gpu:a100:2"]),
        ('directives: ["--gpus-per-task=1"]\n', 2, ["--gpus-per-task=2"]),
        ('directives: ["--gpus=8"]\n', 1, ["--gpus-per-node=2"]),
        ('directives: ["--gpus-per-node=4", "--exclusive"]\n', 0, []),
        (
            "options: {kind: {help: kind, default: gpu, directive: '--constraint={}'}}\n",
            1,
            ["--gpus-per-node=2"],
        ),
    ],
)
def test_gpus_are_requested_in_the_way_of_the_site(
    text: str, gpus: int, expected: list[str], tmp_path: Path
) -> None:
    directives, _ = scripts(loaded(tmp_path, SLURM + text), gpus_per_rank=gpus)
    assert [line for line in directives if re.match("--(gpus|gres)", line)] == expected


def test_the_arguments_of_srun_count_the_same_gpus() -> None:
    frontier = load_site("frontier")
    job = make_job(frontier, arguments=["true"], account="me", gpus_per_rank=2, ranks_per_node=4)
    assert launch_command(frontier, job)[1:3] == ["--gpus-per-task=2", "--gpu-bind=closest"]
    none = make_job(frontier, arguments=["true"], account="me", gpus_per_rank=0, ranks_per_node=56)
    assert launch_command(frontier, none)[1:2] == ["--gpu-bind=closest"]


def test_what_the_user_asks_for_replaces_what_the_site_sets() -> None:
    asked = {"account": "me", "cpus_per_rank": 16, "constraint": "gpu&hbm80g"}
    directives, _ = scripts(load_site("perlmutter"), **asked, scheduler_args=["--exclusive=user"])
    assert [line for line in directives if line.startswith("--c")] == [
        "--cpus-per-task=16",
        "--constraint=gpu&hbm80g",
    ]
    assert "--exclusive" not in directives
    assert "--gpus-per-node=4" in directives


def test_a_rank_with_several_gpus_sees_that_many_devices() -> None:
    _, wrapper = scripts(load_site("perlmutter"), account="me", gpus_per_rank=2)
    assert re.findall(r"^ *(\d)\) CUDA_VISIBLE_DEVICES=(\S+)", wrapper, re.MULTILINE) == [
        ("0", "3,2"),
        ("1", "1,0"),
    ]


def test_devices_of_a_whole_node_are_not_named_where_slurm_shows_only_some() -> None:
    _, wrapper = scripts(load_site("perlmutter"), account="me", gpus_per_rank=1)
    assert "CUDA_VISIBLE_DEVICES=3" not in wrapper
    polaris = {"account": "me", "queue": "debug", "options": {"filesystems": "home"}}
    _, wrapper = scripts(load_site("polaris"), **polaris, gpus_per_rank=1)
    assert "0) CUDA_VISIBLE_DEVICES=3" in wrapper


def test_a_queue_that_counts_gpus_gets_as_many_as_all_ranks_need() -> None:
    asked: dict[str, Any] = {"account": "me", "queue": "by-gpu", "gpus_per_rank": 2}
    asked["options"] = {"filesystems": "home"}
    assert "-l select=4" in scripts(load_site("sophia"), **asked)[0]
    with pytest.raises(UsageError, match="queue by-gpu of sophia takes 1, 2, 4, 8 GPUs, not 6"):
        make_job(load_site("sophia"), arguments=["true"], ranks_per_node=3, **asked)
    with pytest.raises(UsageError, match="--mem 1G: queue by-gpu of sophia gives each GPU its share"):
        make_job(load_site("sophia"), arguments=["true"], ranks_per_node=2, mem="1G", **asked)


def test_launchers_that_bind_ranks_get_the_cpus_of_a_rank(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"arguments": ["true"], "ranks_per_node": 2, "nodes": 2, "cpus_per_rank": 4}
    for launcher, words in (
        ("name: pals", "-n 4 --ppn 2 --depth 4"),
        ("name: openmpi", "-n 4 --map-by ppr:2:node:pe=4"),
    ):
        site = loaded(tmp_path, f"{PBS}launcher: {{{launcher}}}\n")
        assert launch_command(site, make_job(site, **asked))[1:] == words.split()
    threads = "extends: generic-pbs\nnode: {cores: 4, threads: 2}\nlauncher: {name: openmpi}\n"
    site = loaded(tmp_path, threads)
    words = "--use-hwthread-cpus -n 4 --map-by ppr:2:node:pe=4"
    assert launch_command(site, make_job(site, **asked))[1:] == words.split()
    site = loaded(tmp_path, f"{SLURM}launcher: {{name: torchrun}}\n")
    assert "--cpus-per-task=8" in launch_command(site, make_job(site, **asked))


@pytest.mark.parametrize(
    ("text", "size"),
    [("64G", "64G"), ("64gb", "64G"), ("512MiB", "512M"), ("2t", "2T"), ("1Ki", "1K"), ("0", "0M")],
)
def test_memory_is_a_number_with_a_unit(text: str, size: str) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["64", "1.5G", "-1G", "64 G", "G", "64X", "64GBB"])
def test_memory_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write a whole number with K, M, G or T, as in 64G"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "asked", "says"),
    [
        (SLURM, {"cpus_per_rank": 33}, "33 with --ranks-per-node 2 takes 66 CPUs of a node.*most 32"),
        (
            SLURM,
            {"gpus_per_rank": 3},
            "3 with --ranks-per-node 2 takes 6 GPUs of a node, but one of mine has 4",
        ),
        (SLURM, {"cpus_per_rank": 0}, "--cpus-per-rank 0: write a whole number from 1"),
        (SLURM, {"gpus_per_rank": -1}, "--gpus-per-rank -1: write a whole number from 0"),
        (SLURM, {"constraint": "a b"}, "--constraint 'a b': write it without spaces"),
        (
            SLURM,
            {"scheduler_args": ["exclude=n3"]},
            "--scheduler-arg 'exclude=n3': write one option of Slurm",
        ),
        (SLURM, {"scheduler_args": ["-w n=1 b"]}, "write one option of Slurm"),
        (SLURM, {"scheduler_args": ["--comment=a\n"]}, "write one option of Slurm"),
        (SLURM, {"scheduler_args": ["--nodes=3"]}, "--nodes=3: hpcprof sets --nodes itself; give --nodes"),
        (SLURM, {"scheduler_args": ["-N3"]}, "hpcprof sets --nodes itself"),
        (SLURM, {"scheduler_args": ["--tim 3"]}, "hpcprof sets --time itself; give --walltime"),
        (SLURM, {"scheduler_args": ["-p gpu"]}, "hpcprof sets --partition itself; give --queue"),
        (
            SLURM,
            {"scheduler_args": ["--mem-per-cpu=2G"], "mem": "64G"},
            "--mem 64G and --scheduler-arg --mem-per-cpu=2G both set the memory; give one of them",
        ),
        (
            SLURM,
            {"scheduler_args": ["--gres=gpu:1"], "gpus_per_rank": 0},
            "--gpus-per-rank 0 and --scheduler-arg --gres=gpu:1 both set GPUs",
        ),
        (
            SLURM,
            {"scheduler_args": ["--reservation=a"], "options": {"reservation": "b"}},
            "-o reservation=b and --scheduler-arg --reservation=a both set --reservation",
        ),
        (SLURM, {"scheduler_args": ["-x n1", "--exclude=n2"]}, "-x n1 and --scheduler-arg --exclude=n2 both"),
        (
            PBS,
            {"constraint": "a100"},
            "--constraint a100: PBS chooses nodes by their resources; write RESOURCE=",
        ),
        (
            PBS,
            {"constraint": "a=b:ncpus=4"},
            "--constraint ncpus=4: hpcprof sets ncpus itself; give --cpus-per",
        ),
        (PBS, {"scheduler_args": ["-l place=pack,select=3"]}, "hpcprof sets -l select itself; give --nodes"),
        (PBS, {"scheduler_args": ["-Wblock=true"]}, "hpcprof sets -W block itself; give --wait"),
        (PBS, {"scheduler_args": ["-N x"]}, "hpcprof sets -N itself; give --job-name"),
        (PBS, {"scheduler_args": ["-koe"]}, "hpcprof sets -e itself; the output goes to logs/"),
        (PBS, {"scheduler_args": ["-j oe"]}, "hpcprof sets -e itself; the output goes to logs/"),
        ("extends: local\n", {"mem": "1G"}, "--mem 1G: site mine has no batch system; leave it out"),
        ("extends: local\n", {"gpus_per_rank": 0}, "--gpus-per-rank 0: site mine has no batch system"),
        ("extends: local\n", {"scheduler_args": ["-x"]}, "--scheduler-arg -x: site mine has no batch system"),
    ],
)
def test_a_wrong_request_is_refused_and_named(
    text: str, asked: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says):
        make_job(loaded(tmp_path, text), arguments=["true"], ranks_per_node=2, **asked)


def test_a_gpu_profiler_is_refused_without_gpus_and_accepted_with_some(tmp_path: Path) -> None:
    cuda: dict[str, Any] = {"profiler_options": {"trace": "cuda"}}
    with pytest.raises(UsageError, match=r"--profiler nsys: .*request no GPUs.*or give --gpus-per-rank"):
        make_job(loaded(tmp_path, SLURM), arguments=["true"], profiler="nsys", gpus_per_rank=0, **cuda)
    site = loaded(tmp_path, "extends: generic-slurm\nnode: {cores: 64}\n")
    make_job(site, arguments=["true"], profiler="nsys", gpus_per_rank=1, **cuda)
    make_job(site, arguments=["true"], profiler="nsys", scheduler_args=["--gres=gpu:1"], **cuda)


def test_pbs_gets_variables_with_spaces_in_quotes(tmp_path: Path) -> None:
    site = load_site("generic-pbs")
    job = make_job(site, arguments=["a.out"], queue="q", scheduler_args=["-v A=b c,B=d", "-l x=b", "-koed"])
    text = rendered(job, tmp_path, site)["job.sh"]
    assert '#PBS -v "A=b c,B=d"\n#PBS -l x=b\n' in text
    with pytest.raises(UsageError, match="write one option of PBS"):
        make_job(site, arguments=["a.out"], queue="q", scheduler_args=["-l a b"])


def test_slurm_gets_a_value_with_spaces_in_quotes() -> None:
    asked: dict[str, Any] = {"arguments": ["x"], "scheduler_args": ("--comment=two words",)}
    site = load_site("generic-slurm")
    assert '--comment="two words"' in find_scheduler("slurm").directives(site, make_job(site, **asked))
    for name, argument in (("generic-pbs", "--comment=two words"), ("generic-slurm", '--comment="a b"')):
        with pytest.raises(UsageError, match="write one option of"):
            make_job(load_site(name), arguments=["x"], scheduler_args=(argument,))


def test_no_memory_means_all_of_a_node_to_slurm_alone() -> None:
    assert "--mem=0M" in scripts(load_site("generic-slurm"), arguments=["true"], mem="0")[0]
    with pytest.raises(UsageError, match="--mem 0: to PBS that is no memory, not all of a node"):
        make_job(load_site("generic-pbs"), arguments=["true"], mem="0")
