"""Copies snapshots of PyTorch's memory."""

import pickle
import re
from pathlib import Path
from typing import Any

from hpcprof.node.hooks.memory_history import NOTES
from hpcprof.profiles.readers.declaration import Scrubber
from hpcprof.profiles.readers.memory_snapshot import FILES, SUFFIXES, load_values
from hpcprof.profiles.scrub.names import Names

SNAPSHOT = Scrubber("hpcprof.profiles.scrub.memory:scrub", SUFFIXES, FILES)

_LIBRARY = re.compile(r"(?:(?:site|dist)-packages|lib[/\\]python3[^/\\]*|torchinductor_[^/\\]*)[/\\].*$")
"""By their files, frames tell an optimizer or a collective from the program."""

_COPIED_KEYS = ("segments", "device_traces", NOTES)
"""The keys that are copied; others, such as settings of the allocator, may hold anything."""


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy a snapshot to ``target`` without paths, hosts and users, and return what was left out."""
    values = load_values(path)
    cleaning = _Cleaning(names)
    copy = {key: cleaning.cleaned(value) for key, value in values.items() if key in _COPIED_KEYS}
    target.write_bytes(pickle.dumps(copy, protocol=4))
    left_out = sorted(str(key) for key, value in values.items() if key not in _COPIED_KEYS and value)
    return [*(["paths, hosts and users"] if cleaning.changed else []), *left_out]


class _Cleaning:
    """Cleans texts; parts that are the same object stay so, which keeps the copy small."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._done: dict[int, Any] = {}
        self._texts: dict[str, str] = {}
        self.changed = False

    def cleaned(self, value: Any) -> Any:
        """Return a value without what should not be shared."""
        if isinstance(value, str):
            if value not in self._texts:
                self._texts[value] = self._names.cleaned(value)
                self.changed |= self._texts[value] != value
            return self._texts[value]
        if not isinstance(value, (dict, list, tuple)):
            return value
        if id(value) not in self._done:
            if isinstance(value, dict):
                self._done[id(value)] = {
                    self.cleaned(key): self._file(item) if key == "filename" else self.cleaned(item)
                    for key, item in value.items()
                }
            else:
                self._done[id(value)] = type(value)(map(self.cleaned, value))
        return self._done[id(value)]

    def _file(self, value: Any) -> Any:
        if not isinstance(value, str):
            return self.cleaned(value)
        short = f"library/{match[0]}" if (match := _LIBRARY.search(value)) else re.split(r"[/\\]", value)[-1]
        self.changed |= short != value
        return self.cleaned(short)
