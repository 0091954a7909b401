"""Names that would steer the terminal of the one who reads a message about them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.conventions import echo
from hpcprof.cli.main import cli, main
from hpcprof.cli.tables import console
from hpcprof.common.errors import DamagedInput, HpcprofError, UsageError

_STEERING = (
    "\x1b[2J",
    "\u202e",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\r",
    "\x08" * 9,
    "\x1b]8;;https://evil.example\x1b\\",
)


@pytest.mark.parametrize("name", _STEERING)
def test_the_sentence_of_an_error_steers_no_terminal(name: str) -> None:
    for kind in (HpcprofError, DamagedInput, UsageError):
        said = str(kind(f"rank0{name}.sqlite is no profile.\nSee above."))
        assert said.replace("\n", "").isprintable() and said.count("\n") == 1


@pytest.mark.parametrize("name", _STEERING)
def test_a_name_that_is_given_steers_no_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hpcprof", "report", f"no{name}run"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.rstrip("\n").isprintable()


@pytest.mark.parametrize("name", _STEERING)
def test_a_name_in_what_is_printed_steers_no_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"run{name}")
    echo(f"run{name}", err=True)
    console(200, stderr=True).print(f"run{name}")
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1 and printed.err.count("\n") == 2
    assert (printed.out + printed.err).replace("\n", "").isprintable()


def test_a_profile_that_is_skipped_steers_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(_STEERING):
        if "/" not in name:
            (tmp_path / f"rank{number}{name}.sqlite").write_bytes(b"none")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["report", "."], color=True)
    assert done.output.count("hpcprof: skipped") == 6 and done.output.replace("\n", "").isprintable()
