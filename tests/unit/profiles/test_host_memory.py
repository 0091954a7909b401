"""Words for kinds of memory tell the host's memory of a copy."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.profiles.host_memory import HostMemory, host_memory, host_memory_of_name
from hpcprof.profiles.timeline import MemoryOperations

UNKNOWN, NONE = HostMemory.UNKNOWN, HostMemory.NONE
PAGEABLE, PINNED, MANAGED = HostMemory.PAGEABLE, HostMemory.PINNED, HostMemory.MANAGED


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (("Pageable", "Device"), PAGEABLE),
        (("Device", "Pinned"), PINNED),
        (("Pinned", "Pageable"), PAGEABLE),
        (("Device", "Array"), NONE),
        (("Device Static", "Device"), NONE),
        (("Managed", "Device"), MANAGED),
        (("Device", "Managed Static"), MANAGED),
        (("Device", "Unknown"), UNKNOWN),
        (("Device", None), UNKNOWN),
        (("Pinned",), PINNED),
    ],
)
def test_the_slower_side_decides(labels: tuple[str | None, ...], kind: HostMemory) -> None:
    assert host_memory(labels) is kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", PAGEABLE),
        ("Memcpy DtoH (Device -> Pinned)", PINNED),
        ("Memcpy DtoD (Device -> Device)", NONE),
        ("Memcpy PtoP (Device Static -> Device)", NONE),
        ("Memset (Device)", NONE),
        ("Memset (Managed)", MANAGED),
        ("Memset (Unknown)", UNKNOWN),
        ("[CUDA memcpy Host-to-Device]", UNKNOWN),
        ("CopyDeviceToHost", UNKNOWN),
        ("Memcpy HtoD (Pageable -> Device) of mine", UNKNOWN),
    ],
)
def test_a_name_of_pytorch_tells_the_memory(name: str, kind: HostMemory) -> None:
    assert host_memory_of_name(name) is kind


def test_operations_without_the_column_have_unknown_memory() -> None:
    column = np.arange(3)
    names = ("start", "end", "device", "stream", "name", "category", "correlation", "process", "bytes")
    table = MemoryOperations(**dict.fromkeys(names, column))
    assert table.host_memory.tolist() == [UNKNOWN] * 3
    assert table.take(column == 1).host_memory.tolist() == [UNKNOWN]
    assert MemoryOperations.empty().host_memory.tolist() == []
