"""A submitted run without a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcprof.runs.directory import Manifest, Run, site_keys
from hpcprof.runs.job import Job
from hpcprof.submit.sites.model import Site

MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Make a run with the given state files (``started="now"``) and job id."""

    def make(
        job_id: str = "7",
        scheduler: str = "slurm",
        **files: str,
    ) -> Run:
        path = tmp_path / f"run-{job_id}"
        (path / "state").mkdir(parents=True)
        for name, text in files.items():
            (path / "state" / name).write_text(f"{text}\n")
        site = Site(name="here", scheduler=scheduler)
        job = Job(
            name="job", site="here", workload=None, arguments=["true"], directory=str(tmp_path), walltime=60
        )
        created = "2026-11-21T02:15:54+00:00"
        manifest = Manifest(path.name, created, ["hpcprof"], job, site_keys(site), scheduler_job_id=job_id)
        return Run(path.name, path, manifest)

    return make
