"""Submitting from Python, on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcprof
from hpcprof.common.errors import HpcprofError, UsageError
from tests.conftest import Hpcprof


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Hpcprof:
    """The command line; the fixture of its own name would hide the package."""
    found: Hpcprof = request.getfixturevalue("hpcprof")
    return found


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_job_submitted_from_python_is_a_run_like_any_other(
    command: Hpcprof, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = hpcprof.submit_job(["echo", "a b"], walltime="5m", job_name="mine", wait=True)
    assert run.path.parent == tmp_path / "runs"
    assert (run.path / "logs/rank00000.out").read_text() == "a b\n"
    assert run.manifest is not None
    assert run.manifest.command_line == [
        *("hpcprof", "submit", "--walltime", "5m", "--job-name", "mine", "--", "echo", "a b")
    ]
    assert capfd.readouterr() == ("", "")
    assert f"{run.id}  completed" in command("list").stdout


def test_without_wait_the_run_is_returned_before_it_has_ended(tmp_path: Path) -> None:
    run = hpcprof.submit_job(["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"], runs_dir="here")
    assert not (run.path / "state/finished").exists()
    assert run.path.parent == tmp_path / "here"
    (tmp_path / "go").touch()
    hpcprof.submit_job(["true"], runs_dir="here", wait=True)


def test_a_run_that_fails_raises_with_the_last_lines_of_the_rank() -> None:
    with pytest.raises(HpcprofError, match=r"failed: exit code 3\nrank 0: exit code 3\n  no data"):
        hpcprof.submit_job(["sh", "-c", "echo no data >&2; exit 3"], wait=True)


def test_a_wrong_value_raises_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown profiler 'nsight'"):
        hpcprof.submit_job(["true"], profiler="nsight")
    with pytest.raises(UsageError, match="--nodes 0: write a whole number from 1"):
        hpcprof.submit_job(["true"], nodes=0)
    assert list(tmp_path.iterdir()) == []
