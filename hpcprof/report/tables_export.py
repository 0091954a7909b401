"""The results of a run as files for other programs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.atomic import replacing
from hpcprof.common.errors import HpcprofError, writing
from hpcprof.results.analysis_table import Row
from hpcprof.results.run_names import command_line, typed_run, with_commands
from hpcprof.results.store.store import Store
from hpcprof.results.when_asked import complete, stored_analysis
from hpcprof.submit.runs.directory import Run

_REASONS = tuple(
    Column(name, kind) for name, kind in (("rank", Kind.INT), ("analysis", Kind.TEXT), ("reason", Kind.TEXT))
)

_LOSSES = tuple(Column(name, Kind.TEXT) for name in ("analysis", "loss"))


def export_tables(run: Run, store: Store, form: str, folder: Path) -> list[Path]:
    """Write one file per analysis, and files ``reasons`` and ``losses`` that explain what is missing.

    Parameters
    ----------
    run : Run
    store : Store
    form : str
        ``"parquet"`` or ``"csv"``.
    folder : Path
        Created where it is missing; files of the same names are replaced.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    HpcprofError
        If the run has not been collected, a file cannot be written, or pyarrow is not installed.
    """
    if not store.exists() or not store.profiles(run.id):
        collecting = command_line(store, "collect", typed_run(run))
        raise HpcprofError(f"{run.id} has not been collected: run {collecting} first.")
    write = _parquet if form == "parquet" else _csv
    complete(run, store, ANALYSES)
    stored = {name: with_commands(stored_analysis(name, run, store), run, store) for name in ANALYSES}
    reasons = [
        {"rank": rank, "analysis": name, "reason": reason}
        for name, found in stored.items()
        for rank, reason in found.reasons.items()
    ]
    tables: dict[str, tuple[Sequence[Column], list[Row]]] = {
        name: (ANALYSES[name].columns, found.rows) for name, found in stored.items()
    }
    tables["reasons"] = (_REASONS, reasons)
    losses = [
        {"analysis": name, "loss": sentence} for name, found in stored.items() for sentence in found.losses
    ]
    tables["losses"] = (_LOSSES, losses)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (columns, rows) in tables.items():
            path = folder / f"{name}.{form}"
            with replacing(path) as temporary:
                write(temporary, columns, rows)
            written.append(path)
    except OSError as error:
        raise HpcprofError(f"cannot write to {folder}: {error.strerror}.") from None
    return written


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows as one CSV file, whole or not at all; its folder is created where it is missing.

    Raises
    ------
    HpcprofError
        If the file cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            _write(temporary, columns, rows)


def _csv(path: Path, columns: Sequence[Column], rows: list[Row]) -> None:
    _write(path, [column.name for column in columns], rows)


def _write(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _parquet(path: Path, columns: Sequence[Column], rows: list[Row]) -> None:
    # Only this format needs pyarrow, which takes long to load.
    import pyarrow
    from pyarrow import parquet

    types = {Kind.INT: pyarrow.int64(), Kind.FLOAT: pyarrow.float64(), Kind.TEXT: pyarrow.string()}
    schema = pyarrow.schema([(column.name, types[column.kind]) for column in columns])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)
