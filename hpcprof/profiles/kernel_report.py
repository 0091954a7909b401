"""The model of what Nsight Compute measured: hardware metrics of single kernel launches.

It has no timeline: ncu replays each launch on its own, so nothing of a step's course is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcprof.profiles.timeline import Origin


@dataclass(frozen=True)
class MeasuredKernel:
    """One launch of a kernel.

    ``grid`` and ``block`` are x, y and z joined by spaces. ``metrics`` maps ncu's metric names to values in
    base units (ns, byte, hz, %, …/s); what was not measured is absent.
    """

    id: int
    name: str
    grid: str
    block: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class KernelReport:
    """One rank's kernels in the order in which they were measured."""

    origin: Origin
    kernels: tuple[MeasuredKernel, ...]
