"""Tests of files that gzip may have packed."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.gzip_file import content_of

TEXT = bytes(random.Random(1).choices(b"0123456789,{}", k=100_000))


@pytest.mark.parametrize("text", [TEXT, b"", bytes(10_000_000)])
def test_the_content_is_what_was_packed(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(text))
    assert content_of(path) == text
    assert content_of(path, 10) == text[:10]


def test_all_files_that_are_packed_one_behind_the_other_are_read(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(TEXT) * 2)
    assert content_of(path) == TEXT * 2


@pytest.mark.parametrize("end", [b"\xff\xff\xff\xff", b"\0\0\0\0"])
def test_a_file_that_names_another_size_is_damaged(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(TEXT)[:-4] + end)
    with pytest.raises(DamagedInput, match="is damaged or truncated"):
        content_of(path)


def test_a_file_that_ends_early_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(TEXT)[:-1000])
    with pytest.raises(DamagedInput, match="is damaged or truncated"):
        content_of(path)
