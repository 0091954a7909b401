"""From a site and a job to the texts of the run's scripts."""

from __future__ import annotations

import sys
from pathlib import Path

from hpcprof.job import Job
from hpcprof.launchers import launch_command
from hpcprof.render import Rendering, render
from hpcprof.site_model import Site
from hpcprof.workloads import catalogue


def scripts(
    site: Site, job: Job, run_directory: Path, command_line: list[str], template: Path | None
) -> dict[str, str]:
    """Render the run's scripts for a run directory; nothing is written."""
    rendering = Rendering(
        run_directory=run_directory.absolute(),
        command_line=command_line,
        launch=launch_command(site, job),
        program=_program(job),
        template=template,
    )
    return render(site, job, rendering)


def _program(job: Job) -> list[str]:
    if job.workload is None:
        return job.arguments
    python = job.options.get("python") or sys.executable
    return catalogue.find(job.workload).command(python, job.arguments)
