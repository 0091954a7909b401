"""The tables about files, from logs of Darshan that are made here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hpcprof.analysis.telemetry.darshan import NamedLog, RunLogs, darshan_tables
from hpcprof.profiles.readers.darshan.dump_script import _counters
from hpcprof.profiles.readers.darshan.logs import DarshanLog, FileRecord, Segment
from hpcprof.runs.live_steps import StepMark

BEGIN = 1_000_000.0


def record(file: int, rank: int, written: int, seconds: float, **more: Any) -> FileRecord:
    return FileRecord("POSIX", file, rank, 1, 0, 2, 0, written, 0.0, seconds, 0.0, **more)


def log(**values: Any) -> DarshanLog:
    known: dict[str, Any] = {
        "job_id": 7,
        "ranks": 2,
        "begin": BEGIN,
        "run_time_s": 20.0,
        "files": ["/scratch/a", "/home/b"],
        "mounts": [("/", "ext4"), ("/scratch", "lustre")],
        "records": [record(0, 1, 100, 4.0), record(0, 0, 50, 1.0), record(1, -1, 10, 6.0)],
        "segments": [],
    }
    return DarshanLog(**(known | values))


def tables(*logs: DarshanLog, **more: Any) -> dict[str, list[dict[str, Any]]]:
    run = RunLogs([NamedLog(f"{at}.darshan", one) for at, one in enumerate(logs)], **more)
    found: dict[str, Any] = {name: one.rows.to_dict("records") for name, one in darshan_tables(run).items()}
    return found


def test_files_have_the_sums_of_their_ranks_and_their_file_system() -> None:
    shared, own = tables(log())["darshan_files"]
    assert (own["file"], own["file_system"], own["ranks"], own["written_bytes"]) == (
        "/scratch/a",
        "lustre",
        2,
        150,
    )
    assert (own["slowest_rank"], own["slowest_s"]) == (1, 4.0)
    assert own["share_pct"] == pytest.approx(100 * 5 / 40)
    assert (shared["file"], shared["file_system"], shared["write_s"]) == ("/home/b", "ext4", 6.0)


def test_files_that_all_ranks_share_are_of_no_rank() -> None:
    rows = tables(log())["darshan_ranks"]
    assert [(row["rank"], row["written_bytes"]) for row in rows[:2]] == [(0, 50), (1, 100)]
    assert rows[2]["rank"] != rows[2]["rank"] or rows[2]["rank"] is None
    assert rows[2]["share_pct"] == pytest.approx(100 * 6 / 40)


def test_logs_of_single_processes_do_not_tell_the_rank() -> None:
    one = log(ranks=1, records=[record(0, 0, 5, 1.0)])
    (row,) = tables(one, one)["darshan_ranks"]
    assert (row["written_bytes"], row["files"]) == (10, 2)
    assert row["rank"] is None or row["rank"] != row["rank"]


def test_a_write_counts_for_the_step_of_its_middle_and_overlaps_count_once() -> None:
    segments = [
        Segment("POSIX", 0, 1, True, 30, 1.2, 2.8),
        Segment("POSIX", 0, 1, True, 30, 2.0, 3.0),
        Segment("POSIX", 0, 1, False, 8, 6.0, 6.5),
    ]
    marks = {1: [StepMark(at, BEGIN + 1 + 2 * at) for at in range(8)]}
    rows = tables(log(segments=segments), steps=marks)["darshan_steps"]
    assert [(row["first_step"], row["writes"], row["reads"]) for row in rows] == [(1, 2, 0), (3, 0, 1)]
    assert [row["wait_s"] for row in rows] == [pytest.approx(1.8), pytest.approx(0.5)]
    assert rows[0]["share_pct"] == pytest.approx(90.0)
    assert (rows[0]["written_bytes"], rows[1]["read_bytes"]) == (60, 8)


def test_what_a_log_lacks_is_said() -> None:
    run = RunLogs([NamedLog("a", log(partial=["POSIX"], unread=["STDIO"]))], damaged=["b is damaged."])
    reason = darshan_tables(run)["darshan_files"].reason
    assert "b is damaged" in reason
    assert "Darshan had no memory for all files of POSIX" in reason
    assert "STDIO cannot be read in a" in reason


def test_what_several_logs_lack_is_said_once_and_bytes_in_two_modules_are_no_sum() -> None:
    lacking = {"not_read": ["APXC"], "impossible": ["POSIX_F_WRITE_TIME"]}
    logs = [NamedLog(name, log(**lacking)) for name in ("a", "b")]
    collective = msgspec.structs.replace(record(0, -1, 160, 9.0), module="MPI-IO")
    logs.append(NamedLog("c", log(not_read=["HEATMAP"], records=[collective])))
    assert darshan_tables(RunLogs(logs))["darshan_files"].reason == (
        "6 ranks in 20 s: POSIX 0 B read, 320 B written; MPI-IO 0 B read, 160 B written; "
        "MPI-IO calls POSIX, so that bytes and times are in both; hpcprof does not read APXC in 2 logs; "
        "POSIX_F_WRITE_TIME of a record, below 0, counts as 0 in 2 logs; hpcprof does not read HEATMAP in c"
    )


def test_calls_of_threads_that_take_more_than_the_run_are_said_to() -> None:
    beside = log(records=[record(0, 0, 100, 90.0), record(1, 0, 100, 30.0)])
    reason = darshan_tables(RunLogs([NamedLog("a", beside)]))["darshan_files"].reason
    assert reason.endswith("calls run beside each other: they take 3.0 times the time of all ranks")


def test_logs_of_several_jobs_are_not_told_as_one() -> None:
    logs = [NamedLog(name, log(job_id=job)) for name, job in (("a", 7), ("b", 8), ("c", 8))]
    reason = darshan_tables(RunLogs(logs))["darshan_files"].reason
    assert reason.startswith("2 jobs with 6 ranks in all, each up to 20 s: POSIX 0 B read")


def test_ranks_wait_in_a_file_for_the_one_with_least_time_in_collective_calls() -> None:
    shared = msgspec.structs.replace(record(0, -1, 160, 9.0), module="MPI-IO", late_rank=1, late_s=1.5)
    (row,) = tables(log(records=[shared]))["darshan_files"]
    assert (row["late_rank"], row["wait_s"]) == (1, 9.0 - 2 * 1.5)
    # Collective writes that do not interleave are independent: the rank with least time then is the quickest.
    for posix_s, wait_s, late_rank in ((2.0, 6.0, 1), (7.0, 2.0, 1), (9.0, None, None)):
        row = tables(log(records=[shared, record(0, -1, 160, posix_s)]))["darshan_files"][0]
        assert (row["wait_s"], row["late_rank"]) == (wait_s, late_rank)


@pytest.mark.parametrize(("more", "late_rank"), [({}, 3), ({"INDEP_WRITES": 1}, -1), ({"COLL_OPENS": 0}, -1)])
def test_only_files_of_collective_calls_alone_tell_which_rank_is_late(
    more: dict[str, int], late_rank: int
) -> None:
    known = {"COLL_OPENS": 4, "COLL_WRITES": 16, "FASTEST_RANK": 3} | more
    counters = {f"MPIIO_{name}": value for name, value in known.items()}
    times = {"MPIIO_F_FASTEST_RANK_TIME": 0.13}
    printed = _counters("MPI-IO", 0, {"rank": -1, "counters": counters, "fcounters": times})
    assert (printed["late_rank"], printed["late_s"]) == (late_rank, 0.13)


def test_files_that_are_far_slower_than_others_are_said_with_their_storage_target() -> None:
    records = [record(at, at, 1 << 24, 90.0 if at in (3, 7) else 2.0) for at in range(12)]
    slow = log(
        records=records, files=[""] * 12, targets={at: [14 if at in (3, 7) else at] for at in range(12)}
    )
    reason = darshan_tables(RunLogs([NamedLog("a", slow)]))["darshan_files"].reason
    assert (
        "2 of 12 large files of POSIX are over 5 times as slow as the median (8.389 MB each second), all on "
        "OST 14 of Lustre"
    ) in reason
    # Each of 64 ranks reads 32 KiB of the first file, which is small.
    small = log(
        records=[record(0, -1, 1 << 21, 90.0), *records[1:3], *records[4:7]], files=[""] * 12, ranks=64
    )
    assert "slow" not in darshan_tables(RunLogs([NamedLog("a", small)]))["darshan_files"].reason
    even = log(records=[record(at, at, 1 << 24, 2.0 + at) for at in range(12)], files=[""] * 12)
    assert "slow" not in darshan_tables(RunLogs([NamedLog("a", even)]))["darshan_files"].reason


def test_times_from_whole_seconds_are_said_to_be_so() -> None:
    one = log(segments=[Segment("POSIX", 0, 0, True, 1, 1.0, 2.0)], whole_seconds=True)
    run = RunLogs([NamedLog("a", one)], {0: [StepMark(0, BEGIN), StepMark(9, BEGIN + 10)]})
    assert "up to 1 s early" in darshan_tables(run)["darshan_steps"].reason
    reason = darshan_tables(run)["darshan_files"].reason
    assert "early" not in reason
    assert reason == (
        "2 ranks in 20 s: POSIX 0 B read, 160 B written; "
        "what DXT traced (1 operation) is in --analysis darshan_steps"
    )


def test_beyond_500_files_the_others_are_one_row() -> None:
    records = [record(at, 0, 1, 1.0 + (at < 3)) for at in range(600)]
    rows = tables(log(files=[f"/f{at}" for at in range(600)], records=records))["darshan_files"]
    assert len(rows) == 501
    assert rows[-1]["file"] == "(100 other files)"
    assert sum(row["written_bytes"] for row in rows) == 600
