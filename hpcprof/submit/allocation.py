"""Runs within an allocation: the nodes of an interactive job, such as of salloc, qsub -I or flux alloc."""

import os
from dataclasses import replace

import msgspec

from hpcprof.common.errors import UsageError
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.merge import site_of
from hpcprof.submit.schedulers.registry import BUILT_IN, find_scheduler
from hpcprof.submit.sites.files import load_site, site_files
from hpcprof.submit.sites.model import Site


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
