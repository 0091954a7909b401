"""Finding a kernel of Nsight Systems among those of Nsight Compute, and the other way round."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

# ncu shortens names where it prints them, nsys does not: namespaces and the types of constants differ.
_NAMESPACE = re.compile(r"(?:\b\w+|<unnamed>|\(anonymous namespace\))::")
_CONSTANT_TYPE = re.compile(r"\((?:bool|(?:unsigned |signed )?(?:char|short|int|long long|long))\)(?=-?\d)")


class ByKernel(Generic[T]):
    """What is known of kernels, by name, grid and block.

    Parameters
    ----------
    known : iterable of (name, grid, block, value)
        Of one kernel that comes twice the last value counts.
    """

    def __init__(self, known: Iterable[tuple[str, str, str, T]]) -> None:
        self._exact: dict[tuple[str, str, str], T] = {}
        self._short: dict[tuple[str, str, str], dict[str, T]] = {}
        for name, grid, block, value in known:
            self._exact[name, grid, block] = value
            self._short.setdefault((skeleton(name), grid, block), {})[name] = value

    def find(self, name: str, grid: str, block: str) -> T | None:
        """Return what is known by the full name, else by the skeleton where only one kernel has it."""
        if (name, grid, block) in self._exact:
            return self._exact[name, grid, block]
        candidates = self._short.get((skeleton(name), grid, block), {})
        return next(iter(candidates.values())) if len(candidates) == 1 else None


def skeleton(name: str) -> str:
    """Return a demangled name without namespaces and without the types of constants.

    ``void at::native::f<(int)4, at::native::Add<float>>(T2)`` becomes ``void f<4, Add<float>>(T2)``, from
    nsys' full name and from ncu's shortened one.
    """
    return _CONSTANT_TYPE.sub("", _NAMESPACE.sub("", name))
