"""``hpcprof export``."""

from contextlib import suppress
from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import flag, output_option, store_options
from hpcprof.cli.progress import ProgressLine
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.units import counted


@command_with_examples(
    "export",
    "hpcprof export --to parquet -o tables",
    "hpcprof export last --to perfetto --steps 10-12 --ranks 0,3-5 -o timelines",
)
@store_options
@click.option(
    "--to",
    "form",
    type=click.Choice(["parquet", "csv", "perfetto", "chrome", "chakra", "goal"]),
    required=True,
    help="parquet, csv: one file per analysis. perfetto, chrome: the timelines of the ranks. chakra, "
    "goal: what waits for what, for simulators.",
)
@flag("--names", help="For chakra, write the names of operations; by default they are numbered.")
@click.option("--steps", metavar="N|A-B", default="", help="For timelines, only these steps.")
@click.option("--ranks", metavar="LIST", default="", help="For timelines, only these ranks, such as 0,3-5.")
@output_option("Folder to write to, as DIR is.")
@click.argument("words", nargs=-1, metavar="[RUN] [DIR]", shell_complete=complete_runs)
def command(
    runs_dir: Path,
    db: str | None,
    form: str,
    names: bool,
    steps: str,
    ranks: str,
    output: Path | None,
    words: tuple[str, ...],
) -> None:
    """Write results and timelines for other programs.

    RUN is a run id, a name that means one run, a path, or last (the default). Existing files of the same
    names in DIR are replaced.

    ui.perfetto.dev opens both kinds of timelines. perfetto is one file of all ranks of a collected run, on
    the clock that their collectives align, with arrows and counters. chrome is gzipped JSON, also for
    chrome://tracing: one file per rank, and one of all ranks, on the same clock if the run is collected.

    chakra is one file per rank of a collected run (mlcommons/chakra): its operations with what they wait for,
    communicators, and times. goal is one schedule for LogGOPSim and ATLAHS.
    """
    if output is not None:
        words = (*words, str(output)) if words else ("last", str(output))
    if len(words) not in (1, 2) or not words[-1]:
        raise UsageError("give the folder to write to, once, preceded by a run if it is not the last one.")
    from hpcprof.report.exports import Chosen, ExportFormat, export_run
    from hpcprof.runs.directory import find_runs

    folder = Path(words[-1])
    if len(words) == 1 and not folder.exists():
        with suppress(HpcprofError):
            ids = [run.id for run in find_runs(words[0], runs_dir)]
            meaning = "a run" if ids == [*words] else f"the run {', '.join(ids)}"
            raise click.UsageError(f"{words[0]} is {meaning}: give the folder to write to after it.")
    if folder.suffix in (".csv", ".gz", ".json", ".parquet", ".pftrace") and not folder.is_dir():
        stem = folder.name.split(".")[0] or "tables"
        raise UsageError(f"{folder} is the name of a file: give a folder, such as {folder.with_name(stem)}.")
    with ProgressLine(on_error_output=True) as line:
        run, exported = export_run(
            words[0] if len(words) == 2 else "last",
            ExportFormat(form),
            folder,
            database=db,
            runs_dir=runs_dir,
            progress=lambda path: line.update(f"writing {path}"),
            chosen=Chosen(ranks, steps),
            names=names,
        )
    for note in exported.notes:
        echo(f"hpcprof: {note}", err=True)
    if not exported.written:
        raise HpcprofError(f"nothing written to {folder}: {run} has no readable timeline.")
    echo(f"{run}: {counted(len(exported.written), 'file')} in {folder}")
