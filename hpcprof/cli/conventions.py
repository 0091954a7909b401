"""Conventions of all commands: ``-v``, the examples in their help, and reporting errors."""

import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from hpcprof.common import logs
from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import ESCAPED_CONTROLS, unknown, writing

GATE_EXIT, UNJUDGED_EXIT = 3, 4
"""The exit codes of a gate that has found something, and of one that could judge nothing."""
_EXAMPLE_WIDTH = 78
"""Maximum width of an example: a terminal of 80 columns must not break its lines."""


class Group(click.Group):
    """A group whose commands all have ``-v``, and whose error for an unknown command lists the known ones."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return a command with the option ``-v``, or None if the group has none of that name."""
        command = super().get_command(context, name)
        if command is not None and not any(parameter.name == "verbose" for parameter in command.params):
            verbose_option(command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a call."""
        names = self.list_commands(context)
        if arguments and arguments[0] not in names and not arguments[0].startswith("-"):
            where = f" of {context.command_path}" if context.parent else ""
            if arguments[0] in ("help", "version"):
                path = (context if arguments[0] == "help" else context.find_root()).command_path
                where += f" (write {path} --{arguments[0]})"
            raise unknown("command", arguments[0], names, where)
        return super().resolve_command(context, arguments)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of the commands with their whole first sentences."""
        with formatter.section("Commands"):
            # Click cuts a sentence at the width of the terminal; the limit has room for any.
            commands = [(name, self.get_command(context, name)) for name in self.list_commands(context)]
            formatter.write_dl([(name, item.get_short_help_str(1000)) for name, item in commands if item])


def verbose_option(command: click.Command) -> click.Command:
    """Add ``-v`` to a command."""
    command.params.append(
        click.Option(
            ["-v", "--verbose"],
            count=True,
            is_eager=True,
            expose_value=False,
            callback=_be_verbose,
            help="Show each command that hpcprof runs; with -vv also its output.",
        )
    )
    return command


def _be_verbose(context: click.Context, parameter: click.Parameter, count: int) -> None:
    if count:
        os.environ[logs.VERBOSE] = str(count)
        logs.configure()


def command_with_examples(name: str, *commands: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a function a command whose help has examples."""
    return click.command(name, cls=_Command, epilog=examples(*commands))


class _Command(click.Command):
    """A command that says where options of a program belong."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Parse a command's arguments."""
        words = [*arguments]
        try:
            return super().parse_args(context, arguments)
        except click.NoSuchOption as error:
            declared = (parameter for parameter in self.params if isinstance(parameter, click.Argument))
            takes_program = any(argument.name == "program" for argument in declared)
            if takes_program and "--" not in words and any(not word.startswith("-") for word in words):
                path, option = context.command_path, error.option_name
                raise click.UsageError(
                    f"{path} has no option {option}; put the command with its options after --: "
                    f"{path} … -- COMMAND … {option} …",
                    context,
                ) from None
            if takes_program and error.option_name in _LAUNCHER_OPTIONS:
                sentence = f"no option {error.option_name}: give the ranks by --nodes and --ranks-per-node."
                raise click.UsageError(sentence, context) from None
            raise


_LAUNCHER_OPTIONS = ("-n", "-N", "-np", "--np", "--ntasks", "--ranks")
"""Options of launchers that a user may give to a command of hpcprof."""


def examples(*commands: str) -> str:
    r"""Return an epilogue with one example per line; click does not wrap lines after ``\b``."""
    title = "Examples:" if len(commands) > 1 else "Example:"
    wrapped = partial(textwrap.wrap, width=_EXAMPLE_WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    lines = [" \\\n      ".join(wrapped(command)) for command in commands]
    return "\n".join(("\b", title, *(f"  {line}" for line in lines)))


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text with control characters escaped, since a name with them could steer a terminal."""
    click.echo(text.translate(ESCAPED_CONTROLS), err=err, nl=nl)


def write_page(file: Path, page: str, form: str) -> None:
    """Write a page and say so, on standard error unless the command prints a table for people."""
    with writing(file):
        write_atomically(file, page)
    echo(f"wrote {file}", err=form != "table")


def exit_naming(skipped: Sequence[str]) -> None:
    """Print a sentence for each skipped input and exit with 1; return if nothing was skipped."""
    for sentence in skipped:
        echo(f"hpcprof: skipped: {sentence}", err=True)
    if skipped:
        sys.exit(1)


def typed_command() -> list[str]:
    """Return the command that the user typed, as the run keeps it: targets of notifications are masked."""
    from hpcprof.common.masking import masked_targets

    return masked_targets(["hpcprof", *sys.argv[1:]])
