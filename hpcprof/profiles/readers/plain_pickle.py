"""Reader of untrusted pickles: it loads plain values only, no classes and no persistent ids."""

import io
import pickle
import pickletools
import re
from typing import Any

_PLAIN_OPCODE = re.compile(
    r"(?:PROTO|FRAME|STOP|MARK|NONE|NEWTRUE|NEWFALSE|POP|MEMOIZE)|(?:SHORT_)?BINUNICODE8?|UNICODE"
    r"|(?:BIN)?INT[12]?|LONG[14]?|(?:BIN)?FLOAT|(?:EMPTY_)?(?:LIST|TUPLE|DICT)|TUPLE[123]|APPENDS?|SETITEMS?"
    r"|(?:LONG_)?(?:BIN)?(?:GET|PUT)"
)
"""The instructions of a pickle that make only None, booleans, numbers, texts, lists, tuples and dicts."""

_PERMITTED_OPCODES = frozenset(
    opcode.name for opcode in pickletools.opcodes if _PLAIN_OPCODE.fullmatch(opcode.name)
)
_TUPLES = frozenset(name for name in _PERMITTED_OPCODES if "TUPLE" in name)
_MAX_DEPTH = 5_000
"""Maximum tuples within each other: Python recurses through those that are keys without counting."""


class _NoClasses(pickle.Unpickler):
    """Loads no class, and nothing that is kept elsewhere."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def load_plain(data: bytes, most_values: int) -> Any:
    """Return the plain values of a pickle.

    A pickle may repeat one object many times, so that walking the values may visit far more than
    ``most_values``. Raises ValueError if it is no pickle, or makes anything but plain values, or more of them
    than ``most_values``.
    """
    try:
        tuples = 0
        for number, (instruction, argument, _) in enumerate(pickletools.genops(data)):
            if instruction.name not in _PERMITTED_OPCODES:
                raise ValueError(f"its pickle has the instruction {instruction.name}")
            tuples += instruction.name in _TUPLES
            # The unpickler makes room for as many values as the number of a place says.
            place = int(argument or 0) if instruction.name.endswith("PUT") else 0
            if max(number, place) > most_values:
                raise ValueError("it has too many values")
        if tuples > _MAX_DEPTH:
            _refuse_deep_tuples(data)
        return _NoClasses(io.BytesIO(data)).load()
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # damaged pickles raise almost anything
        raise ValueError(f"it is not a pickle, or a damaged one ({type(error).__name__})") from None


def _refuse_deep_tuples(data: bytes) -> None:
    """Raise ValueError for tuples that nest more than `_MAX_DEPTH` times; a list and a dict are no keys."""
    stack: list[int | None] = []  # The depth of each value, None for a mark.
    memo: dict[int, int | None] = {}
    for instruction, argument, _ in pickletools.genops(data):
        name, before = instruction.name, instruction.stack_before
        if name.endswith("PUT") or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else int(argument or 0)] = stack[-1]
            continue
        taken: list[int | None] = []
        count = len(before)
        if pickletools.markobject in before:
            while (depth := stack.pop()) is not None:
                taken.append(depth)
            count = before.index(pickletools.markobject)
        taken += [stack.pop() for _ in range(count)]
        depth_made: int | None = 0
        if name in _TUPLES:
            depth_made = 1 + max((depth or 0 for depth in taken), default=0)
            if depth_made > _MAX_DEPTH:
                raise ValueError("it nests too deeply")
        elif name == "MARK":
            depth_made = None
        elif name.endswith("GET"):
            depth_made = memo[int(argument or 0)]
        stack += [depth_made] * len(instruction.stack_after)
