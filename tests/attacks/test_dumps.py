"""Dumps of ranks that are cut or forged: they blame nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.analysis.stalls.evidence import Stall
from hpcprof.results.collect.stalls import judge_folder, unread_dumps


def dumps(folder: Path, last: dict[int, int]) -> None:
    """Write the dumps of ranks that have entered all-reduces up to a number."""
    for rank, entered in last.items():
        entries = [
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number,
                "profiling_name": "nccl:all_reduce",
                "input_sizes": [[8, 8]],
                "state": "completed" if number < max(last.values()) else "scheduled",
                "time_created_ns": number,
            }
            for number in range(1, entered + 1)
        ]
        group = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*last])}}
        text = json.dumps({"version": "2.5", "pg_config": group, "entries": entries})
        (folder / f"nccl_trace_rank_{rank}").write_text(text)


def judged(folder: Path) -> Stall:
    stall = judge_folder(folder)
    assert stall is not None
    return stall


_PICKLES = [
    b"cos\nsystem\n(S'id'\ntR.",
    b"(S'id'\nios\nsystem\n.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
    *(b"\x80\x02\x82\x01.", b"Pabc\n.", b"\x80\x05\x97.", b"\x80\xff.", b"\x80\x02r\xff\xff\xff\x7f."),
]
"""Programs, extensions and persistent objects in a pickle, and those whose opcodes a scanner may not know."""


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b"\x80\x04\x95", b"PK\x03\x04", b"null", b'{"entries": 3}', *_PICKLES],
)
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_dump_that_cannot_be_read_is_no_evidence_against_its_rank(
    cut: int, content: bytes, tmp_path: Path
) -> None:
    dumps(tmp_path, {0: 5, 1: 5, 2: 4, 3: 5})
    (tmp_path / f"nccl_trace_rank_{cut}").write_bytes(content)
    stall = judged(tmp_path)
    assert stall.ranks == (2,) and cut not in stall.waiting
    assert stall.losses == (f"rank {cut}: nccl_trace_rank_{cut} is damaged",)


def test_no_rank_is_blamed_where_only_unread_ones_may_be_missing(tmp_path: Path) -> None:
    dumps(tmp_path, {0: 5, 1: 5, 2: 4, 3: 5})
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"{")
    assert judge_folder(tmp_path) is None
    assert unread_dumps(tmp_path) == "nccl_trace_rank_2 is damaged"


def test_a_damaged_entry_is_no_evidence_that_its_collective_was_not_entered(tmp_path: Path) -> None:
    dumps(tmp_path, {0: 5, 1: 5, 2: 4, 3: 5})
    path = tmp_path / "nccl_trace_rank_0"
    values = json.loads(path.read_text())
    values["entries"][-1] = {"profiling_name": 7}
    path.write_text(json.dumps(values))
    assert judged(tmp_path).ranks == (2,)


def _with_last(folder: Path, rank: int, **changes: object) -> None:
    path = folder / f"nccl_trace_rank_{rank}"
    values = json.loads(path.read_text())
    values["entries"][-1].update(changes)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    "changes",
    [
        {"collective_seq_id": 2**63},
        {"collective_seq_id": 10**18 * 10**18},
        {"collective_seq_id": -5},
        {"collective_seq_id": None},
        {"input_sizes": [[-8, 8]]},
        {"input_sizes": [[8] * 100_000]},
    ],
)
def test_impossible_numbers_in_a_dump_blame_no_other_rank(changes: dict[str, object], tmp_path: Path) -> None:
    dumps(tmp_path, {0: 5, 1: 5, 2: 4, 3: 5})
    _with_last(tmp_path, 0, **changes)
    assert judged(tmp_path).ranks == (2,)


@pytest.mark.parametrize("name", ["1000000000", "9" * 200, "7", "\N{ARABIC-INDIC DIGIT SEVEN}"])
def test_a_dump_of_a_rank_that_is_in_no_group_is_no_evidence(name: str, tmp_path: Path) -> None:
    dumps(tmp_path, {0: 5, 1: 5, 2: 4, 3: 5})
    (tmp_path / f"nccl_trace_rank_{name}").write_bytes((tmp_path / "nccl_trace_rank_2").read_bytes())
    assert judged(tmp_path).ranks == (2,)


def test_one_dump_that_claims_countless_ranks_of_a_group_is_outvoted(tmp_path: Path) -> None:
    dumps(tmp_path, {0: 5, 1: 5, 2: 4, 3: 5})
    path = tmp_path / "nccl_trace_rank_0"
    values = json.loads(path.read_text())
    values["pg_config"]["0"]["ranks"] = str([*range(100_000)])
    path.write_text(json.dumps(values))
    assert judged(tmp_path).ranks == (2,)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "/nowhere", "/"])
def test_a_device_or_folder_in_place_of_a_dump_cannot_be_read(target: str, tmp_path: Path) -> None:
    dumps(tmp_path, {0: 5, 1: 5, 2: 4, 3: 5})
    path = tmp_path / "nccl_trace_rank_0"
    path.unlink()
    path.symlink_to(target)
    assert judged(tmp_path).ranks == (2,)
