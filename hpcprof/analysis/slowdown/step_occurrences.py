"""The kernels of steps by their place in the step, by which comparisons of runs match them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.slowdown.kernel_instances import OUTSIDE, KernelInstances, open_range, place_kernels
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.profiles.columns.unique import numbered, numbered_rows, position_in_group
from hpcprof.profiles.timeline import Ints, Timeline

Kernel = tuple[str | None, str, str]
"""Name, grid and block."""


@dataclass
class KernelNumbering:
    """Gives the kernels and phases of several timelines common numbers."""

    kernels: dict[Kernel, int] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Occurrences:
    """The compute kernels that steps launched; arrays have shape (n,).

    Attributes
    ----------
    key : ndarray of int64, shape (n, 3)
        The numbers of the kernel and of the phase in `KernelNumbering` (`OUTSIDE` outside phases), and the
        position among the launches of this kernel in this phase of the step, from 0.
    step : ndarray of int64
        The number of the step, from 0; only steps with kernels count.
    duration, covered, alone, overlapped : ndarray
        As in `hpcprof.analysis.slowdown.kernel_instances.KernelInstances`.
    """

    key: Ints
    step: Ints
    duration: Ints
    covered: Ints
    alone: NDArray[np.bool_]
    overlapped: NDArray[np.bool_]


def find_occurrences(timeline: Timeline, numbering: KernelNumbering) -> Occurrences:
    """Find the compute kernels in the steps of a timeline; new kernels and phases join ``numbering``."""
    placed = place_kernels(timeline)
    steps = steps_of(timeline).ranges
    owner = open_range(steps, placed.process, placed.launched)
    inside = np.flatnonzero(owner != OUTSIDE)
    kernel, phase = _numbered(placed, numbering)
    kernel, phase = kernel[inside], phase[inside]
    _, step = numbered(owner[inside])
    _, group = numbered_rows(step, kernel, phase)
    return Occurrences(
        key=np.column_stack((kernel, phase, position_in_group(group))),
        step=step,
        duration=placed.duration[inside],
        covered=placed.covered[inside],
        alone=placed.alone[inside],
        overlapped=placed.overlapped[inside],
    )


def _numbered(placed: KernelInstances, numbering: KernelNumbering) -> tuple[Ints, Ints]:
    """Return the common numbers of each kernel and of its phase."""
    shapes = zip(placed.shapes.name, placed.shapes.grid, placed.shapes.block, strict=True)
    kernel = [numbering.kernels.setdefault(shape, len(numbering.kernels)) for shape in shapes]
    phase = [numbering.phases.setdefault(name, len(numbering.phases)) for name in placed.phases]
    return np.array(kernel, np.int64)[placed.shape], np.array([*phase, OUTSIDE], np.int64)[placed.phase]
