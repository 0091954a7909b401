"""Real profiles are explained: the commands, the report, SQL and Python say the same."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import hpcprof as hpcprof_package
from tests.conftest import Hpcprof
from tests.integration.conftest import DATA, Database, on_sqlite

KEYS = {
    *("cause", "ranks", "where", "saving_ns", "saving_low_ns", "saving_high_ns", "share_pct"),
    *("evidence", "evidence_text", "remedy", "confidence", "alternatives", "source", "culprit"),
    *("kind", "steps", "together"),
}


def test_a_run_is_collected_explained_and_the_explanation_is_kept(
    hpcprof: Hpcprof, profiles: Path, database: Database
) -> None:
    first = hpcprof("explain", str(profiles), "--format", "json")
    assert first.returncode == 0, first.stderr
    assert "has been collected: collecting it first" in first.stderr
    found = json.loads(first.stdout)
    assert set(found) == {"findings", "hidden", "not_judged", "step", "stall", "failure", "slower"}
    assert (found["step"]["ranks"], found["step"]["steps"] > 0) == (2, True)
    assert all(set(finding) == KEYS for finding in found["findings"])
    kept = database.dump()
    again = hpcprof("explain", str(profiles), "--format", "json")
    assert (again.stdout, again.stderr) == (first.stdout, "")
    text = hpcprof("explain", str(profiles)).stdout
    assert text.startswith("A step takes ")
    report = json.loads(hpcprof("report", str(profiles), "--format", "json").stdout)
    assert report["explanation"] == found
    assert report["run"] in hpcprof("report", str(profiles)).stdout
    assert database.dump() == kept
    path = json.loads(
        hpcprof("report", str(profiles), "--analysis", "critical_path", "--format", "json").stdout
    )
    assert path
    assert {row["rank"] for row in path} <= {0, 1}
    results = hpcprof_package.open(profiles)
    assert results.explain().in_short().as_json() == found
    assert len(results.critical_path()) == len(path)


@on_sqlite
def test_evidence_can_be_looked_up(hpcprof: Hpcprof, profiles: Path, database: Database) -> None:
    found = json.loads(hpcprof("explain", str(profiles), "--format", "json").stdout)
    evidence = [finding["evidence"] for finding in (*found["findings"], *found["hidden"])]
    assert evidence and all(evidence)
    for analysis in {one["analysis"] for each in evidence for one in each}:
        shown = hpcprof("report", str(profiles), "--analysis", analysis, "--format", "json")
        assert shown.returncode == 0, shown.stderr


@on_sqlite
def test_a_change_is_replayed_and_what_the_run_does_not_have_is_refused(
    hpcprof: Hpcprof, profiles: Path, database: Database
) -> None:
    hpcprof("collect", str(profiles))
    measured = hpcprof("whatif", str(profiles))
    assert measured.returncode == 0, measured.stderr
    assert measured.stdout.startswith("The unchanged median step takes ")
    faster = hpcprof("whatif", str(profiles), "--set", "kernel:nvjet*0")
    assert " less than the measured " in " ".join(faster.stdout.split()), faster.stderr
    refused = hpcprof("whatif", str(profiles), "--set", "range:matmul*0")
    assert refused.returncode == 2
    assert "unknown range 'matmul' in 'range:matmul*0'; did you mean" in refused.stderr
    assert refused.stderr.count("\n") == 1


@on_sqlite
def test_a_program_of_mpi_without_ranges_is_explained_by_its_calls(
    hpcprof: Hpcprof, tmp_path: Path, database: Database
) -> None:
    for rank in range(4):
        shutil.copy(DATA / f"mpi_stencil_slow_rank{rank}.sqlite.xz", tmp_path / f"rank{rank}.sqlite.xz")
    done = hpcprof("explain", str(tmp_path), "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first, *_ = found["findings"]
    assert (first["cause"], first["ranks"]) == ("late_rank_host", [2])
    assert first["where"] == "between MPI_Isend and MPI_Waitall"
    # Rank 2 computes 4 ms longer in each step, which costs 4.0 ms.
    assert abs(first["saving_ns"] - 4.0e6) < 0.4e6
    assert first["evidence"][0]["analysis"] == "mpi_waits"
    # The program itself says 12.67 ms.
    assert abs(found["step"]["elapsed_ns"] - 12.67e6) < 0.05e6
    # Without the late rank a step takes 8.75 ms.
    balanced = hpcprof("whatif", str(tmp_path), "--set", "rank:2=median").stdout
    elapsed = re.search(r"Elapsed time per step: ([\d.]+) ms", balanced)
    assert elapsed is not None
    assert abs(float(elapsed[1]) - 8.75) < 0.3
    report = hpcprof("report", str(tmp_path)).stdout
    assert "mpi:MPI_Allreduce, found as its sequence of MPI calls repeats, 40 on" in " ".join(report.split())
