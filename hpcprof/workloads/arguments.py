"""The argument parser of the built-in workloads, used on the submit side and on the ranks."""

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from types import MappingProxyType
from typing import Any, NoReturn

from hpcprof.common.errors import InformationRequested, UsageError, unknown

MAX_SEED = 2**32 - 1
"""torch.manual_seed takes 64 bits; a workload may add the rank to a multiple of the seed."""


class Options:
    """A workload's parsed arguments."""

    tools: Mapping[str, str] = MappingProxyType({})
    """Paths of ``python``, ``nsys`` and ``ncu``, as far as the arguments name them."""

    def validate(self, world_size: int, /) -> None:
        """Raise `UsageError` if the options do not suit ``world_size`` ranks."""
        raise NotImplementedError

    def validate_profiled(self) -> None:
        """Raise `UsageError` if the options cannot be combined with a profiler."""


def option(default: Any, text: str, **kind: Any) -> Any:
    """Declare a field of a dataclass of options: its default, and the help of its option.

    ``minimum`` and ``maximum`` are the limits of a whole number, and ``also`` lists further names of the
    option; other keywords are argparse's. A field whose default is False is a switch.
    """
    return field(default=default, metadata={"text": text, **kind})


class WorkloadParser(argparse.ArgumentParser):
    """A parser that raises instead of printing and exiting: on the ranks, the caller decides who prints.

    ``options`` is a dataclass whose fields `option` declares; ``epilog`` is the end of ``--help``, a
    paragraph in each line.
    """

    def __init__(self, program: str, description: str, options: type[Any], epilog: str = "") -> None:
        # Options that are not given stay absent: settings files may set them before the defaults apply.
        super().__init__(
            prog=program,
            description=description,
            epilog=epilog,
            formatter_class=_Paragraphs,
            allow_abbrev=False,
            add_help=False,
            argument_default=argparse.SUPPRESS,
        )
        self.add_argument("-h", "--help", action=_RaiseHelp, nargs=0, help="show this help and exit")
        self._declared = {entry.name: entry for entry in fields(options) if entry.metadata}

    def add(self, *names: str) -> None:
        """Add the options of fields, or of all fields."""
        for name in names or self._declared:
            self._add(name, self._declared[name].default, **self._declared[name].metadata)

    def _add(
        self,
        name: str,
        default: object,
        text: str,
        minimum: int | None = None,
        maximum: int | None = None,
        also: Sequence[str] = (),
        **kind: Any,
    ) -> None:
        if default is False:
            kind["action"] = "store_true"
        elif default not in (None, ""):
            text += f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        if minimum is not None:
            kind |= {"type": whole_number(minimum, maximum), "metavar": "N"}
        self.add_argument(f"--{name.replace('_', '-')}", *also, help=text, **kind)

    def given(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that are given, by name; `InformationRequested` for ``--help``."""
        values, unknown_words = self.parse_known_args(list(arguments))
        if unknown_words:
            valid = (name for name in self._option_string_actions if name.startswith("--"))
            raise unknown("option", unknown_words[0], valid, f" of {self.prog}")
        return vars(values)

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with the name of the workload before the message."""
        raise UsageError(f"{self.prog}: {message}.")


class _Paragraphs(argparse.HelpFormatter):
    """Keeps the lines of a text apart; argparse would join them."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        hanging = f"{indent}  "
        return "\n".join(
            textwrap.fill(line, width, initial_indent=indent, subsequent_indent=hanging if at else indent)
            for at, line in enumerate(text.splitlines())
        )


class _RaiseHelp(argparse.Action):
    """Raise the help text; argparse's own action prints it and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise InformationRequested(parser.format_help().rstrip("\n"))


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return a converter for argparse's ``type`` that accepts whole numbers in a range, limits included."""
    limits = f"from {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}")
        return value

    return convert
