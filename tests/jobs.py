"""Jobs for tests, and their scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcprof.runs.job import Job
from hpcprof.submit.jobs import request
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.profilers import PROFILERS
from hpcprof.submit.rendering.job_scripts import render_array
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import Rendering
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.sites.model import Site


def make_job(
    site: Site, *, arguments: Sequence[str] = (), name: str | None = None, draft: bool = False, **options: Any
) -> Job:
    """Return a job at a site, by the options of `JobSpec`."""
    return request.make_job(site, JobSpec(tuple(arguments), job_name=name, **options), draft)


def job(**changes: object) -> Job:
    """Return a job of two ranks on each of two nodes, which no site has checked."""
    values = {"name": "j", "site": "local", "workload": None, "arguments": ["true"], "directory": "/"}
    settings = PROFILERS[str(changes.get("profiler", "none"))].resolve({})
    shape = {"ranks_per_node": 2, "nodes": 2, "profiler_options": settings}
    return Job(**{**values, **shape, **changes})  # type: ignore[arg-type]


def rendered(job: Job, folder: Path, site: Site | None = None, **options: object) -> dict[str, str]:
    """Return the scripts of a job, by default on this machine; ``options`` are those of `Rendering`."""
    values: dict[str, object] = {
        "run_directory": folder,
        "command_line": ["hpcprof", "submit"],
        "launch": ["mpiexec", "-n", str(job.ranks)],
        "program": job.arguments,
    }
    return render(site or load_site("local"), job, Rendering(**{**values, **options}))  # type: ignore[arg-type]


def echoing(site: Site, *words: str) -> list[Job]:
    """Return jobs that each print a word."""
    return [make_job(site, arguments=["echo", word], walltime="5m") for word in words]


def array(site: str, folder: Path, *words: str, at_once: int | None = None) -> list[str]:
    """Return the lines of the script of an array of such jobs."""
    loaded = load_site(site)
    script, _ = render_array(loaded, echoing(loaded, *words), folder / "s-0a1b", ["hpcprof"], at_once)
    return script.splitlines()
