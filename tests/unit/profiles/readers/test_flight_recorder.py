"""Dumps of PyTorch's flight recorder."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.flight_recorder import (
    find_dumps,
    parse_flight_record,
    rank_of_dump,
    read_flight_record,
)


def entry(number: int, **changed: Any) -> dict[str, Any]:
    """Return an entry as PyTorch 2.13 writes it."""
    return {
        "frames": [{"name": "all_reduce", "filename": "/lib/distributed_c10d.py", "line": 3245}],
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": 1_000 * number,
        "input_sizes": [[4, 3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 3]],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "retired": False,
        "is_p2p": False,
        **changed,
    }


def dump(*entries: Any, **changed: Any) -> dict[str, Any]:
    """Return a dump with some entries."""
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": list(entries), **changed}


@pytest.mark.parametrize("packed", [pickle.dumps, lambda values: json.dumps(values).encode()])
def test_a_pickle_and_json_say_the_same(packed: Any) -> None:
    record = parse_flight_record(packed(dump(entry(2), entry(1, retired=True))))
    assert record.groups == {"0": (0, 1, 2)}
    assert record.descriptions == {"0": "default_pg"}
    assert [operation.collective_seq_id for operation in record.operations] == [1, 2]
    assert [operation.collective_seq_id for operation in record.unfinished] == [2]
    assert record.operations[0].name == "all_reduce"
    assert record.operations[0].frames[0].line == 3245
    assert record.entered == {"0": 2}


def test_the_status_of_a_group_tells_of_collectives_that_are_no_longer_recorded() -> None:
    status = {"0": {"last_enqueued_collective": 40, "last_completed_collective": 39}}
    assert parse_flight_record(pickle.dumps(dump(entry(2), pg_status=status))).entered == {"0": 40}


def test_an_entry_that_cannot_be_read_is_counted() -> None:
    record = parse_flight_record(pickle.dumps(dump(entry(1), entry(2, collective_seq_id="two"), 7)))
    assert (len(record.operations), record.damaged) == (1, 2)


class Attack:
    """An object whose pickle calls a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("called",))


def test_a_pickle_that_would_run_code_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"GLOBAL|REDUCE"):
        parse_flight_record(pickle.dumps(dump(entry(1), harm=Attack())))
    assert not capsys.readouterr().out


def test_a_pickle_that_refers_to_something_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="PERSID"):
        parse_flight_record(b"Pwhatever\n.")


def test_a_pickle_that_repeats_itself_without_end_is_refused() -> None:
    values: list[Any] = []
    for _ in range(10):
        values = [values] * 100
    with pytest.raises(ValueError, match=r"too many values|too deeply"):
        parse_flight_record(pickle.dumps(dump(values)))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match="too deeply"):
        parse_flight_record(b"(lp0\n" + b"(l" * 5_000 + b"a" * 5_000 + b".")
    with pytest.raises(ValueError, match=r"damaged JSON|too deeply"):
        parse_flight_record(b'{"entries": ' + b"[" * 5_000 + b"]" * 5_000 + b"}")


def test_whatever_is_cut_or_changed_ends_in_a_sentence() -> None:
    whole = pickle.dumps(dump(*map(entry, range(1, 6))))
    for at in range(0, len(whole), 7):
        for damaged in (whole[:at], whole[:at] + bytes([255 - whole[at]]) + whole[at + 1 :]):
            try:
                parse_flight_record(damaged)
            except ValueError as error:
                assert str(error)


def test_files_are_found_by_the_names_that_pytorch_and_the_hook_give_them(tmp_path: Path) -> None:
    for name in ("nccl_trace_rank_3", "_dump_11", "rank00002.flight.json", "fr_trace_0"):
        (tmp_path / name).write_bytes(pickle.dumps(dump(entry(1))))
    for name in ("rank0.sqlite", "notes.txt", "core_12", "rank00001.json"):
        (tmp_path / name).touch()
    assert sorted(find_dumps(tmp_path)) == [0, 2, 3, 11]
    assert rank_of_dump(tmp_path / "rank0.sqlite") is None


def test_a_file_that_is_no_dump_is_named(tmp_path: Path) -> None:
    path = tmp_path / "_dump_0"
    path.write_text("text")
    with pytest.raises(DamagedInput, match="_dump_0 is not a dump of PyTorch's flight recorder"):
        read_flight_record(path)
