"""Metrics and slowdowns of kernels in one table."""

from __future__ import annotations

import csv
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.analysis.hardware.kernel_counters import ncu_kernels
from hpcprof.cli.study import command
from hpcprof.common.errors import UsageError
from hpcprof.profiles.readers.ncu import reader as ncu
from hpcprof.report.exports import write_csv
from hpcprof.runs.directory import save
from hpcprof.study.training_table import (
    COLUMNS,
    kernels_to_measure,
    measuring_command,
    read_metrics,
    read_slowdown,
    training_table,
)
from tests.submitted_run import MakeRun, make_run

__all__ = ["make_run"]

DATA = Path(__file__).parents[2] / "data"
ADD = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, "
    "std::array<char *, (unsigned long)3>>(int, T2, T3)"
)
GELU = "void gelu<float>(float *)"
SLOW = {"alone_n": 50, "alone_med_ns": 1000.0, "overlapped_n": 45, "overlapped_med_ns": 1500.0}


def slow(name: str, ratio: float, rank: int = 0, grid: str = "6144 1 1", **more: Any) -> dict[str, Any]:
    kernel = {"rank": rank, "name": name, "grid": grid, "block": "128 1 1"}
    return {**more, **kernel, **SLOW, "slowdown": ratio, "ci_low": None, "ci_high": 2.0, "overlap_pct": 40.0}


@pytest.fixture
def slowdowns(tmp_path: Path) -> Path:
    """A table of slowdowns at two points of a sweep, as the study writes it."""
    rows = [slow("(total)", 1.4), slow("(control)", 1.0), slow(ADD, 1.5), slow(ADD, 1.25, rank=1)]
    rows += [slow(GELU, 1.125)]
    path = tmp_path / "slowdown_pairs.csv"
    points = [{"bucket_cap_mb": cap, **row} for cap in ("1", "25") for row in rows]
    write_csv(path, ["bucket_cap_mb", *(c.name for c in ACROSS_RUNS["slowdown_pairs"].columns)], points)
    return path


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    """Twelve launches of a real training measured by Nsight Compute, as the study writes them."""
    rows = ncu_kernels(ncu.read(DATA / "ncu/ddp.raw.csv.gz")).rows.assign(rank=0)
    path = tmp_path / "ncu_kernels.csv"
    columns = [column.name for column in ANALYSES["ncu_kernels"].columns]
    write_csv(path, columns, rows.where(rows.notna(), None).to_dict("records"))
    return path


def test_each_kernel_has_its_metrics_beside_its_slowdown(slowdowns: Path, metrics: Path) -> None:
    table = training_table(read_slowdown(slowdowns), read_metrics(metrics))
    assert list(table) == ["bucket_cap_mb", *COLUMNS]
    both = table[table["name"] == ADD]
    assert both[["bucket_cap_mb", "rank", "slowdown"]].to_numpy().tolist() == [
        ["1", 0, 1.5], ["1", 1, 1.25], ["25", 0, 1.5], ["25", 1, 1.25]
    ]  # fmt: skip
    # As ncu printed it for launch 11, whose name it shortened.
    with (metrics).open(newline="") as file:
        (launch,) = (row for row in csv.DictReader(file) if row["id"] == "11")
    first = both.iloc[0]
    assert launch["name"].startswith("void at::vectorized") and launch["grid"] == "6144 1 1"
    for name in ("dram_throughput_pct", "achieved_occupancy_pct", "l1_hit_pct", "l2_hit_pct", "sm_count"):
        assert float(first[name]) == float(launch[name])
    assert (first["launches"], first["duration_ns"]) == (1, int(launch["duration_ns"]))
    assert first["family"] == "elementwise"
    assert first["short_name"] == "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char *, 3>>"
    assert (first["overlap_pct"], first["ci_high"], first["overlapped_n"]) == (40.0, 2.0, 45)
    assert pd.isna(first["ci_low"])


def test_kernels_of_one_side_stay_with_empty_cells(slowdowns: Path, metrics: Path) -> None:
    table = training_table(read_slowdown(slowdowns), read_metrics(metrics))
    gelu = table[table["name"] == GELU]
    assert len(gelu) == 2 and gelu["launches"].isna().all() and gelu["dram_bytes"].isna().all()
    only_measured = table[table["slowdown"].isna()]
    # Of the twelve launches one is of the kernel that also has a slowdown, and two are of one kernel.
    assert len(only_measured) == 10 and only_measured["launches"].sum() == 11
    assert only_measured["rank"].isna().all()
    assert not set(table["name"]) & {"(total)", "(control)"}


def test_a_table_of_real_studies_of_one_job_has_every_kernel_of_both() -> None:
    tables = Path(__file__).parents[3] / "docs/data"
    slow_ones = pd.read_csv(tables / "h200x4-gpt2-slowdown_pairs.csv")
    slow_ones = slow_ones[~slow_ones["name"].isin(["(total)", "(control)"])]
    table = training_table(
        read_slowdown(tables / "h200x4-gpt2-slowdown_pairs.csv"),
        read_metrics(tables / "h200x4-gpt2-ncu_kernels.csv"),
    )
    told = table[table["slowdown"].notna()]
    assert told["slowdown"].tolist() == slow_ones["slowdown"].tolist()
    both = told[told["launches"].notna()]
    # The two tools write the same kernels differently: as many match as their short names, grids and blocks.
    assert len(both) == 99
    assert both.groupby(["name", "grid", "block"]).ngroups == 8
    assert (table["slowdown"].isna() & table["launches"].notna()).sum() == 11


def test_launches_of_one_kernel_count_by_their_median() -> None:
    columns = [column.name for column in ANALYSES["ncu_kernels"].columns]
    launch = dict.fromkeys(columns, None) | {"name": "k", "grid": "1 1 1", "block": "1 1 1"}
    times = [
        {**launch, "duration_ns": ns, "l2_hit_pct": hit} for ns, hit in ((10, 1.0), (30, None), (21, 2.0))
    ]
    none = pd.DataFrame(columns=[column.name for column in ACROSS_RUNS["slowdown_pairs"].columns])
    (row,) = training_table(none, pd.DataFrame(times)).to_dict("records")
    assert (row["launches"], row["duration_ns"]) == (3, 21)
    assert pd.isna(row["l2_hit_pct"])


def test_what_is_missing_can_be_measured(slowdowns: Path, metrics: Path) -> None:
    table = training_table(read_slowdown(slowdowns), read_metrics(metrics))
    assert kernels_to_measure(table) == "^(.*::)?(gelu)$"
    assert kernels_to_measure(table[table["launches"].notna()]) == ""


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        (
            "hpcprof study kernel-metrics --workload ddp -- --model gpt2",
            "hpcprof study kernel-metrics --profiler-option 'kernel=^a$|^b$' --workload ddp -- --model gpt2",
        ),
        (
            "hpcprof -v study kernel-metrics --profiler-option kernel=old --runs-dir r "
            "-- ./a --profiler-option kernel=x",
            "hpcprof -v study kernel-metrics --profiler-option 'kernel=^a$|^b$' --runs-dir r "
            "-- ./a --profiler-option kernel=x",
        ),
        ("hpcprof submit -- ./a", ""),
    ],
)
def test_the_study_of_other_kernels_is_the_same_command_with_these_kernels(
    typed: str, proposed: str, make_run: MakeRun
) -> None:
    run = make_run()
    assert run.manifest is not None
    manifest = msgspec.structs.replace(run.manifest, command_line=shlex.split(typed))
    save(replace(run, manifest=manifest))
    assert measuring_command(run.path / "study/ncu_kernels.csv", "^a$|^b$") == proposed
    assert measuring_command(run.path / "ncu_kernels.csv", "^a$|^b$") == ""


def test_the_command_takes_files_and_folders(
    slowdowns: Path, metrics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    metrics.rename(folder / metrics.name)
    command.main(["training-table", str(slowdowns), str(tmp_path)], standalone_mode=False)
    out = capsys.readouterr().out
    assert "1 kernel with metrics and slowdown, 1 with slowdown only, 10 with metrics only" in out
    assert "--profiler-option 'kernel=^(.*::)?(gelu)$'" in out
    table = pd.read_csv(tmp_path / "training.csv")
    assert len(table) == 6 + 10 and list(table) == ["bucket_cap_mb", *COLUMNS]


def test_a_table_of_an_older_study_has_no_share(slowdowns: Path, metrics: Path) -> None:
    table = pd.read_csv(slowdowns, dtype=str).drop(columns="overlap_pct")
    table.to_csv(slowdowns, index=False)
    merged = training_table(read_slowdown(slowdowns), read_metrics(metrics))
    assert merged["overlap_pct"].isna().all() and merged["slowdown"].notna().any()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a table: No columns"),
        ("a,b\n1,2\n", "is not a table of slowdowns: it has no column rank and lacks 10 more"),
        ("a\n1,2\n1,2,3\n", "is not a table: "),
        ("\x00\xff", "is not a table"),
    ],
)
def test_a_file_that_is_no_table_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"x\.csv") as raised:
        read_slowdown(path)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_a_cell_that_is_no_number_is_named(slowdowns: Path) -> None:
    slowdowns.write_text(slowdowns.read_text().replace("1.125", "fast"))
    with pytest.raises(UsageError, match=r"slowdown_pairs.csv, column slowdown: .*fast"):
        read_slowdown(slowdowns)


def test_a_folder_of_another_study_is_named(metrics: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no slowdown_pairs.csv: it belongs to another study"):
        command.main(["training-table", str(tmp_path), str(metrics)], standalone_mode=False)
