"""The number of processes that share the tasks, and the tasks that each takes at a time.

The unit of work is the start of a worker: a Python process that imports what the tasks need. Both are work of
one core, so that their ratio hardly depends on the machine.
"""

import os
from collections.abc import Sequence
from math import ceil
from pathlib import Path

_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# A worker that starts beside this process slows it down, and both wait for the last task.
_LEAST_GAIN = 0.7
# A chunk for a worker that has started.
_LEAST_GAIN_OF_STARTED = 0.02
# A chunk is this part of what each worker has left to do. So the last ones are small, and all workers end at
# about the same time.
_PART = 1 / 4
# Tasks of one message: each result comes back on its own, so that more would save nothing.
_MOST_TASKS = 32


def one_start(task: object) -> float:
    """Return the work of any task whose work is unknown."""
    return 1.0


def worker_count(work: Sequence[float], jobs: int, started: bool = False) -> int:
    """Return how many workers shall share the tasks; 0 if this process is about as quick alone.

    ``work`` is the work of each task, in starts of a worker; ``jobs`` is the most workers, which may have
    ``started``.
    """
    workers = min(jobs, len(work))
    if workers < 2:
        return 0
    alone = sum(work)
    together = max(alone / workers, max(work))
    least = _LEAST_GAIN_OF_STARTED if started else _LEAST_GAIN
    return workers if alone - together > least else 0


def chunks(work: Sequence[float], workers: int) -> list[list[int]]:
    """Return the numbers of the tasks in chunks, the most work first; much work is a chunk of its own."""
    order = sorted(range(len(work)), key=lambda task: -work[task])
    groups: list[list[int]] = []
    remaining, share, most, filled = sum(work), 0.0, 0, 0.0
    for position, task in enumerate(order):
        if not groups or filled + work[task] > share or len(groups[-1]) == most:
            groups.append([])
            share, filled = remaining / workers * _PART, 0.0
            most = min(_MOST_TASKS, ceil((len(work) - position) / workers * _PART))
        groups[-1].append(task)
        filled += work[task]
        remaining -= work[task]
    return groups


def usable_cpus() -> int:
    """Return how many CPUs this process may use: those that it is bound to, and its control group's quota."""
    return max(1, min(len(os.sched_getaffinity(0)), int(_quota(_MEMBERSHIP, _CGROUPS))))


def _quota(membership: Path, root: Path) -> float:
    """Return the CPUs that the control groups of a process allow, by versions 2 and 1; else infinity."""
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
        # Inside a container the path may be that of the host; the root is then the container's own.
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
