"""Collect a run on its host with the hpcprof there: results and events come here, profiles stay."""

from pathlib import Path

import msgspec

from hpcprof.common import __version__
from hpcprof.common.errors import HpcprofError
from hpcprof.common.processes import CommandNotStarted
from hpcprof.common.units import visible
from hpcprof.profiles.event_folders import EVENTS
from hpcprof.results.store.analysis_version import earlier_version
from hpcprof.results.store.package_rows import check_rows, check_types
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run
from hpcprof.submit.remote.host import Host
from hpcprof.submit.remote.mirror import fetch_all, refresh

_DATABASE = "collected.db"
"""The results database in the run's folder on the host."""

_COLLECT_SECONDS = 6 * 3600.0


def collect_there(run: Run, host: Host, store: Store, options: list[str]) -> list[str] | None:
    """Collect a run on its host into a store here, and return the messages of hpcprof there.

    Returns None, and does nothing, if the host has no hpcprof of this version or cannot be reached.
    ``options`` are further options of ``hpcprof collect``. Raises HpcprofError if the collect fails there, or
    its results cannot be read.
    """
    if refresh(run) or not _is_installed(host):
        return None
    result = host.run(_collect_command(run, host, options), seconds=_COLLECT_SECONDS)
    messages = [visible(line) for line in result.stderr.splitlines() if line.startswith("hpcprof: ")]
    if _DATABASE not in fetch_all(run, host, [_DATABASE, EVENTS], always=_DATABASE):
        raise HpcprofError(
            f"hpcprof collect failed on {host.name}: {' '.join(messages) or 'it said nothing'}"
        )
    results = run.path / _DATABASE
    try:
        return messages if _copy_results(run, results, store) else None
    finally:
        results.unlink(missing_ok=True)


def submit_there(run: Run, host: Host, options: list[str]) -> None:
    """Have hpcprof on a host submit the collect of a run as a job; `collect_there` then takes its results.

    Raises HpcprofError if the host has no hpcprof of this version, cannot be reached, or the job was not
    submitted.
    """
    host.connect()
    if not _is_installed(host):
        raise HpcprofError(
            f"--submit: the job needs hpcprof {__version__} on the PATH of {host.name}: leave it out."
        )
    result = host.run(_collect_command(run, host, ["--submit", *options]))
    if result.exit_code != 0:
        raise HpcprofError(
            f"hpcprof collect --submit failed on {host.name}: {visible(result.stderr.strip())}"
        )


def _collect_command(run: Run, host: Host, options: list[str]) -> list[str]:
    database = str(host.folder(run.id) / _DATABASE)
    return ["hpcprof", "collect", "--runs-dir", host.runs_dir, "--db", database, *options, run.id]


def _is_installed(host: Host) -> bool:
    try:
        return host.run(["hpcprof", "--version"]).stdout.split()[-1:] == [__version__]
    except CommandNotStarted:
        return False


def _copy_results(run: Run, results: Path, store: Store) -> bool:
    """Copy the results of a run into the store; return False if they are outdated."""
    source = open_store(str(results), run.path, read_only=True)
    row = source.run(run.id)
    if row is None or earlier_version(source.profiles(run.id).values()):
        return False
    path, rows = run.path.absolute(), source.all_rows(run.id)
    check_types(rows)
    check_rows(run.id, rows)
    store.replace_run(msgspec.structs.replace(row, path=str(path), events=str(path / EVENTS)), rows)
    return True
