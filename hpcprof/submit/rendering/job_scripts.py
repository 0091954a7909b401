"""The scripts of a run, or of all runs of a job array, from a site and its jobs."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked, masked_words
from hpcprof.common.paths import from_root
from hpcprof.runs.job import Job
from hpcprof.submit.container.ranks import uses_container
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.rendering.array_script import member_directory, render_array_script
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT, Rendering, Scheduler
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue


def render_scripts(
    site: Site,
    job: Job,
    run_directory: Path,
    command_line: list[str],
    template: Path | None = None,
    script: Path | None = None,
) -> dict[str, str]:
    """Return a run's scripts by file name, by another template of job.sh or from an edited ``script``."""
    scheduler = find_scheduler(site.scheduler)
    if script and scheduler.submitted_file != JOB_SCRIPT:
        where = f"{scheduler.title} gets {JOB_SCRIPT} in {scheduler.submitted_file}"
        raise UsageError(f"--script: {where}; change the template instead.")
    rendering = Rendering(
        run_directory=from_root(run_directory),
        command_line=command_line,
        launch=launch_command(site, job),
        program=_program(site, job, scheduler),
        template=template,
    )
    texts = render(site, job, rendering)
    return {**texts, JOB_SCRIPT: _move_script(script, run_directory)} if script else texts


def render_masked(
    site: Site, job: Job, run_directory: Path, command_line: list[str], **templates: Path | None
) -> dict[str, str]:
    """Return job.sh and the file that is submitted as they may be shown: with secrets masked."""
    words = masked_words(job.words)
    public_job = msgspec.structs.replace(job, arguments=words[1:] if job.workload else words)
    texts = render_scripts(site, public_job, run_directory, masked_words(command_line), **templates)
    shown_files = {JOB_SCRIPT, find_scheduler(site.scheduler).submitted_file}
    return {name: "".join(map(masked, texts[name].splitlines(keepends=True))) for name in shown_files}


def draft_directory(site: Site, runs_directory: Path) -> Path:
    """Return the directory of a run that is only rendered; on a host, as far as that is known unasked."""
    if site.host:
        from hpcprof.submit.remote.host import Host

        if (host := Host.of(site)) is not None:
            return Path(host.folder("RUN_ID"))
    return runs_directory / "RUN_ID"


def render_array(
    site: Site,
    jobs: Sequence[Job],
    sweep_directory: Path,
    command_line: list[str],
    at_once: int | None = None,
    template: Path | None = None,
) -> tuple[str, list[dict[str, str]]]:
    """Return the text of array.sh, and the scripts of each run as `render_scripts` does."""
    texts = [
        render_scripts(site, job, member_directory(sweep_directory, index), command_line, template)
        for index, job in enumerate(jobs)
    ]
    job_scripts = [text[JOB_SCRIPT] for text in texts]
    arrays = find_scheduler(site.scheduler).arrays
    assert arrays is not None, site.scheduler
    return render_array_script(arrays, job_scripts, sweep_directory, command_line, at_once, template), texts


def _move_script(script: Path, run_directory: Path) -> str:
    """Return an edited job.sh in which this run's directory replaces the one that it was rendered for."""
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise UsageError(f"{script} cannot be read as a shell script in UTF-8.") from None
    line = re.search(r"^run_dir=(.+)$", text, re.MULTILINE)
    words = shlex.split(line[1]) if line else []
    if line is None or len(words) != 1:
        advice = "--script takes a job.sh that hpcprof rendered; give a script of your own to --template"
        raise UsageError(f"{script} has no line run_dir=…: {advice}.")
    directory = str(from_root(run_directory))
    text = text.replace(line[0], f"run_dir={shlex.quote(directory)}")
    return text.replace(words[0], directory)


def _program(site: Site, job: Job, scheduler: Scheduler) -> list[str]:
    if job.workload is None:
        return job.arguments
    workload = catalogue.find(job.workload)
    python = job.options.get("python") or workload.tools(job.arguments).get("python")
    if site.host:
        if python is None:
            raise UsageError(
                f"--workload {job.workload}: give -o python=PATH, a Python on {site.host} that has hpcprof."
            )
        return workload.command(python, job.arguments)
    if uses_container(job):
        return workload.command(python or "python3", job.arguments)
    if python and not scheduler.runs_in_image:
        return workload.foreign_command(python, job.arguments)
    return workload.command(python or sys.executable, job.arguments)
