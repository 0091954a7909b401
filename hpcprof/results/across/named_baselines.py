"""Named baselines: runs with which a team compares others, kept in the results database."""

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path

import msgspec

from hpcprof.common.errors import UsageError, unknown
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.collect.run_names import command_line, find_known_run, find_known_runs, typed_run
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import BaselineRow
from hpcprof.runs.directory import Run, open_run

_VALID_NAME = re.compile(r"[\w.:=/+@-]{1,64}")


class NamedBaseline(msgspec.Struct, frozen=True):
    """A baseline: its name, the ids of its runs, and when it was set, in UTC."""

    name: str
    runs: tuple[str, ...]
    created: str


def named_baselines(store: Store) -> list[NamedBaseline]:
    """Return the baselines in a store, by name."""
    rows = store.baselines() if store.exists() else []
    return [_baseline(name, list(group)) for name, group in groupby(rows, key=lambda row: row.name)]


def _baseline(name: str, rows: Sequence[BaselineRow]) -> NamedBaseline:
    return NamedBaseline(name, tuple(row.run_id for row in rows), rows[0].created)


def set_baseline(name: str, references: Sequence[str], store: Store, runs_dir: Path) -> NamedBaseline:
    """Name runs as a baseline, in place of the runs that had the name before.

    Raises UsageError if the name is not a word, a run is unknown or listed twice, or one has no step time.
    """
    if not _VALID_NAME.fullmatch(name):
        raise UsageError(
            f"baseline {name!r}: a name has 1 to 64 letters, digits or characters of . : = / + @ - _."
        )
    runs = find_known_runs(references, runs_dir, store)
    ids = [run.id for run in runs]
    for run in runs:
        if ids.count(run.id) > 1:
            raise UsageError(f"{run.id} is listed twice; repeats must be distinct runs.")
        data = run_data(run, store)
        if data.own_p50_ns is None and not len(data.tables["steps_summary"]):
            collecting = command_line(store, "collect", typed_run(run))
            raise UsageError(f"{run.id} has no step time to compare with: run {collecting} first.")
    store.prepare()
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    rows = [BaselineRow(name, place, run.id, str(run.path), now) for place, run in enumerate(runs)]
    store.put_baseline(name, rows)
    return _baseline(name, rows)


def find_baseline(name: str, store: Store) -> NamedBaseline:
    """Return a baseline."""
    by_name = {named_baseline.name: named_baseline for named_baseline in named_baselines(store)}
    if not by_name:
        setting = command_line(store, "baseline", "set", name, "RUN")
        raise UsageError(f"there are no baselines in {store} yet: name one with {setting}.")
    if name not in by_name:
        raise unknown("baseline", name, by_name)
    return by_name[name]


def baseline_runs(name: str, store: Store, runs_dir: Path) -> list[Run]:
    """Return the runs of a baseline; UsageError if there is none of that name, or one of its runs is gone."""
    find_baseline(name, store)
    return [_run_of_row(row, store, runs_dir) for row in store.baselines() if row.name == name]


def _run_of_row(row: BaselineRow, store: Store, runs_dir: Path) -> Run:
    try:
        return find_known_run(row.run_id, runs_dir, store)
    except UsageError:
        run = open_run(Path(row.path)) if Path(row.path).is_dir() else None
    if run is None or run.id != row.run_id:
        where = f"neither in {row.path} nor in {store}"
        raise UsageError(f"baseline {row.name!r}: its run {row.run_id} is {where}: set it again.")
    return run


def remove_baseline(name: str, store: Store) -> None:
    """Remove a baseline; its runs stay."""
    find_baseline(name, store)
    store.put_baseline(name, ())
