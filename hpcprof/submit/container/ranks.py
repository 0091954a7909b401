"""Ranks in containers: the words between a launcher and the program of each rank.

The container sees the run, the working directory and TMPDIR at their own paths, so that the wrapper in it
works as it does outside. A profiler that the image lacks is the node's, mounted at `PROFILER_FOLDER`.
"""

import shlex
from pathlib import Path

from hpcprof.common.errors import UsageError
from hpcprof.runs.job import Job
from hpcprof.submit.profilers import find_profiler
from hpcprof.submit.sites.environment import default_variables
from hpcprof.submit.sites.model import LauncherName, Site, Vendor

ENGINE, IMAGE, MOUNTS, NAME = "container", "container_image", "container_mounts", "container_name"
ARGUMENTS = "container_args"
"""The options of a site that describe the container of the ranks."""

PROFILER_FOLDER = "/opt/hpcprof-profiler"
"""The folder of the node's profiler in a container."""

PROFILER_ROOT = "{profiler}"
"""Placeholder in an argv for the folder of the profiler on the node, which the script determines."""

PYXIS, PODMAN_HPC = "pyxis", "podman-hpc"
_GPUS = {Vendor.NVIDIA: ["--nv"], Vendor.AMD: ["--rocm"], Vendor.INTEL: []}


def uses_container(job: Job) -> bool:
    """Return whether the ranks of a job run in a container."""
    return bool(job.options.get(IMAGE))


def check_container(site: Site, job: Job) -> None:
    """Check that the options about a container fit each other, the launcher and the job's paths."""
    if not uses_container(job):
        if keys := [key for key in (MOUNTS, NAME, ARGUMENTS) if job.options.get(key)]:
            sentence = f"-o {keys[0]} needs a container: give -o {IMAGE}=IMAGE."
            raise UsageError(sentence, f"options.{keys[0]}")
        return
    engine, launcher = job.options[ENGINE], site.launcher.name
    if engine == PYXIS and launcher is not LauncherName.SRUN:
        reason = f"the launcher of site {site.name} is {launcher.value}"
        raise UsageError(f"-o {ENGINE}={PYXIS}: Pyxis is a part of srun; {reason}.", f"options.{ENGINE}")
    if job.options.get(NAME) and engine != PYXIS:
        raise UsageError(f"-o {NAME}: {engine} keeps no container by name; leave it out.", f"options.{NAME}")
    if job.stage_env:
        sentence = "--stage-env: the image has the environment of the ranks; leave it out."
        raise UsageError(sentence, "stage_env")


def container_words(site: Site, job: Job, run_directory: Path) -> list[str]:
    """Return the words that follow the launcher's and start the container; none without one."""
    if not uses_container(job):
        return []
    engine, image = job.options[ENGINE], job.options[IMAGE]
    folders = dict.fromkeys(filter(None, [str(run_directory), job.directory, site.tmpdir]))
    for folder in folders:
        if any(mark in folder for mark in ",:"):
            raise UsageError(f"{folder} cannot be mounted: its name has a comma or a colon.")
    mounts = [f"{folder}:{folder}" for folder in folders]
    if job.profiled_ranks and find_profiler(job.profiler).command:
        mounts.append(f"{PROFILER_ROOT}:{PROFILER_FOLDER}")
    user_mounts = [mount for mount in job.options.get(MOUNTS, "").split(",") if mount]
    mounts += [mount if ":" in mount else f"{mount}:{mount}" for mount in user_mounts]
    further = shlex.split(job.options.get(ARGUMENTS, ""))
    if engine == PYXIS:
        name = job.options.get(NAME)
        return [
            f"--container-image={image}",
            f"--container-mounts={','.join(mounts)}",
            f"--container-workdir={job.directory}",
            *([f"--container-name={name}"] if name else []),
            *further,
        ]
    if engine != PODMAN_HPC:
        options = [*_GPUS[site.node.vendor], "--bind", ",".join(mounts), "--pwd", job.directory, *further]
        return [engine, "exec", *options, image]
    # It passes on what schedulers and launchers set alone.
    names = {**site.environment, **default_variables(site, job)}
    options = [f"--volume={mount}" for mount in mounts] + [f"--env={name}" for name in names]
    return [engine, "shared-run", "--gpu", *options, f"--workdir={job.directory}", *further, image]
