"""The environment that is active in this shell, and what a site file says to have it in a job."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath

from hpcprof.common.errors import UsageError
from hpcprof.node.stage_environment import is_environment
from hpcprof.runs.job import Job
from hpcprof.runs.job_name import runs_python
from hpcprof.submit.linked_libraries import program_file
from hpcprof.submit.sites.model import LauncherName, Site

ACTIVE = "active"
"""The value of ``--stage-env`` for the environment of the program, or the active one."""
_BINDINGS = ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")
_RUNNERS = ("conda", "mamba", "micromamba", "pixi", "uv")

_ACTIVATE = re.compile(r"(?:source|\.)\s+(?P<folder>[^\s$`]+/bin)/activate")
_ADDED_PATH = re.compile(r"export PATH=(?P<folder>[^\s$`:\"']+):\"?\$\{?PATH\}?\"?")


def added_folders(site: Site) -> list[str] | None:
    """Return the folders that the set-up lines of a site put first on the PATH; None for any other line."""
    folders: list[str] = []
    for line in site.setup:
        match = _ACTIVATE.fullmatch(line.strip()) or _ADDED_PATH.fullmatch(line.strip())
        if match is None:
            return None
        folders.insert(0, match["folder"])
    return folders


def default_variables(site: Site, job: Job) -> dict[str, str]:
    """Return the variables that a job has unless its shell or a module sets them."""
    variables = dict(site.environment_defaults)
    # Open MPI (4 and 5) binds each of up to two ranks to one core, with all of its threads.
    bound_rank_counts = {LauncherName.MPIEXEC: (2,), LauncherName.OPENMPI: (1, 2)}.get(site.launcher.name, ())
    if job.ranks in bound_rank_counts and not job.cpus_per_rank:
        variables |= dict.fromkeys(_BINDINGS, "none")
    for name, option in site.options.items():
        if job.options.get(name):
            variables |= option.environment
    in_python = job.workload is not None or runs_python(job.arguments)
    return variables | (site.python_defaults if in_python else {})


def staged_environment(site: Site, job: Job) -> str:
    """Return the folder of the environment that a job stages, once checked; empty for none."""
    if not job.stage_env:
        return ""
    if job.arguments and PurePath(job.arguments[0]).name in _RUNNERS and job.workload is None:
        reason = f"{job.arguments[0]} starts the environment where it is"
        raise UsageError(f"--stage-env: {reason}: leave its words out of the command.", "stage_env")
    if site.host and job.stage_env == ACTIVE:
        raise UsageError(f"--stage-env: name the environment's folder on {site.host}.", "stage_env")
    if site.host:
        return job.stage_env
    program = None if job.workload else program_file(job.arguments, job.directory)
    prefix = str(program.parent.parent) if program and is_environment(str(program.parent.parent)) else ""
    chosen = (prefix or active_prefix(os.environ)) if job.stage_env == ACTIVE else job.stage_env
    folder = os.path.normpath(Path(job.directory, chosen)) if chosen else ""
    if not folder or not is_environment(folder):
        lacking = f"{folder or 'the program'} has no environment of conda, pixi, venv or uv"
        raise UsageError(f"--stage-env: {lacking}; name its folder.", "stage_env")
    return folder


def active_prefix(environment: Mapping[str, str]) -> str:
    """Return the folder of the active virtual or conda environment, or of hpcprof's own; empty for none."""
    prefix = sys.prefix if sys.prefix != sys.base_prefix else ""
    return environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX") or prefix


def active_environment(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the keys of a site by which a job has the modules and the environment that are active here."""
    modules = [name for name in environment.get("LOADEDMODULES", "").split(":") if name]
    prefix = active_prefix(environment)
    folder = f"{prefix}/bin"
    line = f'export PATH={shlex.quote(folder)}:"$PATH"'
    if Path(folder, "activate").is_file():
        line = f"source {shlex.quote(f'{folder}/activate')}"
    setup = [line] if prefix else []
    return {key: value for key, value in (("modules", modules), ("setup", setup)) if value}


_VARIABLE = re.compile(r"(\$\{?[A-Za-z_][A-Za-z0-9_]*\}?)")


def expanded(path: str) -> str:
    """Return a path as a word of the shell, which replaces ``$NAME`` and ``${NAME}`` on the node."""
    parts = filter(None, _VARIABLE.split(path))
    return "".join(f'"{part}"' if _VARIABLE.fullmatch(part) else shlex.quote(part) for part in parts)


def has_other_expansions(path: str) -> bool:
    """Return whether a path has a ``$`` that `expanded` does not leave to the shell."""
    return "$" in _VARIABLE.sub("", path) or "`" in path
