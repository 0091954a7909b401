"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcprof.common.atomic import write_atomically


def test_a_file_or_a_link_to_one_is_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)
    write_atomically(link, "new")
    assert (path.read_text(), link.read_text(), link.is_symlink()) == ("old", "new", False)
    write_atomically(path, "newer")
    assert path.read_text() == "newer"
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", "link"}


def test_what_is_no_file_is_left_as_it_is(tmp_path: Path) -> None:
    pipe, standard_output = tmp_path / "pipe", tmp_path / "stdout"
    os.mkfifo(pipe)
    with (tmp_path / "redirected").open("w") as file:
        standard_output.symlink_to(f"/proc/self/fd/{file.fileno()}")
        for path in (pipe, standard_output):
            with pytest.raises(OSError, match="Not a regular file"):
                write_atomically(path, "text")
    assert pipe.is_fifo() and standard_output.is_symlink()
    assert {entry.name for entry in tmp_path.iterdir()} == {"pipe", "stdout", "redirected"}


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as raised:
        write_atomically(path, "text")
    assert raised.value.filename == str(path)
