"""Groups of commands."""

from __future__ import annotations

import click

from hpcprof.common.errors import unknown


class Group(click.Group):
    """A group that answers a name that is none of its commands with the close matches and all names."""

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a call.

        Raises
        ------
        UsageError
            If there is none of that name.
        """
        names = self.list_commands(context)
        if arguments and arguments[0] not in names and not arguments[0].startswith("-"):
            where = f" of {context.command_path}" if context.parent else ""
            raise unknown("command", arguments[0], names, where)
        return super().resolve_command(context, arguments)
