"""The scripts of every site and profiler as they are meant to be.

Each ``SITE.txt`` beside this file holds job.sh and wrapper.sh for every profiler, and array.sh where the site
has job arrays; those of a plain cluster also the job.sh of a collect. From the second profiler on, a script
is shown by what changes from the profiler before. A change of a template, a launcher, a profiler or a site
shows there as a diff to read before it is committed; after that reading, this command, in the root of the
repository, writes them anew::

    python -m tests.golden.regenerate
"""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

import msgspec
from sqlalchemy.engine import URL

from hpcprof.common import __version__
from hpcprof.common.errors import UsageError
from hpcprof.common.paths import packaged_folder
from hpcprof.runs.directory import Manifest, Run, site_keys
from hpcprof.runs.job import Job
from hpcprof.submit.collect_job import CollectPlacement, make_collect_job
from hpcprof.submit.jobs.checks import profilers_at
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.profilers.jax_profiler import JAX
from hpcprof.submit.rendering.job_scripts import render_array
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site_file
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue
from tests.golden.causes import DOCUMENT, with_table
from tests.jobs import make_job

FOLDER = Path(__file__).parent
SITES = sorted(path.stem for path in packaged_folder("site_configs").glob("[!_]*.yaml"))

PYTHON = "/opt/hpcprof/bin/python"
RUN_DIRECTORY = Path("/home/user/project/runs/20261121-143005-sequence-parallel-3fa9")
DATABASE = RUN_DIRECTORY.parent / "hpcprof.db"
WORKLOAD = "sequence-parallel"
ARGUMENTS = ["--sequence-length", "4608", "--hidden-size", "9216", "--dtype", "bfloat16"]
# What a user gives where a site requires it, and where two nodes need more than the site's first queue.
OPTIONS = {
    "filesystems": "home",
    "image": "registry.example.org/hpcprof:1",
    "pvc": "results",
    "python": PYTHON,
    "mpiexec": "/opt/hpcprof/bin/mpiexec",
}
QUEUES = {"eiger": "normal", "sophia": "by-node"}
PROFILER_OPTIONS = {"ncu": {"kernel": "gemm", "launch-count": "12"}}
RANKS_PER_NODE = 2
ARRAY_MEMBERS = 3


def golden_text(name: str) -> str:
    """Return what the golden file of a site shall hold."""
    site = load_site_file(packaged_folder("site_configs") / f"{name}.yaml")
    shown: dict[str, str] = {}
    # That of JAX does not profile the workload, which uses PyTorch.
    sections = [_section(site, profiler, shown) for profiler in PROFILERS if profiler != JAX.name]
    return "".join([*sections, _array_section(site), *(_collect_section(site, mpi) for mpi in (False, True))])


def _section(site: Site, profiler: str, shown: dict[str, str]) -> str:
    """Return the scripts for a profiler, or what changes from those in ``shown``, which they replace."""
    try:
        texts = _scripts(site, profiler)
    except UsageError as error:
        if profiler in profilers_at(site):
            raise
        return f"==== {site.name}, {profiler}: refused: {error}\n"
    section = ""
    for file, text in texts.items():
        section += f"==== {site.name}, {profiler}: {file}\n"
        section += _changes(shown[file], text) if file in shown else text
        shown[file] = text
    return section


def _changes(before: str, text: str) -> str:
    """Return the lines that differ, with one line around them; line numbers would move with every change."""
    lines = list(unified_diff(before.splitlines(), text.splitlines(), n=1, lineterm=""))[2:]
    return "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in lines)


def _scripts(site: Site, profiler: str) -> dict[str, str]:
    job = _job(site, profiler)
    rendering = Rendering(
        run_directory=RUN_DIRECTORY,
        command_line=["hpcprof", "submit", "--site", site.name, "--profiler", profiler],
        launch=launch_command(site, job),
        program=catalogue.find(WORKLOAD).command(job.options.get("python") or PYTHON, job.arguments),
    )
    texts = render(site, job, rendering)
    # The manifest holds both scripts again, indented.
    texts = {name: text for name, text in texts.items() if name.endswith(".sh")}
    return {name: _without_version(text) for name, text in texts.items()}


def _without_version(text: str) -> str:
    return text.replace(f"hpcprof {__version__}", "hpcprof VERSION")


def _array_section(site: Site) -> str:
    if site.scheduler not in ("pbs", "slurm"):
        return ""
    line = ["hpcprof", "sweep", "--site", site.name, "--array", "--at-once", "2"]
    script, _ = render_array(site, [_job(site, "none")] * ARRAY_MEMBERS, RUN_DIRECTORY, line, at_once=2)
    return f"==== {site.name}: array.sh\n{_without_version(script)}"


def _collect_section(site: Site, mpi: bool) -> str:
    if not site.name.startswith("generic-"):
        return ""
    job = _job(site, "none")
    run = Run(RUN_DIRECTORY.name, RUN_DIRECTORY, Manifest(RUN_DIRECTORY.name, "", [], job, site_keys(site)))
    place = CollectPlacement(mpi, jobs=8, nodes=2 if mpi else None, queue="debug", walltime="10m")
    site, job = make_collect_job([run], URL.create("sqlite", database=str(DATABASE)), place)
    job = msgspec.structs.replace(job, directory=str(DATABASE.parent))
    rendering = Rendering(
        run_directory=RUN_DIRECTORY / "collect" / "20261121-150000-collect-0b17",
        command_line=["hpcprof", "collect", "--submit", *(["--executor", "mpi"] if mpi else [])],
        launch=launch_command(site, job),
        program=[PYTHON, *job.arguments[1:]],
    )
    script = _without_version(render(site, job, rendering)["job.sh"])
    return f"==== {site.name}: collect {'over MPI' if mpi else 'in processes'}: job.sh\n{script}"


ONE_ARCHIVE = ("eztrace", "scorep", "scorep-preload")
"""Profilers that record all ranks."""


def _job(site: Site, profiler: str) -> Job:
    nodes = 1 if site.scheduler == "local" else 2
    queue = QUEUES.get(site.name) or site.queue or next(iter(site.queues), "")
    job = make_job(
        site,
        workload=WORKLOAD,
        arguments=ARGUMENTS,
        nodes=nodes,
        ranks_per_node=site.node.gpus or RANKS_PER_NODE,
        profiler=profiler,
        profile_ranks="all" if profiler in ONE_ARCHIVE else "local=0",
        profiler_options=PROFILER_OPTIONS.get(profiler, {}),
        queue=queue,
        account="" if site.scheduler in ("local", "kubernetes") else "project",
        options={key: value for key, value in OPTIONS.items() if key in site.options},
    )
    return msgspec.structs.replace(job, directory="/home/user/project")


def main() -> None:
    """Write every golden file and the table of causes, and remove the files of sites that are gone."""
    os.chdir(FOLDER.parents[1])
    for path in FOLDER.glob("*.txt"):
        if path.stem not in SITES:
            path.unlink()
    for name in SITES:
        (FOLDER / f"{name}.txt").write_text(golden_text(name), encoding="utf-8")
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
