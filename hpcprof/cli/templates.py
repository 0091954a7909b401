"""``hpcprof templates``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_templates
from hpcprof.cli.conventions import Group, echo, examples
from hpcprof.cli.options import EXISTING_FILE, output_option
from hpcprof.cli.tables import show_values
from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import UsageError, unknown, writing
from hpcprof.submit.rendering.job_scripts import ARRAY_TEMPLATE, check_array_template
from hpcprof.submit.rendering.template_checks import check_template
from hpcprof.submit.rendering.templates import template_files


@click.group("templates", cls=Group, epilog=examples("hpcprof templates export job/base.sh.j2"))
def command() -> None:
    """List, export or check templates.

    Templates are Jinja files in ./templates, ~/.config/hpcprof/templates and hpcprof itself; the first one
    with a name is used. To change one block of a script, extend its template and override that block.
    """


@command.command("list", epilog=examples("hpcprof templates list"))
def list_() -> None:
    """List the templates and their files."""
    show_values(("template", "file"), template_files().items())


@command.command("export", epilog=examples("hpcprof templates export job/pbs.sh.j2"))
@output_option("Folder to copy to.", default="templates")
@click.argument("name", shell_complete=complete_templates)
def export(output: Path, name: str) -> None:
    """Copy a template for editing; in ./templates it replaces the original."""
    files = template_files()
    if name not in files:
        raise unknown("template", name, files)
    target = output / name
    if target.exists():
        raise UsageError(f"{target} already exists: edit it, or move it away first.")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, files[name].read_text(encoding="utf-8"))
    echo(f"wrote {target}")


@command.command("check", epilog=examples("hpcprof templates check mine.sh.j2"))
@click.argument("file", type=EXISTING_FILE)
def check(file: Path) -> None:
    """Check a template by rendering it; exit 2 and name the mistake if it is wrong.

    A file named array.sh.j2 is checked as a template of array.sh, any other as one of job.sh or wrapper.sh.
    """
    if file.name == Path(ARRAY_TEMPLATE).name:
        check_array_template(file)
    else:
        check_template(file)
    echo(f"{file} renders")
