"""Jobs request what the site's node has, and GPU profilers are refused where they request no GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site, load_site_file
from hpcprof.submit.sites.model import Site
from hpcprof.submit.sites.probe import new_site
from tests.jobs import make_job
from tests.unit.submit.schedulers.recorded import recorded_json, recorded_machine

NODE = "node: {cores: 64, gpus: 4}\n"


def loaded(folder: Path, text: str) -> Site:
    path = folder / "mine.yaml"
    path.write_text(text)
    return load_site_file(path)


def directives(site: Site, job: Job) -> str:
    script = render(site, job, Rendering(Path("/run"), ["hpcprof"], [], ["true"]))["job.sh"]
    return "\n".join(line for line in script.splitlines() if line.startswith(("#SBATCH", "#PBS")))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("extends: generic-slurm\n" + NODE, "#SBATCH --gpus-per-node=4\n"),
        ("extends: generic-slurm\nnode_request: gres\n" + NODE, "#SBATCH --gres=gpu:4\n"),
        ("extends: generic-pbs\n" + NODE, "#PBS -l select=2:ncpus=64:ngpus=4:mpiprocs=3\n"),
        ("extends: generic-pbs\nnode: {cores: 8}\n", "#PBS -l select=2:ncpus=8:mpiprocs=3\n"),
        (
            'extends: generic-pbs\nselect: "ncpus=2:system=a"\n' + NODE,
            "#PBS -l select=2:ncpus=2:system=a:ngpus=4:mpiprocs=3\n",
        ),
        ("extends: generic-pbs\n", "#PBS -l select=2\n"),
    ],
)
def test_a_job_requests_what_the_node_has(tmp_path: Path, text: str, line: str) -> None:
    site = loaded(tmp_path, text)
    job = make_job(site, arguments=["true"], nodes=2, ranks_per_node=3)
    assert line in directives(site, job) + "\n"


@pytest.mark.parametrize(("options", "limits"), [([], "CORE,STACK"), (["--propagate=ALL"], "ALL")])
def test_a_job_of_slurm_keeps_no_other_limit_of_the_shell(options: list[str], limits: str) -> None:
    site = load_site("generic-slurm")
    lines = directives(site, make_job(site, arguments=["true"], scheduler_args=options)).splitlines()
    assert [line for line in lines if "propagate" in line] == [f"#SBATCH --propagate={limits}"]


@pytest.mark.parametrize(
    ("nodes", "options", "placed"),
    [
        (2, {}, "scatter"),
        (2, {"scheduler_args": ["-l place=pack"]}, "pack"),
        (2, {"cpus_per_rank": 1, "scheduler_args": ["-l place=scatter:excl"]}, "scatter:excl"),
        (1, {}, None),
    ],
)
def test_nodes_of_pbs_are_hosts_of_their_own_as_it_would_put_small_chunks_on_one(
    tmp_path: Path, nodes: int, options: dict[str, Any], placed: str | None
) -> None:
    site = loaded(tmp_path, "extends: generic-pbs\nnode: {cores: 8}\n")
    lines = directives(site, make_job(site, arguments=["true"], nodes=nodes, **options)).splitlines()
    found = [line.removeprefix("#PBS -l place=") for line in lines if "place=" in line]
    assert found == ([placed] if placed else [])


@pytest.mark.parametrize(
    ("request_", "placed"),
    [("nodes=2:ppn=4", False), ("select=2:ncpus=4", True), ("walltime=1,select=2", True), ("ncpus=4", False)],
)
def test_a_template_that_asks_without_select_has_no_place_which_pbs_would_refuse(
    tmp_path: Path, request_: str, placed: bool
) -> None:
    template = tmp_path / "mine.sh.j2"
    lines = "{% for line in directives %}\n#PBS {{ line }}\n{% endfor %}\n"
    template.write_text(f"#!/bin/bash\n#PBS -l {request_}\n{lines}true\n")
    site = loaded(tmp_path, "extends: generic-pbs\n")
    job = make_job(site, arguments=["true"], nodes=2)
    texts = render(site, job, Rendering(Path("/run"), ["hpcprof"], [], ["true"], template=template))
    assert ("place=scatter" in texts["job.sh"]) == placed


@pytest.mark.parametrize(
    "more",
    [
        "node_request: none\n",
        'directives: ["--gres=gpu:a100:2"]\n',
        "launcher: {name: srun, arguments: [--gpus-per-task=1]}\n",
    ],
)
def test_gpus_that_are_requested_otherwise_are_not_requested_again(tmp_path: Path, more: str) -> None:
    site = loaded(tmp_path, f"extends: generic-slurm\n{NODE}{more}")
    shown = directives(site, make_job(site, arguments=["true"]))
    assert "--gpus-per-node" not in shown
    assert "--gres=gpu:4" not in shown


CPUS = "extends: generic-slurm\nnode: {cores: 64}\n"


@pytest.mark.parametrize(
    ("profiler", "options"),
    [("nsys", {"trace": "cuda"}), ("ncu", {"kernel": "gemm", "launch-count": "1"})],
)
def test_a_gpu_profiler_is_refused_on_a_job_without_gpus(
    tmp_path: Path, profiler: str, options: dict[str, str]
) -> None:
    with pytest.raises(
        UsageError, match=r"jobs at site mine request no GPUs; write node\.gpus and node_request"
    ):
        make_job(loaded(tmp_path, CPUS), arguments=["true"], profiler=profiler, profiler_options=options)


def test_a_gpu_profiler_is_accepted_where_gpus_are_requested_or_not_traced(tmp_path: Path) -> None:
    plain = loaded(tmp_path, CPUS)
    make_job(plain, arguments=["true"], profiler="nsys")
    make_job(plain, arguments=["true"], profiler="torch")
    for more in ('directives: ["--gres=gpu:2"]\n', 'queues: {q: {directives: ["--gpus=2"]}}\nqueue: q\n'):
        make_job(loaded(tmp_path, CPUS + more), arguments=["true"], profiler="nsys")
    make_job(loaded(tmp_path, "extends: generic-slurm\n"), arguments=["true"], profiler="nsys")


def test_a_chunk_is_one_that_openpbs_granted_with_the_cores_gpus_and_ranks_of_its_node(
    tmp_path: Path,
) -> None:
    _, text, _ = recorded_json("pbs/qstat_x_f_json_envj_final.json")
    (granted,) = json.loads(text)["Jobs"].values()
    resources = granted["Resource_List"]
    # Two ranks on each of two nodes, of which the job had two cores and four GPUs.
    assert granted["exec_vnode"] == "(pn1:ncpus=2:ngpus=4)+(pn2:ncpus=2:ngpus=4)"
    rest = 'select: "ompthreads=3:system=polaris"\n'
    site = loaded(tmp_path, f"extends: generic-pbs\nnode: {{cores: 2, gpus: 4}}\n{rest}")
    shown = directives(site, make_job(site, arguments=["true"], nodes=2, ranks_per_node=2))
    select = re.search(r"^#PBS -l select=(\S+)$", shown, re.MULTILINE)
    assert select is not None
    count, *chunk = select[1].split(":")
    recorded_count, *recorded_chunk = resources["select"].split(":")
    assert (count, sorted(chunk)) == (recorded_count, sorted(recorded_chunk))
    totals = [resources[key] for key in ("nodect", "ncpus", "ngpus", "mpiprocs")]
    assert totals == [2, 2 * 2, 2 * 4, 2 * 2]


def test_a_new_site_of_pbs_requests_whole_nodes_as_pbsnodes_describes_them(tmp_path: Path) -> None:
    def ask(command: list[str]) -> str:
        return recorded_machine("pbsnodes_json.json") if command[0] == "pbsnodes" else ""

    site = load_site_file(new_site("mine", "generic-pbs", tmp_path, ask))
    shown = directives(site, make_job(site, arguments=["true"], nodes=2, ranks_per_node=4))
    assert "#PBS -l select=2:ncpus=8:ngpus=4:mpiprocs=4\n" in shown + "\n"
