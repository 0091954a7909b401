"""The command that starts the ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcprof.errors import UsageError
from hpcprof.job import make_job
from hpcprof.launchers import find_mpiexec, launch_command
from hpcprof.site import load_site

LOCAL = load_site("local")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python in an environment of its own, and a PATH with an mpiexec in another place."""
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
    elsewhere = tmp_path / "path/mpiexec"
    elsewhere.touch()
    elsewhere.chmod(0o755)
    monkeypatch.setenv("PATH", str(elsewhere.parent))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/python"))
    return tmp_path / "venv/python"


def test_mpiexec_is_found_beside_python_before_the_path(python: Path) -> None:
    assert find_mpiexec() == str(python.parent.parent / "path/mpiexec")
    python.with_name("mpiexec").touch()
    assert find_mpiexec() == str(python.with_name("mpiexec"))


def test_an_mpiexec_of_the_users_choice_comes_before_both(python: Path) -> None:
    job = make_job(LOCAL, arguments=["x"], ranks_per_node=3, options={"mpiexec": "/opt/mpi/mpiexec"})
    assert launch_command(LOCAL, job) == ["/opt/mpi/mpiexec", "-n", "3"]


def test_without_mpiexec_several_ranks_are_refused_and_one_runs_alone(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert launch_command(LOCAL, make_job(LOCAL, arguments=["x"])) == []
    with pytest.raises(UsageError, match=r"no mpiexec beside .*install hpcprof"):
        launch_command(LOCAL, make_job(LOCAL, arguments=["x"], ranks_per_node=2))
