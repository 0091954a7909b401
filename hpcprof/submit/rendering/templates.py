"""Templates: from a site and a job to the texts of the batch script and the rank wrapper."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import Any

from jinja2 import BytecodeCache, ChoiceLoader, FileSystemLoader, StrictUndefined, TemplateError
from jinja2.bccache import Bucket
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hpcprof.common import __version__
from hpcprof.common.errors import UsageError
from hpcprof.common.paths import packaged, user_config
from hpcprof.submit.jobs.job import Job
from hpcprof.submit.jobs.node_request import chunk_resources, chunks, fitted_to_job, rank_devices
from hpcprof.submit.jobs.rank_selection import rank_spans
from hpcprof.submit.jobs.resources import directive_value, job_directives
from hpcprof.submit.jobs.walltime import capture_lead, format_walltime
from hpcprof.submit.launchers import LAUNCHERS, MEETING, on_each_node
from hpcprof.submit.mpi_types import BOTH_JOIN, LIST_TYPES, finds_type, two_ranks
from hpcprof.submit.profilers import (
    FOLDER,
    GPUS,
    NAME,
    OUTPUT,
    SCRATCH,
    SECONDS,
    START_UP,
    PerfEvents,
    Versioned,
    find_profiler,
)
from hpcprof.submit.rendering.inheritance import inheritance
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT, WRAPPER, Rendering, Scheduler
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue, torch_hook, uncaught

# Placeholders in a profiler's arguments for values that only the rank knows, and the wrapper's variables.
_PLACES = {
    OUTPUT: '"$output"',
    SCRATCH: '"$scratch"',
    FOLDER: '"$run_dir"/profiles',
    NAME: '"$name"',
    SECONDS: '"$seconds"',
    GPUS: '"${CUDA_VISIBLE_DEVICES:-$local_rank}"',
}

# How often a rank looks whether another one has failed: less often the more ranks ask the file system.
_WATCH_SECONDS, _WATCHED_RANKS, _LONGEST_WATCH_SECONDS = 2, 500, 20
# How long a failed rank waits for the others to end, with profilers that still write and without.
_PROFILERS_SECONDS, _PROGRAMS_SECONDS = 330, 60


class _Compiled(BytecodeCache):
    """Compiled templates in memory, since a sweep renders the same ones for every run.

    Jinja compares a checksum of the source, so a changed template is compiled again.
    """

    def __init__(self) -> None:
        self._codes: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._codes:
            bucket.bytecode_from_string(self._codes[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


def template_path() -> list[Path]:
    """Return the folders that may hold templates, in the order of preference."""
    return [Path("templates"), user_config() / "templates", packaged("templates")]


def template_files() -> dict[str, Path]:
    """Return the file of each template by name."""
    files: dict[str, Path] = {}
    for folder in template_path():
        for path in sorted(folder.rglob("*.j2")):
            files.setdefault(str(path.relative_to(folder)), path)
    return dict(sorted(files.items()))


def render(site: Site, job: Job, rendering: Rendering) -> dict[str, str]:
    """Return the run's scripts, and what they load, by path in the run.

    Raises
    ------
    UsageError
        If a template is missing, broken, or uses a name that does not exist.
    """
    scheduler = find_scheduler(site.scheduler)
    environment = template_environment(rendering.template, scheduler)
    run_id = rendering.run_directory.name
    job, rendering = scheduler.localize(site, job, rendering)
    profiler = find_profiler(job.profiler)
    profiled = rank_spans(job.profiled_ranks)
    pauses = site.dcgm and profiled and profiler.counters(job.target, job.profiler_options)
    flags = profiler.flags(job.target, job.profiler_options)
    launcher = LAUNCHERS[site.launcher.name]
    start_up = profiler.start_up(job.target) if profiled else {}
    hook = _exception_hook() if job.ranks > 1 else {}
    tools = catalogue.find(job.workload).tools(job.arguments) if job.workload else {}
    values: dict[str, Any] = {
        "site": rank_devices(site, job, scheduler.masks_gpus),
        "job": job,
        "job_name": scheduler.job_name(job.name),
        "version": __version__,
        "run_directory": str(rendering.run_directory),
        "command_line": shlex.join(rendering.command_line),
        "launch": rendering.launch,
        "pause_dcgm": [*on_each_node(site, job), "dcgmi", "profile"] if pauses else [],
        "launcher": site.launcher.name.value if rendering.launch else "none",
        "rank_variables": launcher.rank_variables,
        "watches_ranks": job.ranks > 1 and bool(profiled or not launcher.ends_other_ranks),
        "watch_seconds": min(_WATCH_SECONDS + job.ranks // _WATCHED_RANKS, _LONGEST_WATCH_SECONDS),
        "profilers_limit": _PROFILERS_SECONDS if profiled else _PROGRAMS_SECONDS,
        "directives": job_directives(site, job),
        "chunks": chunks(site, job),
        "chunk": chunk_resources(site, job),
        "program": rendering.program,
        "mpi_trial": _mpi_trial(site, job, rendering.program),
        "profiled_ranks": profiled,
        "capture_lead": capture_lead(job.walltime) if profiled else None,
        "profiler_command": _found(profiler.command, tools),
        "profiler_flags": tuple(word for word in flags if isinstance(word, str)),
        "versioned_flags": [word for word in flags if isinstance(word, Versioned)],
        "perf_flags": [word for word in flags if isinstance(word, PerfEvents)],
        "profiler_time_limit": profiler.time_limit(job.target, job.profiler_options),
        "profiler_suffix": profiler.suffix,
        "start_up": START_UP if start_up else "",
        # A profiler with a start-up module of its own has it on the ranks that it profiles.
        "hook": START_UP if hook and hook.items() <= {**hook, **start_up}.items() else "",
        "profiler_environment": profiler.environment(job.target, job.profiler_options),
        "profiler_afterwards": [
            _found(words, tools) for words in profiler.afterwards(job.target, job.profiler_options)
        ],
    }
    script = rendering.template.name if rendering.template else scheduler.template
    names = {JOB_SCRIPT: script, WRAPPER: "rank/wrapper.sh.j2"}
    texts = {file: _render(environment, template, values) for file, template in names.items()}
    texts |= {f"{START_UP}/{path}": text for path, text in {**hook, **start_up}.items()}
    for further in scheduler.further_files(site, job, run_id, texts):
        texts[further.name] = _render(environment, further.template, {**values, **further.values})
    return texts


def _exception_hook() -> dict[str, str]:
    """Return the modules that end an MPI program after an uncaught exception, by path in `START_UP`."""
    start = Path(torch_hook.__file__).with_name("sitecustomize.py")
    files = {start.name: start, "hpcprof_uncaught.py": Path(uncaught.__file__)}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def _mpi_trial(site: Site, job: Job, program: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the commands by which job.sh finds the MPI type of srun; empty if it need not."""
    if not finds_type(site, job, program):
        return {}
    python = program[0]
    return {
        "list": LIST_TYPES,
        "has_mpi": [python, "-c", "import mpi4py"],
        "start": two_ranks(fitted_to_job(site.launcher.arguments, job), job.nodes),
        "program": [python, "-c", BOTH_JOIN],
    }


def _found(words: tuple[str, ...], tools: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command whose program is replaced by its path in ``tools``, if there is one."""
    return (tools.get(words[0], words[0]), *words[1:]) if words else words


def render_text(name: str, values: dict[str, Any], template: Path | None = None) -> str:
    """Return the text of one template; the folder of ``template`` is searched first.

    Raises
    ------
    UsageError
        If the template is missing, broken, or uses a name that does not exist.
    """
    return _render(template_environment(template), name, {"version": __version__, **values})


def template_environment(
    template: Path | None, scheduler: Scheduler | None = None
) -> ImmutableSandboxedEnvironment:
    """Return the environment of templates; the folder of ``template`` is searched first."""
    folders = [*([template.parent] if template else []), *template_path()]
    if scheduler is not None:
        # After the user's folders, whose templates replace those of the package.
        folders[-1:-1] = scheduler.template_folders
    environment = ImmutableSandboxedEnvironment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in folders]),
        undefined=StrictUndefined,
        bytecode_cache=_COMPILED,
        autoescape=False,  # shell scripts: every value goes through the quote filter
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        quote=shlex.quote,
        argv=shlex.join,
        launch_argv=lambda words: _argv(words, {MEETING: '"$meeting"'}),
        profiler_argv=lambda words: _argv(words, _PLACES),
        comment=_comment,
        directive=directive_value,
        walltime=format_walltime,
        **(scheduler.template_filters if scheduler else {}),
    )
    return environment


def _render(environment: ImmutableSandboxedEnvironment, name: str, values: dict[str, Any]) -> str:
    try:
        return environment.get_template(name).render(values)
    except RecursionError:
        inheritance(environment, name)
        raise UsageError(f"template {name}: its includes or macros call each other without end.") from None
    except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        where, line = getattr(error, "filename", None), getattr(error, "lineno", None)
        if not line:
            where, line = _place(error)
        where = where or name
        said = str(getattr(error, "message", None) or error).rstrip(".")
        raise UsageError(f"template {where}{f', line {line}' if line else ''}: {said}.") from None


def _place(error: Exception) -> tuple[str, int | None]:
    """Return the file and the line of the innermost template in an error's traceback."""
    found: tuple[str, int | None] = "", None
    for frame, line in walk_tb(error.__traceback__):
        # Jinja gives the frames of templates the files and the lines of their sources.
        if frame.f_code.co_filename.endswith(".j2"):
            found = frame.f_code.co_filename, line
    return found


def _argv(words: Sequence[str], places: Mapping[str, str]) -> str:
    """Quote the words of a command, and replace placeholders by the script's variables."""
    place = re.compile(f"({'|'.join(map(re.escape, places))})")
    parts = ([part for part in place.split(word) if part] or [""] for word in words)
    return " ".join("".join(places.get(part) or shlex.quote(part) for part in word) for word in parts)


def _comment(text: str) -> str:
    """Return text for a shell comment, which a line break must not end."""
    return text.replace("\r", "\\r").replace("\n", "\\n")
