"""Hardware metrics of single kernel launches, measured by Nsight Compute.

There is no timeline, because ncu replays each launch on its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hpcprof.profiles.timeline import Origin


@dataclass(frozen=True)
class Advice:
    """The advice of a rule of Nsight Compute about a launch.

    ``speedup_pct`` is ncu's estimate of the share of the kernel's time that can go, None without one.
    """

    rule: str
    text: str
    speedup_pct: float | None


@dataclass(frozen=True)
class MeasuredKernel:
    """One launch of a kernel.

    ``grid`` and ``block`` are x, y and z joined by spaces. ``metrics`` maps ncu's metric names to values in
    base units (ns, byte, hz, %, …/s) and contains only those that were measured.
    """

    id: int
    name: str
    grid: str
    block: str
    metrics: Mapping[str, float]
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True)
class KernelReport:
    """One rank's kernels in the order in which they were measured."""

    origin: Origin
    kernels: tuple[MeasuredKernel, ...]
