"""``hpcprof study``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.group import Group
from hpcprof.cli.options import db_option, job_options, job_values, runs_dir_option, site_and_job
from hpcprof.errors import HpcprofError, UsageError

if TYPE_CHECKING:
    from hpcprof.run import Run
    from hpcprof.store import Store
    from hpcprof.study.slowdown import Made

_LAUNCHES = 100
"""How many launches are replayed unless the user says another number."""

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@click.group(
    "study", cls=Group, epilog=examples("hpcprof study kernel-metrics --workload ddp -- --model resnet50")
)
def command() -> None:
    """Run a program several times under profilers, and say what they tell together."""


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
def kernel_metrics(db: str | None, top: int, **options: Any) -> None:
    """Measure the kernels of a program by hardware counters, and place them on the roofline.

    Two runs of the same job: one under Nsight Systems for the times in situ and the choice of kernels, and
    one with one rank (--profile-ranks, default 0) under Nsight Compute. --profiler-option is Nsight
    Compute's; kernel=REGEX there chooses other kernels than --top. The tables are left in study/ of the
    second run as CSV, and in the store.
    """
    from hpcprof.analysis.across_runs import ACROSS_RUNS
    from hpcprof.analysis.catalogue import ANALYSES
    from hpcprof.cli.study_runs import StudyRuns
    from hpcprof.cli.study_tables import show_and_write
    from hpcprof.several_runs import over_pair

    values = _values(options)
    ranks = values["profile_ranks"] if options["profile_ranks"] is not None else "0"
    settings = dict(values["profiler_options"])
    nsys = {**values, "profiler": "nsys", "profile_ranks": ranks, "profiler_options": {}}
    ncu = {**values, "profiler": "ncu", "profile_ranks": ranks}
    # Checked before the first run: what is wrong with the second must not wait for it.
    _, job = site_and_job(
        {**ncu, "profiler_options": {"kernel": "^checked$", "launch-count": str(_LAUNCHES), **settings}}
    )
    if len(job.profiled_ranks) != 1:
        raise UsageError(f"--profile-ranks {ranks}: choose one rank, whose kernels are to be replayed.")
    (rank,) = job.profiled_ranks
    store = _store(db, options["runs_dir"])
    runs = StudyRuns(2, store)
    with runs.cancelled_on_interrupt():
        timed = runs.make(nsys)
        settings = _chosen_kernels(settings, timed, rank, top)
        counted = runs.make({**ncu, "profiler_options": settings})
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
    from hpcprof.study.kernel_choice import choose_kernels
    from hpcprof.timelines import find_timelines

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


def _values(options: dict[str, Any]) -> dict[str, Any]:
    """Return the job's values; the study chooses the profilers itself.

    Raises
    ------
    UsageError
        If the user chose one.
    """
    values = job_values(options)
    if values["profiler"] != "none":
        raise UsageError(f"--profiler {values['profiler']}: the study chooses the profilers itself.")
    return values


def _store(db: str | None, runs_dir: Path) -> Store:
    from hpcprof.store import Store, store_url

    store = Store(store_url(db, runs_dir))
    store.prepare()
    return store


_ARMS = {
    "hook": "the same ranks, whose gradients nothing sums (--comm-hook noop of the workload ddp)",
    "one-rank": "one rank of the same program",
}


@command.command(
    "slowdown",
    epilog=examples(
        "hpcprof study slowdown --ranks-per-node 2 --workload ddp -- --model gpt2",
        "hpcprof study slowdown … --sweep bucket_cap_mb=1,2,5,10,25,50 --repeats 3 --workload ddp",
    ),
)
@job_options
@db_option
@click.option(
    "--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of each side."
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
def slowdown(db: str | None, repeats: int, alone: str, parameters: tuple[str, ...], **options: Any) -> None:
    """Run a program with and without communication, in turns, under Nsight Systems on every rank.

    The table has for each value of --sweep the median step of both sides, the share of the GPU's time that
    communication is exposed, and how much slower kernels run beside communication; then come the kernels,
    each against its counterpart without communication. The study's folder, in the folder of runs, keeps the
    tables as CSV, a page with the charts (study.html), and the ids of all runs in study.json.
    """
    from hpcprof.atomic import write_atomically
    from hpcprof.cli.study_runs import StudyRuns
    from hpcprof.run import new_run_id
    from hpcprof.study.slowdown import Arm, Made, as_json, plan
    from hpcprof.sweep import label, parse_parameters, points, program_at

    values = _values(options)
    if alone == "hook" and values.get("workload") != "ddp":
        raise UsageError("--alone hook is for --workload ddp: choose --alone one-rank for another program.")
    swept = parse_parameters(parameters, "--sweep")
    planned = plan(points(swept), repeats)

    def job(arm: Arm, program: list[str]) -> dict[str, Any]:
        base = {**values, "profiler": "nsys", "profile_ranks": "all", "program": program}
        if arm is Arm.COMMUNICATING:
            return base
        if alone == "one-rank":
            return {**base, "nodes": 1, "ranks_per_node": 1}
        return {**base, "program": [*program, "--comm-hook", "noop"]}

    jobs = [job(one.arm, program_at(one.point, values["program"], values.get("workload"))) for one in planned]
    # Every run is checked before the first one is submitted.
    if max(site_and_job(one)[1].ranks for one in jobs) < 2:
        raise UsageError("one rank has nobody to communicate with: give --ranks-per-node 2 or more.")
    store = _store(db, options["runs_dir"])
    folder = options["runs_dir"] / new_run_id("slowdown", options["runs_dir"])
    made: list[Made] = []
    runs = StudyRuns(len(planned), store, folder / "study.json")
    with runs.cancelled_on_interrupt():
        for one, wanted in zip(planned, jobs, strict=True):
            click.echo(f"run {len(made) + 1} of {len(planned)}: {one.arm.value} {label(one.point)}".rstrip())
            made.append(Made(one, runs.make(wanted).id))
            write_atomically(folder / "study.json", as_json(made))
    _show_slowdown(made, list(swept), store, options["runs_dir"], folder)


def _show_slowdown(
    made: Sequence[Made], keys: Sequence[str], store: Store, runs_dir: Path, folder: Path
) -> None:
    """Print and write what the runs of a study say together."""
    from hpcprof.analysis.across_runs import ACROSS_RUNS
    from hpcprof.atomic import write_atomically
    from hpcprof.cli.tables import show
    from hpcprof.export import write_csv
    from hpcprof.report.html import html_study
    from hpcprof.report.terminal import show_analysis
    from hpcprof.study.slowdown import SlowdownTables, best, by_point, compare_sides
    from hpcprof.sweep import label
    from hpcprof.units import format_value

    pairs = ACROSS_RUNS["slowdown_pairs"]
    rows = by_point(store, made)
    found = compare_sides(made, store, runs_dir)
    tables = SlowdownTables(
        name=folder.name,
        keys=tuple(keys),
        by_point=rows,
        pairs=[{**one.point, **row} for one in found for row in one.pairs.rows],
        by_overlap=[{**one.point, **row} for one in found for row in one.by_overlap.rows],
        sentence=best(rows, keys),
    )
    for part in tables.parts():
        write_csv(folder / f"{part.name}.csv", [column.name for column in part.columns], part.rows)
    columns = [column.name for column in tables.parts()[0].columns]
    click.echo("")
    show([[format_value(key, row[key]) for key in columns] for row in rows], columns)
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
    from hpcprof.export import write_csv
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
    from hpcprof.run import find_run

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
