"""Each kernel of a step by its place in the step: what comparisons of runs match."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.slowdown.kernel_instances import NONE, Instances, instances, open_range
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.profiles.columns.unique import numbered, numbered_rows
from hpcprof.profiles.timeline import Ints, Timeline

Kernel = tuple[str | None, str, str]
"""Name, grid and block."""


@dataclass
class Numbers:
    """Numbers the kernels and phases of several timelines alike."""

    kernels: dict[Kernel, int] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Occurrences:
    """The compute kernels that steps launched; arrays have shape (n,).

    ``cell`` has shape (n, 3): the kernel and the phase by `Numbers` (`NONE` outside phases), and which one it
    is of that kernel in that phase of its step, from 0 in the order of their starts. ``step`` counts the
    steps that have kernels from 0. ``covered``, ``alone`` and ``overlapped`` are those of
    `hpcprof.analysis.slowdown.kernel_instances.Instances`.
    """

    cell: Ints
    step: Ints
    duration: Ints
    covered: Ints
    alone: NDArray[np.bool_]
    overlapped: NDArray[np.bool_]


def occurrences(timeline: Timeline, numbers: Numbers) -> Occurrences:
    """Place the compute kernels of a timeline in its steps, adding to ``numbers`` what is new there."""
    placed = instances(timeline)
    steps = timeline.ranges.take(steps_of(timeline))
    owner = open_range(steps, placed.process, placed.launched)
    inside = np.flatnonzero(owner != NONE)
    kernel, phase = _numbered(placed, numbers)
    kernel, phase = kernel[inside], phase[inside]
    _, step = numbered(owner[inside])
    _, group = numbered_rows(step, kernel, phase)
    return Occurrences(
        cell=np.column_stack((kernel, phase, _counted(group))),
        step=step,
        duration=placed.duration[inside],
        covered=placed.covered[inside],
        alone=placed.alone[inside],
        overlapped=placed.overlapped[inside],
    )


def _numbered(placed: Instances, numbers: Numbers) -> tuple[Ints, Ints]:
    """Return the numbers of each kernel's shape and phase."""
    shapes = zip(placed.shapes.name, placed.shapes.grid, placed.shapes.block, strict=True)
    kernel = [numbers.kernels.setdefault(shape, len(numbers.kernels)) for shape in shapes]
    phase = [numbers.phases.setdefault(name, len(numbers.phases)) for name in placed.phases]
    return np.array(kernel, np.int64)[placed.shape], np.array([*phase, NONE], np.int64)[placed.phase]


def _counted(group: Ints) -> Ints:
    """Count the rows of each group from 0, in their order."""
    order = np.argsort(group, kind="stable")
    size = np.bincount(group)
    result = np.empty(len(group), np.int64)
    result[order] = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)
    return result
