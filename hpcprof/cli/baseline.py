"""``hpcprof baseline``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_baselines, complete_runs
from hpcprof.cli.conventions import Group, echo, examples
from hpcprof.cli.options import store_options
from hpcprof.cli.tables import format_option, write_rows
from hpcprof.common.units import visible


@click.group(
    "baseline",
    cls=Group,
    epilog=examples(
        "hpcprof baseline set main RUN1 RUN2 RUN3", "hpcprof compare --baseline main RUN4 RUN5 RUN6"
    ),
)
def command() -> None:
    """Name the runs that others are compared with.

    Baselines are kept in the results database, so everybody who uses it has the same ones.
    """


@command.command("set", epilog=examples("hpcprof baseline set main RUN1 RUN2 RUN3"))
@store_options
@click.argument("name", shell_complete=complete_baselines)
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", shell_complete=complete_runs)
def set_(runs_dir: Path, db: str | None, name: str, runs: tuple[str, ...]) -> None:
    """Name runs as a baseline, in place of the runs that had the name before.

    Several runs are repeats: a verdict takes at least two per side. A sweep means all its runs.
    """
    from hpcprof.results.across.named_baselines import set_baseline
    from hpcprof.results.store.store import open_store

    baseline = set_baseline(name, runs, open_store(db, runs_dir), runs_dir)
    echo(f"{baseline.name}: {', '.join(baseline.runs)}")


@command.command("list", epilog=examples("hpcprof baseline list --format json"))
@store_options
@format_option
def list_(runs_dir: Path, db: str | None, form: str) -> None:
    """List the baselines with their runs, and when they were set."""
    from hpcprof.results.across.named_baselines import named_baselines
    from hpcprof.results.store.store import open_store

    baselines = named_baselines(open_store(db, runs_dir))
    if not baselines and form == "table":
        echo("no baselines: name one with hpcprof baseline set NAME RUN")
        return
    write_rows(
        form, ("name", "runs", "set"), [(row.name, " ".join(row.runs), row.created) for row in baselines]
    )


@command.command("rm", epilog=examples("hpcprof baseline rm main"))
@store_options
@click.argument("name", shell_complete=complete_baselines)
def rm(runs_dir: Path, db: str | None, name: str) -> None:
    """Remove a baseline; its runs stay."""
    from hpcprof.results.across.named_baselines import remove_baseline
    from hpcprof.results.store.store import open_store

    remove_baseline(name, open_store(db, runs_dir))
    echo(f"removed baseline {visible(name)}")
