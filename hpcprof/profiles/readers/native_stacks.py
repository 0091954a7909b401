"""Native stacks of a process, as gdb, eu-stack or py-spy print them."""

import re
from collections.abc import Sequence

import msgspec

from hpcprof.profiles.readers.flight_recorder import CodeLine

_THREAD = re.compile(
    r"(?:TID (?P<eu>\d{1,18}):|Thread .*?(?:LWP|process) (?P<gdb>\d{1,18})\b|Thread (?P<py>\d{1,18})\b)"
)
_GDB_FRAME = re.compile(
    r"#\d+\s+(?:0x[0-9a-f]+ in )?(?P<function>.+?) \(.*?\)"
    r"(?: at (?P<file>.+?):(?P<line>\d{1,18})| from (?P<library>.+))?$"
)
_EU_FRAME = re.compile(r"#\d+\s+0x[0-9a-f]+(?: (?P<function>.+?))?(?: - (?P<library>/.+))?$")
_EU_SOURCE = re.compile(r"\s+(?P<file>\S.*?):(?P<line>\d{1,18}):\d+$")
"""The line after a frame of eu-stack, where the program has debugging information."""

_PY_FRAME = re.compile(r"\s+(?P<function>.+?) \((?P<file>[^():]+)(?::(?P<line>\d{1,18}))?\)$")

_WAITS = re.compile(r"/lib(?:p?mpi[a-z0-9_]*|[nr]ccl|cuda)(?:-[0-9a-f.]+)?\.so")
_CALL = re.compile(r"P?(?P<mpi>MPI_[A-Z]\w+)|p?(?P<other>nccl[A-Z]\w+|cu[A-Z]\w+)")
_SYSTEM = re.compile(
    r"(?:^|/)(?:ld-|lib(?:c|m|pthread|cudart)[-.])|sysdeps/|nptl/|linux-vdso|^\.\./|^\./"
    r"|/Python-3[^/]*/|^(?:Modules|Objects|Programs|Python)/\w+\.c$|(?:^|/)(?:lib)?python3[\d.]*(?:so[\d.]*)?$"
)
"""Files of the C library and of Python's interpreter, which say nothing of the program."""

_OWN_FILE = re.compile(r"(?!torch/).*\.py")
"""Files of the user's program in Python, of which py-spy tells the frames too."""

_MAX_LINES = 20_000


class NativeStack(msgspec.Struct, frozen=True):
    """The state of a process by its stacks."""

    call: str = ""
    """The call of MPI, NCCL or CUDA in which it waits, such as ``MPI_Barrier``; empty if it is in none."""
    frame: CodeLine | None = None
    """The function that made the call; without one, the innermost of its main thread that is in Python or, if
    none is, not the C library's or the interpreter's. The line is 0 where the program has no debugging
    information.
    """


def parse_native_stack(text: str) -> NativeStack | None:
    """Return the parsed stacks of a process; None without frames."""
    threads: dict[int, list[tuple[str, str, int, bool]]] = {}
    current: list[tuple[str, str, int, bool]] | None = None
    for line in text.splitlines()[:_MAX_LINES]:
        if match := _THREAD.match(line):
            current = threads.setdefault(int(match["eu"] or match["gdb"] or match["py"]), [])
        elif current and (match := _EU_SOURCE.match(line)):
            current[-1] = (current[-1][0], match["file"], int(match["line"]), current[-1][3])
        elif current is not None and (frame := _frame(line)) is not None:
            current.append(frame)
    # The main thread has the number of the process, the lowest as a rule.
    stacks = [threads[number] for number in sorted(threads) if threads[number]]
    if not stacks:
        return None
    for frames in stacks:
        inside = [i for i, frame in enumerate(frames) if frame[3]]
        if inside:
            return NativeStack(_call(frames[: inside[-1] + 1]), _first_line(frames[inside[-1] + 1 :]))
    return NativeStack("", _first_line(stacks[0]))


def _frame(line: str) -> tuple[str, str, int, bool] | None:
    """Return function, file or library, line, and whether it is of MPI, NCCL or CUDA."""
    match = _GDB_FRAME.match(line) or _EU_FRAME.match(line) or _PY_FRAME.match(line)
    if match is None:
        return None
    fields = match.groupdict()
    function, library = fields.get("function") or "", fields.get("library") or ""
    file, number = fields.get("file") or "", int(fields.get("line") or 0)
    is_mpi = function.startswith(("MPI_", "PMPI_")) and _CALL.fullmatch(function) is not None
    return function, file or library, number, is_mpi or bool(_WAITS.search(f"/{file}{library}"))


def _call(frames: Sequence[tuple[str, str, int, bool]]) -> str:
    """Return the outermost function of the library that has a name of its interface, else the library."""
    for function, *_ in reversed(frames):
        if match := _CALL.fullmatch(function):
            return str(match["mpi"] or match["other"])
    return frames[-1][1].rpartition("/")[2].partition(".so")[0]


def _first_line(frames: Sequence[tuple[str, str, int, bool]]) -> CodeLine | None:
    in_python = [frame for frame in frames if _OWN_FILE.fullmatch(frame[1])]
    for function, file, line, _ in in_python or frames:
        if function not in ("", "??") and not _SYSTEM.search(file):
            return CodeLine(function, file, line)
    return None
