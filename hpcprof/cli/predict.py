"""``hpcprof predict``."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from hpcprof.cli.completion import complete_runs, complete_sites
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import flag, format_among, repeatable, store_options, typed_options
from hpcprof.cli.report import collect_first
from hpcprof.common.errors import UsageError

if TYPE_CHECKING:
    from hpcprof.analysis.predict.pipeline import Schedule
    from hpcprof.results.across.predictions import KeptPrediction


@command_with_examples(
    "predict",
    "hpcprof predict RUN --ranks 64",
    "hpcprof predict RUN_ON_2 RUN_ON_4 --ranks 8,16,32,64 --scaling strong",
    "hpcprof predict TIMERS --pipeline 8 --microbatches 32 --schedule zero-bubble",
    "hpcprof predict --check RUN_ON_64",
)
@store_options
@format_among("text", "json", help="json gives times in whole nanoseconds.")
@click.option("--ranks", metavar="N[,N…]", help="Numbers of ranks to predict; several are a curve.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Nodes, for the node-hours.")
@click.option(
    "--site",
    metavar="SITE",
    shell_complete=complete_sites,
    help="The site that is predicted for: the GPUs or cores of its nodes, and its measured network.",
)
@click.option(
    "--scaling",
    type=click.Choice(("weak", "strong")),
    help="Whether the size per rank stays (weak, the default) or the whole size (strong); --check scores "
    "the predictions of either.",
)
@click.option(
    "--keep",
    "keep_size",
    type=click.IntRange(1),
    default=1,
    metavar="SIZE",
    help="The size of a group of ranks that does not grow, such as a tensor group.",
)
@repeatable(
    "--set",
    "changes",
    metavar="EXPR",
    help="A change of the measured times: kernel:REGEX*0.5 (by name), comm*0 or bandwidth*2. Repeatable.",
)
@click.option("--pipeline", type=click.IntRange(2), metavar="STAGES", help="Stages of a pipeline to predict.")
@click.option(
    "--microbatches",
    type=click.IntRange(1),
    metavar="N",
    help="Microbatches of a replica, by default as measured.",
)
@click.option(
    "--schedule",
    type=click.Choice(("1f1b", "interleaved", "zero-bubble")),
    default="1f1b",
    help="The order of the pipeline's blocks (default 1f1b).",
)
@click.option(
    "--chunks", type=click.IntRange(1), metavar="N", help="Chunks of each stage of an interleaved schedule."
)
@click.option(
    "--check",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Score earlier predictions with a run on the predicted number of ranks.",
)
@flag("--list", "listed", help="List the predictions that were made, with their scores.")
@click.argument("runs", nargs=-1, metavar="[RUN]…", shell_complete=complete_runs)
def command(
    runs_dir: Path,
    db: str | None,
    form: str,
    ranks: str | None,
    nodes: int | None,
    site: str | None,
    scaling: Literal["weak", "strong"] | None,
    keep_size: int,
    changes: tuple[str, ...],
    pipeline: int | None,
    microbatches: int | None,
    schedule: "Schedule",
    chunks: int | None,
    check: str | None,
    listed: bool,
    runs: tuple[str, ...],
) -> None:
    """Predict the step time of a program on other ranks, from a run on a few.

    Clones of the measured ranks are replayed: collectives wait for the slowest of them and take what the
    network's model says. Two baselines stand beside each prediction: the measured step, and a + b log2 p.
    Predictions are kept; --check scores them when the program has run on that many ranks.

    RUN is a run id, a name that means one run, a path, or last (the default). More runs of the program, on
    other numbers of ranks, tell more of the network.

    --pipeline rebuilds the schedule of a table of operations from its measured blocks, with other stages,
    microbatches and orders.
    """
    from hpcprof.results.across import predictions
    from hpcprof.results.collect.missing import find_collected_run
    from hpcprof.results.store.store import open_store

    store = open_store(db, runs_dir)
    find = partial(find_collected_run, store=store, runs_dir=runs_dir, collect=collect_first)
    if listed or check:
        _refuse_others("--list" if listed else "--check", "listed" if listed else "check scaling")
        run_id = find(runs[0]).id if runs else None
        predicted = (
            predictions.score_predictions(runs_dir, find(check), store, run_id, scaling)
            if check
            else predictions.kept_predictions(runs_dir)
        )
        _show_kept([prediction for prediction in predicted if run_id in (None, prediction.run)], form)
        return
    if pipeline is None and (microbatches or chunks or schedule != "1f1b"):
        raise UsageError("--microbatches, --schedule and --chunks need --pipeline STAGES.")
    if pipeline is not None:
        _refuse_others("--pipeline", "pipeline microbatches schedule chunks")
        operations = predictions.run_operations(find(runs[0] if runs else "last"), store)
        from hpcprof.analysis.predict.pipeline import predict_pipeline
        from hpcprof.report.scale_prediction import pipeline_text

        bubbles = predict_pipeline(operations, pipeline, microbatches, schedule, chunks)
        echo(json.dumps(asdict(bubbles), indent=1) if form == "json" else pipeline_text(bubbles))
        return
    numbers = _numbers(ranks)
    named = [find(run) for run in runs or ("last",)]
    curve = predictions.predict_runs(
        named, store, numbers, scaling or "weak", nodes, keep_size, _ranks_per_node(site), changes, site
    )
    checks = [row for row in predictions.kept_predictions(runs_dir) if row.run == named[0].id and row.actual]
    curve = [predictions.calibrated(point, checks) for point in curve]
    try:
        if not changes:
            predictions.keep_predictions(runs_dir, named[0], curve)
    except OSError as error:
        echo(f"hpcprof: not kept for --check: {error.filename}: {error.strerror}.", err=True)
    if form == "json":
        values = [point.as_json() for point in curve]
        echo(json.dumps(values[0] if len(values) == 1 else values, indent=1))
        return
    from hpcprof.analysis.predict.scale import curve_notes
    from hpcprof.cli.tables import console
    from hpcprof.report.scale_prediction import scale_text

    console().print(scale_text(curve, curve_notes(curve), checks), crop=False)


def _refuse_others(option: str, used: str) -> None:
    """Raise UsageError for options that were given beside one that does not use them."""
    context = click.get_current_context()
    allowed = {*used.split(), "runs_dir", "db", "form", "runs"}
    if unused := [option.opts[-1] for option in typed_options(context) if option.name not in allowed]:
        raise UsageError(f"{option} cannot be combined with {', '.join(unused)}.")


def _numbers(text: str | None) -> list[int]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not parts or not all(part.isdecimal() and 0 < int(part) <= 1 << 20 for part in parts):
        raise UsageError("--ranks needs numbers of ranks up to 1,048,576, such as 64 or 8,16,32,64.")
    return sorted({int(part) for part in parts})


def _ranks_per_node(site: str | None) -> int | None:
    if site is None:
        return None
    from hpcprof.submit.sites.files import load_site

    node = load_site(site).node
    return node.gpus or node.cores


def _show_kept(predictions: "list[KeptPrediction]", form: str) -> None:
    import msgspec

    if form == "json":
        echo(json.dumps(msgspec.to_builtins(predictions), indent=1))
        return
    if not predictions:
        echo("No predictions have been made here.")
        return
    from hpcprof.cli.tables import show_what_fits
    from hpcprof.report.scale_prediction import KEPT_COLUMNS, kept_cells

    columns = dict(zip(KEPT_COLUMNS, zip(*map(kept_cells, predictions), strict=True), strict=True))
    show_what_fits(columns, KEPT_COLUMNS, shortened="Predicted")
