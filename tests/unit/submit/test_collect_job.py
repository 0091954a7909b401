"""The command of a collect that runs as a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from hpcprof.submit.collect_job import CollectPlacement, make_collect_job
from tests.submitted_run import MakeRun, make_run

__all__ = ["make_run"]


@pytest.mark.parametrize("name", [None, "step N"])
def test_the_range_of_a_step_and_the_program_are_passed_on_to_the_job(
    name: str | None, make_run: MakeRun, tmp_path: Path
) -> None:
    database = URL.create("sqlite", database=str(tmp_path / "results.db"))
    run = make_run(scheduler="local")
    _, job = make_collect_job([run], database, CollectPlacement(step_range=name, program=name))
    passed = job.arguments[job.arguments.index("collect") + 1 :]
    assert passed == [
        *(["--step-range", name, "--program", name] if name else []),
        "--db",
        str(database.database),
        str(run.path),
    ]
