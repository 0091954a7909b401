"""Dumps of PyTorch's flight recorder with anything changed in them: no error, no code run, losses told.

``HPCPROF_FUZZ_EXAMPLES`` sets how many changed dumps each test makes (``make fuzz`` makes many).
"""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.stalls.evidence import describe
from hpcprof.results.collect.stalls import judge_folder

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("HPCPROF_FUZZ_EXAMPLES", "150"))
RANKS = 4
ODD: list[Any] = [None, 0, -1, 2**63, 10**30, 1.5, float("inf"), "", "text", "[0, 1, x]", [], {}, [[[]]]]

ran: list[str] = []


def run_code(what: str) -> None:
    """Note that a dump had code run."""
    ran.append(what)


class Code:
    """An object that runs code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return run_code, ("loaded",)


def dump(rank: int) -> dict[str, Any]:
    """Return a dump; rank 2 has not come to the last operation."""
    entries = [
        {
            "process_group": ("0", "default_pg"),
            "pg_id": 0,
            "profiling_name": "nccl:all_reduce",
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "record_id": number,
            "is_p2p": False,
            "input_sizes": [(8, 8)],
            "input_dtypes": ["Float"],
            "output_sizes": [(8, 8)],
            "state": "completed" if number < 5 else "scheduled",
            "retired": number < 5,
            "time_created_ns": 10**18 + number,
            "frames": [{"name": "train", "filename": "/home/me/train.py", "line": 9}],
        }
        for number in range(1, 5 if rank == 2 else 6)
    ]
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(range(RANKS)))}
    return {"version": "2.10", "pg_config": {"0": group}, "pg_status": {"0": {}}, "entries": entries}


def spoiled(values: Any, choose: random.Random) -> Any:
    """Change one thing at any depth: a value, a key, or an element."""
    place: Any = values
    path: list[tuple[Any, Any]] = []
    while isinstance(place, dict | list) and place and (choose.random() < 0.8 or not path):
        key = choose.choice(list(place) if isinstance(place, dict) else range(len(place)))
        path.append((place, key))
        place = place[key]
    container, key = path[-1]
    match choose.randrange(3):
        case 0:
            del container[key]
        case 1:
            container[key] = choose.choice(ODD)
        case _:
            container[key] = [container[key], choose.choice(ODD)]
    return values


def changed(data: bytes, choose: random.Random) -> bytes:
    """Change, remove, insert or cut off some bytes."""
    found = bytearray(data)
    for _ in range(choose.randint(1, 3)):
        at = choose.randrange(len(found) + 1)
        match choose.randrange(4):
            case 0:
                found[at : at + 1] = choose.randbytes(1)
            case 1:
                del found[at : at + choose.randrange(1, 200)]
            case 2:
                found[at:at] = choose.randbytes(choose.randrange(16))
            case _:
                del found[at:]
    return bytes(found)


def one_dump(choose: random.Random) -> bytes:
    """Return a dump that is not as PyTorch wrote it."""
    values: Any = dump(choose.randrange(RANKS))
    kind = choose.choice(["values", "values", "bytes", "code"])
    if kind == "code":
        # Anywhere, also inside of what would be read first.
        place = choose.choice([values, values["entries"][0], values["pg_config"]["0"]])
        place[choose.choice(list(place))] = Code()
        return pickle.dumps(values, protocol=choose.randint(0, 5))
    if kind == "values":
        for _ in range(choose.randint(1, 4)):
            values = spoiled(values, choose) if values else values
    as_json = choose.random() < 0.4
    data = json.dumps(values).encode() if as_json else pickle.dumps(values, protocol=choose.randint(0, 5))
    return changed(data, choose) if kind == "bytes" else data


@pytest.mark.parametrize("part", range(2))
def test_damaged_dumps_raise_no_error_run_no_code_and_are_told(tmp_path: Path, part: int) -> None:
    ran.clear()
    for rank in range(RANKS):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(rank)))
    whole = judge_folder(tmp_path)
    assert whole is not None
    assert (whole.ranks, whole.losses) == ((2,), ())
    for example in range(EXAMPLES):
        choose = random.Random(f"{part} {example}")
        path = tmp_path / f"nccl_trace_rank_{choose.choice((0, 1, 3))}"
        kept, data = path.read_bytes(), one_dump(choose)
        path.write_bytes(data)
        found = judge_folder(tmp_path)
        if found is not None:
            assert describe(found).isprintable() or "\n" not in describe(found)
        if b"run_code" in data:
            assert found is not None
            assert f"{path.name} is damaged" in " ".join(found.losses)
        path.write_bytes(kept)
    assert ran == []
