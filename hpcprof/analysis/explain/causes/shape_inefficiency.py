"""Shape inefficiency: matrix products whose rows do not begin at multiples of 16 bytes.

The libraries name the alignment of the operands in their kernels, in elements (``…_align2``). Where a row
has an odd number of elements, a kernel loads them one by one instead of 16 bytes at once, and on Hopper it
cannot use the copies of whole tiles that others use. Padded by less than 16 bytes a row, it could.

Source: CUTLASS, kernel names of its library; NVIDIA, "Matrix multiplication background user's guide", 2023.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.analysis.explain.candidate import Candidate
from hpcprof.analysis.explain.cause import CauseDeclaration, Figures, Trait, named
from hpcprof.profiles.timeline import Floats

if TYPE_CHECKING:
    from hpcprof.analysis.explain.scene import Scene

_ALIGNED = re.compile(r"tensor_?op.*align(\d+)(?!.*align\d)", re.IGNORECASE)
"""A product on tensor cores, and its alignment in elements, that of the last operand."""

_BYTES = (
    (2, r"bf16|(?<!t)f16|h16816|h1688"),
    (1, r"e[45]m[32]|[su]8_|i16832"),
    (8, r"[dz]884"),
    (4, r"tf32|s1688|f32_f32"),
)
"""The bytes of an element, by the first pattern in the name of the kernel; half precision without any."""

_WHOLE_BYTES = 16
"""The bytes that a thread loads at once if rows are aligned."""

_GAIN = 0.5
"""Share of its time that a product is taken to save by alignment; no profile records what it would take."""


def loads_in_parts(name: str) -> bool:
    """Return whether a product loads less than 16 bytes at once, by the name of its kernel."""
    found = _ALIGNED.search(name)
    if found is None:
        return False
    size = next((size for size, pattern in _BYTES if re.search(pattern, name, re.IGNORECASE)), 2)
    return int(found[1]) * size < _WHOLE_BYTES


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield all such products: they are mostly those of one tensor."""
    work = scene.graph.work
    slow = np.flatnonzero(np.array([*map(loads_in_parts, scene.graph.names), False])[work.name])
    if len(slow):
        time = (work.end - work.start)[slow]
        gain: Floats = np.multiply(time, _GAIN, dtype=np.float64)
        yield scene.of_operations(SHAPE_INEFFICIENCY, slow, time, gain)


SHAPE_INEFFICIENCY = CauseDeclaration(
    name="shape_inefficiency",
    title="odd shapes",
    meaning="matrix products load their operands in small parts, because rows have an odd length",
    about="matrix products on tensor cores whose operands are not aligned to 16 bytes, by the names of their "
    "kernels: rows have a length that is no multiple of 8 elements in half precision. The saving is "
    "estimated as half of their time",
    advice="pad vocabulary, hidden and batch sizes to multiples of 8 elements, better of 64",
    remedy="Pad the sizes of {where} (vocabulary, hidden size, heads, batch) to multiples of 8 elements, "
    "better of 64: kernels then load 16 bytes at once.",
    candidates=candidates,
    figures=(Figures("kernels", "total_ns", named("(?i)align[124]")),),
    traits=frozenset({Trait.ALL_RANKS, Trait.ESTIMATED}),
    column="compute_ns",
    operations="compute",
    kernels=loads_in_parts,
    without="with padded shapes",
)
