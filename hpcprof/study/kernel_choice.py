"""Chooses the kernels and launches that Nsight Compute measures, from a timeline."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.common.errors import HpcprofError
from hpcprof.profiles.timeline import Category, Timeline

_NAMELESS = re.compile(r"\(anonymous namespace\)|<unnamed>|\{lambda[^}]*\}|\{unnamed[^}]*\}")


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
    ids, number = np.unique(kernels.name[rows], return_inverse=True)
    functions = [function_name(name or "") for name in timeline.names(ids)]
    time = dict.fromkeys(functions, 0.0)
    for name, total in zip(functions, np.bincount(number, duration[rows]).tolist(), strict=True):
        time[name] += total
    chosen = sorted((name for name in time if name), key=lambda name: -time[name])[:top]
    sequence = [functions[index] for index in number.tolist() if functions[index] in chosen]
    count = min(launches, len(sequence))
    return KernelChoice(
        pattern=pattern(chosen),
        skip=best_window(sequence, {name: time[name] for name in chosen}, count),
        count=count,
        names=tuple(chosen),
        share=sum(time[name] for name in chosen) / max(1.0, sum(time.values())),
    )


def pattern(functions: Sequence[str]) -> str:
    """Return a regular expression that matches the functions in any namespace; empty without functions."""
    return f"^(.*::)?({'|'.join(map(re.escape, functions))})$" if functions else ""


def best_window(sequence: Sequence[str], weight: dict[str, float], count: int) -> int:
    """Return the start of the first window of ``count`` elements whose distinct names weigh most."""
    inside: Counter[str] = Counter()
    best, start, covered = -1.0, 0, 0.0
    for index, name in enumerate(sequence):
        covered += 0 if inside[name] else weight[name]
        inside[name] += 1
        if index >= count:
            removed = sequence[index - count]
            inside[removed] -= 1
            covered -= 0 if inside[removed] else weight[removed]
        # The same weights added in another order differ in the last digits.
        if index >= count - 1 and covered > best * (1 + 1e-9):
            best, start = covered, index - count + 1
    return start


def function_name(demangled: str) -> str:
    """Return the name that ncu filters by, without result, namespaces, template arguments and parameters.

    ``void at::native::f<(int)4, at::native::Add<float>>(T2)`` becomes ``f``; the result may be empty.
    """
    depth, characters = 0, []
    for character in _NAMELESS.sub("_", demangled):
        if character == "(" and depth == 0:
            break
        depth += {"<": 1, ">": -1}.get(character, 0)
        if depth == 0 and character != ">":
            characters.append(character)
    words = "".join(characters).split()
    return words[-1].rpartition("::")[2] if words else ""
