"""GPU kernels by name, and by name, grid and block."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.framework.outcome import Outcome, none_in
from hpcprof.analysis.statistics.grouped import summarize
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.unique import number_texts, numbered_rows, object_array
from hpcprof.profiles.readers.kineto import TORCH
from hpcprof.profiles.timeline import Category, Ints, Kernels, Timeline


class KernelShapes(msgspec.Struct, frozen=True):
    """The distinct kernels by name, grid and block, in ascending order, as columns of text."""

    name: NDArray[np.object_]
    grid: NDArray[np.object_]
    block: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.name)

    def columns(self) -> dict[str, Any]:
        """Return the columns ``name``, ``grid`` and ``block`` of a table."""
        return {"name": self.name, "grid": self.grid, "block": self.block}


def kernels(timeline: Timeline) -> Outcome:
    """Summarize the kernels' durations by demangled name, as cuda_gpu_kern_sum of ``nsys stats`` does.

    ``class`` is ``comp``, ``comm`` or ``mem``.
    """
    if not len(timeline.kernels):
        return none_in(timeline, "CUDA kernels")
    names, group = number_texts(timeline, timeline.kernels.name)
    untold = timeline.origin.kind == TORCH.name and len(timeline.calls) and not len(timeline.operators)
    reason = f"{timeline.origin.path.name} has no operators: PyTorch records them with ProfilerActivity.CPU"
    return Outcome({"name": names, **_summary(timeline.kernels, group, len(names))}, reason if untold else "")


def kernels_by_shape(timeline: Timeline) -> Outcome:
    """Summarize the kernels by name, grid and block, as cuda_gpu_kern_gb_sum of ``nsys stats`` does.

    ``grid`` and ``block`` are x, y and z, joined by spaces.
    """
    if not len(timeline.kernels):
        return none_in(timeline, "CUDA kernels")
    shapes, group = number_kernel_shapes(timeline)
    return Outcome(shapes.columns() | _summary(timeline.kernels, group, len(shapes)))


@computed_once
def number_kernel_shapes(timeline: Timeline) -> tuple[KernelShapes, Ints]:
    """Assign numbers to the distinct kernels by name, grid and block.

    The numbers, of shape (kernels,), are the indices of the timeline's kernels in the shapes.
    """
    table = timeline.kernels
    names, name = number_texts(timeline, table.name)
    keys, group = numbered_rows(name, *table.grid.T, *table.block.T)
    name_column, grid, block = names[keys[:, 0]], _dimensions(keys[:, 1:4]), _dimensions(keys[:, 4:7])
    return KernelShapes(name_column, object_array(grid), object_array(block)), group


def _summary(table: Kernels, group: Ints, groups: int) -> dict[str, Any]:
    summary = summarize(group, table.end - table.start)
    category = np.empty(groups, np.int64)
    category[group] = table.category
    return {
        **summary.table("instances"),
        "class": object_array(Category(c).name.lower() for c in category.tolist()),
    }


def _dimensions(sizes: Ints) -> list[str]:
    return [" ".join(map(str, size)) for size in sizes.tolist()]
