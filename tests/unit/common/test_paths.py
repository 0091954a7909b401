"""The names of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.paths import absolute_path, working_folder


def test_a_folder_keeps_the_name_of_the_link_by_which_a_shell_reached_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk7/code").mkdir(parents=True)
    home = tmp_path / "home"
    home.symlink_to(tmp_path / "disk7")
    monkeypatch.chdir(home / "code")
    monkeypatch.setenv("PWD", str(home / "code"))
    assert working_folder() == home / "code"
    assert absolute_path(Path("runs")) == home / "code/runs"
    assert absolute_path(Path("../runs/a")) == home / "runs/a"
    assert absolute_path(home / "new") == home / "new"
    # A shell's name of another folder, and a parent folder that is not the link's.
    monkeypatch.setenv("PWD", str(home))
    assert working_folder() == tmp_path / "disk7/code"
    assert absolute_path(home / "../a") == tmp_path / "a"
    (tmp_path / "far").symlink_to(tmp_path / "disk7/code")
    assert absolute_path(tmp_path / "far/../b") == tmp_path / "disk7/b"
