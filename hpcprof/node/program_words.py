"""The programs that a command runs, and the MPI library behind it.

A command is often wrapped: in ``env``, ``uv run`` or ``apptainer exec``, in ``bash -c``, in a script of shell
or Python, in a Makefile. This module reads these without running them. Only Python is asked, as it is started
by the command, which MPI library mpi4py loads. Runs carry this file: it needs nothing but a Python from 3.6.
"""

import ast
import functools
import glob
import os
import re
import shlex
import shutil
import stat
import string
import subprocess
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")
SHELL = re.compile(r"(?:ba|da|k|z)?sh")
LIBRARY = re.compile(
    r"/[^\s()]*/libmpi(?:ch)?(?:_(?:abi|amd|aocc|cray|gnu|ibm|intel|nvidia)[_0-9]*)?\.so[.0-9]*"
)
"""The path of an MPI library in the output of ldd, and in the list of a process's mappings."""

_FAMILIES = (("openmpi", r"libmpi\w*\.so\.[24]\d"), ("mpich", r"libmpi_abi.*|libmpi\w*\.so\.12.*"))
_KEYWORDS = {*"if then else elif do while until ! { ( exec eval builtin time".split()}
_SCRIPT_BYTES, _MAX_DEPTH, _MAX_SCRIPTS, _SECONDS = 1 << 18, 8, 100, 60
VALUE_OPTIONS = {"-W", "-X", "--check-hash-based-pycs", "-o", "+o", "-O", "+O", "--rcfile", "--init-file"}
"""Options of Python and of shells whose value is the next word."""


class Row(NamedTuple):
    """A line of ``program_words.txt``, which explains the columns."""

    kind: str
    names: List[str]
    subcommands: List[str]
    words: int
    value_options: List[str]


def _read_rows() -> Iterator[Row]:
    with open(os.path.splitext(__file__)[0] + ".txt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line[0] not in "#\n"]
    for line in lines:
        kind, names, *columns = (column.strip() for column in line.split("|"))
        subcommands, words, options = columns + ["", "0", ""][len(columns) :]
        yield Row(kind, names.split(), subcommands.split(), int(words), options.split())


def _rows_by_name(*kinds: str) -> Dict[str, Row]:
    return {name: row for row in _ROWS if row.kind in kinds for name in row.names}


_ROWS = list(_read_rows())
RUNNERS = _rows_by_name("runner", "engine")
"""Programs that run the rest of their words, by name."""

ENGINES = frozenset(_rows_by_name("engine"))
"""Runners that run their words in a container of an image."""

LAUNCHERS = {name: row.subcommands for name, row in _rows_by_name("launcher", "workers").items()}
"""Programs that start ranks or workers themselves, with the subcommands that do."""

WORKER_LAUNCHERS = frozenset(_rows_by_name("workers"))
"""Launchers that start the workers of one node, and need all of it."""

MODULES = {name: row.subcommands[0] for name, row in _rows_by_name("module").items()}
"""Launchers that are Python's modules too."""

_STARTING_FUNCTION = re.compile(
    "run|[Pp]open|(?:check_)?(?:call|output)|getoutput|system|create_subprocess_.*|(?:exec|spawn)[lv].*"
)
"""Names of functions of Python that run a command."""
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_SETTING = re.compile(r"(?:(?:export|override)\s+)?([\w.-]+)\s*[:?+]{0,3}=\s*([^#]*)")
_RULE = re.compile(r"([^\s#:=][^#:=]*):{1,2}(?!=)([^#;]*)")


_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/", "/usr/sbin/")


class Command(NamedTuple):
    """A command: its words, those of runners before it, its place in a script, and if it is in a loop."""

    words: List[str]
    before: Tuple[str, ...] = ()
    place: str = ""
    repeated: bool = False

    @property
    def name(self) -> str:
        """The name of the program without its folder."""
        return os.path.basename(self.words[0])


def launcher_of(command: Command) -> str:
    """Return the launcher's name if a command is a launcher, else empty; a module counts as the program."""
    name, words = command.name, command.words[1:]
    if name.startswith(("mpiexec", "mpirun")):
        return name
    if PYTHON.fullmatch(name):
        return MODULES.get("".join(module_of(words)[:1]), "")
    if name == "accelerate-launch":
        return "accelerate"
    if name in LAUNCHERS and (not LAUNCHERS[name] or {*words[:1]} & {*LAUNCHERS[name]}):
        return "" if words[:1] == ["job"] and "submit" not in words else name
    return ""


def module_of(words: List[str]) -> List[str]:
    """Return the module that Python runs by ``-m`` with its arguments; empty if it runs none."""
    position = 0
    while position < len(words) and words[position].startswith("-"):
        if words[position] == "-m":
            return words[position + 1 :]
        position += 2 if words[position] in VALUE_OPTIONS else 1
    return []


class _Context(NamedTuple):
    """The surroundings of a command, as `Command` has them, with its folder and the depth of nesting."""

    folder: str
    before: Tuple[str, ...] = ()
    place: str = ""
    repeated: bool = False
    depth: int = 0
    texts: Tuple[str, ...] = ()
    """The scripts that it is in."""
    unread: Iterator[int] = iter(())
    """An item for each script that may still be read: those that name each other would have no end."""


def commands(words: List[str], folder: str) -> Iterator[Command]:
    """Yield the commands that a command may run, outermost first; it starts in a folder."""
    return _commands(words, _Context(folder, unread=iter(range(_MAX_SCRIPTS))))


def _commands(words: List[str], context: _Context) -> Iterator[Command]:
    if not words or context.depth > _MAX_DEPTH:
        return
    command = Command(list(words), context.before, context.place, context.repeated)
    yield command
    name, arguments, context = command.name, command.words[1:], context._replace(depth=context.depth + 1)
    runner = RUNNERS.get(name)
    if runner is not None:
        inner = words_run_by(name, runner, arguments)
        started = (*context.before, *words[: len(words) - len(inner)])
        if inner and inner[0].endswith(".py"):
            inner = ["python", *inner]
        repeated = context.repeated or name in ("xargs", "parallel")
        yield from _commands(inner, context._replace(before=started, repeated=repeated))
    elif SHELL.fullmatch(name):
        yield from _run_by_shell(arguments, context)
    elif PYTHON.fullmatch(name):
        yield from _run_by_python(arguments, context)
    elif name in ("make", "gmake"):
        yield from _run_by_make(arguments, context)
    else:
        path = _path_of(words[0], context.folder)
        # Scripts of the system start no ranks, and name each other.
        path = "" if context.texts and path.startswith(_SYSTEM_FOLDERS) else path
        text = _shell_script(path)
        if text is not None:
            yield from _script_commands(text, arguments, context._replace(place=words[0]))
        elif re.match(r"#!.*\bpython", script_text(path)):
            yield from _run_by_python([path, *arguments], context)
        else:
            # Another program may run the words after it.
            starts = (i for i, word in enumerate(words) if i and _starts_program(word, context.folder))
            yield from _commands(words[next(starts, len(words)) :], context)


def _starts_program(word: str, folder: str) -> bool:
    return PYTHON.fullmatch(os.path.basename(word)) is not None or (
        "/" in word and bool(_path_of(word, folder))
    )


def words_run_by(name: str, runner: Row, arguments: List[str]) -> List[str]:
    """Return the command that a runner, called by a name with arguments, runs; empty if it runs none."""
    words, operands = list(arguments), runner.words
    if runner.subcommands:
        while words and words[0] not in runner.subcommands:
            words.pop(0)
        words = words[1:]
    while words:
        word = words[0]
        if word == "--":
            return words[1 + operands :]
        if word.startswith("-") and len(word) > 1:
            words.pop(0)
            if name == "uv" and word in ("-m", "--module"):
                return ["python", "-m", *words]
            if name == "env" and word in ("-S", "--split-string") and words:
                return [*words[0].split(), *words[1:]]
            if name == "taskset" and "c" in word:
                continue
            if word in runner.value_options and words:
                words.pop(0)
        elif name in ("env", "time") and "=" in word:
            words.pop(0)
        elif operands:
            operands -= 1
            words.pop(0)
        else:
            return words
    return []


def _run_by_shell(arguments: List[str], context: _Context) -> Iterator[Command]:
    words = list(arguments)
    while words and words[0][:1] in ("-", "+"):
        option = words.pop(0)
        if re.fullmatch("-[A-Za-z]*c[A-Za-z]*", option):
            yield from _script_commands(words[0], words[2:], context) if words else ()
            return
        if option in VALUE_OPTIONS and words:
            words.pop(0)
    if words:
        text = _shell_script(_path_of(words[0], context.folder), is_shell=True)
        if text is not None:
            yield from _script_commands(text, words[1:], context._replace(place=words[0]))


def _run_by_python(arguments: List[str], context: _Context) -> Iterator[Command]:
    """Yield the commands that the source of a program in Python starts, and dask-mpi if it imports that."""
    words = list(arguments)
    while words and words[0].startswith("-") and words[0] not in ("-c", "-m"):
        words = words[2 if words[0] in VALUE_OPTIONS else 1 :]
    if words[:1] == ["-c"]:
        name, text = "", "".join(words[1:2])
    else:
        base = words[1].replace(".", "/") if words[:1] == ["-m"] and words[1:] else ""
        names = [base + ".py", base + "/__main__.py"] if base else words[:1]
        name = next((name for name in names if os.path.isfile(os.path.join(context.folder, name))), "")
        path = os.path.join(context.folder, name)
        text = script_text(path) if name else ""
    try:
        nodes: List[Any] = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return
    loops = (ast.For, ast.While, ast.ListComp)
    repeated = {id(inner) for node in nodes if isinstance(node, loops) for inner in ast.walk(node)}
    values = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in nodes:
        line = ""
        if isinstance(node, ast.ImportFrom) and node.module == "dask_mpi":
            line = "dask-mpi"
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            texts = [text for word in node.args for text in _texts(word, values)]
            line = " ".join(texts) if _STARTING_FUNCTION.fullmatch(called) else ""
        place = "{}, line {}".format(name, node.lineno) if line and name else context.place
        for inner in _simple_commands(line):
            inner_context = context._replace(place=place, repeated=context.repeated or id(node) in repeated)
            yield from _commands(inner, inner_context)


def _texts(node: Any, values: Dict[str, Any]) -> List[str]:
    """Return the texts in an expression of Python in their order, with those of its variables."""
    texts: List[str] = []
    placed: List[Any] = [part for part in ast.walk(node) if hasattr(part, "lineno")]
    for part in sorted(placed, key=lambda part: (part.lineno, part.col_offset)):
        if isinstance(part, ast.Name) and part.id in values:
            other_values = {name: value for name, value in values.items() if name != part.id}
            texts += _texts(values[part.id], other_values)
        elif isinstance(getattr(part, "value", None), str):
            texts.append(part.value)
    return texts


def _run_by_make(arguments: List[str], context: _Context) -> Iterator[Command]:
    """Yield the commands in the recipes of make's targets, and of what these depend on."""
    targets: List[str] = []
    options, variables = {"-C": "", "-f": ""}, {"MAKE": "make"}
    for option, word in zip(["", *arguments[:-1]], arguments):  # noqa: B905
        name, sign, value = word.partition("=")
        if option in options:
            options[option] = word
        elif sign:
            variables.update({name: value, "MAKE": variables["MAKE"] + " " + shlex.quote(word)})
        elif not word.startswith("-") and option != "-j":
            targets.append(word)
    context = context._replace(folder=os.path.join(context.folder, options["-C"]))
    for name in [options["-f"]] if options["-f"] else _MAKEFILES:
        path = os.path.join(context.folder, name)
        if os.path.isfile(path):
            text = script_text(path)
            inner_context = context._replace(place=os.path.join(options["-C"], name))
            yield from _script_commands(_recipes(text, targets, variables), [], inner_context)
            return


def _recipes(text: str, targets: List[str], variables: Dict[str, str]) -> str:
    """Return a Makefile with nothing but the recipes of targets, the first one if none is named."""
    needed: Dict[str, List[str]] = {}
    owners: List[List[str]] = []
    lines = text.split("\n")

    def expanded(text: str) -> str:
        for _ in range(_MAX_DEPTH):
            text = re.sub(r"\$[({](\w+)[)}]", lambda name: variables.get(name.group(1), name.group()), text)
        return text.replace("$$", "$")

    for line in lines:
        setting, rule = _SETTING.match(line), _RULE.match(line)
        if setting:
            variables.setdefault(setting.group(1), setting.group(2).strip())
        elif rule:
            current = expanded(rule.group(1)).split()
            for target in current:
                needed.setdefault(target, []).extend(expanded(rule.group(2)).split())
        owners.append(current if line.startswith("\t") and needed else [])
    wanted = targets or [target for target in needed if not target.startswith(".")][:1]
    for target in wanted:  # which grows
        wanted.extend(name for name in needed.get(target, []) if name not in wanted)
    wanted_by = [{*names} & {*wanted} for names in owners]
    return expanded("\n".join(line.lstrip("\t@+-") if wanted_by[i] else "" for i, line in enumerate(lines)))


def _path_of(word: str, folder: str) -> str:
    """Return the path of a program or script; empty if there is none."""
    path = os.path.join(folder, word)
    if os.path.isfile(path):
        return path
    return "" if "/" in word else shutil.which(word) or ""


def _shell_script(path: str, is_shell: bool = False) -> Optional[str]:
    """Return the text of a shell's script; None for another file."""
    text = script_text(path)
    is_script = bool(text) if is_shell else re.match(r"#!.*\b(?:ba|da|k|z)?sh\b", text)
    return text if is_script and "\0" not in text else None


def _script_commands(text: str, arguments: List[str], context: _Context) -> Iterator[Command]:
    """Yield the commands of a script; its arguments and the plain values of its variables are put in."""
    # Its usage may name the script itself.
    if context.texts.count(text) > 1 or next(context.unread, None) is None:
        return
    context = context._replace(texts=(*context.texts, text))
    variables: Dict[str, List[str]] = {}
    lines = text.replace("\\\n", " ").split("\n")
    loops = 0
    for number, line in enumerate(lines, 1):
        setting = re.match(r"""\s*(?:export |readonly )?(\w+)=(["']?)([^"'$`;]*)\2\s*(?:#.*)?$""", line)
        if setting:
            variables["$" + setting.group(1)] = setting.group(3).split()
        loops += len(re.findall(r"(?:^|;)\s*do(?=\s|$)", line))
        place = context.place if len(lines) == 1 else "{}, line {}".format(context.place, number)
        inner_context = context._replace(place=place, repeated=context.repeated or loops > 0)
        for words in _simple_commands(line):
            if words[0] == "shift":
                arguments = arguments[1:]
                continue
            values = {"$" + str(index): [value] for index, value in enumerate(arguments[:9], 1)}
            values.update({"$@": arguments, "$*": arguments, **variables})
            expanded = [part for word in words for part in values.get(re.sub("[{}]", "", word), [word])]
            yield from _commands(expanded, inner_context)
        loops -= len(re.findall(r"(?:^|;)\s*done\b", line))


def _simple_commands(line: str) -> Iterator[List[str]]:
    """Yield the words of each simple command in a line of shell, without keywords and assignments."""
    lexer = shlex.shlex(re.sub(r"(?:^|(?<=\s))#.*", "", line), posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.wordchars += "".join(c for c in string.punctuation if c not in "\"'\\();<>|&`" + lexer.wordchars)
    words: List[str] = []
    redirected = False
    try:
        tokens = list(lexer)
    except ValueError:  # a quotation goes on in the next line
        return
    for token in [*tokens, ";"]:
        if token and not token.strip("();<>|&"):
            redirected = "<" in token or ">" in token
            if not redirected:
                if words and words[0] not in ("command", "alias", "function"):
                    yield words
                words = []
        elif redirected:
            redirected = False
        elif words or not (token in _KEYWORDS or token == "$" or re.match(r"\w+\+?=", token)):
            words.append(token)


def family_of(library: str) -> str:
    """Return the MPI family of a library by its name: openmpi or mpich; empty if unknown."""
    name = os.path.basename(os.path.realpath(library) if os.path.exists(library) else library)
    for candidate in (os.path.basename(library), name):
        for family, pattern in _FAMILIES:
            if re.match(pattern, candidate):
                return family
    return ""


class Mpi(NamedTuple):
    """The MPI behind a command: its library, the module of mpi4py, and the program that is linked with it."""

    library: str
    module: str = ""
    program: str = ""


_PRINT_MAPS = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(open('/proc/self/maps').read())"
)


def find_mpi(words: List[str], folder: str) -> "Optional[Mpi]":
    """Return the MPI of the first command that has one; None if that is unknown."""
    for command in commands(words, folder):
        path = _path_of(command.words[0], folder)
        if PYTHON.fullmatch(command.name) or (path.endswith(".py") and not command.before):
            python = command.words[0] if PYTHON.fullmatch(command.name) else "python3"
            maps = _output([*command.before, python, "-c", _PRINT_MAPS], folder)
            module = re.search(r"/\S*/mpi4py/MPI[^/\s]*\.so", maps)
            library = LIBRARY.search(maps)
            if library:
                return Mpi(library.group(), module.group() if module else "")
        elif path:
            is_binary = script_text(path).startswith("\x7fELF")
            library = LIBRARY.search(_output(["ldd", path], folder)) if is_binary else None
            if library:
                return Mpi(library.group(), "", path)
    return None


def _output(words: List[str], folder: str) -> str:
    # Without the hook, which would count the steps of this Python for the rank.
    variables = {name: text for name, text in os.environ.items() if not name.startswith("HPCPROF_")}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        result = subprocess.run(
            words, cwd=folder, env=variables, stdin=null, stdout=pipe, stderr=null, timeout=_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.decode("utf-8", "replace")


def library_beside(launcher: str) -> str:
    """Return the MPI library of an installation that a launcher belongs to; empty if there are several."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(launcher))) if launcher else ""
    if prefix in ("", "/", "/usr"):
        return ""
    libraries = [path for path in glob.glob(prefix + "/lib*/libmpi*.so*") if LIBRARY.fullmatch(path)]
    families = {family_of(path): path for path in sorted(libraries) if family_of(path)}
    return next(iter(families.values())) if len(families) == 1 else ""


def size_of_world(library: str) -> int:
    """Return the number of ranks of the MPI job that this process belongs to; it initializes and ends MPI."""
    import ctypes  # one use in a job that few programs need

    # Cray's needs a further library for GPUs, which the program has.
    os.environ["MPICH_GPU_SUPPORT_ENABLED"] = "0"
    mpi, size = ctypes.CDLL(library, ctypes.RTLD_GLOBAL), ctypes.c_int()
    try:
        world: Any = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
    except ValueError:
        world = ctypes.c_int(0x101 if "libmpi_abi" in library else 0x44000000)
    mpi.MPI_Init(None, None)
    mpi.MPI_Comm_size(world, ctypes.byref(size))
    mpi.MPI_Finalize()
    return size.value


_UNTRACED_WAITS = re.compile(
    rb"MPI_(?:I?neighbor_[a-z]+|I?m?probe|I?mrecv|Isendrecv|P(?:send|recv)_init"
    rb"|(?:All[a-z]+|Barrier|Bcast|Reduce)_init|I?(?:alltoallw|exscan|reduce_scatter_block)"
    rb"|Win_(?:fence|start|wait|lock|unlock|flush)|File_(?:read|write)(?:_at)?(?:_all)?)",
    re.IGNORECASE,
)
"""Functions in which ranks wait, and that versions of nsys or EZTrace do not trace."""


_CXX_BINDINGS = b"_ZN3MPI"
"""Part of the mangled name of each function in the namespace MPI."""


def tracing_libraries() -> List[str]:
    """Return the libraries by which the profiler of this rank replaces functions of MPI."""
    if os.environ.get("HPCPROF_PROFILER") == "eztrace":
        folder = os.path.dirname(os.path.realpath(shutil.which("eztrace") or ""))
        places = [f"{folder}/../lib*/{below}libeztrace-*mpi*.so" for below in ("", "*/")]
        return [path for place in places for path in glob.glob(place)]
    nsys = os.path.dirname(os.path.realpath(shutil.which("nsys") or ""))
    return glob.glob(nsys + "/libToolsInjection*MPI*.so")


def untraced_calls(mpi: Mpi, injections: List[str]) -> Tuple[str, str]:
    """Return the calls of the program that no library of the profiler traces, with | between, and the advice.

    A profiler traces the functions that its own library replaces. mpi4py has them all; its version 4 calls
    MPI_Send_c and its like where MPI has them. Fortran's mpi_f08 has names of its own. The C++ bindings of
    MPI, which some compiler wrappers include in every program, refer to all functions: these tell nothing.
    """
    called: List[bytes] = []
    advice = "Waits in it count as work."
    content = _read_bytes(mpi.module or mpi.program)
    if mpi.module:
        if b"MPI_Send_c" in content and b"MPI_Send_c" in _read_bytes(mpi.library):
            called, advice = [b"MPI_Send_c"], "Use mpi4py 3, or Open MPI up to 5.0."
    elif b"mpi_finalize_f08" in content:
        called, advice = [b"mpi_finalize_f08"], "Use the module mpi, or mpif.h, in place of mpi_f08."
    elif _CXX_BINDINGS not in content:
        called = sorted(set(_UNTRACED_WAITS.findall(content)))
    for injection in map(_read_bytes, injections):
        lower = injection.lower()
        called = [name for name in called if name.lower() not in lower]
    many = (b"MPI_Send_c", b"mpi_finalize_f08")
    names = [name.decode() + (" and its like" if name in many else "") for name in called]
    return ("|".join(names), advice) if injections else ("", "")


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def script_text(path: str) -> str:
    """Return the beginning of a file, which is read once while it does not change; empty if it is no file."""
    try:
        status = os.stat(path)
        key = path.replace("/./", "/"), status.st_mtime_ns, status.st_size
        return _script_text(*key) if stat.S_ISREG(status.st_mode) else ""
    except (OSError, ValueError):  # of a zero byte
        return ""


@functools.lru_cache(maxsize=32)
def _script_text(path: str, *_: int) -> str:
    with open(path, "rb") as file:
        return file.read(_SCRIPT_BYTES).decode("utf-8", "replace")


def main(arguments: List[str]) -> int:
    """Answer the scripts of a run: ``has`` or ``joins`` WORDS, or ``describe`` LAUNCHER WORDS."""
    action, words = arguments[0], arguments[1:]
    launcher = words.pop(0) if action == "describe" else ""
    mpi = find_mpi(words, os.getcwd())
    if action == "has":
        return int(mpi is None or not os.path.isfile(mpi.library))
    if action == "joins":
        return int(mpi is None or size_of_world(mpi.library) != 2)
    if mpi is None and library_beside(launcher):
        mpi = Mpi(library_beside(launcher))
    if mpi is not None:
        called, advice = untraced_calls(mpi, tracing_libraries())
        print(
            "\n".join([family_of(mpi.library), mpi.library, "module" if mpi.module else "", called, advice])
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
