"""Tables on the terminal."""

from __future__ import annotations

import csv
import io

import pytest

from hpcprof.cli.tables import show, show_values, show_what_fits, write_rows

KERNELS = [f"void at::native::elementwise_kernel<{way}, {'Functor' * 12}>(T1)" for way in ("add", "mul")]
COLUMNS = ("run_id", "name", "instances", "total_ns")
ROWS = [("train-1234abcd", name, 240, 201_199_822 + at) for at, name in enumerate(KERNELS)]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_figures_stay_whole_and_names_different(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show_values(COLUMNS[1:], [row[1:] for row in ROWS])
    shown, said = capsys.readouterr()
    lines = shown.splitlines()
    assert all(len(line) <= width for line in lines)
    assert [line.split()[-2:] for line in lines[1:]] == [["240", "201199822"], ["240", "201199823"]]
    assert len({line.split()[0] for line in lines[1:]}) == 2
    assert said == "shortened: name (whole with --format csv)\n"


def test_a_text_that_is_the_same_in_all_rows_is_left_out_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show_values(COLUMNS, ROWS)
    shown, said = capsys.readouterr()
    assert shown.split()[:3] == ["name", "instances", "total_ns"]
    assert said.startswith("not shown: run_id; shortened: name")


def test_figures_are_left_out_last_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    show_values(("a", "b", "c"), [(1, 10**15, 10**16), (2, 2, 3)])
    shown, said = capsys.readouterr()
    assert shown.split() == ["a", "b", "1", "1000000000000000", "2", "2"]
    assert said == "not shown: c (whole with --format csv)\n"


def test_what_is_no_terminal_gets_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show_values(COLUMNS, ROWS)
    shown, said = capsys.readouterr()
    assert all(name in shown for name in KERNELS)
    assert not said


def test_a_last_column_of_text_wraps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    reason = "no compute kernel is covered by communication to 90 % or more"
    show_values(("rank", "reason"), [(0, reason)])
    shown, said = capsys.readouterr()
    assert " ".join(shown.split()).endswith(reason)
    assert not said


def test_lines_of_a_file_or_a_pipe_do_not_end_in_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    show_values(("name", "n"), [("a", 1), ("long name", 2)])
    show([("a", "b"), ("a", "long text")], ("first", "last"))
    shown = capsys.readouterr().out
    assert shown and all(line == line.rstrip() for line in shown.splitlines())


def test_values_of_csv_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows("csv", COLUMNS, ROWS)
    assert [*csv.reader(io.StringIO(capsys.readouterr().out))][1][1] == KERNELS[0]


@pytest.mark.parametrize("width", [30, 60])
def test_a_word_that_is_longer_than_the_last_column_is_not_cut(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    run = "20261129-152005-train-with-a-long-name-3c4d.10"
    show([("12.5 ms", run)], ("step", "run"))
    assert "".join(capsys.readouterr().out.split()) == f"steprun12.5ms{run}"


def test_a_long_command_does_not_widen_a_table_that_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    columns = {"run": ["train-1234abcd", "b"], "command": ["./solver " * 1000, "true"], "state": ["-", "-"]}
    show_what_fits(columns, ["run", "state", "command"], shortened="command")
    out, err = capsys.readouterr()
    assert (max(map(len, out.splitlines())), err) == (14 + 2 + 200 + 2 + 5, "")
    monkeypatch.setenv("COLUMNS", "24")
    show_what_fits(columns, ["run", "state", "command"], shortened="command")
    assert capsys.readouterr().err == "not shown in this width: command\n"


def test_a_column_without_any_value_makes_room_where_a_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "22")
    columns = {"run": ["train-1234"], "tags": ["–"], "state": ["failed"], "command": ["python train.py"]}
    show_what_fits(columns, ["run", "tags", "state", "command"], shortened="command")
    out, err = capsys.readouterr()
    assert ("failed" in out, "tags" in out) == (True, False) and "tags" in err


def test_texts_that_are_cut_keep_what_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    program = f"python train.py --data /{'long/' * 20}train"
    commands = [f"{program} --batch {batch} --lr {lr}" for batch in (1, 2) for lr in (0.1, 0.01)]
    columns = {
        "run": ["sweep.0", "sweep.1", "sweep.2", "sweep.3"],
        "command": commands,
        "site": ["local"] * 4,
    }
    show_what_fits(columns, ["run", "command", "site"], shortened="command")
    out, err = capsys.readouterr()
    for line, command in zip(out.splitlines()[1:], commands, strict=True):
        assert line.rstrip().endswith(command.removeprefix(program).strip())
        assert len(line) <= 60
    assert err == "not shown in this width: site\n"
    one = {name: values[:1] for name, values in columns.items()}
    show_what_fits(one, ["run", "command", "site"], shortened="command")
    assert "local" in capsys.readouterr().out
