"""Names of runs: resolving them, and printing commands that work as printed.

A run is known by its directory or, once it has been collected, by its id in the results database. That id
still serves where the directory is gone, or on another machine that uses the same database.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.profiles.readers.discovery import find_profiles
from hpcprof.submit.config import default_database
from hpcprof.submit.runs.directory import MANIFEST, Run, find_run, find_runs, open_run, runs_directory

if TYPE_CHECKING:  # a run that has a directory is found without a database
    from hpcprof.results.analysis_table import AnalysisTable
    from hpcprof.results.store.store import Store


def find_known_run(reference: str, runs_dir: Path, store: Store) -> Run:
    """Return the run that a user named, in the folder of runs or by its id in the store.

    Raises
    ------
    UsageError
        If the name matches nothing, or several runs.
    """
    try:
        return find_run(reference, runs_dir)
    except UsageError:
        paths = _stored_paths(store)
        # Not found there either, the error lists the names of both.
        return stored_run(reference, runs_dir, paths) or find_run(reference, runs_dir, list(paths))


def find_known_runs(references: Sequence[str], runs_dir: Path, store: Store) -> list[Run]:
    """Return the runs that a user named, as `find_known_run` does; a sweep is all of its runs.

    Raises
    ------
    UsageError
        If a name matches nothing, or several runs.
    """
    found: list[Run] = []
    for reference in references:
        try:
            found += find_runs(reference, runs_dir)
        except UsageError:
            found.append(find_known_run(reference, runs_dir, store))
    return found


def stored_run(reference: str, runs_dir: Path, paths: Mapping[str, str]) -> Run | None:
    """Return the collected run that an id or a prefix of one names; None if there is none.

    Parameters
    ----------
    reference : str
    runs_dir : Path
        Runs in this folder are not considered: they are found there, or their name is ambiguous there.
    paths : mapping of str to str
        The path of each collected run by id.

    Raises
    ------
    UsageError
        If the prefix matches several runs.
    """
    elsewhere = [name for name in paths if not (runs_dir / name / MANIFEST).is_file()]
    ids = [name for name in elsewhere if reference and name.startswith(reference)]
    if reference in ids:
        ids = [reference]
    if len(ids) > 1:
        raise UsageError(f"{reference!r} is ambiguous in the results database: it matches {', '.join(ids)}.")
    return _opened(ids[0], Path(paths[ids[0]])) if ids else None


def _stored_paths(store: Store) -> dict[str, str]:
    return {row.id: row.path for row in store.runs()} if store.exists() else {}


def _opened(run_id: str, path: Path) -> Run:
    """Return a collected run with its manifest, if its directory can be read and still is that of the run."""
    with suppress(HpcprofError, OSError):
        run = open_run(path)
        if run.id == run_id:
            return run
    return Run(run_id, path)


def runs_to_collect(run: Run) -> list[Run]:
    """Return a run, or the runs and folders of profiles below a folder that has no profiles of its own.

    Hidden folders, links to folders, and the folders inside a run are not searched. A run without profiles
    is left out.
    """
    if run.manifest is not None or find_profiles(run.path):
        return [run]
    found = []
    for place, folders, files in os.walk(run.path):
        folder = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        own = MANIFEST in files
        if (own or folder.name != "profiles") and find_profiles(folder):
            found.append(open_run(folder))
            own = True
        if own:
            folders.clear()
    return found or [run]


def command_line(store: Store, command: str, *words: str) -> str:
    """Return a command of hpcprof as a user can type it in this folder to use a store.

    It has ``--runs-dir`` and ``--db`` unless they are the defaults. A password is left out: PostgreSQL takes
    it from ``~/.pgpass`` or ``$PGPASSWORD``.
    """
    return shlex.join(["hpcprof", command, *words, *_store_options(store)])


def _store_options(store: Store) -> list[str]:
    from hpcprof.results.store.database import public_address, store_url

    url, runs_dir = store.url, store.runs_dir or runs_directory()
    other = runs_dir.absolute() != runs_directory().absolute()
    options = ["--runs-dir", str(runs_dir)] if other else []
    if url == store_url(default_database(), runs_dir):
        return options
    return [*options, "--db", public_address(url)]


def typed_run(run: Run) -> str:
    """Return a name of a run that every command accepts: its path, or its id where that is gone."""
    return str(run.path) if run.path.is_dir() else run.id


def with_commands(table: AnalysisTable, run: Run, store: Store) -> AnalysisTable:
    """Complete the commands in the reasons of an analysis: they are stored without run and database."""
    collect = command_line(store, "collect", str(run.path))
    return replace(
        table, reasons={rank: _completed(text, run, collect) for rank, text in table.reasons.items()}
    )


def _completed(reason: str, run: Run, collect: str) -> str:
    for command in (f"hpcprof collect {run.path}", "hpcprof collect"):
        if command in reason:
            return reason.replace(command, collect)
    return reason
