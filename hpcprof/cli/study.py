"""``hpcprof study``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.group import Group
from hpcprof.cli.options import db_option, job_options, runs_dir_option
from hpcprof.cli.study_slowdown import slowdown
from hpcprof.common.errors import UsageError
from hpcprof.study.runner import StudyRuns, study_store, without_profiler

if TYPE_CHECKING:
    from hpcprof.submit.jobs.request import JobRequest
    from hpcprof.submit.runs.directory import Run

_LAUNCHES = 100
"""How many launches are replayed unless the user says another number."""

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@click.group(
    "study", cls=Group, epilog=examples("hpcprof study kernel-metrics --workload ddp -- --model resnet50")
)
def command() -> None:
    """Run a program several times under profilers, and say what they tell together."""


command.add_command(slowdown)


@command.command(
    "kernel-metrics",
    epilog=examples(
        "hpcprof study kernel-metrics --ranks-per-node 2 --workload ddp -- --model gpt2",
        "hpcprof study kernel-metrics --top 5 --profiler-option launch-count=20 --workload ddp",
    ),
)
@job_options
@db_option
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Kernels to measure: those that take longest in the run under nsys.",
)
def kernel_metrics(request: JobRequest, db: str | None, top: int) -> None:
    """Measure the kernels of a program by hardware counters, and place them on the roofline.

    Two runs of the same job: one under Nsight Systems for the times in situ and the choice of kernels, and
    one with one rank (--profile-ranks, default 0) under Nsight Compute. --profiler-option is Nsight
    Compute's; kernel=REGEX there chooses other kernels than --top. The tables are left in study/ of the
    second run as CSV, and in the store.
    """
    from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
    from hpcprof.cli.study_tables import show_and_write
    from hpcprof.results.across_runs import over_pair

    request = without_profiler(request)
    ranks = "0" if request.profile_ranks is None else request.profile_ranks
    settings = dict(request.profiler_options)
    nsys = replace(request, profiler="nsys", profile_ranks=ranks, profiler_options={})
    ncu = replace(request, profiler="ncu", profile_ranks=ranks)
    # Checked before the first run: what is wrong with the second must not wait for it.
    checked = {"kernel": "^checked$", "launch-count": str(_LAUNCHES), **settings}
    _, job = replace(ncu, profiler_options=checked).resolve()
    if len(job.profiled_ranks) != 1:
        raise UsageError(f"--profile-ranks {ranks}: choose one rank, whose kernels are to be replayed.")
    (rank,) = job.profiled_ranks
    store = study_store(db, request.runs_dir)
    runs = StudyRuns(2, store, request.runs_dir, request.template)
    with runs.cancelled_on_interrupt():
        timed = runs.make(*nsys.resolve())
        settings = _chosen_kernels(settings, timed, rank, top)
        counted = runs.make(*replace(ncu, profiler_options=settings).resolve())
    assert counted.manifest is not None
    used = counted.manifest.job.profiler_options
    click.echo(
        f"ncu: rank {rank}, replay mode {used['replay-mode']}, clock control {used['clock-control']}, "
        f"{'set ' + used['set'] if used['set'] else 'sections ' + used['sections']}"
    )
    folder = counted.path / "study"
    show_and_write(ANALYSES["ncu_kernels"], store.read(counted.id, "ncu_kernels"), folder)
    roofline = ACROSS_RUNS["roofline"]
    show_and_write(roofline, over_pair(roofline, [counted], [timed], store), folder)
    click.echo(f"runs {timed.id} (nsys) and {counted.id} (ncu); tables in {folder}")


def _chosen_kernels(settings: dict[str, str], timed: Run, rank: int, top: int) -> dict[str, str]:
    """Return the options of Nsight Compute with the kernels to measure, and say which these are."""
    from hpcprof.results.timelines import find_timelines
    from hpcprof.study.kernel_choice import choose_kernels

    if "kernel" in settings:
        return {"launch-count": str(_LAUNCHES), **settings}
    launches = int(settings.get("launch-count") or _LAUNCHES)
    choice = choose_kernels(find_timelines(timed).read(rank), top, launches)
    click.echo(
        f"{len(choice.names)} kernels with {100 * choice.share:.1f} % of the compute time; "
        f"{choice.count} launches of them from number {choice.skip} on"
    )
    return {
        "kernel": choice.pattern,
        "launch-count": str(choice.count),
        "launch-skip": str(choice.skip),
        **settings,
    }


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
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Default: training.csv beside the table of slowdowns.",
)
@click.argument("slowdown", metavar="SLOWDOWN")
@click.argument("metrics", metavar="METRICS")
def training_table(runs_dir: Path, output: Path | None, slowdown: str, metrics: str) -> None:
    """Merge the metrics of kernels with their slowdown into one CSV, to train a model with.

    SLOWDOWN is the folder of a study of slowdown, METRICS the run under Nsight Compute of a study of kernel
    metrics; or either is their CSV file. Nothing is run.
    """
    from hpcprof.report.tables_export import write_csv
    from hpcprof.study import training_table as merging

    of_slowdown = _table_of(slowdown, "slowdown_pairs.csv", runs_dir)
    of_metrics = _table_of(metrics, "ncu_kernels.csv", runs_dir)
    table = merging.training_table(merging.read_slowdown(of_slowdown), merging.read_metrics(of_metrics))
    file = output or of_slowdown.with_name("training.csv")
    write_csv(file, [str(name) for name in table], table.where(table.notna(), None).to_dict("records"))
    click.echo(merging.what_is_in(table))
    if kernels := merging.kernels_to_measure(table):
        click.echo(
            f"to measure the others: hpcprof study kernel-metrics --profiler-option 'kernel={kernels}' …"
        )
    click.echo(f"wrote {file}")


def _table_of(given: str, name: str, runs_dir: Path) -> Path:
    """Return the table that a file, a folder or a run's id stands for.

    Raises
    ------
    UsageError
        If there is none.
    """
    from hpcprof.submit.runs.directory import find_run

    path = Path(given)
    if path.is_file():
        return path
    folder = path if path.is_dir() else runs_dir / given
    if not folder.is_dir():
        folder = find_run(given, runs_dir).path
    for place in (folder / name, folder / "study" / name):
        if place.is_file():
            return place
    raise UsageError(f"{folder} has no {name}: is it of another study, or was that ended before?")
