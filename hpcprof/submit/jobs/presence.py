"""Programs and profilers that are not there, found before a job waits in a queue for them."""

import difflib
import json
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.node.program_words import PYTHON, SHELL, find_mpi, library_beside
from hpcprof.runs.job import Job
from hpcprof.runs.job_name import JAX_MODULES, OTHER_PYTHON, imported_modules, runs_python, script_of
from hpcprof.submit.container.ranks import uses_container
from hpcprof.submit.jobs.checks import AUTO
from hpcprof.submit.jobs.workers import scripts_of
from hpcprof.submit.linked_libraries import is_compiled, is_executable, lacks_word, program_file
from hpcprof.submit.profilers import FOR_UNCHANGED_PROGRAMS, find_profiler
from hpcprof.submit.profilers.base import NONE
from hpcprof.submit.profilers.nsys import GPU_DEVICES, NSYS
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.environment import (
    active_environment,
    active_prefix,
    added_folders,
    staged_environment,
)
from hpcprof.submit.sites.model import Site
from hpcprof.workloads import catalogue

_SETUP_ADVICE = "; if only the nodes have it, name its folder under setup in the site"

_NODE_LOCAL_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Folders that no file system of a cluster usually shares."""

_RUNNERS = {".py": "python", ".sh": "bash", ".ipynb": "jupyter execute"}
"""The command that runs a file, by its suffix."""


def check_present(site: Site, job: Job) -> None:
    """Check that the program and the profiler of a job exist, as far as this machine can tell.

    Nothing is checked for a site that is another machine, nor for jobs that run in an image. Additions to the
    PATH by modules and set-up lines are unknown, unless these activate a virtual environment or name a
    folder.
    """
    if not _is_here(site) or uses_container(job):
        return
    complete, path = _search_path(site)
    if staged := staged_environment(site, job):
        path = f"{staged}/bin{os.pathsep}{path}"
    setup_advice = "" if find_scheduler(site.scheduler).runs_here else _SETUP_ADVICE
    tools = catalogue.find(job.workload).tools(job.arguments) if job.workload else {}
    profiler = find_profiler(job.profiler)
    tool = profiler.needs or next(iter(profiler.command), "")
    word = tools.get(tool, tool)
    if job.workload is None:
        _check_program(job, path if complete else None, setup_advice)
        _check_built_in(job)
    built_in = profiler.in_program and _has_built_in(job, profiler.in_program)
    program = program_file(job.arguments, job.directory)
    if job.profiled_ranks and not profiler.starts_scripts and program:
        kind, advice = "", f"or write {_by_its_file(program)}"
        if program.resolve().name != program.name:
            kind = f"a link to {program.resolve().name}"
        elif not is_executable(program):
            kind, advice = "a script", "or name the program that it runs"
        if kind:
            sentence = f"it cannot start {program.name}, {kind}; use nsys or scorep-preload, {advice}"
            raise UsageError(f"--profiler {job.profiler}: {sentence}.")
    if job.profiled_ranks and word and complete and not built_in and shutil.which(word, path=path) is None:
        advice = f"install it, or load its module{setup_advice}"
        raise UsageError(f"--profiler {job.profiler}: {word} is not on the PATH; {advice}.")
    script = script_of(job.arguments) if job.workload is None and added_folders(site) is not None else ""
    if script and not Path(job.directory, script).exists():
        raise UsageError(f"{script}: there is no such file in {job.directory}.")


def _by_its_file(program: Path) -> str:
    """Return how to start the file behind a link, with the packages of its virtual environment."""
    file, environment = program.resolve(), program.parent.parent
    packages = environment / "lib" / file.name / "site-packages"
    variable = f", and PYTHONPATH={packages} before hpcprof" * (environment / "pyvenv.cfg").is_file()
    return f"{file} instead of {program.name}{variable}"


def profiler_at(
    site: Site, name: str, able: Callable[[], Collection[str]], program: Sequence[str] = ()
) -> str:
    """Return the profiler that ``name`` means at a site.

    ``auto`` is that of its file, else the first of `FOR_UNCHANGED_PROGRAMS` on the PATH of this machine that
    takes the ``program``; EZTrace takes no script. A script that imports JAX or PyTorch has the profiler of
    that where nsys is absent or has no GPU to record, and only nsys records a program here that loads no MPI.
    ``able`` returns the profilers that work at the site; looking for those of other packages takes time.
    """
    if name != AUTO:
        return name
    if site.profiler:
        return site.profiler
    other_names = [other for other in able() if other != NONE.name]
    if not _is_here(site):
        advice = f"write profiler in its site file, or give --profiler {' or '.join(other_names)}"
        sentence = f"--profiler auto: site {site.name} names no profiler; {advice}."
        raise UsageError(sentence, "profiler", "site")
    in_python = runs_python(program)
    file = program_file(program, ".")
    is_script = in_python or (file and (SHELL.fullmatch(file.name) or not is_executable(file)))
    fitting = [tool for tool in FOR_UNCHANGED_PROGRAMS if tool.starts_scripts or not is_script]
    tools = {tool.name: tool.needs or tool.command[0] for tool in fitting if tool.name in other_names}
    _, path = _search_path(site)
    present = next((candidate for candidate, tool in tools.items() if shutil.which(tool, path=path)), None)
    modules = imported_modules(program, ".")
    ranks_are_here = find_scheduler(site.scheduler).runs_here
    has_gpu = not ranks_are_here or any(map(os.path.exists, GPU_DEVICES))
    if present != NSYS.name or not (has_gpu or "mpi4py" in modules):
        built_in = "jax" if modules & JAX_MODULES else "torch" if "torch" in modules else ""
        if built_in in other_names:
            return built_in
    if present not in (None, NSYS.name) and _lacks_mpi(program, path):
        raise UsageError(
            f"--profiler auto: {present} records MPI, and {program[0]} loads no MPI library; install nsys, "
            "or run it without a profiler, which samples processors and memory.",
            *("profiler", "site"),
        )
    if present is None and modules and "mpi4py" not in modules:
        sentence = (
            f"{script_of(program)} imports neither mpi4py nor PyTorch nor JAX; --profiler {OTHER_PYTHON}"
        )
        raise UsageError(f"--profiler auto: {sentence}.", "profiler", "site")
    if present is None:
        advice = ""
        if file and is_script and shutil.which("eztrace", path=path):
            by_file = f"link: write --profiler eztrace, and {_by_its_file(file)}"
            advice = (
                f". EZTrace starts no {by_file if in_python else 'script: name the program that it runs'}"
            )
        raise UsageError(
            f"--profiler auto: none of {', '.join(tools.values())} is on the PATH; load a module (module "
            f"load scorep), install one ({'' if is_script else 'apt-get install eztrace, '}spack install "
            "scorep), or write profiler in the site file"
            f"{advice}{'. PyTorch has its own: --profiler torch' if in_python else ''}.",
            *("profiler", "site"),
        )
    return present


def _lacks_mpi(program: Sequence[str], path: str) -> bool:
    """Return whether a program that is here loads no library of MPI, as far as its command shows."""
    if program_file(program, ".") is None or find_mpi([*program], ".") is not None:
        return False
    # A script may start any program; that of the launcher's MPI is likely.
    return is_compiled(program, ".") or not library_beside(shutil.which("mpiexec", path=path) or "")


def _is_here(site: Site) -> bool:
    scheduler = find_scheduler(site.scheduler)
    submits_here = scheduler.runs_here or bool(scheduler.commands and scheduler.installed)
    return submits_here and not (site.host or scheduler.runs_in_image)


def _search_path(site: Site) -> tuple[bool, str]:
    """Return whether all of the PATH of a site's jobs is known, and what is known of it."""
    folders = added_folders(site)
    path = os.pathsep.join([*(folders or []), site.environment.get("PATH") or os.environ.get("PATH", "")])
    return folders is not None and not site.modules, path


def borrowed_program(site: Site, job: Job) -> str:
    """Return a sentence without a full stop if only this shell's environment has the program of a job."""
    scheduler = find_scheduler(site.scheduler)
    host = site.host or site.modules or site.setup or "PATH" in site.environment
    if scheduler.passes_environment or host or job.workload is not None:
        return ""
    program, prefix = job.arguments[0], active_prefix(os.environ)
    path_of_program = "" if "/" in program else shutil.which(program) or ""
    if not prefix or not path_of_program.startswith(f"{prefix}/"):
        return ""
    lines = json.dumps(active_environment(os.environ)["setup"])
    return (
        f"{program} is that of {prefix}, and {scheduler.title} passes no environment on: for a job "
        f"to find it, add to the site: setup: {lines}"
    )


def unshared_folder(site: Site, runs_directory: Path) -> str:
    """Return a sentence without a full stop if each node has its own folder of runs, as below ``/tmp``."""
    if not _is_here(site) or find_scheduler(site.scheduler).runs_here:
        return ""
    folder = runs_directory.resolve()
    local = next((name for name in _NODE_LOCAL_FOLDERS if folder.is_relative_to(name)), "")
    advice = "give --runs-dir a folder that the nodes share"
    return f"most nodes have a {local} of their own, and would not see the run: {advice}" if local else ""


def _check_program(job: Job, path: str | None, setup_advice: str) -> None:
    program = job.arguments[0]
    file = Path(job.directory, program)
    if " " in program and len(job.arguments) == 1 and not file.exists():
        raise UsageError(f"{program!r} names one file: leave out its quotes, or write bash -c before it.")
    if "/" in program:
        absolute = Path(program).is_absolute()
        if not file.exists() and not (absolute and setup_advice):
            where = "" if absolute else f" in {job.directory}"
            raise UsageError(f"{program}: there is no such file{where}.")
        if file.is_dir():
            raise UsageError(f"{program} is a folder, and no program.")
        if file.is_file() and not os.access(file, os.X_OK):
            raise UsageError(f"{program} is not executable: chmod +x it, or name what runs it before it.")
        # PK begins a zipped application.
        if file.suffix == ".py" and file.is_file() and file.read_bytes()[:2] not in (b"#!", b"PK"):
            sentence = f"{program} has no first line such as #!/usr/bin/env python3"
            raise UsageError(f"{sentence}, so that a shell would run it: add one, or write python {program}.")
    elif path is not None and shutil.which(program, path=path) is None:
        if file.is_file():
            runner = _RUNNERS.get(file.suffix)
            advice = f"; write ./{program}, or name what runs it"
            advice += f", as in {runner} {program}" if runner else ""
        else:
            matches = difflib.get_close_matches(program, _names_on_path(path), 1, 0.75)
            advice = f" (did you mean {matches[0]}?)" if matches else setup_advice
        raise UsageError(f"{program} is not on the PATH{advice}.")
    for name, text in scripts_of(job):
        if text.partition("\n")[0].endswith("\r"):
            raise UsageError(f"{name} has the line ends of Windows, by which it fails: dos2unix {name}.")


def _check_built_in(job: Job) -> None:
    mark = find_profiler(job.profiler).in_program
    # A script may start an executable that does.
    if job.profiled_ranks and mark and _has_built_in(job, mark) is False:
        build = f"build it again with {mark} before the compiler ({mark} mpicc …)"
        other = "use --profiler auto, which takes programs as they are"
        program = job.arguments[0]
        raise UsageError(f"--profiler {job.profiler}: {program} is not built with it; {build}, or {other}.")


def _has_built_in(job: Job, mark: str) -> bool | None:
    file = program_file(job.arguments, job.directory)
    return None if not file or PYTHON.fullmatch(file.name) else not lacks_word(file, mark)


def _names_on_path(path: str) -> list[str]:
    names: set[str] = set()
    for folder in path.split(os.pathsep):
        with suppress(OSError):
            names.update(os.listdir(folder or "."))  # noqa: PTH208 (names alone, of thousands of files)
    return sorted(names)
