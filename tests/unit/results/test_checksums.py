"""Checksums that are begun before they are asked for."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.results import checksums
from hpcprof.results.checksums import begin, checksum, stamp


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(b"profile")
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_checksum_that_was_begun_is_not_computed_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    compute = checksums._sha256
    monkeypatch.setattr(checksums, "_sha256", lambda path: hashed.append(path) or compute(path))
    begin(file)
    assert checksum(file, stamp(file)) == sha256(b"profile")
    assert hashed == [file]
    assert checksum(file, stamp(file)) == sha256(b"profile")
    assert hashed == [file, file]


def test_of_a_file_that_changed_meanwhile_the_checksum_is_the_new_one(file: Path) -> None:
    begin(file)
    file.write_bytes(b"changed")
    os.utime(file, ns=(0, 0))
    assert checksum(file, stamp(file)) == sha256(b"changed")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match=r"rank0.sqlite cannot be read"):
        begin(tmp_path / "rank0.sqlite")


def test_an_error_while_hashing_is_raised_where_the_checksum_is_needed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> str:
        raise DamagedInput(f"{path} cannot be read: it is gone.")

    monkeypatch.setattr(checksums, "_sha256", fail)
    begin(file)
    with pytest.raises(DamagedInput, match="it is gone"):
        checksum(file, stamp(file))


def test_nothing_waits_for_a_checksum_at_the_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working, done = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def work(path: Path) -> str:
        threads.append(threading.current_thread())
        working.set()
        done.wait(60)
        return ""

    monkeypatch.setattr(checksums, "_sha256", work)
    begin(file)
    assert working.wait(60)
    assert threads[0].daemon
    done.set()
    assert checksum(file, stamp(file)) == ""
