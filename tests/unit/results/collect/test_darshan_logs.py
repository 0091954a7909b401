"""Logs of Darshan of a run: where the site keeps them, and in its folder."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.results.collect.darshan_logs import copy_logs, logs_of
from hpcprof.runs.directory import Run, site_keys
from hpcprof.submit.sites.files import load_site_file
from hpcprof.submit.sites.model import recorded_site
from tests.submitted_run import MakeRun, make_run

__all__ = ["make_run"]

STARTED = "2026-02-28T23:50:00+0000"


def _at_site(run: Run, logs: Path) -> Run:
    """Return a run of job 4711 whose site keeps logs in a folder by day."""
    assert run.manifest is not None
    (run.path / "state" / "started").write_text(STARTED)
    (run.path / "state" / "job_id").write_text("4711.server")
    pattern = f"{logs}/{{year}}/{{month}}/{{day}}/{{user}}_*_id{{job}}[-_]*.darshan"
    site = msgspec.structs.replace(recorded_site(run.manifest), darshan_logs=pattern)
    manifest = msgspec.structs.replace(
        run.manifest, site_keys=site_keys(site), scheduler_job_id="4711.server"
    )
    return replace(run, manifest=manifest)


def _log(logs: Path, day: datetime, name: str) -> None:
    folder = logs / f"{day.year}/{day.month}/{day.day}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("log")


def test_logs_of_the_job_are_copied_from_the_days_of_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    run = _at_site(make_run(started="now"), tmp_path)
    user, day = run.path.owner(), datetime.fromisoformat("2026-03-01")
    _log(tmp_path, day, f"{user}_a.out_id4711-12_3-1-600-1_1.darshan")
    _log(tmp_path, day, f"{user}_a.out_id47112_3-1-600-1_1.darshan")
    _log(tmp_path, day, "somebody_a.out_id4711-12_3-1-600-1_1.darshan")
    _log(tmp_path, day + timedelta(days=9), f"{user}_b.out_id4711-13_3-10-600-1_1.darshan")
    assert copy_logs(run)
    assert [path.name for path in logs_of(run)] == [f"{user}_a.out_id4711-12_3-1-600-1_1.darshan"]
    assert not copy_logs(run)


def test_a_run_that_has_not_started_has_no_logs(make_run: MakeRun, tmp_path: Path) -> None:
    run = _at_site(make_run(started="now"), tmp_path)
    (run.path / "state" / "started").unlink()
    assert not copy_logs(run)


def test_of_files_that_are_named_alone_only_these_are_read(tmp_path: Path) -> None:
    for name in ("a.darshan", "b.darshan"):
        (tmp_path / name).write_text("log")
    named = Run("run", tmp_path, files=(), beside=(tmp_path / "b.darshan",))
    assert logs_of(named) == [tmp_path / "b.darshan"]
    assert len(logs_of(Run("run", tmp_path))) == 2


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [("/logs/{date}/{job}", "nothing else"), ("/logs/{user}", "other jobs"), ("/logs/{job", "nothing else")],
)
def test_a_wrong_pattern_of_a_site_is_named(pattern: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f'scheduler: slurm\ndarshan_logs: "{pattern}"\n')
    with pytest.raises(UsageError, match=wrong):
        load_site_file(path)
