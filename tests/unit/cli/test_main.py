"""The ``hpcprof`` command before it reads its arguments."""

import os
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import hpcprof.cli.query
from hpcprof.cli.history import command as history
from hpcprof.cli.main import _click_sentence, _system_sentence, cli, main
from hpcprof.cli.serve import command as serve
from hpcprof.cli.sites import command as sites
from hpcprof.cli.sweep import command as sweep
from hpcprof.common.errors import UsageError


def test_python_starts_again_in_utf8_mode_where_the_locale_has_another_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []

    def start(program: str, arguments: list[str]) -> None:
        started.append([program, *arguments])
        raise SystemExit

    monkeypatch.setattr(os, "execv", start)
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    monkeypatch.setattr(sys, "orig_argv", ["python", "hpcprof", "list", "l\udce4uft"])
    with pytest.raises(SystemExit):
        main()
    assert started == [[sys.executable, sys.executable, "-X", "utf8", "hpcprof", "list", "l\udce4uft"]]


def test_a_default_or_a_variable_is_not_blamed_on_the_option() -> None:
    @click.command()
    @click.option("--where", type=click.Path(file_okay=False), default=__file__, envvar="WHERE")
    def command(where: str) -> None:
        """Do nothing."""

    def said(*words: str, **environment: str) -> str:
        with pytest.raises(click.BadParameter) as raised, CliRunner(env=environment).isolation():
            command.main([*words], standalone_mode=False)
        return _click_sentence(raised.value)

    assert said() == f"Directory '{__file__}' is a file: give another --where."
    assert said(WHERE=__file__) == f"WHERE: Directory '{__file__}' is a file: give another --where."
    assert said("--where", __file__).startswith("Invalid value for '--where':")


def test_the_help_of_a_group_has_whole_sentences() -> None:
    words = " ".join(CliRunner().invoke(sites, ["--help"], terminal_width=60).output.split())
    assert "Check a site, by its file or name; exit 2 and name the first mistake if it is wrong." in words


def test_the_help_of_every_command_fits_a_terminal_of_80_columns() -> None:
    def lines(command: click.Command, name: str) -> Iterator[str]:
        context = click.Context(command, info_name=name, terminal_width=80)
        yield from command.get_help(context).splitlines()
        if isinstance(command, click.Group):
            for word in command.list_commands(context):
                part = command.get_command(context, word)
                assert part is not None
                yield from lines(part, f"{name} {word}")

    assert not [line for line in lines(cli, "hpcprof") if len(line) > 80]


def test_a_full_disk_and_a_missing_option_are_named() -> None:
    assert _system_sentence(OSError(28, "No space left")) == "the output could not be written: No space left."
    with pytest.raises(click.MissingParameter) as raised:
        sweep.main(["--", "true"], standalone_mode=False)
    assert "'--parameter' KEY=VALUE" in _click_sentence(raised.value)


def test_a_named_folder_that_is_not_there_is_not_served() -> None:
    with pytest.raises(UsageError, match=r"--runs-dir nowhere: there is no such folder"):
        serve.main(["--runs-dir", "nowhere"], standalone_mode=False)


def test_a_query_of_events_takes_the_run_before_or_after_the_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(hpcprof.cli.query, "_ask_events", lambda *words: asked.append(words[-3::2]))
    for words in (("select 1", "RUN"), ("RUN", "select 1")):
        hpcprof.cli.query.command.main(["--events", *words], standalone_mode=False)
    assert asked == [("select 1", ("RUN",))] * 2


def test_a_run_given_to_a_command_about_programs_is_answered_with_the_option() -> None:
    with pytest.raises(click.UsageError) as raised:
        history.main(["last"], standalone_mode=False)
    sentence = _click_sentence(raised.value)
    assert "unexpected extra argument (last): --program NAME chooses the runs. See" in sentence
