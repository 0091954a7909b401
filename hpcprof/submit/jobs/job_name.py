"""The default name of a job: that of the script, and not of the interpreter that runs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_SCRIPT_SUFFIXES = (".py", ".sh", ".bash")

_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs", "-o", "+o", "-O", "+O", "--rcfile")
"""The options of Python and of shells whose value is the next word."""
_TORCHRUN_FLAGS = ("--standalone", "--no-python", "--run-path", "--use-env", "--module", "-m")
"""The options of torchrun that have no value."""


def default_job_name(command: Sequence[str]) -> str:
    """Return the name of a job that runs ``command``: the name of its script, without suffix.

    Interpreters, torchrun and their options are skipped: ``python3 -u train.py --lr 1`` is ``train``, and
    ``python -m package.module`` is ``module``. Code on the command line (``bash -c``) has no name of its own;
    the job gets that of the interpreter.
    """
    name = _file_name(command[0])
    inner = _inner_command(name, list(command[1:]))
    return default_job_name(inner) if inner else name or "job"


def _inner_command(program: str, words: list[str]) -> list[str]:
    """Return the command that an interpreter or torchrun runs; empty if ``program`` is neither."""
    if program == "torchrun":
        return _after_torchrun(words)
    python = _PYTHON.fullmatch(program)
    if not python and not _SHELL.fullmatch(program):
        return []
    while words and words[0][:1] in ("-", "+"):
        option = words.pop(0)
        if re.fullmatch("-[A-Za-z]*c", option):
            return []
        if python and option == "-m" and words:
            return _after_torchrun(words[1:]) if words[0] in _TORCHRUN_MODULES else [_module_name(words[0])]
        if option in _OPTIONS_WITH_VALUE:
            del words[:1]
    return words


def _after_torchrun(words: list[str]) -> list[str]:
    module = False
    while words and words[0].startswith("-"):
        # torchrun accepts _ for - in its options.
        option = words.pop(0).replace("_", "-")
        module = module or option in ("-m", "--module")
        if "=" not in option and option not in _TORCHRUN_FLAGS:
            del words[:1]
    return [_module_name(words[0])] if module and words else words


def _module_name(module: str) -> str:
    return module.removesuffix(".__main__").rpartition(".")[2]


def _file_name(word: str) -> str:
    path = PurePath(word)
    return path.stem if path.suffix in _SCRIPT_SUFFIXES else path.name
