# mypy: ignore-errors
"""The sum of the ranks' parts as a Triton kernel; importing this module requires Triton."""

import triton
import triton.language as tl

_BLOCK_ELEMENTS = 1024


def add_parts(parts, output):
    """Sum ``parts`` [N, R/N, h] over the first dimension, in float32, into ``output`` [R/N, h]."""
    count = output.numel()
    _add[(triton.cdiv(count, _BLOCK_ELEMENTS),)](parts, output, count, len(parts), _BLOCK_ELEMENTS)


@triton.jit
def _add(parts, output, count, ranks: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    total = tl.zeros([block], tl.float32)
    part = parts
    for _ in tl.static_range(ranks):
        total += tl.load(part + at, mask=inside).to(tl.float32)
        part += count
    tl.store(output + at, total.to(output.dtype.element_ty), mask=inside)
