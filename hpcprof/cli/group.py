"""Groups of commands."""

from __future__ import annotations

import os

import click

from hpcprof.common import logs
from hpcprof.common.errors import unknown


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
        """Find the command of a call.

        Raises
        ------
        UsageError
            If the group has no command of that name.
        """
        names = self.list_commands(context)
        if arguments and arguments[0] not in names and not arguments[0].startswith("-"):
            where = f" of {context.command_path}" if context.parent else ""
            raise unknown("command", arguments[0], names, where)
        return super().resolve_command(context, arguments)


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
