"""Templates: from a site and a job to the texts of the batch script and the rank wrapper."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

import msgspec
from jinja2 import BytecodeCache, ChoiceLoader, FileSystemLoader, StrictUndefined, TemplateError
from jinja2.bccache import Bucket
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcprof import node
from hpcprof.common import __version__
from hpcprof.common.errors import UsageError
from hpcprof.common.paths import packaged_folder, user_config
from hpcprof.node import on_request, program_words, pulse, stage_environment, step_lines, uncaught
from hpcprof.node.hooks import memory_history
from hpcprof.node.hooks.torch_hook import recording
from hpcprof.runs.config import group_may_read
from hpcprof.runs.job import Job
from hpcprof.runs.rank_selection import place_conditions, rank_spans
from hpcprof.submit import launchers
from hpcprof.submit.container.ranks import PROFILER_FOLDER, PROFILER_ROOT, container_words, uses_container
from hpcprof.submit.jobs.walltime import capture_lead, early_signal, format_walltime, warning_of
from hpcprof.submit.jobs.workers import count_runner_words, scripts_of
from hpcprof.submit.profilers import base, find_profiler
from hpcprof.submit.profilers.base import OnNode, PerfEvents, Versioned, target_of
from hpcprof.submit.profilers.torch_profiler import module_source, start_up_modules
from hpcprof.submit.rendering.inheritance import inheritance
from hpcprof.submit.schedulers.registry import BUILT_IN, find_scheduler
from hpcprof.submit.schedulers.scheduler import GPUS as GPU_SETTING
from hpcprof.submit.schedulers.scheduler import (
    JOB_SCRIPT,
    WRAPPER,
    Rendering,
    Scheduler,
    directive_value,
    gpus_are_shared,
    gpus_per_node,
)
from hpcprof.submit.sites.environment import default_variables, expanded, staged_environment
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue

# Placeholders in a profiler's arguments for values that only the rank knows, and the wrapper's variables.
_PROFILER_VARIABLES = {
    base.OUTPUT: '"$output"',
    base.PATTERN: '"$(printf %s "$output" | sed s/%/%%/g)"',
    base.SCRATCH: '"$scratch"',
    base.SESSION: '"${scratch##*/}"',
    base.FOLDER: '"$outputs"/profiles',
    base.NAME: '"$name"',
    base.SECONDS: '"$seconds"',
    base.WITH_MPI: '"$with_mpi"',
    base.GPUS: '"${CUDA_VISIBLE_DEVICES:-$local_rank}"',
}

_LAUNCH_VARIABLES = {
    PROFILER_ROOT: '"$profiler_root"',
    launchers.RENDEZVOUS: '"$meeting"',
    launchers.RENDEZVOUS_HOST: '"${meeting%:*}"',
    launchers.RENDEZVOUS_PORT: '"${meeting##*:}"',
}

NODE = "node"
"""The folder of a run with what runs beside the ranks of a node."""

_SIGNALS = "HUP INT QUIT TERM USR1 USR2 ALRM XCPU"
"""The signals that a program may act on; the shells around it outlive them."""

# How long a failed rank waits for the others to end, with profilers that still write and without.
_PROFILERS_SECONDS, _PROGRAMS_SECONDS = 330, 60


class _TemplateCache(BytecodeCache):
    """Compiled templates in memory, since a sweep renders the same ones for every run."""

    def __init__(self) -> None:
        self._codes: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._codes:
            bucket.bytecode_from_string(self._codes[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key] = bucket.bytecode_to_string()


_COMPILED_TEMPLATES = _TemplateCache()


def template_path() -> list[Path]:
    """Return the folders that may hold templates, in the order of preference."""
    return [Path("templates"), user_config() / "templates", packaged_folder("templates")]


def template_files() -> dict[str, Path]:
    """Return the file of each template by name."""
    files: dict[str, Path] = {}
    for folder in template_path():
        for path in sorted(folder.rglob("*.j2")):
            files.setdefault(str(path.relative_to(folder)), path)
    return dict(sorted(files.items()))


def render(site: Site, job: Job, rendering: Rendering) -> dict[str, str]:
    """Return the run's scripts, and what they load, by path in the run."""
    scheduler = find_scheduler(site.scheduler)
    environment = template_environment(rendering.template, scheduler)
    run_id = rendering.run_directory.name
    site = launchers.with_launcher(site, job)
    job, rendering = scheduler.localize(site, job, rendering)
    profiler, target = find_profiler(job.profiler), target_of(job)
    profiled = rank_spans(job.profiled_ranks)
    records = profiled and profiler.command
    pauses = site.dcgm and profiled and profiler.counters(target, job.profiler_options)
    flags = profiler.flags(target, job.profiler_options)
    launcher = launchers.LAUNCHERS[site.launcher.name]
    watches = job.ranks > 1 and bool(profiled or not launcher.ends_other_ranks)
    start_up = profiler.start_up(target) if profiled else {}
    hook = hook_modules(
        has_pulse=not job.no_hook,
        notes_exceptions=job.ranks > 1 or not job.no_hook,
        keeps_memory=bool(job.memory_history),
    )
    tools = catalogue.find(job.workload).tools(job.arguments) if job.workload else {}
    command = _with_tool_paths(profiler.command, tools)
    afterwards = profiler.afterwards(target, job.profiler_options)
    values: dict[str, Any] = {
        "version": __version__,
        "profiler_folder": PROFILER_FOLDER,
        "signals": _SIGNALS,
        "watch_seconds": 2,  # in wrappers of version 0.3
        "site": _with_devices_of_ranks(site, job, scheduler),
        "job": job,
        "environment_defaults": default_variables(site, job),
        "job_name": scheduler.job_name(job.name),
        "run_directory": str(rendering.run_directory),
        "command_line": shlex.join(rendering.command_line),
        "directives": (directives := scheduler.directives(site, job)),
        "early_signal": (signal := early_signal(job.signal, directives)),
        "has_traps": (traps := bool(signal) and any("trap " in text for _, text in scripts_of(job))),
        "runner_words": count_runner_words(job) if traps and signal != "TERM" else 0,
        "launch": [*rendering.launch, *container_words(site, job, rendering.run_directory)],
        "group_reads": group_may_read(),
        "in_container": uses_container(job),
        "launcher": site.launcher.name.value if rendering.launch else "none",
        "program": rendering.program,
        "stage_env": (environment_folder := staged_environment(site, job)),
        "each_node": launchers.on_each_node(site, job) if environment_folder else [],
        "withheld_signals": launcher.withheld_signals,
        "pause_dcgm": [*launchers.on_each_node(site, job), "dcgmi", "profile"] if pauses else [],
        "capture_lead": capture_lead(job.walltime) if profiled else None,
        "rank_variables": launcher.rank_variables,
        "warning": ("", 0)
        if scheduler.sends_signal and job.on_timeout != "resubmit"
        else warning_of(job.signal, job.on_timeout),
        "watches_ranks": watches,
        "beside": any((watches, job.stall_timeout, not job.no_telemetry, records, job.nodes > 1)),
        "profilers_limit": _PROFILERS_SECONDS if profiled else _PROGRAMS_SECONDS,
        "profiled_ranks": profiled,
        "place_conditions": place_conditions(job.profile_ranks) if profiled else {},
        "profiler_command": () if profiler.becomes_program else command,
        "program_prefix": command if profiler.becomes_program else (),
        "profiler_flags": tuple(word for word in flags if isinstance(word, str)),
        "versioned_flags": [word for word in flags if isinstance(word, Versioned)],
        "perf_flags": [word for word in flags if isinstance(word, PerfEvents)],
        "node_flags": [word for word in flags if isinstance(word, OnNode)],
        "finds_mpi": any(isinstance(word, OnNode) and "mpi_is" in word.test for word in flags),
        "profiler_time_limit": profiler.time_limit(target, job.profiler_options),
        "profiler_window": profiler.window(target, job.profiler_options),
        "profiler_suffix": profiler.suffix_of(job.profiler_options),
        "profiler_environment": profiler.environment(target, job.profiler_options),
        "profiler_afterwards": [_with_tool_paths(words, tools) for words in afterwards],
        "start_up": base.START_UP if start_up else "",
        # A profiler with a start-up module of its own has it on the ranks that it profiles.
        "hook": base.START_UP if hook and hook.items() <= {**hook, **start_up}.items() else "",
    }
    # A template of the user's, or of another package, may be made from that of any scheduler.
    foreign = rendering.template is not None or scheduler.name not in BUILT_IN
    for source in (*(map(find_scheduler, BUILT_IN) if foreign else ()), scheduler):
        values |= source.template_values(site, job, rendering)
    script = rendering.template.name if rendering.template else scheduler.template
    names = {JOB_SCRIPT: script, WRAPPER: "rank/wrapper.sh.j2"}
    names |= {f"{base.START_UP}/hpcprof_trap.bash": "rank/trap.bash.j2"} if signal else {}
    texts = {name: _render(environment, template, values) for name, template in names.items()}
    texts[JOB_SCRIPT] = scheduler.revised(texts[JOB_SCRIPT])
    texts |= {f"{base.START_UP}/{path}": text for path, text in {**hook, **start_up}.items()}
    if values["beside"]:
        modules = ("beside", "failures", "program_words", "stalls", "telemetry")
        texts |= _node_modules("__init__.py", *(f"{name}.py" for name in modules), "program_words.txt")
        texts[f"{NODE}/__main__.py"] = "from hpcprof_node.beside import main\n\nmain()\n"
    if values["finds_mpi"] or values.get("mpi_trial"):
        texts[f"{base.START_UP}/{base.PROGRAM_WORDS}"] = module_source(program_words)
        table = Path(program_words.__file__).with_suffix(".txt")
        texts[f"{base.START_UP}/{Path(base.PROGRAM_WORDS).stem}.txt"] = table.read_text("utf-8")
    if job.notify:
        texts |= _node_modules("notify.py")
    if environment_folder:
        texts[f"{base.START_UP}/hpcprof_stage.py"] = module_source(stage_environment)
    for file in scheduler.further_files(site, job, run_id, texts):
        texts[file.name] = _render(environment, file.template, {**values, **file.values})
    return texts


def _node_modules(*names: str) -> dict[str, str]:
    folder = Path(node.__file__).parent
    return {f"{NODE}/hpcprof_node/{name}": (folder / name).read_text("utf-8") for name in names}


def hook_modules(*, has_pulse: bool, notes_exceptions: bool, keeps_memory: bool = False) -> dict[str, str]:
    """Return the modules that Python loads first on each rank, by path in `START_UP`.

    They note the steps of the rank and evidence if the run stalls (``has_pulse``), note the uncaught
    exception that ends a rank and let it end an MPI program (``notes_exceptions``), and take snapshots of the
    memory of PyTorch's GPUs (``keeps_memory``).
    """
    files: dict[str, ModuleType] = {}
    if has_pulse:
        files |= {
            base.PULSE: pulse,
            "hpcprof_step_lines.py": step_lines,
            "hpcprof_on_request.py": on_request,
            "hpcprof_recording.py": recording,
        }
    if keeps_memory:
        files |= {"hpcprof_memory_history.py": memory_history}
    if notes_exceptions:
        files |= {"hpcprof_uncaught.py": uncaught}
    texts = {name: module_source(module) for name, module in files.items()}
    return texts | start_up_modules() if texts else {}


def _with_devices_of_ranks(site: Site, job: Job, scheduler: Scheduler) -> Site:
    """Return the site with the devices of each rank: as many of ``affinity.devices`` as the user asks for.

    The devices are those of a whole node. If a job has fewer GPUs, and the scheduler shows it no others,
    their numbers are unknown: the variable is then left as the scheduler sets it.
    """
    devices, ranks, count = site.affinity.devices, job.ranks_per_node, job.gpus_per_rank
    if job.workers or any(GPU_SETTING in scheduler.settings(argument) for argument in job.scheduler_args):
        # Workers choose a GPU by LOCAL_RANK among all of the node; the numbers of others are the scheduler's.
        devices = []
    elif gpus_are_shared(site, job):
        # Neighbouring ranks share a device.
        devices = [devices[rank * len(devices) // ranks] for rank in range(ranks if devices else 0)]
    elif count is not None:
        whole = gpus_per_node(job) >= (site.node.gpus or len(devices))
        remaining = devices if count and (whole or not scheduler.masks_gpus) else []
        devices = [
            ",".join(remaining[i : i + count]) for i in range(0, len(remaining) - count + 1, count or 1)
        ]
    affinity = msgspec.structs.replace(site.affinity, devices=devices)
    return msgspec.structs.replace(site, affinity=affinity)


def _with_tool_paths(words: tuple[str, ...], tools: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command in which programs are replaced by their paths in ``tools``, if there are any."""
    return tuple(tools.get(word, word) for word in words)


def render_text(name: str, values: dict[str, Any], template: Path | None = None) -> str:
    """Return the text of one template; the folder of ``template`` is searched first."""
    return _render(template_environment(template), name, {"version": __version__, **values})


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of templates, in which a site has the keys of its scheduler beside its own."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an attribute; a template may be made from that of any scheduler and name its keys."""
        if isinstance(obj, Site) and attribute not in Site.__struct_fields__:
            for scheduler in map(find_scheduler, dict.fromkeys([*BUILT_IN, obj.scheduler])):
                if attribute in scheduler.keys.__struct_fields__:
                    return getattr(scheduler.keys_of(obj), attribute)
        return super().getattr(obj, attribute)


def template_environment(
    template: Path | None, scheduler: Scheduler | None = None
) -> ImmutableSandboxedEnvironment:
    """Return the environment of templates; the folder of ``template`` is searched first."""
    folders = [*([template.parent] if template else []), *template_path()]
    if scheduler is not None:
        # After the user's folders, whose templates replace those of the package.
        folders[-1:-1] = scheduler.template_folders
    environment = _Environment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in folders]),
        undefined=StrictUndefined,
        bytecode_cache=_COMPILED_TEMPLATES,
        autoescape=False,  # shell scripts: every value goes through the quote filter
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        quote=shlex.quote,
        expanded=expanded,
        argv=shlex.join,
        launch_argv=lambda words: _argv(words, _LAUNCH_VARIABLES),
        program_argv=_program_argv,
        profiler_argv=lambda words: _argv(words, _PROFILER_VARIABLES),
        # A line break must not end a comment of the shell.
        comment=lambda text: text.replace("\r", "\\r").replace("\n", "\\n"),
        directive=directive_value,
        walltime=format_walltime,
        **{"directive_path": directive_value, **(scheduler.template_filters if scheduler else {})},
    )
    return environment


def _render(environment: ImmutableSandboxedEnvironment, name: str, values: dict[str, Any]) -> str:
    try:
        return environment.get_template(name).render(values)
    except RecursionError:
        inheritance(environment, name)
        raise UsageError(f"template {name}: its includes or macros call each other endlessly.") from None
    except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        where, line = getattr(error, "filename", None), getattr(error, "lineno", None)
        if not line:
            where, line = _template_position(error)
        where = where or name
        message = str(getattr(error, "message", None) or error).rstrip(".")
        message = re.sub(r"'(?:\w+\.)*(\w+) object'", r"\1", message)
        raise UsageError(f"template {where}{f', line {line}' if line else ''}: {message}.") from None


def _template_position(error: Exception) -> tuple[str, int | None]:
    """Return the file and the line of the innermost template in an error's traceback."""
    place: tuple[str, int | None] = "", None
    for frame, line in walk_tb(error.__traceback__):
        # Jinja gives the frames of templates the files and the lines of their sources.
        if frame.f_code.co_filename.endswith(".j2"):
            place = frame.f_code.co_filename, line
    return place


def _argv(words: Sequence[str], places: Mapping[str, str]) -> str:
    """Quote the words of a command, and replace placeholders by the script's variables."""
    place = re.compile(f"({'|'.join(map(re.escape, places))})")
    parts = ([part for part in place.split(word) if part] or [""] for word in words)
    return " ".join("".join(places.get(part) or shlex.quote(part) for part in word) for word in parts)


def _program_argv(words: Sequence[str], environment: str, directory: str) -> str:
    """Quote the words of a program; programs of a staged environment are those on the node."""

    def quoted(word: str) -> str:
        name = os.path.normpath(f"{directory}/{word}" if word[:1] != "/" else word)
        inside = environment and "/" in word and name.startswith(f"{environment}/bin/")
        return f'"$environment"{shlex.quote(name[len(environment) :])}' if inside else shlex.quote(word)

    return " ".join(map(quoted, words))
