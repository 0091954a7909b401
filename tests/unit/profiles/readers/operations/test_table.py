"""Tables of operations are read as Parquet and CSV, and as timelines of their ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.steps.step_detection import step_candidates
from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.readers.discovery import find_profiles, read_profile, reader_of, several_ranks
from hpcprof.profiles.readers.operations import OPERATIONS
from hpcprof.profiles.readers.operations.table import UNKNOWN, is_table, read_table
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
    table = read_table(written(tmp_path, rows, "timers.parquet"))
    first = table.rows["rank"] == 0
    assert table.rows[first]["start_ns"].tolist() == [0, 10, 17, 27, 34, 44]
    assert not table.damaged.total() + table.repeated.total()


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
    table = read_table(written(tmp_path, rows, "timers.csv")).rows
    assert table["start_ns"].tolist() == rows["start_ns"].tolist()


def test_other_columns_in_seconds_are_read(tmp_path: Path) -> None:
    rows = ROWS.drop(columns=["kind", "peer"]).rename(
        columns={"name": "optype", "start_ns": "start_ts", "duration_ns": "duration"}
    )
    table = read_table(written(tmp_path, rows.assign(dp_rank=0, mb_id=3, gmc=0), "timers.parquet")).rows
    assert table["kind"].tolist() == ["compute", "send", "recv", "compute"]
    assert table["duration_ns"].tolist() == [10e9, 2e9, 10e9, 5e9]
    assert table["microbatch"].unique().tolist() == [3]


def test_kinds_may_be_operations_of_collectives_or_words_of_programs(tmp_path: Path) -> None:
    texts = ["Kernel", "comm", "all-gather", "isend"]
    rows = ROWS.assign(kind=texts, name=["f", "bcast", "weights", "p2p"])
    table = read_table(written(tmp_path, rows, "words.csv")).rows
    assert sorted(zip(table["kind"], table["name"], strict=True)) == [
        ("collective", "bcast"),
        ("collective", "weights (all-gather)"),
        ("compute", "f"),
        ("send", "p2p"),
    ]
    texts = ["Forward", "optimizer", "dataloader", "bubble"]
    table = read_table(written(tmp_path, ROWS.assign(kind=texts), "parts.csv")).rows
    assert sorted(table["kind"]) == ["compute", "compute", "host", "wait"]


def test_ends_may_take_the_place_of_durations(tmp_path: Path) -> None:
    usual = read_table(written(tmp_path, ROWS, "all.csv")).rows["duration_ns"].tolist()
    for name, ns in (("end_us", 1e3), ("end_ts", 1e9)):
        rows = ROWS.assign(**{name: (ROWS["start_ns"] + ROWS["duration_ns"]) / ns})
        path = written(tmp_path, rows.drop(columns="duration_ns"), f"{name}.parquet")
        assert read_table(path).rows["duration_ns"].tolist() == pytest.approx(usual)


def test_one_rank_that_communicates_does_not_tell_how_many_there_are(tmp_path: Path) -> None:
    alone = ROWS[ROWS["rank"] == 0]
    for rows, world in ((alone, None), (alone[alone["kind"] == "compute"], 1)):
        timeline = read_profile(written(tmp_path, rows, f"{world}.csv"))
        assert isinstance(timeline, Timeline)
        assert timeline.origin.world_size == world


def test_damaged_rows_are_counted_and_a_table_without_others_is_refused(tmp_path: Path) -> None:
    bad = ROWS.assign(duration_ns=[-1, 2, 10, 5], kind=["compute", "send", "recv", "other"])
    assert read_table(written(tmp_path, bad, "bad.csv")).damaged == {
        (0, "duration_ns"): 1,
        (1, "kind ('other')"): 1,
        (UNKNOWN, "number of values"): 0,
    }
    timeline = read_profile(written(tmp_path, bad, "bad.csv"))
    assert isinstance(timeline, Timeline)
    assert [loss.sentence for loss in timeline.origin.losses] == [
        "1 of 4 rows of the table has no valid duration_ns and is left out",
        "1 of 4 rows of the table has no valid kind ('other') and is left out",
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
    assert find_profiles(tmp_path) == [tmp_path / name for name in ("bad.csv", "none.csv", "short.csv")]


@pytest.mark.parametrize(("separator", "encoding"), [(";", "utf-8"), ("\t", "utf-8-sig"), (",", "utf-8-sig")])
def test_csv_of_spreadsheets_is_read(tmp_path: Path, separator: str, encoding: str) -> None:
    path = tmp_path / "timers.csv"
    ROWS.assign(kind=ROWS["kind"].str.upper()).to_csv(path, index=False, sep=separator, encoding=encoding)
    assert reader_of(path) is OPERATIONS
    assert read_table(path).rows["kind"].tolist() == ["compute", "send", "recv", "compute"]


@pytest.mark.parametrize("odd", ["", "x;9;b;compute;oops;1,5\n"])
def test_a_comma_may_be_the_decimal_sign_where_it_separates_no_columns(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "timers.csv"
    rows = "rank;step;name;kind;start_s;duration_s\n0;1;a;compute;0,5;0,25\n"
    path.write_text(rows + odd)
    assert read_table(path).rows[["start_ns", "duration_ns"]].to_numpy().tolist() == [[500e6, 250e6]]


def test_two_columns_of_one_meaning_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS.assign(start_us=0), "timers.csv")
    with pytest.raises(DamagedInput, match="the same in several columns: start_ns, start_us"):
        read_table(path)


@pytest.mark.parametrize(("unit", "ns"), [("us", 1e3), ("ms", 1e6), ("s", 1e9)])
def test_times_have_the_unit_that_ends_the_name_of_their_column(tmp_path: Path, unit: str, ns: float) -> None:
    in_ns = ("start_ns", "duration_ns")
    scaled = ROWS.assign(**{name: ROWS[name] * 1e9 / ns for name in in_ns})
    names = {name: name.replace("_ns", f"_{unit}") for name in in_ns}
    table = read_table(written(tmp_path, scaled.rename(columns=names), "timers.csv")).rows
    assert table["duration_ns"].tolist() == [10e9, 2e9, 10e9, 5e9]


def test_times_that_are_no_nanoseconds_are_refused(tmp_path: Path) -> None:
    seconds = ROWS.assign(duration_ns=ROWS["duration_ns"] / 1e3)
    with pytest.raises(DamagedInput, match="columns such as start_s and duration_s"):
        read_table(written(tmp_path, seconds, "timers.csv"))


def test_a_table_that_is_cut_off_keeps_its_whole_rows(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS, "timers.csv")
    path.write_text(path.read_text()[: -len("d,compute,12,5,")])
    table = read_table(path)
    assert len(table.rows) == 3
    assert table.damaged == {(UNKNOWN, "number of values"): 1}
    ranks = several_ranks(path)
    assert ranks is not None
    lost = [read_profile(path, ProfilePart(ranks, place)).origin.losses for place in range(2)]
    assert [[loss.count for loss in of_rank] for of_rank in lost] == [[1], []]


def test_a_row_that_comes_twice_counts_once(tmp_path: Path) -> None:
    # Two messages of the same time are two.
    path = written(tmp_path, pd.concat([ROWS, ROWS.iloc[3:4], ROWS.iloc[1:2]]), "timers.csv")
    assert len(read_table(path).rows) == len(ROWS) + 1
    ranks = several_ranks(path)
    assert ranks is not None
    lost = read_profile(path, ProfilePart(ranks, 1)).origin.losses
    assert [loss.sentence for loss in lost] == [
        "1 of 3 rows of the table is the same as another one and is left out"
    ]


def test_an_odd_value_far_from_the_first_rows_costs_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "timers.csv"
    # Arrow takes the types of columns from the first megabyte.
    count = 20_000
    many = pd.concat([ROWS] * count).assign(step=np.repeat(np.arange(count), len(ROWS)))
    many.to_csv(path, index=False)
    with path.open("a") as file:
        file.write("one,1,forward,compute,0,1,\n")
    table = read_table(path)
    assert len(table.rows) == len(many)
    assert table.damaged.total() == 1


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS.drop(columns="step"), "timers.csv")
    assert is_table(path)
    with pytest.raises(DamagedInput, match="it has no column step"):
        read_table(path)
    assert not is_table(written(tmp_path, ROWS.drop(columns=["step", "kind"]), "other.csv"))
