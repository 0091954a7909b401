"""Pickles of somebody else, of which only plain values are loaded: no class, and nothing kept elsewhere."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any

_PLAIN = re.compile(
    r"(?:PROTO|FRAME|STOP|MARK|NONE|NEWTRUE|NEWFALSE|POP|MEMOIZE)|(?:SHORT_)?BINUNICODE8?|UNICODE"
    r"|(?:BIN)?INT[12]?|LONG[14]?|(?:BIN)?FLOAT|(?:EMPTY_)?(?:LIST|TUPLE|DICT)|TUPLE[123]|APPENDS?|SETITEMS?"
    r"|(?:LONG_)?(?:BIN)?(?:GET|PUT)"
)
"""The instructions of a pickle that make only None, booleans, numbers, texts, lists, tuples and dicts."""


class _NoClasses(pickle.Unpickler):
    """Loads no class, and nothing that is kept elsewhere."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def load_plain(data: bytes, most_values: int) -> Any:
    """Return the plain values of a pickle.

    Parts of them may be the same object several times, so that they can be far more than ``most_values`` for
    whoever counts them one by one. Raises ValueError if it is no pickle, or makes anything but plain values,
    or more of them than ``most_values``.
    """
    try:
        for number, (instruction, argument, _) in enumerate(pickletools.genops(data)):
            if not _PLAIN.fullmatch(instruction.name):
                raise ValueError(f"its pickle has the instruction {instruction.name}")
            # The unpickler makes room for as many values as the number of a place says.
            place = int(argument or 0) if instruction.name.endswith("PUT") else 0
            if max(number, place) > most_values:
                raise ValueError("it has too many values")
        return _NoClasses(io.BytesIO(data)).load()
    except ValueError:
        raise
    except Exception as error:  # damaged pickles raise almost anything
        raise ValueError(f"it is not a pickle, or a damaged one ({type(error).__name__})") from None
