"""Operators of PyTorch among the NVTX ranges that ``emit_nvtx`` and nsys ``--pytorch=autograd-nvtx`` write.

PyTorch appends to the name of each of its ranges the number of the call, and on request the shapes of the
inputs: ``aten::mm, op_id = 12, sizes = [[4, 32], [32, 10]], input_op_ids = [(3,0), (5,1)]``. What autograd
recorded has ``, seq = 7`` too (``getNvtxStr`` in torch/csrc/profiler/util.cpp). Ranges of the program
(``record_function``) and of PyTorch's own libraries are marked in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import NO_LINK, NO_NAME, Ints, Operators, Ranges, Style

_APPENDED = re.compile(r", (?:seq|op_id|sizes) = (?=[\d\[])")
_SEQUENCE = ", seq = "
_SIZES = re.compile(r", sizes = (\[.*?\])(?=$|, input_op_ids = )", re.DOTALL)
_OPERATOR = re.compile(r"[a-z_][\w.]*::.|\w+Backward\d*$|detach_?$", re.ASCII)
"""An operator of a library of operators, a node of autograd, or one of the two without a library.

Libraries have names in lower case (``aten``, ``c10d``, ``_C``), unlike ranges such as ``FSDP::forward``.
"""
_LIBRARY = re.compile(r"\w+:(?!:)")
"""The work of a process group (``nccl:all_reduce``), which has shapes but is no operator."""


class Operator(NamedTuple):
    """The name of an operator, and the shapes of its inputs as a JSON list, None if they are unknown."""

    name: str
    dims: str | None


def parse_operator(text: str) -> Operator | None:
    """Return the operator that a range is, by its text; None for any other range.

    It is one if PyTorch wrote the text, and the name is that of an operator or the range has a number in the
    sequence of autograd, which other ranges do not get.
    """
    appended = _APPENDED.search(text)
    if appended is None:
        return None
    name, rest = text[: appended.start()], text[appended.start() :]
    if _LIBRARY.match(name) or not (_OPERATOR.match(name) or rest.startswith(_SEQUENCE)):
        return None
    sizes = _SIZES.search(rest)
    return Operator(name, sizes[1].replace(", ", ",") if sizes else None)


@dataclass(frozen=True)
class Marked:
    """The names of ranges, and of those that are operators the shapes; all arrays of shape (n,).

    ``operator`` says which are operators. Their names are without what PyTorch appends.
    """

    name: Ints
    dims: Ints
    operator: NDArray[np.bool_]


def mark_operators(texts: Iterable[str | None], strings: StringTable) -> Marked:
    """Find the operators among ranges, and add the texts of all to the table."""
    names, dims, operator = [], [], []
    for text in texts:
        found = parse_operator(text) if text else None
        operator.append(found is not None)
        names.append(strings.add(text if found is None else found.name))
        dims.append(NO_NAME if found is None else strings.add(found.dims))
    return Marked(np.array(names, np.int64), np.array(dims, np.int64), np.array(operator, bool))


def separate(ranges: Ranges, marked: Marked) -> tuple[Ranges, Operators]:
    """Return the ranges that are no operators, and the operators.

    An operator begins and ends on one thread, outside NVTX domains.
    """
    whole = (ranges.closed == 1) & (ranges.one_thread == 1) & (ranges.style == Style.PUSH_POP)
    chosen = marked.operator & whole & (ranges.domain == NO_NAME)
    if not chosen.any():
        return ranges, Operators.empty()
    columns = ("start", "end", "process", "thread", "name")
    operators = Operators(
        **{name: getattr(ranges, name)[chosen] for name in columns},
        dims=marked.dims[chosen],
        types=np.full(np.count_nonzero(chosen), NO_NAME),
        values=np.full(np.count_nonzero(chosen), NO_NAME),
        link=np.full(np.count_nonzero(chosen), NO_LINK),
    )
    return ranges.take(~chosen), operators
