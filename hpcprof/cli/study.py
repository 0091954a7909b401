"""``hpcprof study``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import Group, echo, examples, typed_command
from hpcprof.cli.job_options import job_options
from hpcprof.cli.options import FILE, db_option, runs_dir_option, with_default
from hpcprof.cli.progress import WaitingLine
from hpcprof.cli.study_slowdown import slowdown
from hpcprof.cli.study_validate import validate
from hpcprof.study.kernel_metrics import run_kernel_metrics

if TYPE_CHECKING:
    from hpcprof.submit.jobs.job import JobSpec


@click.group(
    "study", cls=Group, epilog=examples("hpcprof study kernel-metrics --workload ddp -- --model resnet50")
)
def command() -> None:
    """Run a program several times under profilers, and analyze the runs together."""


command.add_command(slowdown)
command.add_command(validate)


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
    from hpcprof.cli.tables import write_analysis
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
    from hpcprof.cli.tables import show
    from hpcprof.study.network import run_network

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
    from hpcprof.cli.tables import show
    from hpcprof.study.call_costs import run_call_costs

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
    from hpcprof.cli.tables import show
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
        "hpcprof study training-table slowdown_pairs.csv ncu_kernels.csv --output training.csv",
    ),
)
@runs_dir_option
@click.option(
    "--output",
    type=FILE,
    metavar="FILE",
    help="The table to write.  [default: training.csv beside the table of slowdowns]",
)
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
