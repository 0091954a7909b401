"""From a request to a job: job file and personal defaults are merged in, and all is checked at the site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.units import mebibytes, parse_memory
from hpcprof.runs.config import HOST_KEYS, RUNS_VARIABLE, ConfigValue, named_targets, read_settings
from hpcprof.runs.job import Job
from hpcprof.runs.job_name import default_job_name
from hpcprof.runs.rank_selection import select_ranks
from hpcprof.submit.jobs.checks import (
    check_job,
    check_steps,
    missing_requirements,
    profiler_at,
    site_options,
    stack_options,
)
from hpcprof.submit.jobs.job import OPTIONS, JobSpec, ValueOrigin
from hpcprof.submit.jobs.target import target_of
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.profilers import find_profiler
from hpcprof.submit.profilers.base import NONE
from hpcprof.submit.profilers.inspector import INSPECTOR
from hpcprof.submit.remote.request import HOME, check_host, parse_host
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import GPUS, Scheduler
from hpcprof.submit.sites.files import load_site, load_site_file, site_files
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue

JobRequest = JobSpec
"""The name of `JobSpec` in version 0.2."""
COMMAND_LINE = "command line"
BUILT_IN = "built in"

_MOST_RANKS = 10_000_000
"""More than any machine has: the rank selection makes a list of them."""
_ONE_WORD = re.compile(r"[^\s\"'\\#$`]+")


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
    """Yield the keys of the personal defaults for the site of a request."""
    name = spec.site_file.stem if spec.site_file else spec.site or "local"
    for key in ("account", "queue"):
        if f"sites.{name}.{key}" in settings:
            yield f"sites.{name}.{key}"
        elif key in settings and not find_scheduler(site_of(spec).scheduler).runs_here:
            yield key
    yield from (key for key in settings if key.startswith(f"sites.{name}.options."))


def _from_settings(keys: Iterable[str], settings: Mapping[str, ConfigValue]) -> JobSpec:
    """Return personal defaults as a request."""
    values: dict[str, Any] = {"options": {}}
    origins = {}
    for setting in (settings[key] for key in keys if key in settings):
        head, is_option, option = setting.key.partition(".options.")
        if is_option:
            values["options"][option] = setting.value
        else:
            values[head.rpartition(".")[2]] = setting.value
        field = f"options.{option}" if is_option else head.rpartition(".")[2]
        origins[field] = ValueOrigin(setting.source, setting.key, personal=True)
    return JobSpec(**values, origins=origins)


def resolve(spec: JobSpec, draft: bool = False) -> tuple[Site, Job]:
    """Return the site and the checked job of a request; a draft may lack what the site requires."""
    spec = merged(spec)
    site = site_of(spec)
    return site, make_job(site, spec, draft)


def site_of(spec: JobSpec) -> Site:
    """Load the site that a merged request names, with the host that the user reaches it by."""
    if spec.site_file is not None:
        site = load_site_file(spec.site_file)
    else:
        with _origins_named(spec):
            site = load_site(spec.site or "local")
    return _with_host(site, spec.host)


def _with_host(site: Site, given: str | None) -> Site:
    """Return a site with the host that was given, else that of the personal defaults, else its own."""
    settings = read_settings()
    personal = {key: found for key in HOST_KEYS if (found := settings.get(f"sites.{site.name}.{key}"))}
    site = msgspec.structs.replace(site, **{key: one.value for key, one in personal.items()})
    where = (
        f"{personal['host'].source}: {personal['host'].key}" if "host" in personal else f"{site.name}: host"
    )
    if given is not None:
        parse_host(given)  # an empty one is a variable that is not set, and not this machine
        site, where = msgspec.structs.replace(site, host=given), "--host"
    if not site.host:
        if key := next((key for key in ("user", "runs_dir") if getattr(site, key)), ""):
            raise UsageError(f"site {site.name}: {key} belongs to host, which is missing.")
        return site
    name, user = check_host(site.host, site.user, site.runs_dir, where)
    scheduler = find_scheduler(site.scheduler)
    if scheduler.runs_here or scheduler.runs_in_image:
        raise UsageError(
            f"{where} {site.host}: site {site.name} ({scheduler.title}) has no batch system on a login node; "
            "name another one with --site."
        )
    return msgspec.structs.replace(site, host=name, user=user)


def make_job(site: Site, spec: JobSpec, draft: bool = False) -> Job:
    """Return the job of a merged request, after checking all that can be checked before it is submitted.

    A draft may lack what the site requires (`hpcprof.submit.jobs.checks.missing_requirements`). An error
    names the first value that is wrong, where it comes from, and what would be valid.
    """
    with _origins_named(spec):
        return _make_job(site, spec, draft)


def _make_job(site: Site, spec: JobSpec, draft: bool) -> Job:
    values = _values(site, spec)
    program = catalogue.find(spec.workload) if spec.workload is not None else None
    if program is None and not spec.program:
        also = "--script and --template need one too"
        raise UsageError(f"nothing to run: give --workload NAME, or a program after -- ({also}).")
    profiler = _profiler(site, spec)
    tool = find_profiler(profiler)
    asked = {**(stack_options(tool) if spec.stacks else {}), **spec.profiler_options}
    given = {
        key: value
        for key, value in spec.options.items()
        if (origin := spec.origins.get(f"options.{key}")) is None or not origin.personal
    }
    job = Job(
        **{
            **values,
            "name": spec.job_name or spec.workload or default_job_name(spec.program),
            "site": site.name,
            "workload": spec.workload,
            "arguments": list(spec.program),
            "directory": HOME if site.host else str(Path.cwd()),
            "profiler": profiler,
            "profiler_options": tool.resolve(asked),
            "options": site_options(site, spec.options),
            "after": _run_ids(spec),
            "notify": _notified(spec, site.host),
        }
    )
    if job.ranks > _MOST_RANKS:
        raise UsageError(
            f"--nodes {job.nodes} and --ranks-per-node {job.ranks_per_node} make {job.ranks:,} ranks; the "
            f"limit is {_MOST_RANKS:,}."
        )
    select_ranks(job.profile_ranks, job.nodes, job.ranks_per_node)
    check_steps(job.capture_steps, job.profiler)
    if job.profiled_ranks:
        tool.check(target_of(job), job.profiler_options)
    lacks = missing_requirements(job, site)
    if lacks and not draft:
        raise UsageError(lacks[0])
    check_job(job, site)
    check_resources(job, site, given)
    if program is not None:
        program.check(job.arguments, job.ranks, profiled=bool(job.profiled_ranks))
    return job


def _profiler(site: Site, spec: JobSpec) -> str:
    """Return the name of the profiler that a request asks for."""
    if not spec.inspector:
        return profiler_at(site, spec.profiler or NONE.name)
    if spec.profiler not in (None, "auto", NONE.name, INSPECTOR.name):
        raise UsageError(
            f"--inspector and --profiler {spec.profiler}: NCCL's Inspector runs alone; leave one out."
        )
    return INSPECTOR.name


def _values(site: Site, spec: JobSpec) -> dict[str, Any]:
    """Return the fields of the job that are options, as given or as the site has them."""
    values: dict[str, Any] = {}
    for name in OPTIONS.keys() & set(Job.__struct_fields__):
        option, value = OPTIONS[name], getattr(spec, name)
        if spec.lacks(name) or value == "":
            value = getattr(site, name) if option.of_site else None
        if value is None:
            continue
        if option.least is not None and value < option.least:
            raise UsageError(f"{option.shown(value)}: write a whole number from {option.least}.")
        if option.one_word and not _ONE_WORD.fullmatch(value):
            raise UsageError(f"{option.flag} {value!r}: write it without spaces, quotes, \\, #, $ and `.")
        if option.choices and value not in option.choices:
            raise unknown("value", value, option.choices, f" of {option.flag}")
        values[name] = (
            option.parse(value) if option.parse else list(value) if isinstance(value, tuple) else value
        )
    return values


def _notified(spec: JobSpec, host: str | None) -> list[str]:
    """Return the names of the targets of messages, of which job.sh finds each in a file of the user's."""
    if not spec.notify:
        return []
    from hpcprof.submit import notify

    if host:
        notify.check_names(spec.notify, host)
        return list(spec.notify)
    origin = spec.origins.get("notify")
    found = notify.targets(spec.notify, named_targets(), origin.place if origin else "")
    return notify.resolve(found)


def _run_ids(spec: JobSpec) -> list[str]:
    if not spec.after:
        return []
    # A job without predecessors does without the modules that read runs.
    from hpcprof.runs.directory import find_runs

    return [run.id for reference in spec.after for run in find_runs(reference, spec.runs_dir)]


@contextmanager
def _origins_named(spec: JobSpec) -> Iterator[None]:
    """Add to an error the origins of the values in it that are not on the command line."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        found = {origin: value for key, origin in spec.origins.items() if (value := _named(spec, key, text))}
        if not found:
            raise
        shown = ", ".join(f"{origin.key} = {value} in {origin.place}" for origin, value in found.items())
        kind = "a personal default: " if any(origin.personal for origin in found) else ""
        raise UsageError(f"{text.rstrip('.')} ({kind}{shown}).") from None


def _named(spec: JobSpec, key: str, text: str) -> object:
    """Return the value of a key if a sentence names it, as in ``--queue debug`` or ``option 'mpi'``."""
    name, _, inner = key.partition(".")
    value = getattr(spec, name)
    if isinstance(value, Mapping):
        value, word = value.get(inner), re.escape(inner)
        patterns = (rf"(?<!\w){word}=VALUE", rf"option '?{word}")
    else:
        words = f"{re.escape(OPTIONS[name].flag)}|{name.replace('_', '[ _]')}"
        patterns = (rf"(?<!\w)(?:{words})[ =]'?VALUE", "'VALUE'")
    for one in value if isinstance(value, tuple) else () if value is None else (value,):
        shown = re.escape(str(one))
        if any(re.search(rf"{pattern.replace('VALUE', shown)}(?!\w)", text) for pattern in patterns):
            return one
    return None


def origins(asked: JobSpec, site: Site, job: Job) -> Iterator[ConfigValue]:
    """Yield the values of a job with their origins; ``asked`` is what the user asked for, not yet merged.

    Values that nobody chose are left out, except for the site and the folder of runs.
    """
    spec = merged(asked)
    of_site = f"site {site.name}"
    special = {"site": site.name, "walltime": format_walltime(job.walltime), "job_name": job.name}
    for name, option in OPTIONS.items():
        value = special.get(name, getattr(job, name, None))
        if isinstance(value, dict):
            for key, text in value.items():
                place = _place(asked, spec, f"{name}.{key}") or (of_site if name == "options" else "")
                if text and place:
                    yield ConfigValue(f"{name.removesuffix('s').replace('_', ' ')} {key}", text, place)
            continue
        place = _place(asked, spec, name) or (of_site if option.of_site else "")
        if name == "site":
            place = COMMAND_LINE if asked.site_file else place or BUILT_IN
        if place and value not in (None, "", []):
            yield ConfigValue(name, " ".join(value) if isinstance(value, list) else str(value), place)
    yield ConfigValue("runs_dir", str(asked.runs_dir), _place_of_runs(asked.runs_dir))


def _place(asked: JobSpec, spec: JobSpec, key: str) -> str:
    """Return where the value of a key was given; empty if it was not."""
    if not asked.lacks(key):
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


_VALUE = r"[^\s\"'\\#$`]+"
_PASSED_ON = re.compile(rf"-[A-Za-z] ?({_VALUE})?|--[a-z][a-z0-9-]*([= ]{_VALUE})?")


def check_resources(job: Job, site: Site, given: Mapping[str, str]) -> None:
    """Check what a job asks of its nodes; ``given`` are the options of the site that the user gave."""
    scheduler = find_scheduler(site.scheduler)
    _check_scheduler(job, site, scheduler)
    _check_node(job, site)
    for argument in job.scheduler_args:
        _check_passed_on(argument, site, scheduler)
    for (one, sets), (other, sets_too) in combinations(_claims(job, site, scheduler, given), 2):
        if both := sorted(sets & sets_too):
            raise UsageError(f"{one} and {other} both set {' and '.join(both)}; give one of them.")


def _check_scheduler(job: Job, site: Site, scheduler: Scheduler) -> None:
    for field, option in OPTIONS.items():
        if not option.resource or field in scheduler.resources or getattr(job, field) in (None, "", []):
            continue
        shown = option.shown(getattr(job, field))
        raise UsageError(f"{shown}: site {site.name} {scheduler.no_resources}; leave it out.")


def _check_node(job: Job, site: Site) -> None:
    node, ranks = site.node, job.ranks_per_node
    cpus = node.cores * node.threads if node.cores else None
    if job.mem and node.memory and mebibytes(job.mem) > mebibytes(parse_memory(node.memory)):
        raise UsageError(f"--mem {job.mem}: a node of {site.name} has {node.memory}; ask for at most that.")
    for field, what, limit in (("cpus_per_rank", "CPUs", cpus), ("gpus_per_rank", "GPUs", node.gpus)):
        count = getattr(job, field)
        if count is not None and limit is not None and count * ranks > limit:
            raise UsageError(
                f"{OPTIONS[field].shown(count)} with --ranks-per-node {ranks} takes {count * ranks} {what} "
                f"of a node, but one of {site.name} has {limit}; use at most {limit // ranks}."
            )


def _check_passed_on(argument: str, site: Site, scheduler: Scheduler) -> None:
    if not _PASSED_ON.fullmatch(argument):
        raise UsageError(
            f"--scheduler-arg {argument!r}: write one option of {scheduler.title} as it is in "
            "a batch script, without quotes, \\, #, $ and `."
        )
    taken = scheduler.own_settings(site)
    for setting in sorted(scheduler.settings(argument) & taken.keys()):
        raise UsageError(f"--scheduler-arg {argument}: hpcprof sets {setting} itself; {taken[setting]}.")


def _claims(
    job: Job, site: Site, scheduler: Scheduler, given: Mapping[str, str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield what the user gave, with what it sets in the script."""
    for field, line in scheduler.resource_directives(job).items():
        yield OPTIONS[field].shown(getattr(job, field)), scheduler.settings(line)
    for field, key in scheduler.resource_options.items():
        if getattr(job, field) not in (None, ""):
            yield OPTIONS[field].shown(getattr(job, field)), frozenset({key})
        if given.get(key):
            yield f"-o {key}={given[key]}", frozenset({key})
    if job.gpus_per_rank is not None:
        yield OPTIONS["gpus_per_rank"].shown(job.gpus_per_rank), frozenset({GPUS})
    for key, value in given.items():
        if value and site.options[key].directive:
            yield f"-o {key}={value}", scheduler.settings(site.options[key].directive.replace("{}", value))
    for argument in job.scheduler_args:
        yield f"--scheduler-arg {argument}", scheduler.settings(argument)
