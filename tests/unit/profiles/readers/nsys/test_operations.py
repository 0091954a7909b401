"""Memory operations of nsys exports."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.readers.nsys.reader import read
from tests.data.generated_exports import SCHEMA
from tests.unit.profiles.readers.nsys.test_reader import change

COPIES, SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
PAIRS = [(0, 2), (2, 1), (2, 2), (4, 2), (7, 2), (99, 2)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An export with copies between kinds of memory and with sets."""
    path = tmp_path / "rank0.sqlite"
    change(
        path,
        *SCHEMA.strip().split(";")[:-1],
        *(f"ALTER TABLE {COPIES} ADD COLUMN {name} INTEGER" for name in ("srcKind", "dstKind")),
        f"ALTER TABLE {SETS} ADD COLUMN memKind INTEGER",
        *(
            f"INSERT INTO {COPIES} VALUES ({i}, 9, 0, 1, 7, {i}, 0, 64, 1, {source}, {target})"
            for i, (source, target) in enumerate(PAIRS)
        ),
        *(f"INSERT INTO {SETS} VALUES ({i}, 9, 0, 1, 7, {i}, 0, 0, 64, {i})" for i in range(3)),
    )
    return path


def kinds(path: Path) -> list[HostMemory]:
    return [HostMemory(kind) for kind in read(path).memops.host_memory.tolist()]


def test_copies_and_sets_tell_the_memory_of_the_host(path: Path) -> None:
    known = [HostMemory.PAGEABLE, HostMemory.PINNED, HostMemory.NONE]
    assert kinds(path) == [*known, HostMemory.MANAGED, *[HostMemory.UNKNOWN] * 2, *known]
    assert read(path).origin.losses == ()


def test_the_export_itself_numbers_the_kinds(path: Path) -> None:
    change(
        path,
        "CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT)",
        "INSERT INTO ENUM_CUDA_MEM_KIND VALUES (99, '', 'Pageable'), (0, '', 'Device')",
    )
    assert kinds(path)[: len(PAIRS)] == [
        HostMemory.NONE,
        HostMemory.PINNED,
        HostMemory.NONE,
        HostMemory.MANAGED,
        HostMemory.UNKNOWN,
        HostMemory.PAGEABLE,
    ]


def test_exports_without_kinds_of_memory_leave_them_unknown(path: Path) -> None:
    change(path, *(f"ALTER TABLE {COPIES} DROP COLUMN {name}" for name in ("srcKind", "dstKind")))
    change(path, f"ALTER TABLE {SETS} DROP COLUMN memKind")
    assert set(kinds(path)) == {HostMemory.UNKNOWN}
