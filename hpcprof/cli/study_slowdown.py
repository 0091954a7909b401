"""``hpcprof study slowdown``."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from hpcprof.cli.examples import examples
from hpcprof.cli.options import db_option, job_options
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.study.record import RECORD, Arm, Member, Record, plan, read_record, write_record
from hpcprof.study.runner import StudyRuns, Unusable, resumed, study_store, without_profiler

if TYPE_CHECKING:
    from hpcprof.results.store.store import Store
    from hpcprof.submit.jobs.request import JobRequest
    from hpcprof.submit.runs.directory import Run
    from hpcprof.submit.schedulers.base import JobStatus

_ARMS = {
    "hook": "the same ranks, whose gradients nothing sums (--comm-hook noop of the workload ddp)",
    "one-rank": "one rank of the same program",
}


@click.command(
    "slowdown",
    epilog=examples(
        "hpcprof study slowdown --ranks-per-node 2 --workload ddp -- --model gpt2",
        "hpcprof study slowdown … --sweep bucket_cap_mb=1,2,5,10,25,50 --repeats 3 --workload ddp",
        "hpcprof study slowdown --resume runs/20261121-132501-slowdown-5755",
    ),
)
@job_options
@db_option
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Runs of each side."
)
@click.option(
    "--alone",
    type=click.Choice(list(_ARMS)),
    default="hook",
    show_default=True,
    help="; ".join(f"{name}: {text}" for name, text in _ARMS.items()) + ".",
)
@click.option(
    "--sweep",
    "parameters",
    multiple=True,
    metavar="KEY=VALUE,…",
    help="Compare at each value of a parameter of the program. Repeatable.",
)
@click.option(
    "--resume", metavar="FOLDER", help="Go on with the study of this folder; it tells the whole study."
)
@click.pass_context
def slowdown(
    context: click.Context,
    /,
    request: JobRequest,
    db: str | None,
    repeats: int,
    alone: str,
    parameters: tuple[str, ...],
    resume: str | None,
) -> None:
    """Run a program with and without communication, in turns, under Nsight Systems on every rank.

    The table has for each value of --sweep the median step of both sides, the share of the GPU's time that
    communication is exposed, and how much slower kernels run beside communication; then come the kernels,
    each against its counterpart without communication. The study's folder, in the folder of runs, keeps the
    tables as CSV, a page with the charts (study.html), and its runs in study.json.

    --resume keeps the runs that have succeeded, waits for one that has not ended, and makes the others.
    """
    from hpcprof.submit.runs.directory import new_run_id

    if resume is not None:
        _refuse_others(context)
        folder = _study_folder(resume, request.runs_dir)
        runs_dir = folder.resolve().parent
        record = read_record(folder)
        # Were it refused later, the run that is submitted by then would not be known.
        write_record(folder, record)
        _make(record, study_store(db, runs_dir), runs_dir, folder)
        return
    record = _planned(request, repeats, alone, parameters)
    runs_dir = request.runs_dir
    store = study_store(db, runs_dir)
    folder = runs_dir / new_run_id("slowdown", runs_dir)
    try:
        write_record(folder, record)
        _make(record, store, runs_dir, folder)
    except (HpcprofError, UnicodeEncodeError):
        # What is refused leaves nothing.
        if not (folder / RECORD).is_file() or not read_record(folder).begun:
            shutil.rmtree(folder)
        raise


def _planned(request: JobRequest, repeats: int, alone: str, parameters: tuple[str, ...]) -> Record:
    """Return the runs that a study needs; every one is checked before the first is submitted."""
    from hpcprof.workloads.sweep import parse_parameters, points, program_at

    request = without_profiler(request)
    if alone == "hook" and request.workload != "ddp":
        raise UsageError("--alone hook is for --workload ddp: choose --alone one-rank for another program.")

    def run_of(arm: Arm, program: list[str]) -> JobRequest:
        base = replace(request, profiler="nsys", profile_ranks="all", program=tuple(program))
        if arm is Arm.COMMUNICATING:
            return base
        if alone == "one-rank":
            return replace(base, nodes=1, ranks_per_node=1)
        return replace(base, program=(*program, "--comm-hook", "noop"))

    members = []
    for one in plan(points(parse_parameters(parameters, "--sweep")), repeats):
        program = program_at(one.point, request.program, request.workload, "--sweep")
        site, job = run_of(one.arm, program).resolve()
        members.append(Member(one.point, one.arm, one.repeat, job=job))
    if max(member.job.ranks for member in members) < 2:
        raise UsageError("one rank has nobody to communicate with: give --ranks-per-node 2 or more.")
    template = request.template
    return Record("slowdown", site, members, str(template.absolute()) if template else None)


def _refuse_others(context: click.Context) -> None:
    """Refuse what is given beside --resume.

    Raises
    ------
    UsageError
        If something is that says what the study is.
    """
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and parameter.name not in ("resume", "runs_dir", "db"):
            name = parameter.opts[0] if isinstance(parameter, click.Option) else "the program"
            raise UsageError(f"--resume goes on with a study as it was: leave out {name}.")


def _study_folder(given: str, runs_dir: Path) -> Path:
    """Return the folder that a user named, by its path or by its name among the runs."""
    path = Path(given)
    return path if path.is_dir() else runs_dir / given


def _make(record: Record, store: Store, runs_dir: Path, folder: Path) -> None:
    """Make the runs that are missing, and say what all of them say together."""
    from hpcprof.workloads.sweep import label

    template = Path(record.template) if record.template else None
    runs = StudyRuns(len(record.runs), store, runs_dir, template, folder)
    with runs.cancelled_on_interrupt():
        for index, one in enumerate(record.runs):
            click.echo(f"run {index + 1} of {len(record.runs)}: {one.arm.value} {label(one.point)}".rstrip())
            record = _made(record, index, runs, runs_dir, folder)
    _show(record, store, runs_dir, folder)


def _made(record: Record, index: int, runs: StudyRuns, runs_dir: Path, folder: Path) -> Record:
    """Have one run made and collected, unless an earlier command has; return the record with its id."""
    try:
        earlier = _earlier(record.runs[index], runs_dir)
        if earlier is None:
            run = runs.submit(record.site, record.runs[index].job)
            record = record.with_run(index, run.id)
            write_record(folder, record)
            runs.wait(run)
        else:
            run, status = earlier
            click.echo(f"{'kept' if status.state.ended else 'submitted before:'} {run.id}")
            if not status.state.ended:
                runs.wait(run)
        runs.collect(run)
    except HpcprofError as error:
        if isinstance(error, Unusable):
            record = record.with_run(index, "")
            write_record(folder, record)
        if record.begun:
            click.echo(f"to go on: {resumed(folder)}", err=True)
        raise
    return record


def _earlier(one: Member, runs_dir: Path) -> tuple[Run, JobStatus] | None:
    """Return the run that an earlier command made, None where there is none that may succeed.

    Raises
    ------
    HpcprofError
        If the scheduler does not tell.
    """
    from hpcprof.submit.runs.directory import MANIFEST, open_run
    from hpcprof.submit.schedulers.base import JobState
    from hpcprof.submit.schedulers.polling import poll

    if not one.run or not (runs_dir / one.run / MANIFEST).is_file():
        return None
    run = open_run(runs_dir / one.run)
    status = poll([run])[run.id]
    if status.state is JobState.UNKNOWN:
        raise HpcprofError(f"whether {run.id} has ended is not known: {status.reason.rstrip('.')}.")
    if status.state.ended and status.state is not JobState.COMPLETED:
        return None
    return run, status


def _show(record: Record, store: Store, runs_dir: Path, folder: Path) -> None:
    """Print and write what the runs of a study say together."""
    from hpcprof.analysis.framework.registry import ACROSS_RUNS
    from hpcprof.cli.tables import show, show_analysis
    from hpcprof.common.atomic import write_atomically
    from hpcprof.report.formatting import cell, header
    from hpcprof.report.html import html_study
    from hpcprof.report.tables_export import write_csv
    from hpcprof.study.slowdown import SlowdownTables, best, by_point, compare_sides
    from hpcprof.workloads.sweep import label

    pairs = ACROSS_RUNS["slowdown_pairs"]
    rows = by_point(store, record.runs)
    found = compare_sides(record.runs, store, runs_dir)
    tables = SlowdownTables(
        name=folder.name,
        keys=record.keys,
        by_point=rows,
        pairs=[{**one.point, **row} for one in found for row in one.pairs.rows],
        by_overlap=[{**one.point, **row} for one in found for row in one.by_overlap.rows],
        sentence=best(rows, record.keys),
    )
    for part in tables.parts():
        write_csv(folder / f"{part.name}.csv", [column.name for column in part.columns], part.rows)
    columns = [column.name for column in tables.parts()[0].columns]
    click.echo("")
    headers = [key if key in record.keys else header(key) for key in columns]
    show([[cell(key, row[key]) for key in columns] for row in rows], headers)
    if tables.sentence:
        click.echo(tables.sentence)
    for one in found:
        click.echo(f"\n{' at '.join(filter(None, (pairs.title, label(one.point))))}")
        show_analysis(pairs, one.pairs)
    click.echo(f"the study's runs and tables: {folder}")
    try:
        write_atomically(folder / "study.html", html_study(tables))
        click.echo(f"drawn: {folder / 'study.html'}")
    except HpcprofError as error:
        click.echo(f"hpcprof: not drawn: {error}", err=True)
