"""Values taken from the counters of a module of Darshan."""

from __future__ import annotations

from typing import Any

import pytest

from hpcprof.profiles.readers.darshan.dump_script import _counters, _impossible_counters


@pytest.mark.parametrize(
    ("module", "counters", "calls"),
    [
        ("POSIX", {"POSIX_OPENS": 1, "POSIX_READS": 2, "POSIX_WRITES": 3}, (1, 2, 3)),
        (
            "DFS",
            {"DFS_OPENS": 1, "DFS_LOOKUPS": 4, "DFS_READS": 2, "DFS_NB_READS": 5, "DFS_WRITEXS": 3},
            (5, 7, 3),
        ),
        ("DAOS", {"DAOS_ARRAY_READS": 2, "DAOS_KV_GETS": 1, "DAOS_OBJ_UPDATES": 3}, (0, 3, 3)),
    ],
)
def test_all_kinds_of_calls_of_a_module_count(
    module: str, counters: dict[str, int], calls: tuple[int, int, int]
) -> None:
    sizes = {f"{module}_BYTES_READ": 16_777_216, f"{module}_BYTES_WRITTEN": -1}
    record: dict[str, Any] = {"rank": 0, "counters": {**counters, **sizes}, "fcounters": {}}
    found = _counters(module, 0, record)
    assert (found["opens"], found["reads"], found["writes"]) == calls
    assert (found["read_bytes"], found["written_bytes"]) == (16_777_216, 0)
    assert not _impossible_counters(module, record)
    # Ids are no counts: theirs may look negative.
    low = {f"{module}_BYTES_READ": -5, f"{module}_RENAMED_FROM": -9}
    record |= {"counters": low, "fcounters": {f"{module}_F_WRITE_TIME": -1923.7}}
    assert _impossible_counters(module, record) == {f"{module}_BYTES_READ", f"{module}_F_WRITE_TIME"}
