"""The number of processes that share the tasks, and the tasks that each takes at a time.

The unit of work is the start of a worker: a Python process that imports what the tasks need. Both are work of
one core, so that their ratio hardly depends on the machine.
"""

import os
from collections.abc import Sequence
from math import ceil
from pathlib import Path

_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_MIN_GAIN, _MIN_GAIN_OF_STARTED = 0.7, 0.02
"""Minimum time that workers have to save, in starts of a worker: before and after they have started.

A worker that starts slows this process down, and both wait for the last task.
"""

_CHUNK_SHARE = 1 / 4
"""Share of a worker's remaining work in a chunk: the last chunks are small, so that all end together."""

_MAX_CHUNK_TASKS = 32
"""Maximum tasks of a chunk, which is one message; results come back one by one, so more save nothing."""


def one_start(task: object) -> float:
    """Return the work of any task whose work is unknown."""
    return 1.0


def worker_count(work: Sequence[float], jobs: int, started: bool = False) -> int:
    """Return the number of workers that share the tasks; 0 if this process is about as quick alone.

    ``work`` is the work of each task, in starts of a worker; ``jobs`` is the maximum number of workers, which
    may have ``started``.
    """
    workers = min(jobs, len(work))
    if workers < 2:
        return 0
    alone = sum(work)
    together = max(alone / workers, max(work))
    least = _MIN_GAIN_OF_STARTED if started else _MIN_GAIN
    return workers if alone - together > least else 0


def chunks(work: Sequence[float], workers: int) -> list[list[int]]:
    """Divide the numbers of the tasks into chunks, most work first; a large task is a chunk of its own."""
    order = sorted(range(len(work)), key=lambda task: -work[task])
    groups: list[list[int]] = []
    remaining, share, most, filled = sum(work), 0.0, 0, 0.0
    for position, task in enumerate(order):
        if not groups or filled + work[task] > share or len(groups[-1]) == most:
            groups.append([])
            share, filled = remaining / workers * _CHUNK_SHARE, 0.0
            most = min(_MAX_CHUNK_TASKS, ceil((len(work) - position) / workers * _CHUNK_SHARE))
        groups[-1].append(task)
        filled += work[task]
        remaining -= work[task]
    return groups


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, by its affinity and its control group's quota."""
    return max(1, min(len(os.sched_getaffinity(0)), int(_quota(_MEMBERSHIP, _CGROUPS))))


def _quota(membership: Path, root: Path) -> float:
    """Return the CPU quota of a process by its control groups of versions 1 and 2, at most all CPUs."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        lines = []
    least = float(os.cpu_count() or 1)
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = root / "cpu" if controllers else root
        folder_of_path = folder / path.lstrip("/")
        # In a container, the path may be the host's, and the root the container's own.
        for place in (folder_of_path, *folder_of_path.parents):
            if place == folder.parent:
                break
            least = min(least, _limit(place))
    return least


def _limit(group: Path) -> float:
    """Return the CPUs that one control group allows."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else float("inf")
    except (OSError, ValueError):  # "max" is no limit
        return float("inf")
