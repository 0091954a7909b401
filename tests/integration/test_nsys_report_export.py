"""Reports of Nsight Systems, exported by a stand-in for nsys."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import threading
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.nsys.report_export import export_of_report
from tests.unit.profiles.readers.conftest import export as export
from tests.unit.profiles.readers.conftest import nsys_bytes as nsys_bytes
from tests.unit.profiles.readers.nsys.test_report_export import report as report

NSYS = """#!{python}
import pathlib, shutil, sys, time
if sys.argv[1:] == ["export", "--help"]:
    sys.exit(print("--include-blobs="))
arguments = dict(a.partition("=")[::2] for a in sys.argv[2:-1])
assert sys.argv[1] == "export" and arguments["--type"] == "sqlite", sys.argv
assert arguments["--include-blobs"] == "true", sys.argv
report, output = pathlib.Path(sys.argv[-1]), pathlib.Path(arguments["--output"])
with open({log!r}, "a") as log:
    print(output, file=log)
if report.read_bytes() == b"damaged":
    output.write_bytes(b"half")
    print("Processing events", file=sys.stdout)
    sys.exit("Exportation error: Section Table Reference magic number mismatch.")
time.sleep(0.2)
shutil.copy({export!r}, output)
output.touch()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """One line a time that nsys ran: where it wrote."""
    return tmp_path / "nsys.log"


@pytest.fixture
def nsys(export: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for nsys that exports any report to the same real export."""
    with sqlite3.connect(export) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS ANALYSIS_DETAILS (duration INTEGER)")
        connection.execute("INSERT INTO ANALYSIS_DETAILS (duration) VALUES (1)")
    connection.close()
    command = tmp_path / "bin/nsys"
    command.parent.mkdir()
    command.write_text(NSYS.format(python=sys.executable, export=str(export), log=str(log)))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("nsys")
def test_a_report_without_an_export_is_exported_under_a_temporary_name(
    report: Path, export: Path, log: Path
) -> None:
    found = export_of_report(report)
    assert found == report.with_name("rank00000.sqlite")
    assert found.read_bytes() == export.read_bytes()
    written = Path(log.read_text().strip())
    assert written.parent == report.parent
    assert written.name.startswith(".")
    assert written.name.endswith(".rank00000.sqlite")
    assert {path.name for path in report.parent.iterdir()} == {"rank00000.nsys-rep", "rank00000.sqlite"}


@pytest.mark.usefixtures("nsys")
def test_a_whole_export_that_is_no_older_is_used_as_it_is(report: Path, log: Path) -> None:
    export_of_report(report)
    log.unlink()
    before = report.with_suffix(".sqlite").stat().st_mtime_ns
    os.utime(report, ns=(before, before))
    export_of_report(report)
    assert not log.exists()


def make_older(export: Path) -> None:
    os.utime(export, (1, 1))


def cut(export: Path) -> None:
    export.write_bytes(export.read_bytes()[:50_000])


def empty(export: Path) -> None:
    export.write_bytes(b"")


def without_its_last_table(export: Path) -> None:
    with sqlite3.connect(export) as connection:
        connection.execute("DROP TABLE META_DATA_EXPORT")
    connection.close()


def without_details(export: Path) -> None:
    with sqlite3.connect(export) as connection:
        connection.execute("DELETE FROM ANALYSIS_DETAILS")
    connection.close()


def with_a_journal(export: Path) -> None:
    export.with_name(f"{export.name}-journal").write_bytes(b"x" * 600)


SPOILED = [make_older, cut, empty, without_its_last_table, without_details, with_a_journal]


@pytest.mark.usefixtures("nsys")
@pytest.mark.parametrize("spoil", SPOILED)
def test_a_stale_or_waits_for_export_is_made_anew(
    spoil: object, report: Path, export: Path, log: Path
) -> None:
    spoil(export_of_report(report))  # type: ignore[operator]
    log.unlink()
    assert export_of_report(report).read_bytes() == export.read_bytes()
    assert len(log.read_text().splitlines()) == 1
    assert len(list(report.parent.iterdir())) == 2


@pytest.mark.usefixtures("nsys")
@pytest.mark.parametrize("spoil", SPOILED)
def test_without_nsys_a_stale_or_waits_for_export_is_refused_in_one_sentence(
    spoil: object, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(export_of_report(report))  # type: ignore[operator]
    monkeypatch.setenv("PATH", str(tmp_path))
    why = r"rank00000\.sqlite beside it is (older|not complete), and nsys, which makes it, is not on the PATH"
    with pytest.raises(DamagedInput, match=why):
        export_of_report(report)


@pytest.mark.usefixtures("nsys")
def test_a_report_that_nsys_refuses_is_one_sentence_and_leaves_nothing_behind(report: Path) -> None:
    report.write_bytes(b"damaged")
    says = (
        r"nsys cannot export .*rank00000\.nsys-rep: Exportation error: Section Table Reference magic number"
    )
    with pytest.raises(DamagedInput, match=says):
        export_of_report(report)
    assert list(report.parent.iterdir()) == [report]


@pytest.mark.usefixtures("nsys")
def test_two_that_need_an_export_at_once_make_it_once(report: Path, log: Path) -> None:
    threads = [threading.Thread(target=export_of_report, args=(report,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.read_text().splitlines()) == 1
    assert report.with_suffix(".sqlite").is_file()
