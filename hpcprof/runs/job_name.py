"""The script of a command, which names the job, and the options that it is given."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from hpcprof.common.paths import read_table
from hpcprof.node.program_words import (
    MODULES,
    PYTHON,
    RUNNERS,
    SHELL,
    VALUE_OPTIONS,
    script_text,
    words_run_by,
)

_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
JAX_MODULES = {"jax", "flax", "optax", "equinox", "haiku"}
"""JAX, and libraries for it."""

OTHER_PYTHON = (
    "torch or jax shows where PyTorch or JAX takes its time; for other Python use py-spy or cProfile without "
    "hpcprof"
)
"""Profilers for a script that imports neither itself: its modules may."""

_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+(?:[ \t]*,[ \t]*\w+)*)", re.MULTILINE)
_SCRIPT_SUFFIXES = (".py", ".sh", ".bash")

_TABLE = read_table(Path(__file__).with_name("launcher_options.txt"))
LAUNCHER_OPTIONS = {name: marks.split() for names, marks in _TABLE for name in names.split()}
"""Options of torchrun and accelerate, with their marks in the table."""


def default_job_name(command: Sequence[str]) -> str:
    """Return the name of a job that runs ``command``: the name of its script, without suffix.

    Runners (``env``, ``uv run``), interpreters, torchrun and their options are skipped: ``python3 -u train.py
    --lr 1`` is ``train``, and ``python -m package.module`` is ``module``. Code on the command line
    (``bash -c``) has no name of its own; the job gets that of the interpreter.
    """
    return _file_name(_script_command(_without_runners(command))[0]) or "job"


def command_options(command: Sequence[str]) -> dict[str, str]:
    """Return a command's options by name, ``yes`` for flags; other words are ``argument 1`` and so on."""
    words = list(_script_command(_without_runners(command))[1:])
    options: dict[str, str] = {}
    position = 0
    while words:
        name, equals, value = words.pop(0).partition("=")
        if _is_option(name) and not equals:
            value = words.pop(0) if words and not _is_option(words[0]) and "=" not in words[0] else "yes"
        elif not equals:
            position += 1
            name, value = f"argument {position}", name
        options[name.lstrip("-")] = value
    return options


def script_of(command: Sequence[str]) -> str:
    """Return the file of Python or of a shell that an interpreter or torchrun runs; empty if none."""
    script = _script_command(command)[0]
    return script if script != command[0] and script.endswith(_SCRIPT_SUFFIXES) else ""


def runs_python(command: Sequence[str]) -> bool:
    """Return whether a command is a program in Python, which an interpreter or a launcher of PyTorch runs."""
    names = (PurePath(word).name for word in command)
    return any(PYTHON.fullmatch(name) or name in _LAUNCHERS or name.endswith(".py") for name in names)


def imported_modules(command: Sequence[str], folder: str) -> set[str]:
    """Return the modules that the script of a command, which runs in a folder, imports by name."""
    script = script_of(command) if command else ""
    lists = _IMPORT.findall(script_text(str(Path(folder, script)))) if script else []
    return {module for modules in lists for module in re.split(r"[ \t]*,[ \t]*", modules)}


def profiler_advice(program: Sequence[str], folder: str) -> str:
    """Return how to profile a program, as far as its script tells; an empty one is a built-in workload."""
    how = "auto shows where its time goes"
    if program:
        modules = imported_modules(program, folder)
        uses_framework = not modules.isdisjoint({"torch", *JAX_MODULES})
        if not runs_python(program):
            how = "auto shows its GPUs and MPI; for a program without them use perf without hpcprof"
        elif "mpi4py" in modules and not uses_framework:
            how = "auto shows which rank is late, with nsys, Score-P or EZTrace"
        elif not uses_framework:
            how = OTHER_PYTHON
    return f"hpcprof run --profiler {how}"


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\.?\d.*", word)


def _without_runners(command: Sequence[str]) -> Sequence[str]:
    runner = RUNNERS.get(name := PurePath(command[0]).name)
    inner = words_run_by(name, runner, list(command[1:])) if runner else []
    return _without_runners(inner) if inner else command


def _script_command(command: Sequence[str]) -> Sequence[str]:
    inner = _inner_command(_file_name(command[0]), list(command[1:]))
    return _script_command(inner) if inner else command


def _inner_command(program: str, words: list[str]) -> list[str]:
    if program == "torchrun":
        return _after_torchrun(words)
    python = PYTHON.fullmatch(program)
    if not python and not SHELL.fullmatch(program):
        return []
    while words and words[0][:1] in ("-", "+"):
        option = words.pop(0)
        if re.fullmatch("-[A-Za-z]*c", option):
            return []
        if python and option == "-m" and words:
            module, *arguments = words
            return _after_torchrun(arguments) if MODULES.get(module) == "torchrun" else _module_command(words)
        if option in VALUE_OPTIONS:
            del words[:1]
    return words


def launcher_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return options of torchrun or accelerate, with - for _ in their names, and the words after them."""
    options: dict[str, str] = {}
    remaining = list(words)
    while remaining and remaining[0].startswith("-"):
        option, equals, value = remaining.pop(0).partition("=")
        if option == "--":
            break
        option = option.replace("_", "-")
        if not equals and "flag" not in LAUNCHER_OPTIONS.get(option, ()) and remaining:
            value = remaining.pop(0)
        options[option] = value
    return options, remaining


def _after_torchrun(words: list[str]) -> list[str]:
    options, remaining = launcher_options(words)
    return _module_command(remaining) if options.keys() & {"-m", "--module"} and remaining else remaining


def _module_command(words: Sequence[str]) -> list[str]:
    module, *arguments = words
    return [module.removesuffix(".__main__").rpartition(".")[2], *arguments]


def _file_name(word: str) -> str:
    path = PurePath(word)
    return path.stem if path.suffix in _SCRIPT_SUFFIXES else path.name
