"""Findings with what the machine did meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.evidence import in_words
from hpcprof.analysis.explain.explanation import Finding
from hpcprof.analysis.explain.findings import estimated_finding
from hpcprof.analysis.explain.machine import slow_files, wait_findings, with_machine, with_waiting


def row(subject: str, metric: str, usual: float, then: float, **others: Any) -> dict[str, Any]:
    values = {"rank": 1, "device": "rank1", "unit": "", "p_value": 0.0005, "beyond_chance": 1}
    values |= {"node": "n1", "first_step": 0, "last_step": 99}
    return {"subject": subject, "metric": metric, "usual": usual, "then": then, **values, **others}


def found(
    cause: Cause,
    rows: list[dict[str, Any]],
    share: float = 0.1,
    ranks: Any = (1,),
    files: list[dict[str, Any]] | None = None,
) -> tuple[Finding, str]:
    """Return a finding of that share of a step of 100 ms, and its evidence in words."""
    finding = estimated_finding(cause, ranks, "data", share * 1e8, 1e5, 1e8, ())
    tables = {"coincidences": pd.DataFrame(rows), "darshan_files": pd.DataFrame(files or [])}
    (one,) = with_machine([finding], tables)
    return one, "; ".join(in_words(tables, figure) for figure in one.evidence)


def test_a_late_gpu_has_the_clock_that_explains_it() -> None:
    clock = row("rank", "sm_mhz", 1755.0, 1410.0, device="gpu1", unit="MHz")
    one, said = found(Cause.LATE_RANK_GPU, [clock, row("rank", "cpu_wait_s", 0.0, 0.5, unit="s/s")])
    assert said == "rank 1: clock of gpu1 1,410 MHz, on the other ranks 1,755 MHz (p = 0.0005)"
    assert one.cause is Cause.LATE_RANK_GPU
    certain = found(Cause.LATE_RANK_GPU, [{**clock, "p_value": 0.0}])[1]
    assert certain.endswith("1,755 MHz (p < 1e-06)")
    # A host is not late because of its GPU, nor a rank because of another one.
    assert found(Cause.LATE_RANK_HOST, [clock])[1] == ""
    assert found(Cause.LATE_RANK_GPU, [{**clock, "rank": 0}])[1] == ""


def test_what_may_be_chance_or_explains_too_little_is_shown_as_such() -> None:
    doubtful = row(
        "spikes", "temperature_c", 60.0, 70.0, device="gpu1", unit="C", p_value=0.2, beyond_chance=0
    )
    _, said = found(Cause.STEP_SPIKES, [doubtful])
    assert said == "rank 1: temperature of gpu1 70 C, else 60 C (may be chance, p = 0.2)"
    # A test that says nothing is no evidence.
    assert found(Cause.STEP_SPIKES, [{**doubtful, "p_value": 1.0}])[1] == ""
    sure = row("spikes", "errors", 0.0, 5.0, device="nic:hsn0", unit="/s", rank=None)
    assert found(Cause.STEP_SPIKES, [doubtful, sure])[1] == "errors of nic:hsn0 5 /s, else 0 /s (p = 0.0005)"


def test_long_steps_and_pauses_that_wait_for_files_are_slow_io() -> None:
    waits = row("spikes", "blocked_pct", 0.0, 40.0, unit="%")
    written = row("spikes", "written_bytes", 0.0, 2e8, unit="bytes/s")
    one, said = found(Cause.STEP_SPIKES, [written, waits], ranks=(0, 1))
    assert (one.cause, one.ranks, one.where) == (Cause.SLOW_IO, (1,), "") and one.saving_ns == 10_000_000
    assert said.startswith("rank 1: samples waiting for files 40 %, else 0 %") and "200.0 MB/s" in said
    # Bytes alone are no waiting.
    assert found(Cause.STEP_SPIKES, [written])[0].cause is Cause.STEP_SPIKES
    always = row("io", "blocked_pct", 0.0, 8.0, unit="%")
    assert found(Cause.HOST_WORK, [always])[0].cause is Cause.SLOW_IO
    assert found(Cause.HOST_WORK, [always], share=0.4)[0].cause is Cause.HOST_WORK
    assert found(Cause.HOST_SYNC, [always])[0].cause is Cause.HOST_SYNC


def test_slow_io_names_the_files_that_took_most_time() -> None:
    waits = row("spikes", "blocked_pct", 0.0, 40.0, unit="%")
    file = {"log": "a.darshan", "module": "POSIX", "ranks": 2, "reads": 0, "writes": 12, "read_bytes": 0}
    file |= {"written_bytes": 2e9, "read_s": 0.0, "meta_s": 0.0}
    files = [
        {**file, "file": "/data/seldom", "write_s": 0.01, "share_pct": 0.1},
        {**file, "file": "/data/ckpt", "write_s": 12.5, "share_pct": 20.0},
        {**file, "file": "/data/ckpt", "write_s": 12.6, "share_pct": 20.2, "module": "MPI-IO"},
    ]
    _, said = found(Cause.STEP_SPIKES, [waits], files=files)
    assert said.endswith("writes to /data/ckpt take 12.5 s of 2 ranks: 2.000 GB in 12 calls (Darshan)")
    assert "seldom" not in said and "12.6" not in said
    assert "ckpt" not in found(Cause.STEP_DRIFT, [waits], files=files)[1]


def test_waiting_for_files_has_a_price_without_a_profile() -> None:
    rows = [row("io", "blocked_pct", 0.0, then, rank=rank) for rank, then in ((0, 10.0), (1, 20.0))]
    (one,) = wait_findings(pd.DataFrame(rows), Cause.SLOW_IO, 1e9)
    assert (one.cause, one.ranks, one.saving_ns) == (Cause.SLOW_IO, (0, 1), 200_000_000)
    assert one.saving_low_ns is not None and 0.1e9 < one.saving_low_ns < 0.2e9
    assert list(wait_findings(pd.DataFrame(rows).iloc[:0], Cause.SLOW_IO, 1e9)) == []


@pytest.mark.parametrize(("usual", "nested"), [(5.0, True), (15.0, False)])
def test_waiting_for_files_that_may_be_that_of_long_steps_is_not_a_second_price(
    usual: float, nested: bool
) -> None:
    rows = [row("io", "blocked_pct", 0.0, 20.0), row("spikes", "blocked_pct", usual, 20.0, beyond_chance=0)]
    long = estimated_finding(Cause.STEP_SPIKES, (0, 1), "step 5", 3e8, 1e5, 1e9, ())
    first, *others = with_waiting([long], pd.DataFrame(rows), 1e9)
    assert (first.cause, len(others)) == (Cause.STEP_SPIKES, 0 if nested else 1)
    assert [one.cause for one in (first.alternatives or others)] == [Cause.SLOW_IO]
    of_files = with_waiting([long], pd.DataFrame(rows), 1e9)[-1]
    assert with_waiting([replace(of_files, cause=Cause.SLOW_IO)], pd.DataFrame(rows), 1e9) == [
        replace(of_files, cause=Cause.SLOW_IO)
    ]


def test_waiting_for_a_core_that_others_use_has_the_price_of_the_rank_that_waits_longest() -> None:
    rows = [
        row("cores", "cpu_wait_s", 0.5, then, rank=rank, unit="%") for rank, then in ((0, 10.0), (1, 20.0))
    ]
    (one,) = wait_findings(pd.DataFrame(rows), Cause.BUSY_CORES, 1e9)
    assert (one.cause, one.ranks, one.saving_ns) == (Cause.BUSY_CORES, (0, 1), 200_000_000)
    said = in_words({"coincidences": pd.DataFrame(rows)}, one.evidence[0])
    assert said == "rank 1: waiting for its cores costs 20 % of the time, while others use them"
    assert list(wait_findings(pd.DataFrame(rows).iloc[:0], Cause.BUSY_CORES, 1e9)) == []


@pytest.mark.parametrize(("metric", "then"), [("paging_pct", 30.0), ("memory_stall_s", 0.3)])
def test_long_steps_in_which_memory_is_short_are_that_and_no_slow_files(metric: str, then: float) -> None:
    unit = "s/s" if metric.endswith("_s") else "%"
    waits = row("spikes", "blocked_pct", 0.0, 40.0, unit="%")
    pages, short = (
        row("spikes", metric, 0.0, then, unit=unit),
        row("memory", "memory_stall_s", 250.0, 12.0, unit="%"),
    )
    one, said = found(Cause.STEP_SPIKES, [waits, pages, short])
    assert one.cause is Cause.MEMORY_PRESSURE and one.saving_ns == 10_000_000
    assert said.startswith("rank 1: ") and "memory" in said and "--mem" in one.remedy
    # Pages of a file that are read for the first time, or some pages while files are read.
    assert found(Cause.STEP_SPIKES, [waits, pages])[0].cause is Cause.SLOW_IO
    assert found(Cause.STEP_SPIKES, [waits, {**pages, "then": then / 3}, short])[0].cause is Cause.SLOW_IO


def test_waiting_for_memory_has_a_price() -> None:
    rows = [
        row("memory", "memory_stall_s", 250.0, then, rank=rank, unit="%")
        for rank, then in ((0, 12.0), (1, 20.0))
    ]
    (one,) = with_waiting([], pd.DataFrame(rows), 1e9)
    assert (one.cause, one.ranks, one.saving_ns) == (Cause.MEMORY_PRESSURE, (0, 1), 200_000_000)
    said = in_words({"coincidences": pd.DataFrame(rows)}, one.evidence[0])
    assert said == "rank 1: it waits for memory in 20 % of the time"
    assert found(Cause.HOST_WORK, rows)[0].cause is Cause.MEMORY_PRESSURE


def test_long_steps_that_do_not_wait_for_files_stay_what_they_are() -> None:
    always = row("io", "blocked_pct", 0.0, 8.0, unit="%")
    assert found(Cause.STEP_SPIKES, [always])[0].cause is Cause.STEP_SPIKES


@pytest.mark.parametrize("cause", [Cause.STEP_DRIFT, Cause.LATE_RANK_HOST])
def test_a_run_without_samples_has_findings_as_they_are(cause: Cause) -> None:
    assert found(cause, [])[0].evidence == ()


def accesses(module: str, written: int, seconds: float, **more: Any) -> dict[str, Any]:
    """Return a row of darshan_files, of a run of 4 ranks and 10 s."""
    row: dict[str, Any] = {
        "log": "a",
        "file": "/scratch/out.h5",
        "module": module,
        "ranks": 4,
        "reads": 0,
        "writes": 1000,
        "opens": 4,
    }
    row |= {"read_bytes": 0, "written_bytes": written, "read_s": 0.0, "write_s": seconds, "meta_s": 0.0}
    row |= {"unaligned": 0, "independent": 0, "slowest_rank": None, "slowest_s": None}
    row |= {"late_rank": None, "wait_s": None} | more
    return row | {"share_pct": (row["write_s"] + row["meta_s"]) / 0.4}


def told(*rows: dict[str, Any]) -> tuple[str, ...]:
    finding = slow_files(pd.DataFrame(rows))
    if isinstance(finding, str):
        return (finding,)
    assert len(finding.evidence) == len(finding.evidence_text)
    return finding.where, *finding.evidence_text


def test_a_run_without_profiles_that_waits_for_files_says_how_it_uses_them() -> None:
    large = 1000 << 20
    assert told(accesses("POSIX", large, 3.0)) == ("files take 7.5 % of the time of all ranks",)
    # More than the time of all ranks: threads whose calls run beside each other.
    assert told(accesses("POSIX", large, 44.0)) == (
        "calls on files run beside each other, so that their share of the time is unknown",
    )
    where = "POSIX of /scratch/out.h5"
    all_files = "files take 75.0 % of the time of all ranks"
    assert told(accesses("POSIX", large, 30.0)) == (where, all_files)
    small = accesses("POSIX", 1000 * 512, 30.0, unaligned=900, slowest_rank=3, slowest_s=29.0)
    assert told(small) == (
        where,
        all_files,
        "1,000 calls move 512 B each on average",
        "900 calls of POSIX begin within a block of the file system",
        "rank 3 takes 29 s, the mean is 7.5 s",
    )
    opens = accesses("POSIX", large, 10.0, meta_s=20.0)
    assert told(opens)[2:] == ("67 % of the file's time is to open, close, seek and stat",)
    outer, inner = accesses("MPI-IO", large, 30.0, independent=1000), accesses("POSIX", large, 27.0)
    assert told(inner, outer) == (
        "MPI-IO of /scratch/out.h5",
        all_files,
        "1,000 calls of MPI-IO are independent",
    )
    for own in (accesses("MPI-IO", 0, 30.0, read_bytes=large, reads=1000, writes=0, independent=1000), outer):
        finding = slow_files(pd.DataFrame([inner, own]))
        assert isinstance(finding, Finding)
        assert ("MPI_File_read_at_all" in finding.remedy) == (own is not outer)
    assert told(accesses("MPI-IO", large, 30.0), accesses("POSIX", large, 3.0))[2:] == (
        "POSIX takes 10 % of the file's time: in the rest, ranks exchange data and wait for each other",
    )


def test_blocks_that_are_read_to_write_a_part_of_them_are_named() -> None:
    outer = accesses("MPI-IO", 1000 * 4096, 30.0, independent=20)
    inner = accesses("POSIX", 1000 * 4096, 27.0, read_bytes=3000 * 1024)
    assert told(inner, outer)[2:] == (
        "1,000 calls move 4.096 kB each on average",
        "MPI-IO reads 3.072 MB that the program does not ask for, most of /scratch/out.h5: blocks of which "
        "it writes a part (data sieving)",
    )
    finding = slow_files(pd.DataFrame([inner, outer]))
    # The calls are collective already.
    assert isinstance(finding, Finding) and "or collective calls" not in finding.remedy
    assert finding.remedy.endswith("(romio_ds_write=disable).")
    # What the program reads itself, or does not write, is no such block.
    assert len(told(inner, outer | {"read_bytes": 3000 * 1024})) == 3
    assert len(told(inner, outer | {"written_bytes": 0, "read_bytes": 1000 * 4096})) == 3


def test_files_that_are_used_alike_are_judged_together() -> None:
    large, files = 1000 << 20, [f"/scratch/out-{rank}" for rank in range(4)]
    own = [
        accesses("POSIX", large, 0.1, meta_s=4.0, file=file, opens=1, slowest_rank=2, slowest_s=4.0)
        for file in files
    ]
    shared = accesses("POSIX", large, 5.0)
    assert told(shared, *own) == (
        "POSIX of 4 files such as /scratch/out-0",
        "files take 53.5 % of the time of all ranks",
        "98 % of these files' time is to open, close, seek and stat: 16 uses by ranks, 4 of which open",
    )
    finding = slow_files(pd.DataFrame([shared, *own]))
    assert isinstance(finding, Finding) and finding.remedy.startswith(
        "Ranks look files up that they do not open"
    )


def test_waits_in_collective_calls_are_time_of_the_file_that_the_last_rank_used_meanwhile() -> None:
    own = accesses("POSIX", 1000 * 4096, 6.0, file="/scratch/own.3", ranks=1, slowest_rank=3, slowest_s=6.0)
    shared = accesses("MPI-IO", 1000 << 20, 4.0, meta_s=18.0, late_rank=3, wait_s=16.0)
    assert told(shared, own) == (
        "POSIX of /scratch/own.3",
        "files take 70.0 % of the time of all ranks",
        "1,000 calls move 4.096 kB each on average",
        "the other ranks wait 16 s in all for rank 3 in collective calls on /scratch/out.h5",
    )
    # If the last rank used no file that long, it was late for another reason: that is no time of files.
    assert told(shared, own | {"write_s": 1.0, "share_pct": 2.5}) == (
        "MPI-IO of /scratch/out.h5",
        "files take 17.5 % of the time of all ranks",
    )
