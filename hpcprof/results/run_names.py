"""How users name runs: finding what a name stands for, and printing commands that work as printed.

A run is known by its directory or, once it has been collected, by its id in the results database. That id
still serves where the directory is gone, or on another machine that uses the same database.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.profiles.readers.discovery import find_profiles
from hpcprof.results.store.database import store_url
from hpcprof.results.store.store import Store
from hpcprof.submit.config import default_database
from hpcprof.submit.runs.directory import MANIFEST, Run, find_run, find_runs, open_run, runs_directory

_SHOWN_PARAMETERS = ("host", "port", "service", "sslmode")
"""The parameters of a PostgreSQL URL that are printed: none of them can be a secret."""


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
        found = stored_run(reference, runs_dir, _stored_paths(store))
        if found is None:
            raise
        return found


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
            run = stored_run(reference, runs_dir, _stored_paths(store))
            if run is None:
                raise
            found.append(run)
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

    It has ``--db`` unless the store is the default. A password is left out: PostgreSQL takes it from
    ``~/.pgpass`` or ``$PGPASSWORD``.
    """
    return shlex.join(["hpcprof", command, *words, *_database_option(store)])


def _database_option(store: Store) -> list[str]:
    url = store.url
    if url == store_url(default_database(), runs_directory()):
        return []
    if url.get_backend_name() == "sqlite":
        return ["--db", url.database or ""]
    parameters = {name: value for name, value in url.query.items() if name in _SHOWN_PARAMETERS}
    public = url.set(query=parameters)._replace(password=None)
    return ["--db", public.render_as_string()]
