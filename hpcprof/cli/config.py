"""``hpcprof config``."""

import click

from hpcprof.cli.completion import complete_config_keys, complete_config_values
from hpcprof.cli.conventions import Group, echo, examples
from hpcprof.cli.options import flag
from hpcprof.cli.tables import format_option, write_rows
from hpcprof.common.masking import MASK
from hpcprof.runs.config import local_file, shown_path, shown_settings, user_file


@click.group("config", cls=Group, epilog=examples("hpcprof config set site polaris", "hpcprof config show"))
def command() -> None:
    """Show or change your defaults, such as site and account.

    They are in ~/.config/hpcprof/config.yaml, and in ./hpcprof.yaml for one folder. The command line, a job
    file, $HPCPROF_RUNS and $HPCPROF_DB come before them; hpcprof submit -v shows where each value came from.
    """


@command.command("show", epilog=examples("hpcprof config show", "hpcprof config show --format json"))
@format_option
def show_(form: str) -> None:
    """Show the defaults that apply in this folder, and where each comes from."""
    rows = [(setting.key, setting.value, setting.source) for setting in shown_settings()]
    if form != "table":
        write_rows(form, ("key", "value", "source"), rows)
        return
    # Lines, which are never cut: a path may be longer than a terminal is wide.
    keys, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    for key, value, source in rows:
        echo(f"{key:{keys}}  {value:{values}}  {source}")


@command.command(
    "set",
    epilog=examples(
        "hpcprof config set site polaris",
        "hpcprof config set sites.polaris.account myproject",
        "hpcprof config set sites.polaris.options.filesystems home:eagle",
        "hpcprof config set --local runs_dir /scratch/me/runs",
        "hpcprof config set notify.me mail:me@example.org",
    ),
)
@flag("--local", help="Write ./hpcprof.yaml, which is for this folder.")
@click.argument("key", shell_complete=complete_config_keys)
@click.argument("value", shell_complete=complete_config_values)
def set_(local: bool, key: str, value: str) -> None:
    """Set a default; an empty VALUE ('') removes it.

    KEY is site, account, queue, runs_dir, db, container_engine or access, or for one site
    sites.SITE.account, sites.SITE.queue, sites.SITE.host, sites.SITE.user, sites.SITE.runs_dir or
    sites.SITE.options.KEY. access is owner or group: who may read new runs and databases.
    notify.NAME is a target for --notify: slack:URL, teams:URL, mail:ADDRESS, a URL or a command.
    """
    from hpcprof.submit.config_edit import set_value

    path = local_file() if local else user_file()
    kept_comments = set_value(path, key, value)
    public_value = MASK if key.startswith("notify.") else value
    change = f"{key} = {public_value}" if value else f"removed {key}"
    echo(f"wrote {shown_path(path)}: {change}")
    if not kept_comments:
        echo(f"hpcprof: note: {shown_path(path)} was written anew, without its comments.", err=True)


@command.command("path", epilog=examples("hpcprof config path"))
def path() -> None:
    """Print the paths of both files, the one that takes precedence first."""
    for file in (local_file().absolute(), user_file()):
        echo(f"{file}{'' if file.is_file() else '  (does not exist)'}")
