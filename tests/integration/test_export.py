"""Results and timelines for other programs, through the command line."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from pyarrow import parquet

from hpcprof.analysis.framework.registry import ANALYSES
from tests.conftest import Hpcprof
from tests.unit.report.perfetto.decoded import decode


def report(hpcprof: Hpcprof, run: Path, analysis: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(
        hpcprof("report", str(run), "--analysis", analysis, "--format", "json").stdout
    )
    return rows


def test_parquet_and_csv_hold_the_rows_of_every_analysis(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    hpcprof("collect", str(profiles))
    everything = json.loads(hpcprof("report", str(profiles), "--format", "json").stdout)["analyses"]
    for form in ("parquet", "csv"):
        done = hpcprof("export", str(profiles), "--to", form, "tables")
        assert done.returncode == 0, done.stderr
        # One for each analysis, and the reasons and losses.
        assert f"{len(ANALYSES) + 2} files in tables" in done.stdout
    for name, analysis in ANALYSES.items():
        columns = [column.name for column in analysis.columns]
        table = parquet.read_table(tmp_path / f"tables/{name}.parquet")
        assert table.column_names == columns
        assert table.to_pylist() == everything[name]
        with (tmp_path / f"tables/{name}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        expected = [{k: "" if v is None else str(v) for k, v in row.items()} for row in everything[name]]
        assert rows == expected


def test_an_analysis_without_rows_is_an_empty_table_and_a_reason(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    for path in profiles.iterdir():
        with sqlite3.connect(path) as export:
            export.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    hpcprof("collect", str(profiles))
    hpcprof("export", str(profiles), "--to", "parquet", "tables")
    table = parquet.read_table(tmp_path / "tables/kernels.parquet")
    assert (table.num_rows, str(table.schema.field("total_ns").type)) == (0, "int64")
    reasons = parquet.read_table(tmp_path / "tables/reasons.parquet").to_pylist()
    assert {"rank": 0, "analysis": "kernels", "reason": "no CUDA kernels in rank0.sqlite"} in reasons


def test_a_chrome_export_is_a_file_of_each_rank_and_one_of_all(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    done = hpcprof("export", str(profiles), "--to", "chrome", "timelines")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "timelines").iterdir()) == [
        "all_ranks.json.gz",
        "rank00000.trace.json.gz",
        "rank00001.trace.json.gz",
    ]


def test_a_perfetto_export_is_one_file_of_the_chosen_ranks_and_steps(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    hpcprof("collect", str(profiles))
    done = hpcprof("export", str(profiles), "--to", "perfetto", "--steps", "1-2", "timelines")
    assert done.returncode == 0, done.stderr
    assert "The clocks are aligned by their communication to" in done.stderr
    (path,) = (tmp_path / "timelines").iterdir()
    found = decode(gzip.decompress(path.read_bytes()))
    assert sorted(found.tracks) == ["rank 0", "rank 1"] and found.together
    assert [one.name for one in found.slices if one.category == "step"] == [
        "step 1",
        "step 1",
        "step 2",
        "step 2",
    ]
    hpcprof("export", str(profiles), "--to", "perfetto", "--steps", "1", "--ranks", "1", "timelines")
    assert sorted(decode(gzip.decompress(path.read_bytes())).tracks) == ["rank 1"]


def test_a_chrome_export_of_some_ranks_and_steps_has_only_these(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    hpcprof("collect", str(profiles))
    done = hpcprof("export", str(profiles), "--to", "chrome", "--steps", "2", "--ranks", "1", "timelines")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "timelines").iterdir()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert sum(event["name"] == "iteration" for event in events) <= 2
    assert sum(event.get("cat") == "kernel" for event in events) > 0


def test_exported_timelines_can_be_collected_and_say_the_same(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    hpcprof("collect", str(profiles))
    hpcprof("export", str(profiles), "--to", "chrome", "timelines")
    assert "2 profiles collected" in hpcprof("collect", "timelines").stdout
    for analysis in ("kernels", "steps", "steps_summary", "breakdown"):
        assert report(hpcprof, tmp_path / "timelines", analysis) == report(hpcprof, profiles, analysis)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--to", "csv"], 2, "give the folder to write to"),
        (["--to", "excel", "tables"], 2, "'excel' is not one of"),
        (["tables"], 2, "Missing option '--to'"),
        (["nothing", "--to", "csv", "tables"], 2, "unknown run 'nothing'"),
        (["--to", "csv", "tables"], 2, "no runs in runs yet"),
        (["empty", "--to", "csv", "tables"], 1, "has no profile."),
        (["empty", "--to", "chrome", "tables"], 1, "nothing written to tables: empty-"),
        (
            ["empty", "--to", "perfetto", "tables"],
            1,
            "has no profile.",
        ),
        (["empty", "--to", "chrome", "--steps", "1,3", "tables"], 2, "give one step or one range of steps"),
        (["empty", "--to", "chrome", "--steps", "x", "tables"], 2, "--steps x: give numbers and ranges"),
        (["empty", "--to", "chrome", "--ranks", "5-3", "tables"], 2, "--ranks 5-3: give numbers and ranges"),
        (["empty", "--to", "csv", "--ranks", "1", "tables"], 2, "--ranks and --steps are for timelines"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], code: int, says: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    done = hpcprof("export", *arguments)
    assert done.returncode == code
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "tables").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(
    hpcprof: Hpcprof, profiles: Path, tmp_path: Path
) -> None:
    hpcprof("collect", str(profiles))
    (tmp_path / "file").write_text("")
    for form in ("csv", "chrome"):
        done = hpcprof("export", str(profiles), "--to", form, "file/tables")
        assert done.returncode == 1
        assert "cannot write to file/tables: Not a directory" in done.stderr
