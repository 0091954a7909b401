"""The options that describe a job, which the commands that submit or render one share."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcprof.cli import completion
from hpcprof.cli.conventions import echo
from hpcprof.cli.options import EXISTING_FILE, runs_dir_option
from hpcprof.common import logs
from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import OPTIONS, JobSpec, Option, Words, kind_of

if TYPE_CHECKING:
    from hpcprof.runs.directory import Run
    from hpcprof.runs.job import Job
    from hpcprof.submit.sites.model import Site

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_COMPLETERS = {
    Words.SITES: completion.complete_sites,
    Words.HOSTS: completion.complete_hosts,
    Words.WORKLOADS: completion.complete_workloads,
    Words.PROFILERS: completion.complete_profilers,
    Words.PROFILER_OPTIONS: completion.complete_profiler_options,
    Words.QUEUES: completion.complete_queues,
    Words.SITE_OPTIONS: completion.complete_site_options,
    Words.RUNS: completion.complete_runs,
    Words.TARGETS: completion.complete_targets,
}


def job_options(command: CommandT) -> CommandT:
    """Add the options of `JobSpec`; the command gets them as one ``request``.

    None of them has a default in click, so that a job file can supply values that were not given.
    """

    @wraps(command)
    def with_request(*arguments: Any, program: tuple[str, ...], runs_dir: Path, **parameters: Any) -> Any:
        options = {name: parameters.pop(name) for name in OPTIONS}
        if options["job_file"] is None and len(program) == 1 and program[0].endswith((".yaml", ".yml")):
            options["job_file"], program = Path(program[0]), ()
        return command(*arguments, request=JobSpec(program, runs_dir=runs_dir, **options), **parameters)

    decorated: Any = click.argument(
        "program",
        nargs=-1,
        type=click.UNPROCESSED,
        metavar="[-- COMMAND…]",
        shell_complete=completion.complete_files,
    )(with_request)
    decorated = runs_dir_option(decorated)
    for name, option in reversed(OPTIONS.items()):
        decorated = _click_option(option, kind_of(name))(decorated)
    return decorated  # type: ignore[no-any-return]


def _click_option(option: Option, kind: type) -> Callable[[CommandT], CommandT]:
    settings: dict[str, Any] = {}
    if kind is int:
        settings["type"] = click.IntRange(min=option.least)
    elif kind is bool:
        settings.update(is_flag=True, default=None)
    elif kind is Path:
        settings["type"] = EXISTING_FILE
    elif kind is Mapping:
        settings.update(multiple=True, callback=_parse_pairs, metavar="KEY=VALUE")
    elif kind is tuple:
        settings["multiple"] = True
    if option.flag_value:
        settings.update(is_flag=False, flag_value=option.flag_value)
    if option.metavar:
        settings["metavar"] = option.metavar
    if option.choices:
        settings["metavar"] = "|".join(option.choices)
        settings["shell_complete"] = completion.among(option.choices)
    if option.words:
        settings["shell_complete"] = _COMPLETERS[option.words]
    return click.option(*(option.flags or (option.flag,)), option.name, help=option.described, **settings)


def _parse_pairs(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"{parameter.opts[0]} {text}: write it as KEY=VALUE.")
        pairs[key] = value
    return pairs


def show_remarks(
    site: Site, jobs: Sequence[Job], runs_directory: Path, *, here: bool = False, explained: bool = False
) -> None:
    """Print the remarks on jobs before they are submitted, one line each, on standard error.

    Facts that are not verified, and a folder of runs that nodes may not see, are told once a day. Jobs that
    start ``here`` have the environment of this shell, and their first node has its folders. A job that is
    ``explained`` when it has ended needs a profiler.
    """
    from hpcprof.common.daily import is_due
    from hpcprof.runs.job_name import profiler_advice
    from hpcprof.submit.jobs.checks import remarks, unverified_facts
    from hpcprof.submit.jobs.presence import borrowed_program, unshared_folder

    daily = [unverified_facts(site), "" if here else unshared_folder(site, runs_directory)]
    sentences = [sentence for sentence in daily if sentence and is_due(sentence)]
    sentences += [sentence for job in jobs for sentence in remarks(job, site)]
    sentences += [] if here else [borrowed_program(site, job) for job in jobs]
    for job in jobs if explained else ():
        if not job.profiled_ranks:
            advice = profiler_advice(() if job.workload else job.arguments, job.directory)
            sampled = "" if job.no_telemetry else ", only its nodes are sampled"
            sentences.append(f"no profiler records this run{sampled}: {advice}")
    for sentence in filter(None, dict.fromkeys([*sentences, unread_input(jobs[0].arguments)])):
        echo(f"hpcprof: note: {sentence}.", err=True)


def show_submitted(run: Run, settings: str = "") -> None:
    """Print the id of a submitted run, and what the scheduler wrote to standard error as it took the job."""
    echo(f"submitted {run.id}{settings}")
    for line in (run.state_file("submission") or "").splitlines():
        echo(f"hpcprof: note: {line}", err=True)


def unread_input(program: Sequence[str]) -> str:
    """Return a warning that no rank reads the file at standard input; empty without such a file."""
    with suppress(OSError):
        # A loop of a shell has read some of its file before each of its commands.
        if stat.S_ISREG(os.fstat(0).st_mode) and os.fstat(0).st_size and not os.lseek(0, 0, os.SEEK_CUR):
            file, folder = Path("/proc/self/fd/0").resolve(), Path.cwd()
            name = str(file.relative_to(folder) if file.is_relative_to(folder) else file)
            reads = shlex.join(["bash", "-c", f"{shlex.join(program)} < {shlex.quote(name)}"])
            return f"no rank reads the standard input of this command ({name}): write -- {reads}"
    return ""


def log_origins(request: JobSpec, site: Site, job: Job) -> None:
    """Log where the values of a job come from, if the user asks for the log."""
    logger = logs.configure()
    if logger is None:
        return
    from hpcprof.common.masking import masked
    from hpcprof.submit.jobs.explain import origins
    from hpcprof.submit.jobs.merge import merged

    for setting in origins(request, merged(request), site, job):
        logger.info("%s", masked(f"{setting.key} = {setting.value}  [{setting.source}]"))


def repeated_job(reference: str, runs_dir: Path) -> tuple[Site, Job]:
    """Return the site and the job of an earlier run, unchanged."""
    from hpcprof.results.collect.jobs import find_job
    from hpcprof.submit.sites.model import recorded_site

    submission = find_job(reference, runs_dir).submission
    return recorded_site(submission), submission.job
