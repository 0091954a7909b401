"""Reading one profile and running its analyses."""

from __future__ import annotations

import hashlib
import pickle
import resource
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput, UsageError
from hpcprof.results.collect import rank_task
from hpcprof.results.collect.rank_task import ProfileTask, Unchanged, analyze_profile, work_of


def test_a_profile_whose_results_are_known_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.sqlite"
    content = b"profile" * rank_task._HASH_BLOCK_BYTES  # More than is hashed at once.
    path.write_bytes(content)
    monkeypatch.setattr(rank_task, "read_profile", None)
    assert analyze_profile(ProfileTask(path, 0, hashlib.sha256(content).hexdigest())) == Unchanged()


def test_a_profile_of_other_content_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(b"changed")

    def read(*_: object) -> None:
        raise DamagedInput(f"{path} was read.")

    monkeypatch.setattr(rank_task, "read_profile", read)
    known = hashlib.sha256(b"profile").hexdigest()
    found = analyze_profile(ProfileTask(path, 0, known))
    assert isinstance(found, DamagedInput) and "was read" in str(found)


def test_an_unexpected_exception_is_damage_of_this_profile_with_its_type_and_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(b"profile")

    def read(*_: object) -> None:
        raise ZeroDivisionError("nobody expected this.\nNor this.")

    monkeypatch.setattr(rank_task, "read_profile", read)
    found = analyze_profile(ProfileTask(path, 0))
    assert isinstance(found, DamagedInput)
    assert str(found) == f"{path} cannot be read: ZeroDivisionError: nobody expected this."
    sent = pickle.loads(pickle.dumps(found))
    assert "in read" in sent.traceback and sent.traceback.endswith("Nor this.\n")


def test_a_mistake_in_the_users_own_table_of_kernels_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(b"profile")

    def read(*_: object) -> None:
        raise UsageError("the table is wrong.")

    monkeypatch.setattr(rank_task, "read_profile", read)
    with pytest.raises(UsageError, match="the table is wrong"):
        analyze_profile(ProfileTask(path, 0))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    found = analyze_profile(ProfileTask(tmp_path / "rank0.sqlite", 0))
    assert isinstance(found, DamagedInput) and "rank0.sqlite cannot be read" in str(found)


def test_much_content_is_much_work_unless_it_is_known(tmp_path: Path) -> None:
    small, large = tmp_path / "small.sqlite", tmp_path / "large.sqlite"
    small.write_bytes(b"")
    with large.open("wb") as file:
        file.truncate(1 << 30)
    assert 0 < work_of(ProfileTask(small, 0)) < work_of(ProfileTask(large, 0, "known"))
    assert 2 * work_of(ProfileTask(large, 0, "known")) < work_of(ProfileTask(large, 0))
    assert work_of(ProfileTask(tmp_path / "missing.sqlite", 0)) == work_of(ProfileTask(small, 0))
    assert work_of([small] * 10) < work_of([small] * 1000)


def test_memory_that_runs_out_is_named_and_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise MemoryError("Unable to allocate 8 GiB")

    monkeypatch.setattr(rank_task, "read_profile", read)
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(b"profile")
    found = analyze_profile(ProfileTask(path, 0))
    assert isinstance(found, DamagedInput)
    assert str(found).startswith(f"{path} needs more memory than there is") and not found.traceback


def test_a_profile_is_not_read_where_libraries_would_crash_for_want_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(b"profile")
    limits = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)}
    limits[resource.RLIMIT_AS] = (500 << 20, -1)
    monkeypatch.setattr("resource.getrlimit", limits.__getitem__)
    found = analyze_profile(ProfileTask(path, 0))
    assert isinstance(found, DamagedInput) and "may map 500 MiB" in str(found)
