"""Jobs for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcprof.submit.jobs import request
from hpcprof.submit.jobs.job import Job, JobSpec
from hpcprof.submit.sites.model import Site


def make_job(
    site: Site, *, arguments: Sequence[str] = (), name: str | None = None, draft: bool = False, **options: Any
) -> Job:
    """Return a job at a site, by the options of `JobSpec`."""
    return request.make_job(site, JobSpec(tuple(arguments), job_name=name, **options), draft)
