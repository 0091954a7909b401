"""Resolve the names of runs, and print commands that work as printed.

A run is named by its directory or, once it has been collected, by its id in the results database. The id also
works if the directory is gone, or on another machine with the same database.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.paths import absolute_path, is_folder
from hpcprof.common.units import visible
from hpcprof.profiles.readers.discovery import is_profile_folder
from hpcprof.results.collect.last_collected import last_collected, refused_since
from hpcprof.results.collect.run_profiles import (
    Search,
    is_beside_profiles,
    may_be_profile,
    profiles_of,
    restore_profiles,
    runs_in,
    runs_of_files,
    runs_to_collect,
    several_runs_sentence,
    unprofiled_sentence,
)
from hpcprof.runs.config import default_database
from hpcprof.runs.directory import (
    ARRAY_SCRIPT,
    Run,
    ambiguous,
    check_reference,
    find_run,
    find_runs,
    has_manifest,
    matching_ids,
    open_run,
    runs_directory,
    submission_time,
    submitted_ids,
)

if TYPE_CHECKING:  # a run that has a directory is found without a database
    from hpcprof.results.store.store import Store


def find_known_run(reference: str, runs_dir: Path, store: Store) -> Run:
    """Return the run that a user named, in the folder of runs, by its id in the store, or by its path.

    ``last`` is the last run of any kind: submitted, or collected from elsewhere. Raises UsageError if the
    name matches nothing, or several runs.
    """
    known_runs = find_known_runs([reference], runs_dir, store)
    if len(known_runs) == 1:
        return known_runs[0]
    if known_runs[0].manifest is None:
        raise UsageError(f"{several_runs_sentence(known_runs)}: name one of them.")
    return find_run(reference, runs_dir)  # raises the error for a sweep


def find_known_runs(references: Sequence[str], runs_dir: Path, store: Store) -> list[Run]:
    """Return the runs that a user named, as `find_known_run` does; a sweep is all of its runs.

    A folder with profiles of several profilers is one run for each of them. Raises UsageError if a name
    matches nothing, or several runs.
    """
    stored = cache(lambda: {row.id: row.path for row in store.runs()} if store.exists() else {})
    return [run for reference in references for run in _known_runs(reference, runs_dir, store, stored)]


def find_runs_to_collect(
    references: Sequence[str], runs_dir: Path, store: Store, search: Search | None = None
) -> list[Run]:
    """Return the runs that a user wants to have collected: files of one folder are one run.

    Snapshots of memory and logs of Darshan that are given together with one run belong to that run.
    """
    files = [Path(reference) for reference in references if _is_profile(reference)]
    names = [reference for reference in references if not _is_profile(reference)]
    named = find_known_runs(names, runs_dir, store)
    if len(named) == 1 and files and all(map(is_beside_profiles, files)):
        return [replace(item, beside=tuple(map(Path.absolute, files))) for item in runs_to_collect(named[0])]
    runs = [*runs_of_files(files), *(run for item in named for run in runs_to_collect(item, search))]
    return [*{(run.id, run.path): run for run in runs}.values()]


def _is_profile(reference: str) -> bool:
    """Return whether a name or path is that of a profile; a program's file may have the name of its runs."""
    path = Path(reference)
    is_file = path.is_file() and path.name != ARRAY_SCRIPT
    return is_profile_folder(path) or (is_file and ("/" in reference or may_be_profile(path)))


def _known_runs(
    reference: str, runs_dir: Path, store: Store, stored_paths: Callable[[], Mapping[str, str]]
) -> list[Run]:
    check_reference(reference)
    submitted = submitted_ids(runs_dir)
    path = Path(reference)
    # Existing runs are found without the database, which may be out of reach.
    if reference in submitted:
        return [open_run(runs_dir / reference)]
    if _is_profile(reference):
        return runs_of_files([path])
    if reference != "last" and reference and is_folder(path) and (runs := runs_in(path)):
        return runs
    stored = stored_paths()
    elsewhere = _elsewhere(runs_dir, stored)
    if reference == "last":
        return [_last_run(runs_dir, store, stored, submitted)]
    if reference in elsewhere:
        return [_from_store(reference, stored, store)]
    matching = matching_ids(reference, [*submitted, *elsewhere]) if "/" not in reference else []
    if not matching and reference and elsewhere:  # a run may be named by its only file
        matching = [name for name in store.runs_of_file(reference) if name in elsewhere]
    if len(matching) == 1 and matching[0] in elsewhere:
        return [_from_store(matching[0], stored, store)]
    if len(matching) > 1 and not elsewhere.isdisjoint(matching):
        raise ambiguous(reference, matching)
    if not matching and path.is_file() and path.name != ARRAY_SCRIPT:
        return runs_of_files([path])  # which says what the file is
    try:
        return find_runs(reference, runs_dir)
    except UsageError:
        # The error lists the names in the folder and in the store.
        return [find_run(reference, runs_dir, list(stored))]


def _last_run(runs_dir: Path, store: Store, stored: Mapping[str, str], submitted: Sequence[str]) -> Run:
    last = last_collected(runs_dir, _elsewhere(runs_dir, stored))
    submission = submission_time(runs_dir / submitted[-1]) if submitted else 0.0
    if refused := refused_since(runs_dir, max(submission, last.time if last is not None else 0.0)):
        raise HpcprofError(
            f"last is {visible(refused)}, of which nothing could be read: name a run (hpcprof list)."
        )
    if last is None or (submitted and last.time < submission):
        return find_run("last", runs_dir)
    return _from_store(last.run_id, stored, store)


def stored_run(reference: str, runs_dir: Path, paths: Mapping[str, str]) -> Run | None:
    """Return the collected run with a name, which is its id or a prefix of it; None if there is none.

    Runs in ``runs_dir`` are not considered, since they are looked up there first. ``paths``
    has the path of each collected run by id. Raises UsageError if the name matches several runs.
    """
    elsewhere = _elsewhere(runs_dir, paths)
    ids = matching_ids(reference, [name for name in paths if name in elsewhere])
    if len(ids) > 1:
        raise UsageError(f"{reference!r} is ambiguous in the results database: it matches {', '.join(ids)}.")
    return _open_stored_run(ids[0], Path(paths[ids[0]])) if ids else None


def _elsewhere(runs_dir: Path, paths: Iterable[str]) -> set[str]:
    return {name for name in paths if not has_manifest(runs_dir / name)}


def _from_store(run_id: str, paths: Mapping[str, str], store: Store) -> Run:
    run = _open_stored_run(run_id, Path(paths[run_id]))
    return restore_profiles(run, [profile.file for profile in store.profiles(run_id).values()])


def _open_stored_run(run_id: str, path: Path) -> Run:
    """Return a collected run with its manifest, if its directory can be read and still belongs to it."""
    with suppress(HpcprofError, OSError):
        run = open_run(path)
        if run.id == run_id:
            return run
    return Run(run_id, path)


def not_collected_error(run: Run, store: Store) -> HpcprofError:
    """Return the error for a run without profiles in the store: none was recorded, or none collected."""
    if run.path.is_dir() and not profiles_of(run):
        reason = f": {unprofiled_sentence(run)}" if run.manifest is not None else ""
        return HpcprofError(f"{run.id} has no profile{reason}.")
    collecting = command_line(store, "collect", typed_run(run))
    return HpcprofError(f"{run.id} has not been collected: run {collecting} first.")


def command_line(store: Store, command: str, *words: str) -> str:
    """Return a command of hpcprof as a user can type it in this folder to use a store.

    It has ``--runs-dir`` and ``--db`` unless they are the defaults. A password is left out: PostgreSQL takes
    it from ``~/.pgpass`` or ``$PGPASSWORD``.
    """
    return shlex.join(["hpcprof", command, *words, *_store_options(store)])


def _store_options(store: Store) -> list[str]:
    from hpcprof.results.store.database import public_address, store_url

    url, runs_dir = store.url, store.runs_dir
    other = runs_dir.absolute() != runs_directory().absolute()
    options = ["--runs-dir", str(runs_dir)] if other else []
    if url == store_url(default_database(), runs_dir):
        return options
    return [*options, "--db", public_address(url)]


def typed_run(run: Run) -> str:
    """Return a name of a run that every command accepts: its id, or its path or only file elsewhere."""
    if not run.path.is_dir():
        return run.id
    if run.files is None or open_run(run.path).id == run.id:
        return run.path.name if run.path.parent == absolute_path(runs_directory()) else str(run.path)
    return str(run.files[0]) if len(run.files) == 1 else run.id
