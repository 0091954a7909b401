"""The shared libraries that a program names, read from the file without running it."""

import mmap
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from hpcprof.node.program_words import PYTHON, SHELL, commands, family_of

_ELF = b"\x7fELF"
_NO_MATCH = re.compile(rb"(?!)")
_LIBRARY = re.compile(rb"\0(lib[\w+.-]*\.so[\w.]*)(?=\0)")
_MPI4PY = ("lib/python3*/site-packages/mpi4py/MPI*.so", "lib/python3*/dist-packages/mpi4py/MPI*.so")


def linked_libraries(file: Path) -> list[str]:
    """Return the likely names of shared libraries in an executable or library; none for a script."""
    return sorted({name.decode() for name in _find_pattern(file, _LIBRARY) or []})


def lacks_word(file: Path, word: str) -> bool:
    """Return whether a file is an executable, or a library, that contains a word in no case."""
    return _find_pattern(file, re.compile(re.escape(word.encode()), re.IGNORECASE)) == []


def _find_pattern(file: Path, pattern: re.Pattern[bytes]) -> list[bytes] | None:
    """Return the matches of a pattern in an executable or a library; None for another file."""
    try:
        with file.open("rb") as program:
            if program.read(len(_ELF)) != _ELF:
                return None
            with mmap.mmap(program.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return pattern.findall(content)
    except (OSError, ValueError):
        return None


def program_file(arguments: Sequence[str], directory: str) -> Path | None:
    """Return the file of a program as the PATH of this process finds it; None if there is none."""
    program = arguments[0] if arguments else ""
    path = os.path.join(directory, program) if "/" in program else shutil.which(program)  # noqa: PTH118
    return Path(path) if path and Path(path).is_file() else None


def is_compiled(arguments: Sequence[str], directory: str) -> bool:
    """Return whether a command, behind its runners and scripts, is known to start a program not in Python."""
    *_, last = [[], *(command.words for command in commands(list(arguments), directory))]
    file = program_file(last, directory)
    if file is None or any(interpreter.fullmatch(file.name) for interpreter in (PYTHON, SHELL)):
        return False
    return is_executable(file)


def is_executable(file: Path) -> bool:
    """Return whether a file is an executable or a library, and no script."""
    return _find_pattern(file, _NO_MATCH) is not None


def mpi_family(arguments: Sequence[str], directory: str) -> str | None:
    """Return the MPI family of a command, ``openmpi`` or ``mpich``; None if its mpi4py supports several."""
    for command in commands(list(arguments), directory):
        file = program_file(command.words, directory)
        if file is not None and PYTHON.fullmatch(file.name):
            modules = [module for pattern in _MPI4PY for module in file.parent.parent.glob(pattern)]
            file = modules[0] if len(modules) == 1 else None
        families = {*map(family_of, linked_libraries(file) if file else [])} - {""}
        if families:
            return families.pop() if len(families) == 1 else None
    return None
