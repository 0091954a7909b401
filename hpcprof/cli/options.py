"""The options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcprof.cli.completion import (
    Completer,
    complete_files,
    complete_profiler_options,
    complete_profilers,
    complete_queues,
    complete_runs,
    complete_site_options,
    complete_sites,
    complete_workloads,
)
from hpcprof.common import logs
from hpcprof.common.errors import UsageError

if TYPE_CHECKING:
    from hpcprof.submit.jobs.job import Job
    from hpcprof.submit.jobs.request import JobRequest
    from hpcprof.submit.sites.model import Site

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


# The defaults are functions, since only a command that runs may read the files of hpcprof config.
def _default_runs_dir() -> Path:
    from hpcprof.submit.config import default_runs_dir

    return default_runs_dir()


def _default_database() -> str | None:
    from hpcprof.submit.config import default_database

    return default_database()


def default_site() -> str:
    """Return the site of a command that names none."""
    from hpcprof.submit import config

    return config.default_site()


def runs_dir_option(command: CommandT) -> CommandT:
    """Add ``--runs-dir``."""
    return click.option(
        "--runs-dir",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="HPCPROF_RUNS",
        default=_default_runs_dir,
        help="Folder of runs (or $HPCPROF_RUNS).  [default: that of hpcprof config, or runs]",
    )(command)


def _no_folder(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value and "://" not in value and Path(value).is_dir():
        raise UsageError(f"--db {value}: that is a folder; name a file in it.")
    return value


def db_option(command: CommandT) -> CommandT:
    """Add ``--db``."""
    return click.option(
        "--db",
        envvar="HPCPROF_DB",
        default=_default_database,
        callback=_no_folder,
        metavar="URL",
        help="Results database: a path or an SQLAlchemy URL (or $HPCPROF_DB).  "
        "[default: that of hpcprof config, or hpcprof.db among the runs]",
    )(command)


_REQUEST = (
    *("job_file", "site", "site_file", "workload", "nodes", "ranks_per_node", "profiler", "profile_ranks"),
    *("capture_steps", "stacks", "queue", "account", "walltime", "job_name", "after", "template", "runs_dir"),
    *("cpus_per_rank", "gpus_per_rank", "mem", "constraint", "scheduler_args"),
)
"""Parameters that are fields of a `JobRequest` as click gives them."""
_CONSTRAINT = "Kind of nodes: a constraint (Slurm), RESOURCE=VALUE (PBS) or LABEL=VALUE (Kubernetes)."


def job_options(command: CommandT) -> CommandT:
    """Add the options that describe a job; the command gets them as one ``request``, a `JobRequest`.

    None of them has a default in click, so that a job file can supply values that were not given.
    """
    positive = click.IntRange(min=1)
    file = click.Path(exists=True, dir_okay=False, path_type=Path)

    @wraps(command)
    def with_request(
        *arguments: Any,
        program: tuple[str, ...],
        profiler_options: tuple[str, ...],
        options: tuple[str, ...],
        **others: Any,
    ) -> Any:
        # Imported here: commands that only read runs need none of it.
        from hpcprof.submit.jobs.request import JobRequest

        if others["job_file"] is None and len(program) == 1 and program[0].endswith((".yaml", ".yml")):
            others["job_file"], program = Path(program[0]), ()
        request = JobRequest(
            program=program,
            profiler_options=_pairs(profiler_options, "--profiler-option"),
            options=_pairs(options, "-o"),
            **{name: others.pop(name) for name in _REQUEST},
        )
        return command(*arguments, request=request, **others)

    decorated: Any = with_request
    for option in reversed(
        [
            click.option(
                "--job",
                "job_file",
                type=file,
                metavar="FILE",
                help="Job file; options on the command line override it.",
            ),
            click.option(
                "--site",
                shell_complete=complete_sites,
                help="Site to run on (hpcprof sites list).  [default: that of hpcprof config, or local]",
            ),
            click.option("--site-file", type=file, metavar="FILE", help="Site file, instead of a name."),
            click.option(
                "--workload",
                shell_complete=complete_workloads,
                help="Built-in workload; its arguments go after --.",
            ),
            click.option("--nodes", type=positive, help="Number of nodes.  [default: 1]"),
            click.option(
                "--ranks-per-node", type=positive, help="Number of ranks on each node.  [default: 1]"
            ),
            click.option(
                "--profiler",
                shell_complete=complete_profilers,
                help="none, nsys, ncu, torch, rocprofv3, a plug-in, or auto for the site's.  [default: none]",
            ),
            click.option(
                "--profile-ranks",
                help="Ranks to profile: all, none, 0,4-7, local=0, nodes=0-1, every=16.  [default: all]",
            ),
            _pairs_option(
                "--profiler-option",
                "profiler_options",
                "Option of the profiler. Repeatable.",
                complete_profiler_options,
            ),
            click.option(
                "--capture-steps",
                help="Steps to profile, counted from 0, as in 10-12. By default the PyTorch profiler records "
                "5-24, or as many as 10 s hold, and the workload ddp 20 of its last epoch.",
            ),
            click.option(
                "--stacks",
                is_flag=True,
                default=None,
                help="Record call stacks, so that findings name file and line (nsys, torch). The program "
                "becomes somewhat slower.",
            ),
            click.option(
                "--queue",
                shell_complete=complete_queues,
                help="Queue, partition or QOS.  [default: the site's]",
            ),
            click.option("--account", help="Account or project that is charged."),
            click.option("--cpus-per-rank", type=positive, help="CPUs for each rank.  [default: the site's]"),
            click.option(
                "--gpus-per-rank",
                type=click.IntRange(min=0),
                help="GPUs for each rank.  [default: the site's]",
            ),
            click.option(
                "--mem", metavar="SIZE", help="Memory on each node, as in 64G.  [default: the site's]"
            ),
            click.option("--constraint", metavar="TEXT", help=_CONSTRAINT),
            click.option(
                "--scheduler-arg",
                "scheduler_args",
                multiple=True,
                metavar="ARG",
                help="Option passed on to the scheduler, as in --scheduler-arg=--exclude=n3. Repeatable.",
            ),
            click.option("--walltime", help="Time limit: HH:MM:SS, 90m or 1h30m.  [default: the site's]"),
            click.option("--job-name", help="Name of the job.  [default: the workload's or the script's]"),
            _pairs_option(
                "-o",
                "options",
                "Option of the site (hpcprof sites show). Repeatable.",
                complete_site_options,
                "--option",
            ),
            click.option(
                "--after",
                multiple=True,
                metavar="RUN",
                shell_complete=complete_runs,
                help="Run or array that must succeed before the job starts. Repeatable.",
            ),
            click.option("--template", type=file, help="Template of job.sh, instead of the scheduler's."),
            runs_dir_option,
            click.argument(
                "program",
                nargs=-1,
                type=click.UNPROCESSED,
                metavar="[-- COMMAND…]",
                shell_complete=complete_files,
            ),
        ]
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _pairs_option(
    flag: str, name: str, text: str, complete: Completer, *more: str
) -> Callable[[CommandT], CommandT]:
    return click.option(
        flag, *more, name, multiple=True, metavar="KEY=VALUE", help=text, shell_complete=complete
    )


def show_remarks(site: Site, jobs: Sequence[Job]) -> None:
    """Print what a user should know before submitting, one line each, on standard error.

    That the facts about a site are second hand is printed once a day.
    """
    from hpcprof.common.daily import is_due
    from hpcprof.submit.jobs.checks import remarks, second_hand

    facts = second_hand(site)
    known = [facts] if facts and is_due(facts) else []
    for sentence in dict.fromkeys([*known, *(sentence for job in jobs for sentence in remarks(job, site))]):
        click.echo(f"hpcprof: note: {sentence}.", err=True)


def log_origins(request: JobRequest, site: Site, job: Job) -> None:
    """Log where the values of a job come from, if the user asks for the log."""
    logger = logs.configure()
    if logger is None:
        return
    from hpcprof.common.masking import masked
    from hpcprof.submit.jobs.origins import origins

    for setting in origins(request, site, job):
        logger.info("%s", masked(f"{setting.key} = {setting.value}  [{setting.source}]"))


def repeated(reference: str, runs_dir: Path) -> tuple[Site, Job]:
    """Return the site and the job of an earlier run, unchanged."""
    from hpcprof.submit.runs.directory import find_run

    run = find_run(reference, runs_dir)
    if run.manifest is None:
        raise UsageError(f"{run.path} is a folder of profiles that hpcprof did not submit.")
    return run.manifest.site, run.manifest.job


def _pairs(texts: tuple[str, ...], flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"{flag} {text}: write it as KEY=VALUE.")
        pairs[key] = value
    return pairs
