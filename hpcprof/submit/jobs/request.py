"""Makes a job from a request, and checks it at its site."""

import re
from typing import Any

import msgspec

from hpcprof.common.errors import UsageError, about, unknown
from hpcprof.common.paths import working_folder
from hpcprof.node.program_words import WORKER_LAUNCHERS
from hpcprof.runs.config import named_targets
from hpcprof.runs.job import Job
from hpcprof.runs.job_name import default_job_name
from hpcprof.runs.rank_selection import select_ranks
from hpcprof.submit.jobs import checks
from hpcprof.submit.jobs.explain import origins_named
from hpcprof.submit.jobs.job import OPTIONS, JobSpec
from hpcprof.submit.jobs.merge import merged, site_of
from hpcprof.submit.jobs.presence import profiler_at
from hpcprof.submit.jobs.walltime import AUTO_STALL, default_stall_timeout
from hpcprof.submit.jobs.workers import launchers_within, workers_of
from hpcprof.submit.profilers import find_profiler
from hpcprof.submit.profilers.base import NONE, target_of
from hpcprof.submit.profilers.inspector import INSPECTOR
from hpcprof.submit.remote.request import HOME
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue

_MAX_RANKS = 10_000_000
"""Maximum number of ranks, more than any machine has: the rank selection lists them in memory."""
_ONE_WORD = re.compile(r"[^\s\"'\\#$`]+")


def resolve(spec: JobSpec, draft: bool = False) -> tuple[Site, Job]:
    """Return the site and the checked job of a request; a draft may lack what the site requires."""
    spec = merged(spec)
    site = site_of(spec)
    return site, make_job(site, spec, draft)


def make_job(site: Site, spec: JobSpec, draft: bool = False) -> Job:
    """Return the job of a merged request, after checking all that can be checked before it is submitted.

    A draft may lack what the site requires (`hpcprof.submit.jobs.checks.missing_requirements`). An error
    names the first value that is wrong, where it comes from, and what would be valid.
    """
    with origins_named(spec):
        return _make_job(site, spec, draft)


def _make_job(site: Site, spec: JobSpec, draft: bool) -> Job:
    values = _values(site, spec)
    with about("workload"):
        program = catalogue.find(spec.workload) if spec.workload is not None else None
    if program is None and not spec.program:
        note = "--script and --template need one too"
        raise UsageError(f"nothing to run: give --workload NAME, or a program after -- ({note}).")
    with about("profiler", "site"):
        profiler = _profiler(site, spec)
        tool = find_profiler(profiler)
    options = {**(checks.stack_options(tool) if spec.stacks else {}), **spec.profiler_options}
    for key, value in options.items():
        with about(f"profiler_options.{key}", "profiler"):
            tool.resolve({key: value})
    personal = {key for key, origin in spec.origins.items() if origin.personal}
    user_options = {key: value for key, value in spec.options.items() if f"options.{key}" not in personal}
    job = Job(
        **{
            **values,
            "name": spec.job_name or spec.workload or default_job_name(spec.program),
            "site": site.name,
            "workload": spec.workload,
            "arguments": list(spec.program),
            "directory": HOME if site.host else str(working_folder()),
            "profiler": profiler,
            "profiler_options": tool.resolve(options),
            "options": checks.site_options(site, spec.options),
            "after": _run_ids(spec),
            "notify": _notify_names(spec, site.host),
        }
    )
    if spec.stall_timeout in (None, AUTO_STALL):
        job = msgspec.structs.replace(job, stall_timeout=default_stall_timeout(job.walltime))
    if job.gpus_per_rank is None and (queue := site.queues.get(job.queue)):
        job = msgspec.structs.replace(job, gpus_per_rank=queue.gpus_per_rank)
    if job.workload is None and job.ranks_per_node == 1:
        job = _with_workers(site, job)
    if job.ranks > _MAX_RANKS:
        size = f"--nodes {job.nodes} and --ranks-per-node {job.ranks_per_node} make {job.ranks:,} ranks"
        raise UsageError(f"{size}; the limit is {_MAX_RANKS:,}.", "nodes", "ranks_per_node")
    with about("profile_ranks"):
        select_ranks(job.profile_ranks, job.nodes, job.ranks_per_node)
    checks.check_steps(job.capture_steps, job.profiler)
    if job.profiled_ranks:
        with about("profiler"):
            tool.check(target_of(job), job.profiler_options)
    missing = checks.missing_requirements(job, site)
    if missing and not draft:
        raise UsageError(missing[0], "site")
    checks.check_job(job, site)
    checks.check_resources(job, site, user_options)
    if program is not None:
        program.check(job.arguments, job.ranks, profiled=bool(job.profiled_ranks))
    return job


def _with_workers(site: Site, job: Job) -> Job:
    """Return a job with a rank for each worker of its command, or else one with the whole of each node."""
    scheduler = find_scheduler(site.scheduler)
    if scheduler.runs_in_image:
        return job
    node = {"gpus_per_rank": site.node.gpus, "cpus_per_rank": site.node.cores}
    workers = workers_of(job.arguments, job.directory, job.nodes, job.gpus_per_rank or site.node.gpus)
    if workers is not None:
        shares = {key: amount // workers.on_node or None for key in node if (amount := getattr(job, key))}
        launch = {"workers": workers.launcher, "ranks_per_node": workers.on_node}
        return msgspec.structs.replace(job, **shares, **launch, arguments=workers.program)
    if not any(name in WORKER_LAUNCHERS for name, _ in launchers_within(job)):
        return job
    open_keys = [key for key in node if key in scheduler.resources and getattr(job, key) is None]
    return msgspec.structs.replace(job, **{key: node[key] for key in open_keys if node[key]})


def _profiler(site: Site, spec: JobSpec) -> str:
    if not spec.inspector:
        program = spec.program if spec.workload is None else ("python",)
        return profiler_at(site, spec.profiler or NONE.name, lambda: checks.profilers_at(site), program)
    if spec.profiler not in (None, "auto", NONE.name, INSPECTOR.name):
        sentence = f"--inspector and --profiler {spec.profiler}: NCCL's Inspector runs alone; leave one out."
        raise UsageError(sentence, "inspector", "profiler")
    return INSPECTOR.name


def _values(site: Site, spec: JobSpec) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in OPTIONS.keys() & set(Job.__struct_fields__):
        option, value = OPTIONS[name], getattr(spec, name)
        if spec.lacks(name) or value == "":
            value = getattr(site, name) if option.of_site else None
        if value is None:
            continue
        if option.least is not None and value < option.least:
            raise UsageError(f"{option.shown(value)}: write a whole number from {option.least}.", name)
        if option.one_word and not _ONE_WORD.fullmatch(value):
            sentence = f"{option.flag} {value!r}: write it without spaces, quotes, \\, #, $ and `."
            raise UsageError(sentence, name)
        if option.choices and value not in option.choices:
            raise unknown("value", value, option.choices, f" of {option.flag}", fields=[name])
        with about(name):
            values[name] = (
                option.parse(value) if option.parse else list(value) if isinstance(value, tuple) else value
            )
    return values


def _notify_names(spec: JobSpec, host: str | None) -> list[str]:
    """Return the names of the notification targets; job.sh reads each target from a file of the user."""
    if not spec.notify:
        return []
    from hpcprof.submit import notify

    origin = spec.origins.get("notify")
    with about("notify"):
        if host:
            return notify.remote_names(spec.notify, host)
        return notify.remember(notify.targets(spec.notify, named_targets(), origin.place if origin else ""))


def _run_ids(spec: JobSpec) -> list[str]:
    if not spec.after:
        return []
    # A job without predecessors does without the modules that read runs.
    from hpcprof.runs.directory import find_runs

    with about("after"):
        return [run.id for reference in spec.after for run in find_runs(reference, spec.runs_dir)]
