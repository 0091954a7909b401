"""Names of kernels: shortened for people, and matched between Nsight Systems and Nsight Compute.

Demangled C++ names begin alike (``void at::native::…``) and differ only towards their end.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

_NAMESPACE = re.compile(r"(?:\b\w+|<unnamed>|\(anonymous namespace\))::")
# A cast in front of a number: (int)4, (bool)1, (cudnnDataType_t)0.
_CAST = re.compile(r"\([\w: ]+\)(?=-?\d)")
_VOID = re.compile(r"\bvoid (?=[\w\[])")
# A range of PyTorch that names its object: enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__.
_RANGE_OF_OBJECT = re.compile(r"\w+\(\w+\)#")
# A word, with the option before it whose value it is: --batch 32.
_LAST_WORD = re.compile(r"(?:(?<!\S)--?[\w-]+[ =])?[^\W_]*$")
_FIRST_WORD = re.compile(r"(?<![^\W_])[^\W_]|(?<!\S)-")
# Shorter texts are not cut any further.
_MIN_CUT_CHARACTERS = 6


def without_namespaces(name: str) -> str:
    """Return a demangled name without namespaces and without casts in front of numbers.

    ``void at::native::f<(int)4, at::native::Add<float>>(T2)`` becomes ``void f<4, Add<float>>(T2)``.
    """
    return _CAST.sub("", _NAMESPACE.sub("", name))


def short_name(name: str) -> str:
    """Return a kernel's name also without result and parameters; its template arguments stay.

    ``void at::native::f<(int)4, at::native::Add<float>>(T2)`` becomes ``f<4, Add<float>>``.
    """
    text = _VOID.sub("", without_namespaces(name))
    if _RANGE_OF_OBJECT.match(text):
        return text
    depth = 0
    for place, character in enumerate(text):
        if character == "(" and depth == 0:
            text = text[:place]
            break
        depth += {"<": 1, "[": 1, ">": -1, "]": -1}.get(character, 0)
    return text or name


class KernelLookup(Generic[T]):
    """A value for each kernel, found by the name that either profiler gives, and by grid and block.

    ncu shortens names where it prints them and nsys does not: they agree only without namespaces and casts.
    For a kernel that is listed twice, the last value counts.
    """

    def __init__(self, values: Iterable[tuple[str, str, str, T]]) -> None:
        self._by_full_name: dict[tuple[str, str, str], T] = {}
        self._by_short_name: dict[tuple[str, str, str], dict[str, T]] = {}
        for name, grid, block, value in values:
            self._by_full_name[name, grid, block] = value
            self._by_short_name.setdefault((without_namespaces(name), grid, block), {})[name] = value

    def find(self, name: str, grid: str, block: str) -> T | None:
        """Return the value for the full name, else for the short name if only one kernel has it."""
        if (name, grid, block) in self._by_full_name:
            return self._by_full_name[name, grid, block]
        candidates = self._by_short_name.get((without_namespaces(name), grid, block), {})
        return next(iter(candidates.values())) if len(candidates) == 1 else None


def plain_name(name: str) -> str:
    """Return the short name of a kernel without its template arguments."""
    return short_name(name).split("<")[0]


def labels(names: Collection[str], room: int) -> dict[str, str]:
    """Return a label of at most ``room`` characters for each name, and if possible another for each."""
    short = {name: name if len(name) <= room else short_name(name) for name in names}
    used = Counter(short.values())
    # If two kernels differ only in their parameters, these stay.
    short = {name: text if used[text] == 1 else name for name, text in short.items()}
    cut = cut_distinctly(list(short.values()), room)
    return {name: cut[text] for name, text in short.items()}


def cut_distinctly(texts: Collection[str], room: int) -> dict[str, str]:
    """Cut texts to ``room`` characters; texts that begin alike lose words of their common part."""
    cut = {text: text if len(text) <= room else f"{text[: room - 1]}…" for text in texts}
    groups: dict[str, list[str]] = {}
    for text, short in cut.items():
        groups.setdefault(short, []).append(text)
    head = room // 3
    for group in groups.values():
        if len(group) == 1 or room < _MIN_CUT_CHARACTERS:
            continue
        free_width = room - head - 1
        alike = (len({*letters}) == 1 for letters in zip(*group, strict=False))
        shared = next((i for i, same in enumerate(alike) if not same), min(map(len, group)))
        fitting = max(map(len, group)) - free_width
        word = _FIRST_WORD.search(group[0], fitting, shared) if fitting > head else None
        common = word.start() if word else _word_start(group[0], shared, free_width // 2)
        shortened = cut_distinctly([text[common:] for text in group], free_width)
        cut |= {text: f"{text[:head]}…{shortened[text[common:]]}" for text in group}
    return cut


def _word_start(text: str, place: int, max_characters: int) -> int:
    """Return the beginning of the word at ``place``, or of the option whose value it is.

    It is ``place`` if the beginning is ``max_characters`` away.
    """
    word = _LAST_WORD.search(text, 0, place)
    return word.start() if word and place - word.start() < max_characters else place
