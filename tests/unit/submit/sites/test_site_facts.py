"""Rendered scripts follow the user guides of the sites."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.common.paths import packaged_folder
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.checks import remarks
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site, load_site_file
from hpcprof.submit.sites.model import Site, Vendor
from tests.jobs import make_job

ROOT = Path(__file__).parents[4]
# Sites that are machines of somebody's, with a user guide.
MACHINES = sorted(
    path.stem
    for path in packaged_folder("site_configs").glob("[!_]*.yaml")
    if not path.stem.startswith("generic-") and path.stem not in ("kubernetes", "local")
)
FILE_SYSTEMS = {"filesystems": "home"}


def job_for(site: Site, **changes: Any) -> Job:
    options = {key: value for key, value in FILE_SYSTEMS.items() if key in site.options}
    queue = site.queue or next(iter(site.queues), "")
    values = {"arguments": ["true"], "account": "project", "queue": queue, "options": options}
    return make_job(site, **{**values, **changes})


def scripts(name: str, **changes: Any) -> tuple[str, str]:
    """Return job.sh and wrapper.sh of a job."""
    site = load_site(name)
    job = job_for(site, **changes)
    texts = render(site, job, Rendering(Path("/run"), ["hpcprof"], launch_command(site, job), ["true"]))
    return texts["job.sh"], texts["wrapper.sh"]


def launch_line(script: str) -> list[str]:
    """Return the words of the launch in job.sh."""
    return shlex.split(script[: script.index(' \\\n    "$shell"')].rsplit("\n", 1)[1])


def gpus_by_local_rank(wrapper: str, variable: str) -> list[str]:
    return re.findall(rf"^ *\d+\) {variable}=(\S+) ;;$", wrapper, re.MULTILINE)


def numbers(cores: str) -> set[int]:
    spans = [part.partition("-") for part in cores.split(",")]
    return {n for first, _, last in spans for n in range(int(first), int(last or first) + 1)}


# Polaris, ALCF user guide: the cores next to each GPU; the hardware thread of core c is c + 32.
POLARIS_CORES = {0: range(24, 32), 1: range(16, 24), 2: range(8, 16), 3: range(0, 8)}


@pytest.mark.parametrize("nodes", [1, 2])
def test_on_polaris_every_rank_runs_on_the_cores_of_the_gpu_that_it_gets(nodes: int) -> None:
    job, wrapper = scripts("polaris", nodes=nodes, ranks_per_node=4)
    bind = next(word for word in launch_line(job) if word.startswith("--cpu-bind="))
    cores = [numbers(part) for part in bind.removeprefix("--cpu-bind=list:").split(":")]
    gpus = [int(gpu) for gpu in gpus_by_local_rank(wrapper, "CUDA_VISIBLE_DEVICES")]
    assert gpus == [3 - rank for rank in range(4)]
    own = [{c + thread for c in POLARIS_CORES[gpu] for thread in (0, 32)} for gpu in gpus]
    assert cores == own


def test_the_binding_of_the_workshop_puts_ranks_beside_remote_gpus() -> None:
    # list:4:24:36:48 of the hand-edited scripts: a record of why the site has another one.
    gpus = [3, 2, 1, 0]
    at = [core % 32 for core in (4, 24, 36, 48)]
    assert [core in POLARIS_CORES[gpu] for core, gpu in zip(at, gpus, strict=True)] != [True] * 4
    assert at[2] == at[0]  # 36 is the hardware thread of core 4


def test_polaris_gets_its_directives_and_no_comment_among_them() -> None:
    job, _ = scripts("polaris", nodes=2, options={"filesystems": "home:eagle"}, walltime="30m")
    lines = job.splitlines()
    directives = [index for index, line in enumerate(lines) if line.startswith("#PBS")]
    assert directives == list(range(directives[0], directives[0] + len(directives)))
    assert lines[directives[-1] + 1] == ""
    assert {
        "#PBS -A project",
        "#PBS -q debug",
        "#PBS -l select=2:system=polaris",
        "#PBS -l walltime=00:30:00",
        "#PBS -l place=scatter",
        "#PBS -l filesystems=home:eagle",
        "#PBS -k doe",
    } <= set(lines)
    # qsub -V breaks the JSON of qstat: exported functions of bash are no valid strings there.
    assert not re.search(r"^#PBS .*-V\b", job, re.MULTILINE)


def test_a_job_that_polaris_may_kill_without_warning_can_run_again() -> None:
    assert "#PBS -r y\n" in scripts("polaris", queue="preemptable")[0]
    assert "#PBS -r y\n" not in scripts("polaris", queue="debug")[0]


def test_polaris_passes_a_short_tmpdir_of_the_node_to_the_ranks() -> None:
    job, _ = scripts("polaris")
    assert "export TMPDIR=/local/scratch &&" in job
    words = launch_line(job)
    assert words[words.index("--env") + 1] == "TMPDIR=/local/scratch"


def test_polaris_has_the_network_settings_of_its_guide_and_the_proxy() -> None:
    job, _ = scripts("polaris")
    for line in (
        "NCCL_NET='AWS Libfabric'",
        "NCCL_NET_GDR_LEVEL=PHB",
        "NCCL_CROSS_NIC=1",
        "NCCL_COLLNET_ENABLE=1",
        "FI_CXI_DISABLE_HOST_REGISTER=1",
        "FI_MR_CACHE_MONITOR=userfaultfd",
        "FI_CXI_DEFAULT_CQ_SIZE=131072",
        "http_proxy=http://proxy.alcf.anl.gov:3128",
        "https_proxy=http://proxy.alcf.anl.gov:3128",
    ):
        assert f"export {line}\n" in job
    assert job.index("module use /soft/modulefiles") < job.index("module load conda") < job.index("mpiexec")


@pytest.mark.parametrize(("queue", "nodes", "chunks"), [("by-gpu", 1, 4), ("by-node", 2, 2)])
def test_on_sophia_select_counts_gpus_in_one_queue_and_nodes_in_the_other(
    queue: str, nodes: int, chunks: int
) -> None:
    job, _ = scripts("sophia", queue=queue, nodes=nodes, ranks_per_node=4)
    assert f"#PBS -l select={chunks}\n" in job


def test_on_sophia_the_gpus_of_a_job_are_not_scattered_over_nodes() -> None:
    assert "place=scatter" not in scripts("sophia", queue="by-gpu")[0]
    assert "#PBS -l place=scatter\n" in scripts("sophia", queue="by-node")[0]


def test_aurora_binds_twelve_tiles_and_leaves_the_cores_of_the_system_alone() -> None:
    job, wrapper = scripts("aurora", ranks_per_node=12)
    bind = next(word for word in launch_line(job) if word.startswith("--cpu-bind="))
    cores = [numbers(part) for part in bind.removeprefix("--cpu-bind=list:").split(":")]
    assert [len(part) for part in cores] == [8] * 12
    assert sorted(set().union(*cores)) == [*range(1, 49), *range(53, 101)]
    assert gpus_by_local_rank(wrapper, "ZE_AFFINITY_MASK") == [str(tile) for tile in range(12)]
    # As the frameworks module has it: running-jobs-aurora.md, "Binding MPI ranks to GPUs"
    assert "export ZE_FLAT_DEVICE_HIERARCHY=FLAT\n" in job


def test_perlmutter_follows_the_recipe_that_keeps_cuda_ipc_working() -> None:
    job, wrapper = scripts("perlmutter", nodes=2, ranks_per_node=4)
    for line in (
        "--account=project",
        "--qos=debug",
        "--constraint=gpu",
        "--ntasks-per-node=4",
        "--gpus-per-node=4",
        "--exclusive",
    ):
        assert f"#SBATCH {line}\n" in job
    assert {"--gpu-bind=none", "--cpu-bind=cores"} <= set(launch_line(job))
    assert gpus_by_local_rank(wrapper, "CUDA_VISIBLE_DEVICES") == ["3", "2", "1", "0"]
    assert 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"' in job


def test_perlmutter_has_nodes_with_more_memory_by_a_constraint() -> None:
    job, _ = scripts("perlmutter", options={"constraint": "gpu&hbm80g"})
    assert "#SBATCH --constraint=gpu&hbm80g\n" in job


def test_frontier_keeps_cores_for_the_system_and_gives_each_rank_the_closest_gpu() -> None:
    job, _ = scripts("frontier", ranks_per_node=8, options={"qos": "debug", "constraint": "nvme"})
    for line in ("-S 8", "--cpus-per-task=7", "--partition=batch", "--qos=debug", "--constraint=nvme"):
        assert f"#SBATCH {line}\n" in job
    assert {"--gpus-per-task=1", "--gpu-bind=closest"} <= set(launch_line(job))
    assert load_site("frontier").node.cores == 56


def test_lumi_binds_full_nodes_in_the_order_of_its_gpus() -> None:
    job, wrapper = scripts("lumi", ranks_per_node=8)
    (masks,) = (word for word in launch_line(job) if word.startswith("--cpu-bind="))
    # distribution-binding.md, for programs with threads
    guide = "fe000000000000 fe00000000000000 fe0000 fe000000 fe fe00 fe00000000 fe0000000000"
    assert masks == f"--cpu-bind=mask_cpu:{','.join(f'0x{mask}' for mask in guide.split())}"
    assert gpus_by_local_rank(wrapper, "ROCR_VISIBLE_DEVICES") == [str(gpu) for gpu in range(8)]
    assert "#SBATCH --gpus-per-node=8\n#SBATCH --exclusive\n" in job


def test_juwels_booster_asks_for_gpus_by_gres() -> None:
    assert "#SBATCH --gres=gpu:4\n" in scripts("juwels-booster", ranks_per_node=4)[0]


def test_clariden_gives_each_rank_a_gpu() -> None:
    job, wrapper = scripts("alps-clariden", ranks_per_node=4, options={"environment": "pytorch"})
    assert "#SBATCH --gpus-per-task=1\n" in job
    assert "#SBATCH --environment=pytorch\n" in job
    assert "CUDA_VISIBLE_DEVICES" not in wrapper


@pytest.mark.parametrize("profiler", ["nsys", "ncu"])
@pytest.mark.parametrize("name", [name for name in MACHINES if load_site(name).node.vendor != Vendor.NVIDIA])
def test_a_profiler_that_the_gpus_do_not_have_is_refused_with_one_that_works(
    name: str, profiler: str
) -> None:
    options = {"kernel": "gemm", "launch-count": "1"} if profiler == "ncu" else {}
    with pytest.raises(
        UsageError,
        match=r"cannot profile the (AMD|Intel) GPUs of .*; use --profiler torch( or \w+)?\.$",
    ):
        job_for(load_site(name), profiler=profiler, profiler_options=options)
    assert job_for(load_site(name), profiler="torch").profiler == "torch"


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_says_where_its_facts_stand_and_since_when(name: str) -> None:
    site = load_site(name)
    assert re.search(r"\b20\d\d-\d\d\b", site.source)
    assert site.verified == ("second hand" not in site.source)


@pytest.mark.parametrize(
    "path", sorted(packaged_folder("site_configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_site_file_is_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.parametrize("name", MACHINES)
def test_every_queue_of_a_machine_takes_a_job_within_its_limits(name: str) -> None:
    site = load_site_file(packaged_folder("site_configs") / f"{name}.yaml")
    for queue, limits in site.queues.items():
        if not limits.route_only:
            # The largest that a queue says it takes.
            nodes = limits.max_nodes or max(limits.walltime_by_nodes, default=limits.min_nodes - 1) + 1
            # The site's own walltime, and the longest.
            for walltime in (None, limits.max_walltime or ("22m" if limits.max_node_time else "1h")):
                job = job_for(site, queue=queue, nodes=nodes, walltime=walltime)
                assert (job.queue, job.nodes) == (queue, nodes)


def test_file_systems_of_daos_are_joined_by_a_colon() -> None:
    script, _ = scripts("aurora", options={"filesystems": "flare:daos_user_fs"})
    assert "#PBS -l filesystems=flare:daos_user_fs\n" in script


@pytest.mark.parametrize(("name", "line"), [("polaris", "#!/bin/bash -l"), ("frontier", "#!/bin/bash")])
def test_jobs_run_in_a_login_shell_where_the_guide_has_one(name: str, line: str) -> None:
    script, _ = scripts(name)
    assert script.splitlines()[0] == line


def test_the_old_queues_of_sophia_route_to_the_new_ones() -> None:
    scripts("sophia", queue="single-gpu", ranks_per_node=4)
    scripts("sophia", queue="single-node", nodes=2, ranks_per_node=8)
    with pytest.raises(UsageError, match="takes 1, 2, 4, 8 GPUs, not 3"):
        scripts("sophia", queue="single-gpu", ranks_per_node=3)
    with pytest.raises(UsageError, match=r"no queue behind single-node .* at most 24:00:00"):
        scripts("sophia", queue="single-node", walltime="25:00:00")


def test_a_limit_of_node_time_depends_on_the_number_of_nodes() -> None:
    scripts("alps-clariden", nodes=4, walltime="00:22:00")
    scripts("alps-clariden", nodes=1, walltime="01:30:00")
    with pytest.raises(
        UsageError, match=r"4 nodes for at most 00:22:00 \(01:30:00 of node time\), not 00:30:00"
    ):
        scripts("alps-clariden", nodes=4, walltime="00:30:00")
    scripts("alps-clariden", nodes=4, queue="low", walltime="24:00:00")


@pytest.mark.parametrize(("program", "value"), [("./cp2k.psmp", "1"), ("python3 train.py", "0")])
def test_gpu_aware_mpi_is_the_default_of_programs_that_are_no_python(program: str, value: str) -> None:
    script, _ = scripts("daint", arguments=program.split())
    line = f'[ -n "${{MPICH_GPU_SUPPORT_ENABLED+set}}" ] || export MPICH_GPU_SUPPORT_ENABLED={value}'
    assert line in script.splitlines()


def test_an_option_brings_its_environment_only_if_it_is_given() -> None:
    assert "NCCL_PROTO" not in scripts("alps-clariden")[0]
    script, _ = scripts("alps-clariden", options={"uenv": "prgenv-gnu/24.11:v1"})
    assert "export NCCL_PROTO='^LL128'" in script
    assert "export NCCL_NET='AWS Libfabric'" in script


def test_the_limits_of_a_qos_replace_those_of_the_partition() -> None:
    scripts("frontier", nodes=100, walltime="05:00:00")
    with pytest.raises(UsageError, match="-o qos=debug of frontier takes at most 02:00:00, not 05:00:00"):
        scripts("frontier", nodes=100, walltime="05:00:00", options={"qos": "debug"})
    scripts("leonardo", nodes=100, options={"qos": "boost_qos_bprod"})
    with pytest.raises(UsageError, match="boost_usr_prod of leonardo takes 1 to 64 nodes, not 100"):
        scripts("leonardo", nodes=100)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("frontier", ["first_node=$(hostname -i)", "meeting=${first_node%% *}:${meeting##*:}"]),
        ("juwels-booster", ["meeting=${meeting%:*}i:${meeting##*:}"]),
    ],
)
def test_the_ranks_meet_at_the_address_of_the_sites_rule(name: str, lines: list[str]) -> None:
    several, one = (scripts(name, nodes=nodes)[0] for nodes in (2, 1))
    assert set(lines) <= set(several.splitlines())
    assert not set(lines) & set(one.splitlines())


def test_a_part_of_a_node_is_shared_where_the_queue_lets_jobs_share() -> None:
    part = {"ranks_per_node": 1, "gpus_per_rank": 1, "cpus_per_rank": 7, "mem": "60G"}
    assert "--exclusive" not in scripts("lumi", queue="small-g", **part)[0]
    assert "--exclusive" in scripts("lumi", queue="standard-g", **part)[0]
    assert "--exclusive" in scripts("lumi", queue="small-g", gpus_per_rank=1, ranks_per_node=8)[0]


@pytest.mark.parametrize("queue", ["shared", "interactive", "preempt", "premium", "overrun"])
def test_the_qos_of_perlmutter_are_known(queue: str) -> None:
    script, _ = scripts("perlmutter", queue=queue)
    assert f"#SBATCH --qos={queue}\n" in script
    shape = ("--gpus-per-node=1" in script, "--exclusive" in script)
    assert shape == ((True, False) if queue == "shared" else (False, True))


def test_more_ranks_than_gpus_share_them_in_blocks() -> None:
    _, wrapper = scripts("polaris", ranks_per_node=8)
    assert gpus_by_local_rank(wrapper, "CUDA_VISIBLE_DEVICES") == list("33221100")
    _, wrapper = scripts("aurora", ranks_per_node=28, options={"filesystems": "flare"})
    tiles = [int(tile) for tile in gpus_by_local_rank(wrapper, "ZE_AFFINITY_MASK")]
    assert (len(tiles), sorted(set(tiles))) == (28, list(range(12)))
    assert tiles == sorted(tiles)
    site = load_site("alps-clariden")
    job = job_for(site, ranks_per_node=32, cpus_per_rank=8)
    assert {"--gpus-per-node=4", "--cpus-per-task=8"} <= set(find_scheduler("slurm").directives(site, job))
    assert "32 ranks share the 4 GPUs of each node; -o mps=true" in " ".join(remarks(job, site))
