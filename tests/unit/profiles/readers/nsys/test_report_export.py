"""Reports of Nsight Systems: when and how they are exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.discovery import file_to_read, find_profiles
from hpcprof.profiles.readers.nsys.report_export import export_of_report


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report, whose content the stand-in does not look at."""
    path = tmp_path / "profiles/rank00000.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"report")
    return path


def test_without_nsys_and_export_the_sentence_says_what_to_run(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DamagedInput, match=r"it has no export .* run nsys export --type sqlite .*nsys-rep\.$"
    ):
        export_of_report(report)


def test_a_report_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match="cannot be read: No such file"):
        export_of_report(tmp_path / "rank0.nsys-rep")


def test_a_report_and_its_export_are_one_profile(report: Path) -> None:
    report.with_suffix(".sqlite").touch()
    report.with_name("rank00001.sqlite").touch()
    assert find_profiles(report.parent) == [report, report.with_name("rank00001.sqlite")]


def test_other_profiles_are_read_as_they_are(tmp_path: Path) -> None:
    assert file_to_read(tmp_path / "rank0.sqlite") == tmp_path / "rank0.sqlite"
