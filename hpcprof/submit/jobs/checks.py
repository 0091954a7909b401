"""Pure, quick checks of a job against its site, for what the scheduler would refuse or never run."""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.units import mebibytes, parse_memory
from hpcprof.node.program_words import script_text
from hpcprof.runs.job import Job
from hpcprof.runs.job_name import script_of
from hpcprof.submit.container.ranks import check_container
from hpcprof.submit.jobs.job import OPTIONS
from hpcprof.submit.jobs.walltime import DEFAULT_SIGNAL, format_walltime, parse_walltime, warning_of
from hpcprof.submit.jobs.workers import BY_RANK, launcher_remarks
from hpcprof.submit.launchers import LAUNCHERS, starter, with_launcher
from hpcprof.submit.profilers import PROFILERS, find_profiler, profiler_names
from hpcprof.submit.profilers.base import NONE, Profiler, target_of
from hpcprof.submit.profilers.torch_profiler import TORCH
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import GPUS, Scheduler, gpus_are_shared
from hpcprof.submit.schedulers.submitting_shell import unused_option, unused_options
from hpcprof.submit.sites.environment import staged_environment
from hpcprof.submit.sites.files import MPS
from hpcprof.submit.sites.model import LauncherName, NodeRequest, Queue, Required, Site, Vendor

_VALUE = r"[^\s\"'\\#$`]+"
_DEVICE_BY_LOCAL_RANK = re.compile(
    r"^[^#\n]*(?:set_device\(|\bdevice\(|[\"']cuda:|device_ids=\[)[^#%\n]*local_?rank[^#%\n]*$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line of a script that takes the GPU with the number of the rank on its node."""

_PASSED_OPTION = re.compile(rf"-[A-Za-z] ?({_VALUE})?|--[a-z][a-z0-9-]*([= ]{_VALUE})?")
_STEPS = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?")
_COUNT_OPTION = re.compile(
    r"-[nN]\d*|--?(np|ppn|n?nodes|n?tasks(-per-node)?|nrs|rs_per_host|nproc[-_]per[-_]node)(=.*)?"
)
"""Options of launchers for the numbers of nodes and ranks."""
_CPUS_OPTION = re.compile(r"-c\d*|--(cpus-per-task|cores-per-task|cpu_per_rs|depth)(=.*)?")
"""Options of launchers for the CPUs of a rank."""
_VENDOR_NAMES = {Vendor.AMD: "AMD", Vendor.INTEL: "Intel", Vendor.NVIDIA: "NVIDIA"}


def site_options(site: Site, options: Mapping[str, str]) -> dict[str, str]:
    """Return the site's options with their values, defaults filled in; those that it lacks are refused."""
    for key, value in options.items():
        if key not in site.options:
            raise unknown(
                "option", key, site.options, f" of site {site.name}", fields=[f"options.{key}", "site"]
            )
        option, fields = site.options[key], (f"options.{key}", "site")
        for part in value.split(":") if value else ():
            place = f"-o {key}={value} of site {site.name}"
            if part in option.retired:
                valid = f"; valid: {', '.join(option.valid)}" if option.valid else ""
                raise UsageError(f"{place}: {option.retired[part]}{valid}.", *fields)
            if option.valid and part not in option.valid:
                raise unknown("value", part, option.valid, f" in {place}", fields=fields)
    return {key: options.get(key, option.default) for key, option in site.options.items()}


def stack_options(profiler: Profiler) -> Mapping[str, str]:
    """Return the options of a profiler that record call stacks."""
    if not profiler.stacks:
        able = " and ".join(name for name, tool in PROFILERS.items() if tool.stacks)
        sentence = f"--stacks: the profiler {profiler.name} records no call stacks; {able} do."
        raise UsageError(sentence, "stacks", "profiler")
    return profiler.stacks


def check_steps(text: str, profiler: str) -> None:
    """Check a selection of steps such as ``3``, ``10-12`` or ``10-12,20-22``; empty selects all."""
    if not text:
        return
    spans = [_STEPS.fullmatch(part) for part in text.split(",")]
    ends = [int(step) for m in spans if m for step in (m["first"], m["last"] or m["first"])]
    rising = all(a <= b for a, b in zip(ends[::2], ends[1::2], strict=True))
    apart = all(a < b for a, b in zip(ends[1::2], ends[2::2], strict=False))
    if None in spans or not rising or not apart:
        range_form = "write the first and last step, counted from 0, as in 10-12"
        several = "several spans in ascending order, as in 10-12,20-22"
        raise UsageError(f"--capture-steps {text}: {range_form}, or {several}.", "capture_steps")
    if profiler == NONE.name:
        raise UsageError(f"--capture-steps {text} needs a profiler: give --profiler.", "capture_steps")


def missing_requirements(job: Job, site: Site) -> list[str]:
    """Return a sentence for each option that the site requires and the job lacks."""
    sentences = []
    for key, option in site.options.items():
        if option.required and not job.options[key]:
            choices = f" Valid: {', '.join(option.valid)}." if option.valid else ""
            sentences.append(
                f"site {site.name} needs the option {key} ({option.help}): give -o {key}=VALUE.{choices}"
            )
    for required in site.requires:
        if not getattr(job, required.value):
            variable = unused_option(find_scheduler(site.scheduler), required.value)
            unused = f" {variable} of this shell does not apply." if variable else ""
            queues = [name for name, queue in site.queues.items() if not queue.route_only]
            choices = f" Valid: {', '.join(queues)}." if required is Required.QUEUE and queues else ""
            sentences.append(f"site {site.name} requires --{required.value}.{choices}{unused}")
    return sentences


def check_job(job: Job, site: Site) -> None:
    """Check a job against its site; the first value that is wrong is named, with what would be valid."""
    scheduler = find_scheduler(site.scheduler)
    site = with_launcher(site, job)
    scheduler.check(job, site)
    _check_launcher(job, site, scheduler)
    _, lead = warning_of(job.signal, job.on_timeout)
    if lead >= job.walltime:
        signal, walltime = job.signal or DEFAULT_SIGNAL, format_walltime(job.walltime)
        raise UsageError(f"--signal {signal}: the walltime is only {walltime}.", "signal", "walltime")
    cores, ranks = site.node.cores, f"--ranks-per-node {job.ranks_per_node}"
    if cores is not None and job.ranks_per_node > cores:
        sentence = f"{ranks}: a node of {site.name} has {cores} cores; use at most {cores}."
        raise UsageError(sentence, "ranks_per_node")
    _check_profiler(job, site)
    if job.capture_when and (job.no_hook or job.profiled_ranks):
        other, field = ("--no-hook", "no_hook") if job.no_hook else (f"--profiler {job.profiler}", "profiler")
        sentence = f"--capture-when records programs that no profiler watches: leave out {other}."
        raise UsageError(sentence, "capture_when", field)
    if job.reference and not job.profiled_ranks:
        sentence = "--reference compares with a profiled run: give --profiler."
        raise UsageError(sentence, "reference", "profiler")
    if job.notify and scheduler.runs_in_image:
        sentence = f"--notify: jobs of site {site.name} run in an image, which has none of your files."
        raise UsageError(sentence, "notify", "site")
    if job.memory_history and job.no_hook:
        sentence = "--memory-history needs the hook in Python programs: leave out --no-hook."
        raise UsageError(sentence, "memory_history")
    check_container(site, job)
    _check_staging(job, site, scheduler)
    if site.queues and job.queue:
        _check_queue(job, site, scheduler)
    for key, value, limits in _option_limits(job, site):
        if wrong := _broken_limit(job, limits, scheduler):
            raise UsageError(f"-o {key}={value} of {site.name} takes {wrong}.", f"options.{key}")


def _check_staging(job: Job, site: Site, scheduler: Scheduler) -> None:
    if not staged_environment(site, job):
        return
    wrong = ""
    if scheduler.runs_in_image:
        wrong = f"jobs of site {site.name} run in an image, which has its environment"
    elif job.nodes > 1 and (name := starter(site)) not in (site.launcher.name, *scheduler.starters):
        wrong = f"{name.value} starts no process on each node of site {site.name}; use --nodes 1"
    if wrong:
        raise UsageError(f"--stage-env: {wrong}.", "stage_env")


def check_resubmission(site: Site, job: Job) -> None:
    """Check that a job that stalls or times out can run again although no command waits for it."""
    for field, other in (("on_stall", "stop"), ("on_timeout", "report")):
        flag = OPTIONS[field].flag
        if getattr(job, field) == "resubmit" and not find_scheduler(site.scheduler).requeues:
            advice = f"use hpcprof submit --wait or hpcprof run, which submit it again, or {flag} {other}"
            sentence = f"{flag} resubmit: site {site.name} cannot queue a job again; {advice}."
            raise UsageError(sentence, field, "site")


def check_array(site: Site, queue: str, members: int, at_once: int | None = None) -> None:
    """Check a job array of ``members`` runs, ``at_once`` of which may run together (None: all)."""
    scheduler = find_scheduler(site.scheduler)
    if scheduler.arrays is None:
        advice = "leave --array out, and every combination is a job"
        raise UsageError(f"--array: site {site.name} has no job arrays; {advice}.")
    least = scheduler.arrays.least_members
    if members < least:
        least_members = f"an array of {scheduler.title} has at least {least} members, not {members}"
        raise UsageError(f"--array: {least_members}; leave --array out.")
    limit = site.queues[queue].max_array if queue in site.queues else None
    width = members if at_once is None else at_once
    if limit is not None and width > limit:
        most = f"at most {limit} members of a job array at once"
        raise UsageError(f"queue {queue} of {site.name} runs {most}, not {width}; give --at-once {limit}.")


AUTO = "auto"
"""The profiler that the site's file names, or the first that this machine has."""


def profilers_at(site: Site) -> list[str]:
    """Return the names of the profilers that work at a site, ``none`` among them."""
    chosen = [NONE.name, *site.profilers] if site.profilers else profiler_names()
    return [name for name in chosen if _fits_gpus(name, site)]


def execution_queue(job: Job, site: Site) -> str:
    """Return the queue that will run a checked job: for a routing queue, its first route that accepts it."""
    queue = site.queues.get(job.queue)
    routes = queue.routes if queue else []
    scheduler = find_scheduler(site.scheduler)
    fitting = (name for name in routes if not _broken_limit(job, site.queues[name], scheduler))
    return next(fitting, job.queue)


def unverified_facts(site: Site) -> str:
    """Return a sentence without a full stop if the facts about a site are not verified; empty otherwise."""
    source = f": {site.source}" if site.source else ""
    return "" if site.verified else f"the facts about site {site.name} are not verified{source}"


def remarks(job: Job, site: Site) -> list[str]:
    """Return remarks on a checked job for its user, as sentences without a full stop."""
    sentences = []
    job_name = find_scheduler(site.scheduler).job_name(job.name)
    if job_name != job.name:
        sentences.append(f"the scheduler shows the job {job.name!r} as {job_name}")
    routed_queue = execution_queue(job, site)
    if routed_queue != job.queue:
        sentences.append(f"queue {job.queue} routes this job to {routed_queue}")
    sentences += [*launcher_remarks(job, site), *_uncounted_steps(job), *_devices_by_rank(job, site)]
    if gpus_are_shared(site, job):
        started = job.options.get(MPS) == "true"
        mps = f"; -o {MPS}=true starts NVIDIA's MPS, without which they take turns" if not started else ""
        sentences.append(
            f"{job.ranks_per_node} ranks share the {site.node.gpus} GPUs of each node"
            f"{mps if MPS in site.options else ''}"
        )
    package = find_profiler(job.profiler).reader_package if job.profiled_ranks else ""
    if package and not site.host and find_spec(package) is None:
        sentences.append(f"profiles of {job.profiler} cannot be read here: pip install 'hpcprof[{package}]'")
    queue = site.queues.get(job.queue)
    if queue and queue.note:
        sentences.append(f"queue {job.queue}: {queue.note}")
    return sentences if site.host else [*sentences, *unused_options(find_scheduler(site.scheduler), job)]


def _uncounted_steps(job: Job) -> Iterator[str]:
    """Yield a remark if nothing counts the steps to capture, so that the profiler records from the start."""
    profiler = find_profiler(job.profiler)
    counted = target_of(job).marks_steps or not profiler.command
    if job.capture_steps and not counted and job.profiler_options.get("capture", "auto") == "auto":
        marking = "; --profiler-option capture=range if it marks them" * ("capture" in profiler.settings)
        yield (
            f"--capture-steps counts the optimizer steps of PyTorch: {profiler.name} records this program "
            f"from its start{marking}"
        )


def _devices_by_rank(job: Job, site: Site) -> Iterator[str]:
    """Yield a remark on a script that takes a GPU by LOCAL_RANK where each rank sees its own GPU alone."""
    script = script_of(job.arguments) if job.workload is None and not job.workers else ""
    if not (script and site.affinity.devices and job.ranks_per_node > 1 and job.gpus_per_rank in (None, 1)):
        return
    text = script_text(str(Path(job.directory, script)))
    if (line := _DEVICE_BY_LOCAL_RANK.search(text)) and "device_count" not in text:
        number = text.count("\n", 0, line.start()) + 1
        yield (
            f"{script}, line {number}, takes a GPU by LOCAL_RANK, but on {site.name} each rank sees its "
            "own alone, device 0: take local_rank % torch.cuda.device_count(), or start it by torchrun"
        )


def _check_launcher(job: Job, site: Site, scheduler: Scheduler) -> None:
    launcher = site.launcher
    starts = job.ranks > 1 and launcher.name not in (LauncherName.NONE, LauncherName.TORCHRUN)
    # mpiexec and srun start another program after a colon.
    for word in {":", "--multi-prog"}.intersection([*launcher.arguments, *(job.arguments if starts else ())]):
        several = f"{word} is for several programs, and a run starts one"
        raise UsageError(f"{several}; let each rank choose: {BY_RANK}.", "program", "launcher_args")
    for word in job.launcher_args:
        if _COUNT_OPTION.fullmatch(word) or (job.cpus_per_rank and _CPUS_OPTION.fullmatch(word)):
            options = "--nodes, --ranks-per-node and --cpus-per-rank"
            raise UsageError(f"--launcher-arg {word}: {options} set it, for the job too.", "launcher_args")
    if job.nodes == 1:
        if job.workers and job.launcher_args:
            unused = f"--launcher-arg {job.launcher_args[0]}: on one node only the program's own launcher"
            raise UsageError(f"{unused} starts ranks; write its options after it.", "launcher_args")
        return
    if not LAUNCHERS[launcher.name].several_nodes:
        able = [name.value for name, description in LAUNCHERS.items() if description.several_nodes]
        limit = f"the launcher of site {site.name} ({launcher.name.value}) starts ranks on one node"
        advice = f"use --nodes 1, or a site whose launcher is {' or '.join(able)}"
        raise UsageError(f"--nodes {job.nodes}: {limit}; {advice}.", "nodes", "site")
    if LAUNCHERS[launcher.name].needs_starter and launcher.starter not in scheduler.starters:
        valid = " or ".join(name.value for name in scheduler.starters)
        starter_there = f"launcher.starter of site {site.name} is {launcher.starter.value}"
        limit = f"cannot start {launcher.name.value} on each node under {scheduler.title}"
        advice = f"set it to {valid}" if valid else "use --nodes 1"
        raise UsageError(f"--nodes {job.nodes}: {starter_there}, which {limit}; {advice}.", "nodes", "site")


def _check_profiler(job: Job, site: Site) -> None:
    if site.profilers and job.profiler not in (NONE.name, *site.profilers):
        where, fields = f" at site {site.name}", ("profiler", "site")
        raise unknown("profiler", job.profiler, profilers_at(site), where, fields=fields)
    if not _fits_gpus(job.profiler, site):
        # Others without a vendor record no GPU.
        able = [name for name in profilers_at(site) if name == TORCH.name or find_profiler(name).vendors]
        gpus = f"the {_VENDOR_NAMES[site.node.vendor]} GPUs of {site.name}"
        advice = f"use --profiler {' or '.join(able or [NONE.name])}"
        raise UsageError(f"--profiler {job.profiler} cannot profile {gpus}; {advice}.", "profiler")
    profiler = find_profiler(job.profiler)
    if job.profiled_ranks and profiler.needs_gpus(job.profiler_options) and _requests_no_gpus(site, job):
        without_cuda = ", or leave cuda out of --profiler-option trace=…" * ("trace" in profiler.settings)
        raise UsageError(
            f"--profiler {job.profiler}: jobs at site {site.name} request no GPUs; write node.gpus and "
            "node_request, or a directive such as --gpus-per-node=4, in its site file, or give "
            f"--gpus-per-rank{without_cuda}.",
            *("profiler", "gpus_per_rank", "site"),
        )


def _requests_no_gpus(site: Site, job: Job) -> bool:
    """Return whether a job certainly has no GPU: the site's node is described, and nothing requests one."""
    if job.gpus_per_rank is not None:
        return job.gpus_per_rank == 0
    if site.node_request is NodeRequest.NONE or site.node.gpus or not site.node.cores:
        return False
    queue = find_scheduler(site.scheduler).queue_of(site, job)
    options = [f"{option.directive} {job.options.get(key)}" for key, option in site.options.items()]
    directives = [*site.directives, *(queue.directives if queue else []), *options, *job.scheduler_args]
    return not any(
        "gpu" in option
        for option in (*directives, *site.launcher.arguments, *map(str, site.scheduler_keys.values()))
    )


def _fits_gpus(profiler: str, site: Site) -> bool:
    vendors = find_profiler(profiler).vendors
    return not vendors or site.node.vendor in vendors


def _check_queue(job: Job, site: Site, scheduler: Scheduler) -> None:
    """Check the limits of a queue, or of a routing queue and its routes: PBS loses jobs that fit no route."""
    problems = []
    for name in scheduler.queue_names(job.queue):
        if name in site.queues:
            problems.append(_queue_problem(name, job, site, scheduler))
        elif scheduler.accepts_queue(name):
            return
        else:
            raise unknown("queue", name, site.queues, f" of site {site.name}", fields=["queue", "site"])
    if all(problems):
        raise UsageError(problems[0], "queue")


def _queue_problem(name: str, job: Job, site: Site, scheduler: Scheduler) -> str:
    queue = site.queues[name]
    if queue.route_only:
        entries = [entry for entry, other in site.queues.items() if name in other.routes]
        return (
            f"--queue {name}: {name} of {site.name} accepts jobs from a routing queue only; use --queue "
            f"{' or '.join(entries) or 'of another name'}."
        )
    if any(_option_limits(job, site)):
        return ""
    wrong = _broken_limit(job, queue, scheduler)
    if wrong:
        return f"queue {name} of {site.name} takes {wrong}."
    broken_limits = {route: _broken_limit(job, site.queues[route], scheduler) for route in queue.routes}
    if broken_limits and all(broken_limits.values()):
        reasons = "; ".join(f"{route} takes {limit}" for route, limit in broken_limits.items())
        return (
            f"no queue behind {name} of {site.name} would run this job, though the scheduler may accept it "
            f"and lose it: {reasons}."
        )
    return ""


def _broken_limit(job: Job, queue: Queue, scheduler: Scheduler) -> str:
    if job.nodes < queue.min_nodes or (queue.max_nodes is not None and job.nodes > queue.max_nodes):
        least, most = queue.min_nodes, queue.max_nodes
        span = f"{least} or more" if most is None else f"{least}" if least == most else f"{least} to {most}"
        return f"{span} node{'' if span == '1' else 's'}, not {job.nodes}"
    chunks, unit = scheduler.chunks(job, queue)
    if queue.chunks and chunks not in queue.chunks:
        suffix = "" if unit == "nodes" else f" (--ranks-per-node {job.ranks_per_node})"
        return f"{', '.join(map(str, queue.chunks))} {unit}, not {chunks}{suffix}"
    size = min((nodes for nodes in queue.walltime_by_nodes if job.nodes <= nodes), default=None)
    longest = queue.walltime_by_nodes[size] if size else queue.max_walltime
    reason = f" for up to {size} nodes" if size else ""
    if longest and job.walltime > parse_walltime(longest):
        return f"at most {longest}{reason}, not {format_walltime(job.walltime)}"
    if queue.max_node_time and job.nodes * job.walltime > parse_walltime(queue.max_node_time):
        share = format_walltime(parse_walltime(queue.max_node_time) // job.nodes // 60 * 60)
        nodes = f"{job.nodes} nodes" if job.nodes > 1 else "a node"
        limit = f"{share} ({queue.max_node_time} of node time)"
        return f"{nodes} for at most {limit}, not {format_walltime(job.walltime)}"
    if queue.min_walltime and job.walltime < parse_walltime(queue.min_walltime):
        return f"at least {queue.min_walltime}, not {format_walltime(job.walltime)}"
    return ""


def _option_limits(job: Job, site: Site) -> Iterator[tuple[str, str, Queue]]:
    """Yield the options of a job whose values have limits of their own, which replace the queue's."""
    for key, option in site.options.items():
        if limits := option.limits.get(value := job.options.get(key, "")):
            yield key, value, limits


def check_resources(job: Job, site: Site, options: Mapping[str, str]) -> None:
    """Check the requested resources of the nodes; ``options`` are those of the site that the user gave."""
    scheduler = find_scheduler(site.scheduler)
    for field, option in OPTIONS.items():
        value, has_it = getattr(job, field, None), field in scheduler.resources
        if option.resource and not has_it and value not in (None, "", []):
            sentence = f"{option.shown(value)}: site {site.name} {scheduler.no_resources}; leave it out."
            raise UsageError(sentence, field, "site")
    if job.mem and not mebibytes(job.mem) and not scheduler.gives_all_memory:
        sentence = f"--mem 0: to {scheduler.title} that is no memory, not all of a node; leave it out."
        raise UsageError(sentence, "mem", "site")
    _check_node(job, site)
    for argument in job.scheduler_args:
        _check_passed_on(argument, site, job, scheduler)
    claims = _claims(job, site, scheduler, options)
    for (first, field, sets), (second, other_field, other_sets) in combinations(claims, 2):
        if both := " and ".join(sorted(sets & other_sets)):
            sentence = f"{first} and {second} both set {both}; give one of them."
            raise UsageError(sentence, field, other_field)


def _check_node(job: Job, site: Site) -> None:
    node, ranks = site.node, job.ranks_per_node
    cpus = node.cores * node.threads if node.cores else None
    if job.mem and node.memory and mebibytes(job.mem) > mebibytes(parse_memory(node.memory)):
        sentence = f"--mem {job.mem}: a node of {site.name} has {node.memory}; ask for at most that."
        raise UsageError(sentence, "mem")
    for field, noun, limit in (("cpus_per_rank", "CPUs", cpus), ("gpus_per_rank", "GPUs", node.gpus)):
        count = getattr(job, field)
        if count is not None and limit is not None and count * ranks > limit:
            most = f"{limit // ranks}" if limit >= ranks else f"--ranks-per-node {max(1, limit // count)}"
            request = f"{OPTIONS[field].shown(count)} with --ranks-per-node {ranks}"
            limit_text = f"one of {site.name} has {limit}; use at most {most}"
            sentence = f"{request} takes {count * ranks} {noun} of a node, but {limit_text}."
            raise UsageError(sentence, field, "ranks_per_node")


def _check_passed_on(argument: str, site: Site, job: Job, scheduler: Scheduler) -> None:
    start = re.match(scheduler.quoted_options, argument)
    words = start.group() + argument[start.end() :].replace(" ", "_") if start else argument
    if not _PASSED_OPTION.fullmatch(words):
        valid = f"one option of {scheduler.title} as it is in a batch script, without quotes, \\, #, $ and `"
        raise UsageError(f"--scheduler-arg {argument!r}: write {valid}.", "scheduler_args")
    taken = scheduler.own_settings(site)
    free = set() if job.after else {scheduler.dependency}
    for setting in sorted((scheduler.settings(argument) & taken.keys()) - free):
        sentence = f"--scheduler-arg {argument}: hpcprof sets {setting} itself; {taken[setting]}."
        raise UsageError(sentence, "scheduler_args")


def _claims(
    job: Job, site: Site, scheduler: Scheduler, options: Mapping[str, str]
) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield the values that set something in the script: as the user wrote them, field, and settings."""

    def claim(field: str, sets: Iterable[str]) -> tuple[str, str, frozenset[str]]:
        return OPTIONS[field].shown(getattr(job, field)), field, frozenset(sets)

    for field, line in scheduler.resource_directives(job).items():
        yield claim(field, scheduler.settings(line))
    for field, key in scheduler.resource_options.items():
        if getattr(job, field) not in (None, ""):
            yield claim(field, [key])
        if options.get(key):
            yield f"-o {key}={options[key]}", f"options.{key}", frozenset({key})
    if job.gpus_per_rank is not None:
        yield claim("gpus_per_rank", [GPUS])
    for key, value in options.items():
        if value and site.options[key].directive:
            sets = scheduler.settings(site.options[key].directive.replace("{}", value))
            yield f"-o {key}={value}", f"options.{key}", sets
    for argument in job.scheduler_args:
        yield f"--scheduler-arg {argument}", "scheduler_args", scheduler.settings(argument)
