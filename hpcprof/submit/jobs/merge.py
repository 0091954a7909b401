"""Merges the job file, the personal defaults and an allocation (`run --here`) into a user's request."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from hpcprof.common.errors import UsageError, about
from hpcprof.runs.config import HOST_KEYS, ConfigValue, read_settings
from hpcprof.submit.jobs.explain import origins_named
from hpcprof.submit.jobs.job import JobSpec, ValueOrigin
from hpcprof.submit.remote.request import check_host, parse_host
from hpcprof.submit.schedulers.registry import BUILT_IN, find_scheduler
from hpcprof.submit.sites.files import load_site, load_site_file, site_files
from hpcprof.submit.sites.model import Site


def merged(spec: JobSpec) -> JobSpec:
    """Return a request with the values of its job file filled in, then with the personal defaults."""
    settings = read_settings()
    if spec.job_file is not None:
        from hpcprof.submit.jobs.job_file import load_job_file  # 1 ms that few commands need

        spec = replace(spec.over(load_job_file(spec.job_file)), job_file=None)
    if spec.site is None and spec.site_file is None and spec.host is not None:
        name = spec.host.rpartition("@")[2]
        spec = replace(spec, site=name) if name in site_files() else spec
    if spec.site is None and spec.site_file is None:
        spec = spec.over(_from_settings(("site",), settings))
    return spec.over(_from_settings(_keys_for(spec, settings), settings))


def _keys_for(spec: JobSpec, settings: Mapping[str, ConfigValue]) -> Iterator[str]:
    name = spec.site_file.stem if spec.site_file else spec.site or "local"
    for key in ("account", "queue"):
        if f"sites.{name}.{key}" in settings:
            yield f"sites.{name}.{key}"
        elif key in settings and not find_scheduler(site_of(spec).scheduler).runs_here:
            yield key
    yield from (key for key in settings if key.startswith(f"sites.{name}.options."))


def _from_settings(keys: Iterable[str], settings: Mapping[str, ConfigValue]) -> JobSpec:
    values: dict[str, Any] = {"options": {}}
    origins = {}
    for setting in (settings[key] for key in keys if key in settings):
        head, is_option, option = setting.key.partition(".options.")
        field = f"options.{option}" if is_option else head.rpartition(".")[2]
        if is_option:
            values["options"][option] = setting.value
        else:
            values[field] = setting.value
        origins[field] = ValueOrigin(setting.source, setting.key, personal=True)
    return JobSpec(**values, origins=origins)


def site_of(spec: JobSpec) -> Site:
    """Load the site that a merged request names, with the host that the user reaches it by."""
    if spec.site_file is not None:
        site = load_site_file(spec.site_file)
    else:
        with origins_named(spec), about("site"):
            site = load_site(spec.site or "local")
    return _with_host(site, spec.host)


def _with_host(site: Site, host: str | None) -> Site:
    settings = read_settings()
    personal = {key: setting for key in HOST_KEYS if (setting := settings.get(f"sites.{site.name}.{key}"))}
    site = msgspec.structs.replace(site, **{key: item.value for key, item in personal.items()})
    where = (
        f"{personal['host'].source}: {personal['host'].key}" if "host" in personal else f"{site.name}: host"
    )
    if host is not None:
        parse_host(host)  # an empty host is an unset variable of a shell, not this machine
        site, where = msgspec.structs.replace(site, host=host), "--host"
    if not site.host:
        if key := next((key for key in ("user", "runs_dir") if getattr(site, key)), ""):
            raise UsageError(f"site {site.name}: {key} belongs to host, which is missing.")
        return site
    name, user = check_host(site.host, site.user, site.runs_dir, where)
    scheduler = find_scheduler(site.scheduler)
    if scheduler.runs_here or scheduler.runs_in_image:
        limit = f"site {site.name} ({scheduler.title}) has no batch system on a login node"
        raise UsageError(f"{where} {site.host}: {limit}; name another one with --site.")
    return msgspec.structs.replace(site, host=name, user=user)


def within_allocation(spec: JobSpec) -> tuple[Site, JobSpec]:
    """Return site and request of a run on this shell's nodes, by default of its generic site."""
    site = site_of(spec)
    if find_scheduler(site.scheduler).runs_here:
        names = (name for name in BUILT_IN if _is_in_job(name) and f"generic-{name}" in site_files())
        site = load_site(f"generic-{name}") if (name := next(names, "")) else site
    if not _is_in_job(site.scheduler):
        advice = "start one with salloc, qsub -I or flux alloc, or leave --here out"
        raise UsageError(f"--here: this shell is in no job of site {site.name}; {advice}.")
    for field in ("on_stall", "on_timeout"):
        if getattr(spec, field) == "resubmit":
            raise UsageError(f"--here: --{field.replace('_', '-')} resubmit would end the allocation.", field)
    allocated = find_scheduler(site.scheduler).allocated_nodes(os.environ)
    if spec.nodes is not None and spec.nodes > allocated:
        raise UsageError(f"--nodes {spec.nodes}: the allocation has {allocated}.", "nodes")
    site = msgspec.structs.replace(site, queue="", queues={}, host="", user="", runs_dir="")
    return site, replace(spec, nodes=spec.nodes or allocated, queue=None)


def _is_in_job(scheduler: str) -> bool:
    return bool(os.environ.get(find_scheduler(scheduler).job_id_variable))
