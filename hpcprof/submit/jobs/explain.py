"""The origins of a job's values: in errors about them, and in the log."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.runs.config import RUNS_VARIABLE, ConfigValue, read_settings
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.job import OPTIONS, JobSpec
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.sites.model import Site

COMMAND_LINE = "command line"
BUILT_IN = "built in"


@contextmanager
def origins_named(spec: JobSpec) -> Iterator[None]:
    """Add to an error the origins of the values that it is about and that are not on the command line."""
    try:
        yield
    except UsageError as error:
        origins = {origin: field for field in error.fields if (origin := spec.origins.get(field))}
        if not origins:
            raise
        places = ", ".join(
            f"{origin.key} = {_text(spec, field)} in {origin.place}" for origin, field in origins.items()
        )
        kind = "a personal default: " if any(origin.personal for origin in origins) else ""
        raise UsageError(f"{str(error).rstrip('.')} ({kind}{places}).") from None


def _text(spec: JobSpec, key: str) -> str:
    name, _, inner = key.partition(".")
    value = getattr(spec, name)
    if isinstance(value, Mapping):
        value = value[inner]
    return " ".join(value) if isinstance(value, tuple) else str(value)


def origins(typed_spec: JobSpec, spec: JobSpec, site: Site, job: Job) -> Iterator[ConfigValue]:
    """Yield the chosen values of a job with their origins, from a request as ``typed_spec`` and as merged."""
    site_place = f"site {site.name}"
    special = {"site": site.name, "walltime": format_walltime(job.walltime), "job_name": job.name}
    for name, option in OPTIONS.items():
        value = special.get(name, getattr(job, name, None))
        if isinstance(value, dict):
            for key, text in value.items():
                place = _place(typed_spec, spec, f"{name}.{key}") or (site_place if name == "options" else "")
                if text and place:
                    yield ConfigValue(f"{name.removesuffix('s').replace('_', ' ')} {key}", text, place)
            continue
        place = _place(typed_spec, spec, name) or (site_place if option.of_site else "")
        if name == "site":
            place = COMMAND_LINE if typed_spec.site_file else place or BUILT_IN
        if place and value not in (None, "", []):
            yield ConfigValue(name, " ".join(value) if isinstance(value, list) else str(value), place)
    yield ConfigValue("runs_dir", str(typed_spec.runs_dir), _place_of_runs(typed_spec.runs_dir))


def _place(typed_spec: JobSpec, spec: JobSpec, key: str) -> str:
    if not typed_spec.lacks(key):
        return COMMAND_LINE
    origin = spec.origins.get(key)
    if origin is None:
        return ""
    return origin.place if origin.personal else f"job file {origin.place}"


def _place_of_runs(runs_dir: Path) -> str:
    if os.environ.get(RUNS_VARIABLE) == str(runs_dir):
        return f"${RUNS_VARIABLE}"
    setting = read_settings().get("runs_dir")
    if setting and Path(setting.value).expanduser() == runs_dir:
        return setting.source
    return BUILT_IN if runs_dir == Path("runs") else COMMAND_LINE
