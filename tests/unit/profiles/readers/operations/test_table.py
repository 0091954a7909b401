"""Tables of operations are read as Parquet and CSV, and as timelines of their ranks."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hpcprof.analysis.steps.step_detection import step_candidates
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.readers.discovery import find_profiles, read_profile, reader_of, several_ranks
from hpcprof.profiles.readers.operations import OPERATIONS
from hpcprof.profiles.readers.operations.table import read_table
from hpcprof.profiles.timeline import Timeline

ROWS = pd.DataFrame(
    {
        "rank": [0, 0, 1, 1],
        "step": 1,
        "name": ["forward", "send_forward", "recv_forward", "forward"],
        "kind": ["compute", "send", "recv", "compute"],
        "start_ns": [0, 10, 2, 12],
        "duration_ns": [10, 2, 10, 5],
        "peer": [None, 1, 0, None],
    }
)


def written(folder: Path, rows: pd.DataFrame, name: str) -> Path:
    """Write a table under a name that tells its format."""
    path = folder / name
    rows.to_parquet(path) if path.suffix == ".parquet" else rows.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", ["timers.csv", "timers.parquet"])
def test_a_table_is_a_profile_of_its_ranks(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, ROWS, name)
    assert find_profiles(tmp_path) == [path]
    assert reader_of(path) is OPERATIONS
    ranks = several_ranks(path)
    assert ranks is not None
    assert ranks.ranks == (0, 1)
    timeline = read_profile(path, ProfilePart(ranks, 1))
    assert isinstance(timeline, Timeline)
    assert timeline.origin.rank == 1
    assert timeline.names(timeline.operators.name) == ["forward"]
    assert timeline.names(timeline.host_collectives.operation) == ["Recv"]
    assert timeline.host_collectives.peer.tolist() == [0]
    assert [timeline.ranges.start.tolist(), timeline.ranges.end.tolist()] == [[2], [17]]
    # The step is that of the table, also if there is only one.
    assert [(step.name, step.instances) for step in step_candidates(timeline)][:1] == [("table step 1", 1)]


def test_steps_whose_times_count_from_their_beginning_follow_each_other(tmp_path: Path) -> None:
    rows = pd.concat([ROWS, ROWS.assign(step=2), ROWS.assign(step=3)])
    table, damaged = read_table(written(tmp_path, rows, "timers.parquet"))
    assert table[table["rank"] == 0]["start_ns"].tolist() == [0, 10, 17, 27, 34, 44]
    assert damaged == 0


def test_steps_that_overlap_on_one_clock_keep_their_times(tmp_path: Path) -> None:
    # A pipeline of three stages, each of which works on another step.
    rows = pd.DataFrame(
        [
            {"rank": rank, "step": step, "name": "task", "kind": "compute", "duration_ns": 9}
            | {"start_ns": 10**12 + 10 * (step + rank)}
            for rank in range(3)
            for step in range(5)
        ]
    )
    table, _ = read_table(written(tmp_path, rows, "timers.csv"))
    assert table["start_ns"].tolist() == rows["start_ns"].tolist()


def test_other_columns_in_seconds_are_read(tmp_path: Path) -> None:
    rows = ROWS.drop(columns=["kind", "peer"]).rename(
        columns={"name": "optype", "start_ns": "start_ts", "duration_ns": "duration"}
    )
    table, _ = read_table(written(tmp_path, rows.assign(dp_rank=0, mb_id=3, gmc=0), "timers.parquet"))
    assert table["kind"].tolist() == ["compute", "send", "recv", "compute"]
    assert table["duration_ns"].tolist() == [10e9, 2e9, 10e9, 5e9]
    assert table["microbatch"].unique().tolist() == [3]


def test_damaged_rows_are_counted_and_a_table_without_others_is_refused(tmp_path: Path) -> None:
    bad = ROWS.assign(duration_ns=[-1, 2, 10, 5], kind=["compute", "send", "recv", "other"])
    assert read_table(written(tmp_path, bad, "bad.csv"))[1] == 2
    timeline = read_profile(written(tmp_path, bad, "bad.csv"))
    assert isinstance(timeline, Timeline)
    assert [loss.sentence for loss in timeline.origin.losses] == [
        "2 of 4 operators have no valid number or kind and are left out"
    ]
    with pytest.raises(DamagedInput, match="no valid operation: a row needs numbers"):
        read_table(written(tmp_path, ROWS.assign(kind="other"), "none.csv"))
    with pytest.raises(DamagedInput, match="no column kind"):
        read_table(written(tmp_path, ROWS.drop(columns="kind"), "short.csv"))
    (tmp_path / "text.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(DamagedInput, match="cannot be read"):
        read_table(tmp_path / "text.parquet")
    with pytest.raises(DamagedInput, match=r"cannot be read: (?!Unicode)"):
        read_table(written(tmp_path, ROWS.assign(name=[b"\xff"] * 4), "bytes.parquet"))
    (tmp_path / "bytes.parquet").unlink()
    assert find_profiles(tmp_path) == [tmp_path / "bad.csv", tmp_path / "none.csv"]
