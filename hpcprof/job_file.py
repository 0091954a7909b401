"""A job as a file: the options of ``hpcprof submit`` under the same names, in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hpcprof.decode import decode
from hpcprof.errors import UsageError
from hpcprof.yaml_file import read_mapping


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a job file can say; what it leaves out is as without it.

    ``program`` is the command, or the arguments of ``workload``.
    """

    site: str | None = None
    workload: str | None = None
    program: list[str] | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    profiler: str | None = None
    profile_ranks: str | None = None
    profiler_options: dict[str, str] = {}
    capture_steps: str | None = None
    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    job_name: str | None = None
    options: dict[str, str] = {}
    after: list[str] = []


def load_job_file(path: Path) -> JobFile:
    """Load a job file.

    Raises
    ------
    UsageError
        Naming the file, the key and its value.
    """
    job = decode(JobFile, read_mapping(path, "job file"), str(path))
    for key in ("nodes", "ranks_per_node"):
        value = getattr(job, key)
        if value is not None and value < 1:
            raise UsageError(f"{path}: {key} = {value}: write a whole number from 1.")
    return job


def dump_job_file(values: dict[str, Any]) -> str:
    """Return a job file with these values; those that are empty are left out."""
    job = JobFile(**{key: value for key, value in values.items() if value})
    return msgspec.yaml.encode(job).decode()
