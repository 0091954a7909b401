"""``hpcprof study slowdown``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcprof.cli.conventions import command_with_examples, echo, typed_command
from hpcprof.cli.job_options import job_options
from hpcprof.cli.options import db_option, repeatable, typed_options, with_default
from hpcprof.cli.progress import WaitingLine
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.study.slowdown import Alone, resume_slowdown, run_slowdown

if TYPE_CHECKING:
    from hpcprof.study.slowdown import SlowdownStudy
    from hpcprof.submit.jobs.job import JobSpec

_ALONE_MEANINGS = {
    Alone.HOOK: "the same ranks, without summing gradients (--comm-hook noop of the workload ddp)",
    Alone.ONE_RANK: "one rank of the same program",
}


@command_with_examples(
    "slowdown",
    "hpcprof study slowdown --ranks-per-node 2 --workload ddp -- --model gpt2",
    "hpcprof study slowdown … --sweep bucket_cap_mb=1,2,5,10,25,50 --repeats 3 --workload ddp",
    "hpcprof study slowdown --resume runs/20261121-132501-slowdown-5755",
)
@job_options
@db_option
@with_default(
    "--repeats", type=click.IntRange(1, 1000), default=5, help="Runs with, and runs without communication."
)
@with_default(
    "--alone",
    type=click.Choice([alone.value for alone in Alone]),
    default=Alone.HOOK.value,
    help="Runs without communication: "
    + "; ".join(f"{alone.value}, {text}" for alone, text in _ALONE_MEANINGS.items())
    + ".",
)
@repeatable(
    "--sweep",
    "parameters",
    metavar="KEY=VALUE,…",
    help="Compare at each value of a parameter of the program. Repeatable.",
)
@click.option("--resume", metavar="FOLDER", help="Continue the study in this folder, as it was planned.")
@click.pass_context
def slowdown(
    context: click.Context,
    /,
    request: "JobSpec",
    db: str | None,
    repeats: int,
    alone: str,
    parameters: tuple[str, ...],
    resume: str | None,
) -> None:
    """Run a program with and without communication, in turns, under Nsight Systems on every rank.

    For each value of --sweep the table has the median step with and without communication, the share of GPU
    time in which communication is exposed, and how much slower kernels run while communication runs. Then
    each kernel is compared with its counterpart without communication. The study's folder, in the folder of
    runs, keeps the tables as CSV, a page with the charts (study.html), and a list of its runs in study.json.

    --resume keeps the runs that have succeeded, waits for one that has not ended, and makes the others.
    """
    from hpcprof.workloads.sweep import parse_parameters

    folder = folder_to_resume(context, resume, request.runs_dir)
    with WaitingLine() as line:
        how: dict[str, Any] = {"db": db, "progress": line.show_message, "command_line": typed_command()}
        if folder is not None:
            study = resume_slowdown(folder, **how)
        else:
            sweep = parse_parameters(parameters, "--sweep")
            study = run_slowdown(request, alone=Alone(alone), sweep=sweep, repeats=repeats, **how)
    _show(study)


def folder_to_resume(context: click.Context, resume: str | None, runs_dir: Path) -> Path | None:
    """Return the folder of a study that is resumed, which ``resume`` names as a path or below ``runs_dir``.

    An option that would change the study is refused.
    """
    if resume is None:
        return None
    for parameter in typed_options(context):
        if parameter.name not in ("resume", "runs_dir", "db"):
            name = parameter.opts[0] if isinstance(parameter, click.Option) else "the program"
            raise UsageError(f"--resume continues a study as it was planned: leave out {name}.")
    folder = Path(resume)
    return folder if folder.is_dir() else runs_dir / resume


def _show(study: "SlowdownStudy") -> None:
    from hpcprof.analysis.framework.registry import ACROSS_RUNS
    from hpcprof.cli.tables import show, write_analysis
    from hpcprof.common.atomic import write_atomically
    from hpcprof.report.exports import write_csv
    from hpcprof.report.formatting import cell, header
    from hpcprof.report.page.study_page import html_study
    from hpcprof.workloads.sweep import label

    pairs = ACROSS_RUNS["slowdown_pairs"]
    folder, tables = study.folder, study.tables
    for table in tables.parts():
        write_csv(folder / f"{table.name}.csv", [column.name for column in table.columns], table.rows)
    columns = [column.name for column in tables.parts()[0].columns]
    echo("")
    headers = [key if key in tables.keys else header(key) for key in columns]
    show([[cell(key, row[key]) for key in columns] for row in tables.by_point], headers)
    if tables.sentence:
        echo(tables.sentence)
    for comparison in study.comparisons:
        echo(f"\n{' at '.join(filter(None, (pairs.title, label(comparison.point))))}")
        write_analysis("table", pairs, comparison.pairs)
    echo(f"runs and tables of the study: {folder}")
    try:
        write_atomically(folder / "study.html", html_study(tables))
        echo(f"charts: {folder / 'study.html'}")
    except HpcprofError as error:
        echo(f"hpcprof: no charts: {error}", err=True)
