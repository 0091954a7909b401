"""From profiles to results: reads each rank's profile, runs every analysis, fills the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from hpcprof.analysis.catalogue import ANALYSES, Scope
from hpcprof.analysis.outcome import Outcome, of_rank, of_run
from hpcprof.errors import DamagedInput, HpcprofError
from hpcprof.readers.detect import find_profiles, read_profile
from hpcprof.readers.identity import identify_rank
from hpcprof.run import Run, save
from hpcprof.store import ANALYSIS_VERSION, Described, Result, Row, Store
from hpcprof.store_tables import ProfileRow, RunRow


@dataclass
class Collected:
    """What a collect did, file by file; ``skipped`` holds sentences."""

    read: list[Path] = field(default_factory=list)
    unchanged: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def collect(run: Run, store: Store, progress: Callable[[Path], None] = lambda path: None) -> Collected:
    """Bring the store up to date with a run's profiles.

    A profile whose content the store already has is left alone. A damaged one is skipped and named.

    Raises
    ------
    HpcprofError
        If there is no profile, or two of them are of the same rank: nothing is stored then.
    """
    files = find_profiles(run.path)
    if not files:
        raise HpcprofError(
            f"no profiles (*.sqlite, *.trace.json, *.trace.json.gz) in {run.path}"
            + (" or its profiles/." if run.manifest else ".")
        )
    summary = Collected()
    profiles = by_rank(files, summary)
    stored = store.profiles(run.id)
    for rank, path in sorted(profiles.items()):
        progress(path)
        checksum = _checksum(path)
        known = stored.get(rank)
        if known and (known.sha256, known.file, known.analysis_version) == (
            checksum,
            path.name,
            ANALYSIS_VERSION,
        ):
            summary.unchanged.append(path)
            continue
        try:
            _collect_profile(run, rank, path, checksum, store)
            summary.read.append(path)
        except DamagedInput as error:
            summary.skipped.append(str(error))
    if summary.read or summary.unchanged:
        _collect_run(run, store)
    if run.manifest is not None:
        save(run)
    return summary


def by_rank(files: list[Path], summary: Collected) -> dict[int, Path]:
    """Give each file its rank; a single file that tells none is rank 0. Damaged ones are skipped.

    Raises
    ------
    HpcprofError
        If two files are of the same rank, or one of several tells none.
    """
    profiles: dict[int, Path] = {}
    for path in files:
        try:
            rank = identify_rank(path)
        except DamagedInput as error:
            summary.skipped.append(str(error))
            continue
        if rank is None and len(files) > 1:
            raise HpcprofError(
                f"neither {path} nor its name tells the rank: rename it, for example rank00000{path.suffix}."
            )
        rank = rank or 0
        if rank in profiles:
            raise HpcprofError(f"two profiles of rank {rank}: {profiles[rank]} and {path}; remove one.")
        profiles[rank] = path
    return profiles


def _collect_profile(run: Run, rank: int, path: Path, checksum: str, store: Store) -> None:
    timeline = read_profile(path)
    origin = timeline.origin
    results = {
        name: _result(of_rank(analysis, timeline, rank))
        for name, analysis in ANALYSES.items()
        if analysis.scope is Scope.RANK
    }
    profile = ProfileRow(
        run_id=run.id,
        rank=rank,
        file=path.name,
        sha256=checksum,
        bytes=path.stat().st_size,
        kind=origin.kind,
        host=origin.host,
        devices=", ".join(origin.device_names),
        profiler_version=origin.profiler_version,
        start_utc_ns=origin.start_utc_ns,
        analysis_version=ANALYSIS_VERSION,
    )
    store.put_profile(_run_row(run), profile, Described(origin.gpus, origin.facts), results)


def _collect_run(run: Run, store: Store) -> None:
    """Compute what spans the ranks; again where another collect changes one of them meanwhile."""
    while True:
        checksums = {rank: profile.sha256 for rank, profile in store.profiles(run.id).items()}
        if store.put_run(run.id, _over_ranks(run, store), checksums):
            return


def _over_ranks(run: Run, store: Store) -> dict[str, Result]:
    results = {}
    for name, analysis in ANALYSES.items():
        if analysis.scope is Scope.RUN:
            needed = {need: pd.DataFrame(store.read(run.id, need).rows) for need in analysis.needs}
            results[name] = _result(of_run(analysis, needed))
    return results


def _result(outcome: Outcome) -> Result:
    return Result(as_rows(outcome.rows), outcome.reason)


def as_rows(frame: pd.DataFrame) -> list[Row]:
    """Return a frame as rows of Python's own types, what is missing as None."""
    values = frame.astype(object)
    rows: list[Row] = values.where(values.notna(), None).to_dict("records")
    return rows


def _run_row(run: Run) -> RunRow:
    job = run.manifest.job if run.manifest else None
    return RunRow(
        id=run.id,
        path=str(run.path),
        site=job.site if job else None,
        workload=job.workload if job else None,
        ranks=job.ranks if job else None,
    )


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
