"""Programs and profilers that are not there, found before a job waits in a queue for them."""

from __future__ import annotations

import difflib
import json
import os
import shutil
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.runs.job_name import script_of
from hpcprof.submit.container.ranks import uses_container
from hpcprof.submit.linked_libraries import is_python, lacks, program_file
from hpcprof.submit.profilers import find_profiler
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.environment import active_environment, active_prefix, added_folders
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue

_ELSEWHERE = "; if only the nodes have it, name its folder under setup in the site"


def check_present(site: Site, job: Job) -> None:
    """Check that the program and the profiler of a job exist, as far as this machine can tell.

    Nothing is checked for a site that is another machine, nor for jobs that run in an image. What modules and
    set-up lines add to the PATH is not known, unless these activate a virtual environment or name a folder.
    """
    scheduler = find_scheduler(site.scheduler)
    if (
        site.host
        or scheduler.runs_in_image
        or uses_container(job)
        or not (scheduler.runs_here or (scheduler.commands and scheduler.installed))
    ):
        return
    folders = added_folders(site)
    complete = folders is not None and not site.modules
    path = os.pathsep.join([*(folders or []), site.environment.get("PATH") or os.environ.get("PATH", "")])
    elsewhere = "" if scheduler.runs_here else _ELSEWHERE
    own = catalogue.find(job.workload).tools(job.arguments) if job.workload else {}
    for tool in find_profiler(job.profiler).command[:1] if job.profiled_ranks else ():
        word = own.get(tool, tool)
        if complete and shutil.which(word, path=path) is None:
            raise UsageError(
                f"--profiler {job.profiler}: {word} is not on the PATH; install it, or load its "
                f"module{elsewhere}."
            )
    if job.workload is None:
        _check_program(job, path if complete else None, elsewhere)
        _check_built_in(job)
        if folders is not None:
            _check_script(job)


def borrowed_program(site: Site, job: Job) -> str:
    """Return a sentence without a full stop if only this shell's environment has the program of a job."""
    scheduler = find_scheduler(site.scheduler)
    own = site.host or site.modules or site.setup or "PATH" in site.environment
    if scheduler.passes_environment or own or job.workload is not None:
        return ""
    program, prefix = job.arguments[0], active_prefix(os.environ)
    found = "" if "/" in program else shutil.which(program) or ""
    if not prefix or not found.startswith(f"{prefix}/"):
        return ""
    lines = json.dumps(active_environment(os.environ)["setup"])
    return (
        f"{program} is that of {prefix}, and {scheduler.title} passes no environment on: for a job "
        f"to find it, add to the site: setup: {lines}"
    )


def _check_program(job: Job, path: str | None, elsewhere: str) -> None:
    program = job.arguments[0]
    file = Path(job.directory, program)
    if "/" in program:
        absolute = Path(program).is_absolute()
        if not file.exists() and not (absolute and elsewhere):
            where = "" if absolute else f" in {job.directory}"
            raise UsageError(f"{program}: there is no such file{where}.")
        if file.is_file() and not os.access(file, os.X_OK):
            raise UsageError(f"{program} is not executable: chmod +x it, or name what runs it before it.")
    elif path is not None and shutil.which(program, path=path) is None:
        if file.is_file():
            advice = f"; write ./{program}, or name what runs it, as in python {program}"
        else:
            near = difflib.get_close_matches(program, _commands(path), 1, 0.75)
            advice = f" (did you mean {near[0]}?)" if near else elsewhere
        raise UsageError(f"{program} is not on the PATH{advice}.")


def _check_built_in(job: Job) -> None:
    """Check that the executable contains the profiler, if that has to be built into it."""
    mark = find_profiler(job.profiler).in_program
    file = program_file(job.arguments, job.directory)
    # A script may start an executable that does.
    if job.profiled_ranks and mark and file and not is_python(file) and lacks(file, mark):
        raise UsageError(
            f"--profiler {job.profiler}: {job.arguments[0]} is not built with it; build it again with "
            f"{mark} before the compiler ({mark} mpicc …), or use --profiler nsys."
        )


def _check_script(job: Job) -> None:
    """Check that the script exists which an interpreter is to run."""
    script = script_of(job.arguments)
    if script and not Path(job.directory, script).exists():
        raise UsageError(f"{script}: there is no such file in {job.directory}.")


def _commands(path: str) -> list[str]:
    """Return the names of the files in the folders of a PATH."""
    names: set[str] = set()
    for folder in path.split(os.pathsep):
        try:
            names.update(os.listdir(folder or "."))  # noqa: PTH208 (names alone, of thousands of files)
        except OSError:
            continue
    return sorted(names)
