"""The options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import Job, make_job
from hpcprof.submit.sites.model import Site

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def runs_dir_option(command: CommandT) -> CommandT:
    """Add ``--runs-dir``."""
    return click.option(
        "--runs-dir",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="HPCPROF_RUNS",
        default="runs",
        show_default=True,
        help="Folder of runs (or $HPCPROF_RUNS).",
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
        callback=_no_folder,
        metavar="URL",
        help="Results database: a path or an SQLAlchemy URL (or $HPCPROF_DB).  "
        "[default: hpcprof.db among the runs]",
    )(command)


# What a job is without an option or a job file that says otherwise.
_DEFAULTS: dict[str, Any] = {
    "site": "local",
    "nodes": 1,
    "ranks_per_node": 1,
    "profiler": "none",
    "profile_ranks": "all",
    "capture_steps": "",
    "queue": "",
    "account": "",
}


def job_options(command: CommandT) -> CommandT:
    """Add the options that describe a job; the commands that make one have the same.

    None of them has a default of click's: what is None was not given, and a job file may say it.
    """
    positive = click.IntRange(min=1)
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    for option in reversed(
        [
            click.option("--job", type=file, metavar="FILE", help="A job file; options here come before it."),
            click.option("--site", help="Site to run on (hpcprof sites list).  [default: local]"),
            click.option("--site-file", type=file, metavar="FILE", help="A site's file, not its name."),
            click.option("--workload", help="Built-in workload; its own arguments go after --."),
            click.option("--nodes", type=positive, help="Number of nodes.  [default: 1]"),
            click.option("--ranks-per-node", type=positive, help="Ranks on each node.  [default: 1]"),
            click.option("--profiler", help="none, nsys, ncu or torch.  [default: none]"),
            click.option(
                "--profile-ranks",
                help="Ranks under the profiler: all, none, 0,4-7, local=0, nodes=0-1, every=16.  "
                "[default: all]",
            ),
            _pairs_option("--profiler-option", "profiler_options", "The profiler's own option. Repeatable."),
            click.option("--capture-steps", help="Measured steps to profile, 10-12.  [default: all]"),
            click.option("--queue", help="Queue, partition or QOS.  [default: the site's]"),
            click.option("--account", help="Account or project that pays."),
            click.option("--walltime", help="HH:MM:SS, or 90m, 1h30m.  [default: the site's]"),
            click.option("--job-name", help="Name of the job.  [default: the workload's]"),
            _pairs_option(
                "-o", "options", "The site's own option (hpcprof sites show). Repeatable.", "--option"
            ),
            click.option(
                "--after",
                multiple=True,
                metavar="RUN",
                help="Start once this run, or this array, has succeeded.",
            ),
            click.option("--template", type=file, help="Template of job.sh, instead of the scheduler's."),
            runs_dir_option,
            click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]"),
        ]
    ):
        command = option(command)
    return command


def _pairs_option(flag: str, name: str, text: str, *more: str) -> Callable[[CommandT], CommandT]:
    return click.option(flag, *more, name, multiple=True, metavar="KEY=VALUE", help=text)


def job_values(options: dict[str, Any]) -> dict[str, Any]:
    """Return what the job file and the options of `job_options` say together, defaults filled in.

    A single argument that is a YAML file stands for ``--job``.
    """
    given = {key: value for key, value in options.items() if value is not None}
    program = list(options["program"])
    path: Path | None = options["job"]
    if path is None and len(program) == 1 and program[0].endswith((".yaml", ".yml")):
        path, program = Path(program[0]), []
    given["program"] = program
    for key in ("options", "profiler_options"):
        given[key] = _pairs(options[key], key)
    if path is None:
        return {**_DEFAULTS, **given, "after": list(options["after"])}
    from hpcprof.submit.jobs.job_file import load_job_file

    file = load_job_file(path)
    said = {key: getattr(file, key) for key in file.__struct_fields__ if getattr(file, key) is not None}
    values = {**_DEFAULTS, **said, **given}
    values["program"] = program or said.get("program", [])
    values["after"] = list(options["after"]) or file.after
    for key in ("options", "profiler_options"):
        values[key] = {**said[key], **given[key]}
    return values


def site_and_job(values: dict[str, Any], draft: bool = False) -> tuple[Site, Job]:
    """Build the site and the checked job, or a draft of one, from `job_values`."""
    site = site_of(values)
    return site, job_at(site, values, draft)


def site_of(values: dict[str, Any]) -> Site:
    """Load the site that `job_values` name."""
    # Imported here: the commands that only read need no YAML.
    from hpcprof.submit.sites.files import load_site, load_site_file

    file = values.get("site_file")
    return load_site_file(file) if file else load_site(values["site"])


def job_at(site: Site, values: dict[str, Any], draft: bool = False) -> Job:
    """Build the checked job, or a draft of one, from `job_values`."""
    return make_job(
        site,
        workload=values.get("workload"),
        arguments=values["program"],
        name=values.get("job_name"),
        walltime=values.get("walltime"),
        after=_run_ids(values["after"], values["runs_dir"]),
        draft=draft,
        **{key: values[key] for key in (*_DEFAULTS, "options", "profiler_options") if key != "site"},
    )


def repeated(reference: str, runs_dir: Path) -> tuple[Site, Job]:
    """Return the site and the job of an earlier run, as they were."""
    from hpcprof.submit.runs.directory import find_run

    run = find_run(reference, runs_dir)
    if run.manifest is None:
        raise UsageError(f"{run.path} is a folder of profiles that hpcprof did not submit.")
    return run.manifest.site, run.manifest.job


def _run_ids(references: list[str], runs_dir: Path) -> list[str]:
    if not references:
        return []
    from hpcprof.submit.runs.directory import find_runs

    return [run.id for reference in references for run in find_runs(reference, runs_dir)]


def _pairs(texts: tuple[str, ...], name: str) -> dict[str, str]:
    flag = {"options": "-o", "profiler_options": "--profiler-option"}[name]
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"{flag} {text}: write it as KEY=VALUE.")
        pairs[key] = value
    return pairs
