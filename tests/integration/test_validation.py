"""The study that validates explanations, on two ranks that share a CPU."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import Explanation, Finding, StepSummary
from hpcprof.common.errors import HpcprofError
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run
from hpcprof.study import resume_validation
from hpcprof.study.runs import Message
from tests.conftest import Hpcprof
from tests.integration.mpi import forking_python

pytestmark = pytest.mark.slow

STUDY = ["--profiler", "torch", "--ranks-per-node", "2", "--repeats", "1", "--block-steps", "4"]
FAULTS = ["host_work:ms=100", "late_rank_host:ms=100,rank=1"]
MS = 1_000_000


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "validation.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def finding(cause: str, ranks: tuple[int, ...]) -> Explanation:
    saving = 90 * MS
    found = Finding(Cause(cause), ranks, "data", saving, saving, saving, None, (), "", "high")
    return Explanation((found,), (), (), StepSummary(110 * MS, 10, 2, 10, 0.1))


def test_faults_are_measured_profiled_and_found_once(
    hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = [*STUDY, "-o", f"python={forking_python(tmp_path)}", "--faults", ",".join(FAULTS)]
    done = hpcprof("study", "validate", *study, "--", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("runs/*-validate-*")
    runs = json.loads((folder / "study.json").read_text())["runs"]
    assert [(run["plants"], run["profiled"]) for run in runs] == [
        (FAULTS, False),
        *(([fault], True) for fault in FAULTS),
    ]
    rows = table(folder)
    assert [row["fault"] for row in rows] == FAULTS
    for row, ranks in zip(rows, ("all", "1"), strict=True):
        assert int(row["cost_low_ns"]) < int(row["cost_ns"]) < int(row["cost_high_ns"])
        # The ranks sleep 100 ms in a step, however long a busy machine makes those without the fault.
        assert int(row["clean_step_ns"]) + int(row["cost_ns"]) > 99 * MS
        assert row["expected"] == row["fault"].partition(":")[0]
        assert (row["expected_range"], row["expected_ranks"]) == ("data", ranks)
        found = [row[key] for key in ("first_finding", "finding_range", "finding_ranks", "right")]
        assert found == [row["expected"], "data", ranks, "yes"]
        assert int(row["saving_ns"]) > 50 * MS
    assert "2 of 2 first findings are right; the predicted savings are off by " in done.stdout

    # The study is complete: its runs are kept, and only explained.
    def explain(run: Run, store: Store) -> Explanation:
        if run.id == runs[2]["run"]:
            raise HpcprofError("no clocks")
        return finding("host_work", (0, 1))

    monkeypatch.setattr("hpcprof.results.ask.explanation.explain", explain)
    said: list[Message] = []
    again = resume_validation(folder, progress=said.append)
    assert [message.text for message in said if message.text.startswith("kept ")] == [
        f"kept {run['run']}" for run in runs
    ]
    assert [one.right for one in again.found] == [True, False]
    assert again.found[0].row()["error_ns"] == 90 * MS - int(rows[0]["cost_ns"])
    assert again.found[1].row()["first_finding"] == "no explanation"
    assert f"{FAULTS[1]}: no clocks" in [message.text for message in said]


def test_a_study_of_another_kind_is_not_continued(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"study": "slowdown"}')
    done = hpcprof("study", "validate", "--resume", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "belongs to hpcprof study slowdown, not to hpcprof study validate." in done.stderr
