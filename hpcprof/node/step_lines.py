"""Lines that a rank writes while it runs, so that its step times can be watched.

``state/steps/rankNNNNN.jsonl`` in the run gets at most one line a second, after some hours one in ten.
Marking a step costs less than half a microsecond (``benchmarks/step_lines.py``) and never waits for the GPU.
The times are the host's, from the end of one step to the end of the next.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, time
from typing import Any

FOLDER = "steps"
"""The folder in ``state/`` of the run."""

MEMORY = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
"""The figures of PyTorch's allocator whose peaks a line has, if the process uses a GPU."""

_MIN_PERIOD_NS, _MAX_PERIOD_NS = 1_000_000_000, 10_000_000_000
_THINNING_SHARE = 3600
"""Inverse share of the elapsed time between two lines: at first a line every second, at last every 10 s."""

_MAX_LONG_STEPS = 16
"""Maximum steps of a line whose times it lists: those that take a quarter longer than its median."""

current: StepLines | None = None
"""The writer of a program that marks its steps itself."""


counted: dict[str, int] = {}
"""The number of each item that this process has counted (`count`)."""


def count(number: int, item: str = "token") -> None:
    """Count tokens or samples that this rank has processed, so that a run has the energy of one.

    It is called in each step, before its end: ``count(inputs.numel())``, ``count(len(batch), "sample")``.
    Ranks that work on the same tokens together count them once in all, or each its share.
    """
    counted[item] = counted.get(item, 0) + int(number)


class StepLines:
    """Measures steps on the host and writes a line about them every second, later every ten seconds.

    A line that cannot be written is the last: the program goes on, and `unwritten` counts. ``run_dir`` is the
    run directory; without one, nothing is written.

    ``ended`` is the number of ended steps, and ``last`` the number of the last step. The functions in
    ``on_end`` are called at the end of each step, with how many have ended.
    """

    def __init__(self, run_dir: Path | None, rank: int) -> None:
        self.unwritten = self.ended = 0
        self.last: int | None = None
        self.on_end: list[Callable[[int], None]] = []
        self._folder = None if run_dir is None else run_dir / "state" / FOLDER
        self._name = f"rank{rank:05d}.jsonl"
        self._file: int | None = None
        self._mark: int | None = None
        self._due = self._began = 0
        self._walls: list[int] = []

    def begin(self) -> None:
        """Begin to measure unless a step that has just ended already did."""
        if self._mark is None:
            self._mark = perf_counter_ns()

    def end(self, step: int) -> None:
        """End a step, with which the next one begins; ``step`` is its number."""
        if self._mark is None or self._folder is None:
            return
        now = perf_counter_ns()
        self.ended, self.last = self.ended + 1, step
        self._walls.append(now - self._mark)
        self._mark = now
        if now >= self._due:
            self._began = self._began or now
            self._due = now + min(max(_MIN_PERIOD_NS, (now - self._began) // _THINNING_SHARE), _MAX_PERIOD_NS)
            self._write(step)
        for tell in self.on_end:
            tell(step + 1)

    def pause(self) -> None:
        """Leave out the time until the next step begins: the program does something else."""
        self._mark = None

    def leave_out(self, ns: int) -> None:
        """Leave a time that has just passed out of the step under way."""
        if self._mark is not None:
            self._mark += ns

    def flush(self) -> None:
        """Write the line of the steps that have ended, if there are any without one."""
        if self._walls and self.last is not None and self._folder is not None:
            self._write(self.last)

    def close(self) -> None:
        """Close the file; nothing more is written."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._folder = None

    def _write(self, step: int) -> None:
        # Another thread may flush.
        walls, self._walls = self._walls, []
        if self.unwritten:
            self.unwritten += 1
            return
        median = sorted(walls)[len(walls) // 2]
        values: dict[str, Any] = {"time": round(time(), 3), "step": step, "steps": len(walls)}
        values.update(wall_ns=median, max_ns=max(walls), total_ns=sum(walls))
        first = step + 1 - len(walls)
        high = [(wall, first + place) for place, wall in enumerate(walls) if 4 * wall > 5 * median]
        if high:
            values["long"] = sorted((number, wall) for wall, number in sorted(high)[-_MAX_LONG_STEPS:])
        # The program counts in the package, not in the copy.
        totals = getattr(sys.modules.get("hpcprof.node.step_lines"), "counted", counted)
        for item in list(totals)[:1]:
            values.update(items=totals[item], item=item)
        line = (json.dumps({**values, **_gpu_memory()}) + "\n").encode()
        try:
            if self._file is None and self._folder is not None:
                self._folder.mkdir(exist_ok=True)
                self._file = os.open(self._folder / self._name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            whole = self._file is not None and os.write(self._file, line) == len(line)
        except OSError:
            whole = False
        if not whole:
            self.unwritten = 1


def _gpu_memory() -> dict[str, int]:
    """Return the peaks of PyTorch's allocator on the fullest GPU; nothing without one."""
    torch: Any = sys.modules.get("torch")
    try:
        for gpus in (torch.cuda, getattr(torch, "xpu", None)):
            if gpus is None or not gpus.is_initialized():
                continue
            read = gpus.memory.memory_stats_as_nested_dict
            stats_of_devices = [read(device) for device in range(gpus.device_count())]
            fullest = max(stats_of_devices, key=lambda stats: stats["reserved_bytes"]["all"]["peak"])
            return {name: fullest[name]["all"]["peak"] for name in MEMORY if name in fullest}
    except Exception:  # PyTorch is still being imported, or has no such figures
        pass
    return {}
