"""The export of a run, its tables or its timelines, into a folder that a user names."""

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from hpcprof.analysis.framework.declaration import columns
from hpcprof.analysis.framework.outcome import AnalysisTable, Row
from hpcprof.common.atomic import replacing
from hpcprof.common.errors import HpcprofError, UsageError, writing
from hpcprof.common.units import named_ranks
from hpcprof.profiles.timeline import Timeline
from hpcprof.report.chakra import export_chakra
from hpcprof.report.goal import export_goal
from hpcprof.report.perfetto.export import export_trace
from hpcprof.report.trace_events import Exported, export_timelines
from hpcprof.results.across.predictions import run_operations
from hpcprof.results.ask.tables import RunTables
from hpcprof.results.ask.windows import RunWindows
from hpcprof.results.collect.over_ranks import run_communication
from hpcprof.results.collect.run_names import find_known_run, not_collected_error
from hpcprof.results.collect.timelines import Timelines, find_timelines
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run

_NUMBER_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class ExportFormat(Enum):
    """Tables of the analyses, or timelines of the ranks: in Perfetto's own format or in Chrome's."""

    PARQUET = "parquet"
    CSV = "csv"
    PERFETTO = "perfetto"
    CHROME = "chrome"
    CHAKRA = "chakra"
    GOAL = "goal"


@dataclass(frozen=True)
class Chosen:
    """The part of the timelines to export, as users write it: ``0,3-5``; empty for everything."""

    ranks: str = ""
    steps: str = ""


def export_run(
    reference: str,
    form: ExportFormat,
    folder: Path,
    *,
    database: str | None,
    runs_dir: Path,
    progress: Callable[[Path], None],
    chosen: Chosen = Chosen(),
    names: bool = False,
) -> tuple[str, Exported]:
    """Write the tables or the timelines of a run into a folder; return the run's id and what was written.

    The folder is made where it is missing, and files of the same names are replaced. ``progress`` is called
    with the path of each timeline before it is written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the folder to write to.")
    ranks, steps = _spans("--ranks", chosen.ranks), _spans("--steps", chosen.steps)
    if len(steps) > 1:
        raise UsageError(f"--steps {chosen.steps}: give one step or one range of steps, such as 10-12.")
    store = open_store(database, runs_dir)
    run = find_known_run(reference, runs_dir, store)
    if form in (ExportFormat.PARQUET, ExportFormat.CSV):
        if ranks or steps:
            raise UsageError(f"--ranks and --steps are for timelines: --to {form.value} writes whole tables.")
        return run.id, Exported(export_tables(run, store, form.value, folder))
    if form in (ExportFormat.CHAKRA, ExportFormat.GOAL):
        if ranks or steps:
            raise UsageError(f"--ranks and --steps are for timelines: --to {form.value} writes whole runs.")
        if form is ExportFormat.GOAL:
            return run.id, export_goal(run_operations(run, store), folder, progress)
        return run.id, export_chakra(run_operations(run, store), folder, progress, names=names)
    return run.id, _export_timelines(run, store, form, folder, progress, ranks, steps)


def _export_timelines(
    run: Run,
    store: Store,
    form: ExportFormat,
    folder: Path,
    progress: Callable[[Path], None],
    ranks: Sequence[tuple[int, int]],
    steps: Sequence[tuple[int, int]],
) -> Exported:
    if form is ExportFormat.CHROME and not steps:
        timelines = find_timelines(run)
        rank_paths = {rank: timelines.paths[rank] for rank in _ranks_among(ranks, list(timelines.paths), run)}
        collected = store.exists() and bool(store.profiles(run.id))
        communication = run_communication(run, store) if collected else None
        return export_timelines(replace(timelines, paths=rank_paths), folder, progress, communication)
    windows = RunWindows(run, store)
    if not (store.exists() and windows.profiles):
        if store.exists() and store.profiles(run.id):
            raise HpcprofError(f"{run.id} has no timelines: no profile of it holds one.")
        raise not_collected_error(run, store)
    members = _ranks_among(ranks, list(windows.profiles), run)
    if form is ExportFormat.PERFETTO:
        return export_trace(run, store, folder, progress, ranks=members, steps=next(iter(steps), None))
    paths = {rank: run.path / windows.profiles[rank].file for rank in members}
    chosen = _StepTimelines(paths, [], windows=windows, steps=steps[0])
    return export_timelines(chosen, folder, progress, run_communication(run, store))


@dataclass(frozen=True, kw_only=True)
class _StepTimelines(Timelines):
    """The timelines of some steps of a collected run."""

    windows: RunWindows
    steps: tuple[int, int]

    def read(self, rank: int) -> Timeline:
        return self.windows.read_steps(rank, *self.steps)


def _spans(option: str, text: str) -> list[tuple[int, int]]:
    """Return the spans of numbers that a user wrote, such as ``0,3-5``."""
    spans = []
    for part in text.split(",") if text else ():
        match = _NUMBER_SPAN.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"{option} {text}: give numbers and ranges, such as 0,3-5.")
        spans.append((first, last))
    return spans


def _ranks_among(spans: Sequence[tuple[int, int]], ranks: Sequence[int], run: Run) -> list[int]:
    for first, last in spans:
        if not any(first <= rank <= last for rank in ranks):
            which = f"rank {first}" if first == last else f"ranks {first}-{last}"
            raise UsageError(f"{run.id} has no timeline of {which}: it has those of {named_ranks(ranks)}.")
    return [rank for rank in ranks if not spans or any(first <= rank <= last for first, last in spans)]


def export_tables(run: Run, store: Store, form: str, folder: Path) -> list[Path]:
    """Write one file per analysis, and files ``reasons`` and ``losses`` that explain what is missing.

    ``form`` is ``"parquet"`` or ``"csv"``. The folder is made where it is missing, and files of the same
    names are replaced; their paths are returned.
    """
    if not store.exists() or not store.profiles(run.id):
        raise not_collected_error(run, store)
    write = _to_parquet if form == "parquet" else _to_csv
    stored = dict(RunTables(run, store))
    reasons = [
        (rank, name, reason) for name, table in stored.items() for rank, reason in table.reasons.items()
    ]
    losses = [(name, sentence) for name, table in stored.items() for sentence in table.losses]
    tables = {**stored}
    for name, rows, text in (
        ("reasons", reasons, "rank analysis:text reason:text"),
        ("losses", losses, "analysis:text loss:text"),
    ):
        values = {column.name: [row[at] for row in rows] for at, column in enumerate(columns(text))}
        tables[name] = AnalysisTable(values, declared=columns(text))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            path = folder / f"{name}.{form}"
            with replacing(path) as temporary:
                write(temporary, table)
            written.append(path)
    except OSError as error:
        raise HpcprofError(f"cannot write to {folder}: {error.strerror}.") from None
    return written


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows as one CSV file, whole or not at all; its folder is created where it is missing."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            _write(temporary, columns, ([row.get(name, "") for name in columns] for row in rows))


def _to_csv(path: Path, table: AnalysisTable) -> None:
    _write(path, [*table.columns], zip(*table.columns.values(), strict=True))


def _write(path: Path, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _to_parquet(path: Path, table: AnalysisTable) -> None:
    # Only this format needs pyarrow, which takes long to load.
    from pyarrow import parquet

    steps = {"steps": str(table.steps)} if table.steps else None
    parquet.write_table(table.arrow().replace_schema_metadata(steps), path)
