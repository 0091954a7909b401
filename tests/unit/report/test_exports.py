"""The formats of an export."""

from __future__ import annotations

import click

from hpcprof.cli.export import command
from hpcprof.report.exports import ExportFormat


def test_the_command_offers_every_format() -> None:
    (option,) = (parameter for parameter in command.params if "--to" in parameter.opts)
    assert isinstance(option.type, click.Choice)
    assert [*option.type.choices] == [form.value for form in ExportFormat]
