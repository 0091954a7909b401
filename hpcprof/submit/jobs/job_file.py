"""The job file: the options of ``hpcprof submit`` in YAML, under the same names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpcprof.common.decode import decode
from hpcprof.common.errors import UsageError
from hpcprof.common.yaml_file import read_mapping
from hpcprof.submit.profilers import NONE
from hpcprof.submit.profilers.torch_profiler import TORCH

_GIGL_DEFAULTS = {"wait": "5", "warmup": "2", "active": "2", "repeat": "1", "profile_memory": "true"}


class ProfilerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The ``profilerConfig`` of GiGL's trainers: the PyTorch profiler with that project's defaults."""

    should_enable_profiler: bool = False
    """True if the PyTorch profiler runs."""
    profiler_log_dir: str = ""
    """A folder that receives a copy of the traces; the run keeps its own."""
    profiler_args: dict[str, str | int | bool] = {}
    """Options of the torch profiler; wait 5, warmup 2, active 2, repeat 1, profile_memory true by default."""


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keys of a job file; all are optional."""

    site: str | None = None
    """The site to submit to."""
    workload: str | None = None
    """A built-in workload."""
    program: list[str] | None = None
    """The command of each rank, or the arguments of the workload."""
    nodes: int | None = None
    """The number of nodes."""
    ranks_per_node: int | None = None
    """The number of ranks on each node."""
    profiler: str | None = None
    """none, nsys, ncu, torch or rocprofv3, or auto for the site's."""
    profile_ranks: str | None = None
    """The ranks that run under the profiler: all, none, 0,4-7, local=0, nodes=0-1, every=16."""
    profiler_options: dict[str, str] = {}
    """Options of the profiler."""
    profilerConfig: ProfilerConfig | None = None
    """The PyTorch profiler in the form of GiGL's configuration, instead of profiler and profiler_options."""
    capture_steps: str | None = None
    """The measured steps to profile: 10-12, or 10-12,20-22."""
    stacks: bool | None = None
    """True if the profiler is to record call stacks."""
    queue: str | None = None
    """The queue or partition."""
    account: str | None = None
    """The account or project that is charged."""
    cpus_per_rank: int | None = None
    """The number of CPUs for each rank."""
    gpus_per_rank: int | None = None
    """The number of GPUs for each rank."""
    mem: str | None = None
    """The memory on each node: 64G."""
    constraint: str | None = None
    """The kind of nodes: a constraint of Slurm, a resource of PBS, or labels of Kubernetes."""
    scheduler_args: list[str] = []
    """Options of the scheduler that are passed on: --exclude=n3."""
    walltime: str | None = None
    """The time limit of the job: 30m, 1h30m, 01:30:00."""
    job_name: str | None = None
    """The name of the job."""
    options: dict[str, str] = {}
    """Options of the site."""
    after: list[str] = []
    """Runs that must have succeeded before the job starts."""


def load_job_file(path: Path) -> JobFile:
    """Load a job file.

    Raises
    ------
    UsageError
        If the file cannot be read, or a value is wrong; the message names file, key and value.
    """
    job = _with_profiler(decode(JobFile, read_mapping(path, "job file"), str(path)), path)
    for key, least in (("nodes", 1), ("ranks_per_node", 1), ("cpus_per_rank", 1), ("gpus_per_rank", 0)):
        value = getattr(job, key)
        if value is not None and value < least:
            raise UsageError(f"{path}: {key} = {value}: write a whole number from {least}.")
    return job


def _with_profiler(job: JobFile, path: Path) -> JobFile:
    """Replace ``profilerConfig`` by the keys that all profilers share."""
    config = job.profilerConfig
    if config is None:
        return job
    if job.profiler is not None or job.profiler_options:
        raise UsageError(f"{path}: profilerConfig replaces profiler and profiler_options: give one of them.")
    if not config.should_enable_profiler:
        return msgspec.structs.replace(job, profilerConfig=None, profiler=NONE.name)
    # YAML has booleans and numbers where options are text.
    given = {key: str(value) for key, value in config.profiler_args.items()}
    given = {key: text.lower() if text in ("True", "False") else text for key, text in given.items()}
    options = {**_GIGL_DEFAULTS, **given, **({"log_dir": log} if (log := config.profiler_log_dir) else {})}
    return msgspec.structs.replace(job, profilerConfig=None, profiler=TORCH.name, profiler_options=options)


def dump_job_file(job: JobFile) -> str:
    """Return the text of a job file; fields that are not given are left out."""
    return msgspec.yaml.encode(job).decode()
