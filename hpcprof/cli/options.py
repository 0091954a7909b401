"""The options that commands on runs share, each written once; those of a job are in `job_options`."""

from collections.abc import Callable
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from hpcprof.common.errors import UsageError
from hpcprof.common.units import parse_ns

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def typed_options(context: click.Context) -> list[click.Parameter]:
    """Return the parameters of a command that the user gave on the command line."""
    parameters = context.command.params
    typed = ParameterSource.COMMANDLINE
    return [option for option in parameters if context.get_parameter_source(option.name or "") is typed]


class FiniteFloat(click.FloatRange):
    """A number in a range; ``nan`` compares as false with both ends, and ``inf`` has no end."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class StepTime(click.ParamType[int]):
    """The time of a step with its unit (``24.5ms``), in nanoseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the nanoseconds."""
        nanoseconds = parse_ns(value) if isinstance(value, str) else value
        if nanoseconds is None or nanoseconds < 1:
            self.fail(f"{value!r} is not a time with a unit, such as 24.5ms, 900us or 1.2s.", param, ctx)
        return int(nanoseconds)


FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)

with_default = partial(click.option, show_default=True)
"""Adds an option whose help shows its default."""
flag = partial(click.option, is_flag=True)
repeatable = partial(click.option, multiple=True)


# The defaults are functions, since only a command that runs may read the files of hpcprof config.
def _default_runs_dir() -> Path:
    from hpcprof.runs.config import default_runs_dir

    return default_runs_dir()


def _default_database() -> str | None:
    from hpcprof.runs.config import default_database

    return default_database()


def default_site() -> str:
    """Return the site of a command that names none."""
    from hpcprof.runs import config

    return config.default_site()


runs_dir_option = click.option(
    "--runs-dir",
    type=FOLDER,
    envvar="HPCPROF_RUNS",
    default=_default_runs_dir,
    help="Folder of runs (or $HPCPROF_RUNS).  [default: that of hpcprof config, or runs]",
)


def _no_folder(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value and "://" not in value and Path(value).is_dir():
        raise UsageError(f"--db {value}: that is a folder; name a file in it.")
    return value


db_option = click.option(
    "--db",
    envvar="HPCPROF_DB",
    default=_default_database,
    callback=_no_folder,
    metavar="URL",
    help="Results database: a path or an SQLAlchemy URL (or $HPCPROF_DB).  "
    "[default: that of hpcprof config, or hpcprof.db among the runs]",
)


def store_options(command: CommandT) -> CommandT:
    """Add ``--runs-dir`` and ``--db``: the runs, and the store of their results."""
    return runs_dir_option(db_option(command))


def output_option(
    help: str, *, required: bool = False, default: str | None = None, is_file: bool = False
) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds ``-o`` and ``--output``, for a folder or a file to write."""
    kind, metavar = (FILE, "FILE") if is_file else (FOLDER, "DIR")
    values: dict[str, Any] = {"default": default} if default else {}
    return with_default("-o", "--output", type=kind, metavar=metavar, required=required, help=help, **values)


def html_option(of: str) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds ``--html``."""
    return click.option("--html", type=FILE, metavar="FILE", help=f"Also write the {of} as one HTML file.")


def format_among(*forms: str, help: str) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds ``--format``, by default the first form."""
    return with_default("--format", "form", type=click.Choice(forms), default=forms[0], help=help)


push_option = click.option(
    "--push",
    "hub",
    metavar="URL",
    help="Then push what was collected to this hub, with the token in $HPCPROF_TOKEN (hpcprof push).",
)
