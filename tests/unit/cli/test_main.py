"""The ``hpcprof`` command before it reads its arguments."""

import os
import sys

import click
import pytest
from click.testing import CliRunner

from hpcprof.cli.main import _click_sentence, main
from hpcprof.cli.sites import command as sites


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
