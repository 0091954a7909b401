"""The ``hpcprof`` command before it reads its arguments."""

import os
import sys

import pytest

from hpcprof.cli.main import main


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
