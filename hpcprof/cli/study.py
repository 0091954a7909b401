"""``hpcprof study``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import Group, command_with_examples, echo, examples, typed_command
from hpcprof.cli.job_options import job_options
from hpcprof.cli.options import (
    db_option,
    output_option,
    repeatable,
    runs_dir_option,
    typed_options,
    with_default,
)
from hpcprof.cli.progress import WaitingLine
from hpcprof.cli.tables import show, show_what_fits, write_analysis
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.study.kernel_metrics import run_kernel_metrics
from hpcprof.study.slowdown import Alone, resume_slowdown, run_slowdown
from hpcprof.study.validation import resume_validation, run_validation

if TYPE_CHECKING:
    from hpcprof.study.slowdown import SlowdownStudy
    from hpcprof.study.validation import ValidationStudy
    from hpcprof.submit.jobs.job import JobSpec

_ALONE_MEANINGS = {
    Alone.HOOK: "the same ranks, without summing gradients (--comm-hook noop of the workload ddp)",
    Alone.ONE_RANK: "one rank of the same program",
}

_FIRST_COLUMNS = (
    *("fault", "cost_ns", "first_finding", "right", "saving_ns", "error_ns", "expected"),
    *("finding_range", "finding_ranks"),
)
"""The columns of a validation that a narrow terminal shows, the most telling first."""

_resume_option = click.option(
    "--resume", metavar="FOLDER", help="Continue the study in this folder, as it was planned."
)


@click.group(
    "study", cls=Group, epilog=examples("hpcprof study kernel-metrics --workload ddp -- --model resnet50")
)
def command() -> None:
    """Run a program several times under profilers, and analyze the runs together."""


@command.command(
    "kernel-metrics",
    epilog=examples(
        "hpcprof study kernel-metrics --ranks-per-node 2 --workload ddp -- --model gpt2",
        "hpcprof study kernel-metrics --top 5 --profiler-option launch-count=20 --workload ddp",
    ),
)
@job_options
@db_option
@with_default(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    help="Number of kernels to measure: those that take longest under nsys.",
)
def kernel_metrics(request: JobSpec, db: str | None, top: int) -> None:
    """Measure the kernels of a program by hardware counters, and place them on the roofline.

    The same job runs twice: under Nsight Systems for the times of the kernels and the choice of those to
    measure, and with one rank (--profile-ranks, default 0) under Nsight Compute. --profiler-option sets
    options of Nsight Compute; kernel=REGEX there replaces --top. The tables are written as CSV into study/ of
    the second run, and into the results database.
    """
    from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
    from hpcprof.report.exports import write_csv

    with WaitingLine() as line:
        study = run_kernel_metrics(
            request, top=top, db=db, progress=line.show_message, command_line=typed_command()
        )
    used = study.profiler_options
    echo(
        f"ncu: rank {study.rank}, replay mode {used['replay-mode']}, clock control {used['clock-control']}, "
        f"{'set ' + used['set'] if used['set'] else 'sections ' + used['sections']}"
    )
    folder = study.counted_run.path / "study"
    for name, table in study.tables.items():
        analysis = ANALYSES.get(name) or ACROSS_RUNS[name]
        echo(f"\n{analysis.title}")
        write_analysis("table", analysis, table)
        write_csv(folder / f"{name}.csv", [column.name for column in analysis.columns], table.rows)
    echo(f"runs {study.timed_run.id} (nsys) and {study.counted_run.id} (ncu); tables in {folder}")


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
@_resume_option
@click.pass_context
def slowdown(
    context: click.Context,
    /,
    request: JobSpec,
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

    folder = _folder_to_resume(context, resume, request.runs_dir)
    with WaitingLine() as line:
        how: dict[str, Any] = {"db": db, "progress": line.show_message, "command_line": typed_command()}
        if folder is not None:
            study = resume_slowdown(folder, **how)
        else:
            sweep = parse_parameters(parameters, "--sweep")
            study = run_slowdown(request, alone=Alone(alone), sweep=sweep, repeats=repeats, **how)
    _show_slowdown(study)


def _folder_to_resume(context: click.Context, resume: str | None, runs_dir: Path) -> Path | None:
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


def _show_slowdown(study: SlowdownStudy) -> None:
    from hpcprof.analysis.framework.registry import ACROSS_RUNS
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


@command_with_examples(
    "validate",
    "hpcprof study validate --ranks-per-node 2 -- --model gpt2 --precision bf16",
    "hpcprof study validate --faults gc,late_rank_gpu:matmuls=4,rank=0 … -- --model gpt2",
    "hpcprof study validate --profiler torch --ranks-per-node 2 -- --device cpu",
    "hpcprof study validate --resume runs/20261121-132501-validate-5755",
)
@job_options
@db_option
@repeatable(
    "--faults",
    metavar="CAUSE[:KEY=VALUE,…],…",
    help="Faults to inject. Repeatable.  [default: all that the training can have]",
)
@with_default(
    "--block-steps", type=click.IntRange(min=4), default=10, help="Steps of a block with or without a fault."
)
@with_default(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=3,
    help="Times that each fault has two blocks with it and two without it.",
)
@_resume_option
@click.pass_context
def validate(
    context: click.Context,
    /,
    request: JobSpec,
    db: str | None,
    faults: tuple[str, ...],
    block_steps: int,
    repeats: int,
    resume: str | None,
) -> None:
    """Check what explain finds: inject known faults into a training, and measure what each really costs.

    The first run trains without a profiler. For each fault, blocks of steps with and without it alternate:
    their difference is what it costs. Then a run for each fault is profiled on every rank, under Nsight
    Systems or with --profiler torch, and explained. The table compares the first finding and its predicted
    saving with the fault and its cost. It is written as validation.csv into the study's folder.

    The program is the workload ddp; the study sets its number of steps. --resume keeps the runs that have
    succeeded, waits for one that has not ended, and makes the others.
    """
    folder = _folder_to_resume(context, resume, request.runs_dir)
    with WaitingLine() as line:
        how: dict[str, Any] = {"db": db, "progress": line.show_message, "command_line": typed_command()}
        if folder is not None:
            study = resume_validation(folder, **how)
        else:
            named = split_faults(faults)
            study = run_validation(request, faults=named, block_steps=block_steps, repeats=repeats, **how)
    _show_validation(study)


def split_faults(texts: tuple[str, ...]) -> list[str]:
    """Return the faults in texts that list them with commas; commas also separate the keys of a fault."""
    faults: list[str] = []
    for part in ",".join(texts).split(","):
        if faults and "=" in part and ":" not in part:
            faults[-1] += f",{part}"
        else:
            faults.append(part)
    return faults if texts else []


def _show_validation(study: ValidationStudy) -> None:
    from hpcprof.report.exports import write_csv
    from hpcprof.report.formatting import cell, header
    from hpcprof.study.validation_table import COLUMNS, summary

    rows = [validation.row() for validation in study.found]
    names = [column.name for column in COLUMNS]
    write_csv(study.folder / "validation.csv", names, rows)
    echo("")
    order = [*_FIRST_COLUMNS, *(name for name in names if name not in _FIRST_COLUMNS)]
    cells = {header(name): [cell(name, row[name]) for row in rows] for name in names}
    show_what_fits(cells, [header(name) for name in order], header("finding_range"))
    echo(summary(study.found))
    echo(f"runs and table of the study: {study.folder}")


command.add_command(slowdown)
command.add_command(validate)


@command.command(
    "network",
    epilog=examples(
        "hpcprof study network --nodes 2 --ranks-per-node 4",
        "hpcprof study network --site mycluster --nodes 2 --ranks-per-node 8 -- --max-bytes 268435456",
    ),
)
@job_options
@db_option
def network(request: JobSpec, db: str | None) -> None:
    """Measure the network of a site, for the predictions of its runs.

    One job times all-reduce, all-gather, reduce-scatter, all-to-all and send by the definitions of nccl-tests
    (NCCL, gloo) and OSU (MPI), from 8 bytes to 1 GB, on 2, 4, 8 … ranks within a node and across nodes.
    Latency and bandwidth, with break points of the size, are kept with the site; `hpcprof predict` uses them.
    Options of the workload network go after --.
    """
    from hpcprof.study.site_measurements import run_network

    with WaitingLine() as line:
        study = run_network(request, db=db, progress=line.show_message, command_line=typed_command())
    rows = [
        (
            op,
            where,
            f"{segment.bytes:,.0f}" if segment is not segments[-1] else "",
            segment.algorithm,
            f"{segment.latency / 1e3:.2f}",
            f"{1 / segment.per_byte:.2f}" if segment.per_byte else "",
        )
        for where, fits in (("one node", study.network.segments), ("across nodes", study.network.across))
        for op, segments in fits.items()
        for segment in segments
    ]
    show(rows, ["operation", "ranks on", "up to bytes", "hops", "latency us", "GB/s"])
    echo(f"Typical error of the fit: {100 * study.network.error:.0f} %. Kept with the site: {study.path}")


@command.command("call-costs", epilog=examples("hpcprof study call-costs --site mycluster"))
@job_options
@db_option
def call_costs(request: JobSpec, db: str | None) -> None:
    """Measure what Nsight Systems adds to calls of CUDA on a site.

    Four short jobs on one GPU time launches, small copies, events and synchronizations in loops: alone, twice
    recorded, and alone again. The costs of the kinds of calls over that of a launch are kept with the site,
    and the explanations of its runs take the profiler's share out in these ratios. Options of the workload
    calls go after --.
    """
    from hpcprof.study.site_measurements import run_call_costs

    with WaitingLine() as line:
        study = run_call_costs(request, db=db, progress=line.show_message, command_line=typed_command())
    weights, rows = study.costs.weights, []
    for kind, times in study.costs.kinds.items():
        cost, low, high = times.cost_ns
        weight = f"{weights[kind]:.2f}" if kind in weights else ""
        rows.append((times.call, f"{cost:,.0f}", f"{low:,} to {high:,}", weight))
    show(rows, ["call", "cost ns", "runs", "of a launch"])
    echo(f"Nsight Systems {study.costs.profiler}. Kept with the site: {study.path}")


@command.command(
    "roles",
    epilog=examples("hpcprof study roles --world-size 64 --roles 0,16,32,48 -- python train.py"),
)
@job_options
@db_option
@click.option(
    "--world-size", type=click.IntRange(1), required=True, metavar="N", help="Ranks of the larger job."
)
@click.option("--roles", required=True, metavar="RANKS", help="Ranks to run as, one after another: 0,4-7.")
def roles(request: JobSpec, db: str | None, world_size: int, roles: str) -> None:
    """Profile single ranks of a larger job of PyTorch, each alone on one GPU or on the CPU.

    The program believes to be rank R of N: its process groups have the backend `fake` of PyTorch, so that
    collectives and messages return at once, with what the rank itself has put into their buffers. Name one
    rank for each role whose work differs, such as the stages of a pipeline. The PyTorch profiler records the
    steps, unless --profiler names another.
    """
    from hpcprof.common.units import format_ns
    from hpcprof.runs.rank_selection import parse_ranks
    from hpcprof.study.roles import run_roles

    spans = parse_ranks(roles, "--roles")
    ranks = sorted(
        {rank for first, last in spans for rank in range(first, min(last, max(first, world_size)) + 1)}
    )
    with WaitingLine() as line:
        played = run_roles(
            request, world_size, ranks, db=db, progress=line.show_message, command_line=typed_command()
        )
    show([(str(part.rank), format_ns(part.step_ns), part.run.id) for part in played], ["rank", "step", "run"])
    slowest = max(played, key=lambda part: part.step_ns)
    echo(
        f"Rank {slowest.rank} takes longest: with communication a step of {world_size:,} ranks takes at "
        f"least {format_ns(slowest.step_ns)}."
    )


@command.command(
    "training-table",
    epilog=examples(
        "hpcprof study training-table runs/20261121-132501-slowdown-5755 20261121-132216-ddp-73fe",
        "hpcprof study training-table slowdown_pairs.csv ncu_kernels.csv -o training.csv",
    ),
)
@runs_dir_option
@output_option("The table to write.  [default: training.csv beside the table of slowdowns]", is_file=True)
@click.argument("slowdown", metavar="SLOWDOWN", shell_complete=complete_runs)
@click.argument("metrics", metavar="METRICS", shell_complete=complete_runs)
def training_table(runs_dir: Path, output: Path | None, slowdown: str, metrics: str) -> None:
    """Merge the metrics of kernels with their slowdown into one CSV file, to train a model with.

    SLOWDOWN is the folder of a study of slowdown, and METRICS is the Nsight Compute run of a study of kernel
    metrics; either may also be the CSV file. No job is run.
    """
    from hpcprof.report.exports import write_csv
    from hpcprof.study import training_table as merging

    pairs_file = merging.find_table(slowdown, "slowdown_pairs.csv", runs_dir)
    metrics_file = merging.find_table(metrics, "ncu_kernels.csv", runs_dir)
    table = merging.training_table(merging.read_slowdown(pairs_file), merging.read_metrics(metrics_file))
    file = output or pairs_file.with_name("training.csv")
    write_csv(file, [str(name) for name in table], table.where(table.notna(), None).to_dict("records"))
    echo(merging.kernel_counts_sentence(table))
    if kernels := merging.kernels_to_measure(table):
        again = merging.measuring_command(metrics_file, kernels)
        option = (
            f"repeat the study of kernel metrics with --profiler-option {shlex.quote(f'kernel={kernels}')}"
        )
        echo(f"to measure the others: {again or option}")
    echo(f"wrote {file}")
