"""The Sphinx directive ``command-reference``: every command and option, as click prints them.

Help texts are taken as plain text: they are written for a terminal and may hold any character.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from hpcprof.cli.main import cli


class CommandReference(SphinxDirective):
    """Insert one section per command, with one inside it per subcommand."""

    def run(self) -> list[nodes.Node]:
        """Return the sections of all commands."""
        return [_section(cli, click.Context(cli, info_name="hpcprof"))]


def _subcommands(group: click.Group, context: click.Context) -> Iterator[nodes.section]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield _section(command, click.Context(command, info_name=name, parent=context))


def _section(command: click.Command, context: click.Context) -> nodes.section:
    section = nodes.section(ids=[context.command_path.replace(" ", "-")])
    section += nodes.title("", "", nodes.literal("", context.command_path))
    for paragraph in (command.help or "").replace("\b", "").strip().split("\n\n"):
        section += nodes.paragraph("", paragraph)
    usage = " ".join(command.collect_usage_pieces(context))
    section += nodes.literal_block("", f"{context.command_path} {usage}", language="text")
    # Every command has --help and --verbose: they are listed once, for hpcprof itself.
    common = {"help", "verbose"} if context.parent else set()
    records = [p.get_help_record(context) for p in command.get_params(context) if p.name not in common]
    options = nodes.definition_list(classes=["options"])
    for names, text in filter(None, records):
        term = nodes.term("", "", nodes.literal("", names))
        options += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", text)))
    if len(options):
        section += options
    if command.epilog:
        _, _, commands = command.epilog.replace("\b", "").strip().partition("\n")
        section += nodes.literal_block("", textwrap.dedent(commands), language="sh")
    if isinstance(command, click.Group):
        section += list(_subcommands(command, context))
    return section


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive with Sphinx."""
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True}
