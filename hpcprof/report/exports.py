"""The export of a run into a folder that a user names."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.report.tables_export import export_tables
from hpcprof.report.trace_events import Exported, export_timelines
from hpcprof.results.run_names import find_known_run
from hpcprof.results.store.store import open_store
from hpcprof.results.timelines import find_timelines


class ExportFormat(Enum):
    """Tables of the analyses, or timelines of the ranks; Perfetto and Chrome read the same files."""

    PARQUET = "parquet"
    CSV = "csv"
    PERFETTO = "perfetto"
    CHROME = "chrome"


def export_run(
    reference: str,
    form: ExportFormat,
    folder: Path,
    *,
    database: str | None,
    runs_dir: Path,
    progress: Callable[[Path], None],
) -> tuple[str, Exported]:
    """Write the tables or the timelines of a run into a folder; return the run's id and what was written.

    Parameters
    ----------
    reference : str
        The run, as users refer to it.
    form : ExportFormat
    folder : Path
        Created where it is missing; files of the same names are replaced.
    database : str or None
        The results database; None for the one among the runs. Timelines are read from the profiles instead.
    runs_dir : Path
    progress : callable
        Called with the path of each timeline before it is written.

    Raises
    ------
    UsageError
        If the run is unknown, or ``folder`` is a file.
    HpcprofError
        If there is nothing to write, or a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the folder to write to.")
    store = open_store(database, runs_dir)
    run = find_known_run(reference, runs_dir, store)
    if form in (ExportFormat.PARQUET, ExportFormat.CSV):
        return run.id, Exported(export_tables(run, store, form.value, folder))
    return run.id, export_timelines(find_timelines(run), folder, progress)
