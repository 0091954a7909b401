"""The scripts of a run, or of all runs of a job array, from a site and its jobs.

array.sh, the script of an array, is in the directory of the sweep, and starts the job.sh of the member with
the scheduler's index. The members are beside that directory; their names are its name, a dot and the index.
"""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from hpcprof.common.errors import UsageError
from hpcprof.common.masking import masked, masked_words
from hpcprof.common.paths import absolute_path
from hpcprof.runs.job import Job
from hpcprof.submit.container.ranks import uses_container
from hpcprof.submit.launchers import launch_command
from hpcprof.submit.rendering.templates import render, render_text
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT, JobArrays, Rendering, Scheduler
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue

ARRAY_TEMPLATE = "job/array.sh.j2"

_HERE_DOCUMENT = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"]?)\\?([^\s'\"\\|&;<>()]+)\2")


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
    launch, program = launch_command(site, job), _program(site, job, scheduler)
    rendering = Rendering(absolute_path(run_directory), command_line, launch, program, template)
    texts = render(site, job, rendering)
    texts |= {JOB_SCRIPT: _move_script(script, run_directory)} if script else {}
    if scheduler.arrays:
        check_directives(texts[JOB_SCRIPT], (scheduler.arrays.mark,), script or template or Path(JOB_SCRIPT))
    return texts


def check_directives(text: str, marks: tuple[str, ...], file: Path) -> None:
    """Check that no directive of a script comes after its first command, where batch systems ignore it.

    ``marks`` are the beginnings of directives. Scripts within the script have directives of their own.
    """
    following = text.split("\n")[len(_head(text)) :]
    for line in takewhile(lambda line: "#!" not in line, _without_here_documents(following)):
        if line.startswith(marks):
            late = f"{masked(line)!r} comes after the command {masked(following[0])!r}"
            raise UsageError(f"{file}: {late}, so that the scheduler would ignore it: move it up.")


def _without_here_documents(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a script; one line may begin several here-documents, which follow each other."""
    start = 0
    while start < len(lines):
        line, start = lines[start], start + 1
        yield line
        for dash, _, end in _HERE_DOCUMENT.findall(line):
            texts = [text.lstrip("\t") if dash else text for text in lines[start:]]
            if end in texts:  # otherwise it shifts a number
                start += texts.index(end) + 1


def _head(text: str) -> list[str]:
    """Return the lines of a script before its first command."""
    return list(takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), text.split("\n")))


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
    directory = str(absolute_path(run_directory))
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


def member_directory(sweep_directory: Path, index: int | str) -> Path:
    """Return the run directory of one member."""
    return sweep_directory.with_name(f"{sweep_directory.name}.{index}")


def render_array_script(
    arrays: JobArrays,
    job_scripts: Sequence[str],
    sweep_directory: Path,
    command_line: Sequence[str],
    at_once: int | None = None,
    template: Path | None = None,
    name: str = ARRAY_TEMPLATE,
) -> str:
    """Return the text of array.sh.

    ``job_scripts`` are the texts of the members' job.sh, rendered for their run directories, in the order of
    the indices; they may differ in the paths of logs alone, since an array has one set of directives. The
    name of ``sweep_directory`` is the sweep's id. Templates are searched first in the folder of ``template``,
    the one of job.sh; ``name`` is rendered.
    """
    directory = absolute_path(sweep_directory)
    sets = []
    names = [f"/{member_directory(directory, index).name}/" for index in range(len(job_scripts))]
    pattern = f"/{member_directory(directory, arrays.index_in_path).name}/"
    shared = (arrays.shared,) if arrays.shared else ()
    for member, text in zip(names, job_scripts, strict=True):
        lines = [line for line in _head(text) if line.startswith(arrays.mark)]
        sets.append(
            [line.replace(member, names[0] if line.startswith(shared) else pattern) for line in lines]
        )
    for other in sets[1:]:
        if other != sets[0]:
            raise UsageError(f"--array: {_difference(sets[0], other)}.")
    if arrays.forbidden and any(re.fullmatch(arrays.forbidden, line.strip()) for line in sets[0]):
        raise UsageError(f"--array: {arrays.forbidden_reason}; leave --array out.")
    span = f"0-{len(job_scripts) - 1}"
    throttle = f"%{at_once}" if at_once is not None and at_once < len(job_scripts) else ""
    shebang = job_scripts[0].partition("\n")[0]
    values = {
        "shebang": shebang if shebang.startswith("#!") else "#!/bin/bash",
        "command_line": shlex.join(command_line),
        "directives": [*sets[0], *arrays.directives.format(span + throttle).split("\n")],
        "sweep_directory": str(directory),
        "index": arrays.index_variable,
        "span": span,
    }
    return render_text(name, values, template)


def check_array_template(file: Path) -> None:
    """Render a template of array.sh with a simple array."""
    arrays = JobArrays("#BATCH", "#BATCH --array={}", "INDEX", "%i")
    scripts = ["#!/bin/bash\n"] * 2
    render_array_script(arrays, scripts, Path("/sweep"), ["hpcprof"], template=file, name=file.name)


def _difference(first: Sequence[str], other: Sequence[str]) -> str:
    ours = [line for line in first if line not in other]
    theirs = [line for line in other if line not in first]
    named = " and ".join(filter(None, (", ".join(ours), ", ".join(theirs)))) or "the order of directives"
    return f"the runs differ in {named}, but those of an array share their directives; leave --array out"
