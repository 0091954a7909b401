"""Chooses the kernels and launches that Nsight Compute measures, from a timeline."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.common.errors import HpcprofError
from hpcprof.profiles.timeline import Category, Timeline

_UNNAMED_SCOPE = re.compile(r"\(anonymous namespace\)|<unnamed>|\{lambda[^}]*\}|\{unnamed[^}]*\}")


@dataclass(frozen=True)
class KernelChoice:
    """A filter of kernels for ncu."""

    pattern: str
    """A regular expression that matches the function names of the kernels, and no communication."""
    skip: int
    count: int
    """Number of matching launches to measure, after ``skip`` are passed over."""
    names: tuple[str, ...]
    """The kernels, longest total time first."""
    share: float
    """Their share of the time of all compute kernels, 0 to 1."""


def choose_kernels(timeline: Timeline, top: int, launches: int) -> KernelChoice:
    """Choose the ``top`` compute kernels that take longest, and ``launches`` consecutive launches of them.

    ncu measures consecutive launches. The chosen window has the kernels with the most total time, each kernel
    counted once: in training, rather the end of one step and the beginning of the next than a single layer.
    """
    kernels = timeline.kernels
    rows = np.flatnonzero(kernels.category == Category.COMP)
    if not len(rows):
        raise HpcprofError(f"no compute kernels in {timeline.origin.path.name}: there is nothing to measure.")
    rows = rows[np.argsort(kernels.start[rows], kind="stable")]
    duration = kernels.end - kernels.start
    ids, function_of_row = np.unique(kernels.name[rows], return_inverse=True)
    functions = [function_name(name or "") for name in timeline.names(ids)]
    total_ns = dict.fromkeys(functions, 0.0)
    for name, total in zip(functions, np.bincount(function_of_row, duration[rows]).tolist(), strict=True):
        total_ns[name] += total
    chosen = sorted((name for name in total_ns if name), key=lambda name: -total_ns[name])[:top]
    sequence = [functions[index] for index in function_of_row.tolist() if functions[index] in chosen]
    count = min(launches, len(sequence))
    return KernelChoice(
        pattern=name_pattern(chosen),
        skip=best_window(sequence, {name: total_ns[name] for name in chosen}, count),
        count=count,
        names=tuple(chosen),
        share=sum(total_ns[name] for name in chosen) / max(1.0, sum(total_ns.values())),
    )


def name_pattern(functions: Sequence[str]) -> str:
    """Return a regular expression that matches the functions in any namespace; empty without functions."""
    return f"^(.*::)?({'|'.join(map(re.escape, functions))})$" if functions else ""


def best_window(sequence: Sequence[str], weight: dict[str, float], count: int) -> int:
    """Return the start of the first window of ``count`` elements whose distinct names weigh most."""
    count_inside: Counter[str] = Counter()
    best, start, weight_inside = -1.0, 0, 0.0
    for index, name in enumerate(sequence):
        weight_inside += 0 if count_inside[name] else weight[name]
        count_inside[name] += 1
        if index >= count:
            removed = sequence[index - count]
            count_inside[removed] -= 1
            weight_inside -= 0 if count_inside[removed] else weight[removed]
        # The same weights added in another order differ in the last digits.
        if index >= count - 1 and weight_inside > best * (1 + 1e-9):
            best, start = weight_inside, index - count + 1
    return start


def function_name(demangled: str) -> str:
    """Return the name that ncu filters by, without result, namespaces, template arguments and parameters.

    ``void at::native::f<(int)4, at::native::Add<float>>(T2)`` becomes ``f``; the result may be empty.
    """
    depth, characters = 0, []
    for character in _UNNAMED_SCOPE.sub("_", demangled):
        if character == "(" and depth == 0:
            break
        depth += {"<": 1, ">": -1}.get(character, 0)
        if depth == 0 and character != ">":
            characters.append(character)
    words = "".join(characters).split()
    return words[-1].rpartition("::")[2] if words else ""
