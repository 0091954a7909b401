"""Origins of the values of a job, which ``hpcprof submit -v`` shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpcprof.submit.config import RUNS_VARIABLE, Setting, read_settings
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.jobs.request import SINGLE, JobRequest
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.sites.model import Site

COMMAND_LINE = "command line"
BUILT_IN = "built in"


def origins(request: JobRequest, site: Site, job: Job) -> Iterator[Setting]:
    """Yield the values of a job with their sources; ``request`` is what the user asked for, not yet merged.

    Values that nobody chose are left out, except for the site and the folder of runs.
    """
    merged = request.merged()
    by_default = {setting.key.rpartition(".")[2]: setting.source for setting in merged.defaults}
    job_file = f"job file {request.job_file}"
    of_site = f"site {site.name}"
    shown = {"site": site.name, "walltime": format_walltime(job.walltime), "job_name": job.name}
    for name in SINGLE:
        value = shown.get(name) or getattr(job, name)
        source = BUILT_IN if name == "site" else of_site if name in ("queue", "walltime") else ""
        if getattr(request, name) is not None or (name == "site" and request.site_file):
            source = COMMAND_LINE
        elif name in by_default:
            source = by_default[name]
        elif getattr(merged, name) is not None:
            source = job_file
        if source and value not in (None, ""):
            yield Setting(name, str(value), source)
    by_default = {key: setting.source for key, setting in merged.option_defaults.items()}
    for key, value in job.options.items():
        given = COMMAND_LINE if key in request.options else job_file if key in merged.options else ""
        if value:
            yield Setting(f"option {key}", value, given or by_default.get(key, of_site))
    yield Setting("runs_dir", str(request.runs_dir), _source_of_runs(request.runs_dir))


def _source_of_runs(runs_dir: Path) -> str:
    if os.environ.get(RUNS_VARIABLE) == str(runs_dir):
        return f"${RUNS_VARIABLE}"
    setting = read_settings().get("runs_dir")
    if setting and Path(setting.value).expanduser() == runs_dir:
        return setting.source
    return BUILT_IN if runs_dir == Path("runs") else COMMAND_LINE
