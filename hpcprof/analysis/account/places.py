"""Places in a program: paths of nested ranges, such as ``forward/layers.0``."""

import re
from functools import lru_cache

NONE = -1
"""Stands for no row, no thread and no place."""

OUTSIDE = "code outside all ranges"
"""The place of events outside all ranges, in programs that have ranges."""

WHOLE_STEP = ""
"""The place that contains all others."""

PROFILER_STEP = "ProfilerStep#N"
"""The one name of the steps that the PyTorch profiler marks."""

WHOLE_CAPTURE = "whole capture"
"""The place of all that a capture has; it is the step of one without steps."""

_WORDS = {
    WHOLE_STEP: "the step",
    "step": "the step",
    WHOLE_CAPTURE: "the program",
    PROFILER_STEP: "steps of PyTorch's profiler",
}

_NUMBER = re.compile(r"\d+")


@lru_cache(1 << 14)
def without_numbers(place: str) -> str:
    """Return a place with ``N`` for each number: ``forward/layers.N`` for ``forward/layers.0``."""
    return _NUMBER.sub("N", place)


def in_words(place: str) -> str:
    """Return a place for a sentence: its name, or words for one that no program names."""
    return _WORDS.get(place, place)


def is_inside(place: str, other: str) -> bool:
    """Return whether a place is another one or lies in it; every place lies in `WHOLE_STEP`.

    A place with numbers also lies in the place with ``N`` instead, such as ``layers.0`` in ``layers.N``.
    """
    names = (place, without_numbers(place)) if "N" in other else (place,)
    return not other or any(name == other or name.startswith(f"{other}/") for name in names)
