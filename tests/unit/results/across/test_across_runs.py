"""Runs that may be compared, and the earlier runs of a baseline."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from hpcprof.analysis.framework.run_data import RunData
from hpcprof.common.errors import UsageError
from hpcprof.results.across.across_runs import MAX_EARLIER_RUNS, check_comparable, earlier_runs
from hpcprof.runs.directory import GitState, Manifest, Run, save, site_keys
from hpcprof.runs.job import Job
from hpcprof.submit.sites.files import load_site
from tests.unit.analysis.several import run

JOB = Job(name="train", site="local", workload=None, arguments=["python", "train.py"], directory="/src")
CLEAN = GitState("1234", dirty=False)


def submitted(folder: Path, minute: int, job: Job = JOB, git: GitState | None = CLEAN) -> Run:
    """Leave a run that was submitted in a minute of one hour."""
    name = f"run{minute}"
    path = folder / name
    (path / "state").mkdir(parents=True)
    created = f"2026-11-21T02:{minute:02d}:00+00:00"
    return save(
        Run(name, path, Manifest(name, created, ["hpcprof"], job, site_keys(load_site("local")), git=git))
    )


def found(baseline: list[Run], candidate: list[Run]) -> list[str]:
    return [one.id for one in earlier_runs(baseline, candidate)]


def test_earlier_runs_of_the_same_job_and_code_belong_to_a_baseline(tmp_path: Path) -> None:
    for minute in (3, 1, 2):
        submitted(tmp_path, minute)
    submitted(tmp_path, 4, msgspec.structs.replace(JOB, arguments=["python", "train.py", "--lr", "1"]))
    submitted(tmp_path, 5, msgspec.structs.replace(JOB, ranks_per_node=2))
    submitted(tmp_path, 6, git=GitState("5678", dirty=False))
    submitted(tmp_path, 7, git=GitState("1234", dirty=True))
    failed = submitted(tmp_path, 8)
    (failed.path / "state/rank00000.exit").write_text("1\n")
    submitted(tmp_path, 9, msgspec.structs.replace(JOB, walltime=60, after=["run1"]))
    baseline, candidate = [submitted(tmp_path, 20), submitted(tmp_path, 22)], [submitted(tmp_path, 21)]
    submitted(tmp_path, 30)
    assert found(baseline, candidate) == ["run1", "run2", "run3", "run9"]


def test_a_baseline_of_unknown_code_or_of_several_jobs_has_no_earlier_runs(tmp_path: Path) -> None:
    submitted(tmp_path, 1, git=GitState("1234", dirty=True))
    submitted(tmp_path, 2)
    changed = submitted(tmp_path, 20, git=GitState("1234", dirty=True))
    same, other = submitted(tmp_path, 21), submitted(tmp_path, 22, msgspec.structs.replace(JOB, nodes=2))
    assert found([changed], []) == []
    assert found([same, other], []) == []
    assert found([Run("imported", tmp_path / "imported")], []) == []


def test_the_latest_earlier_runs_count(tmp_path: Path) -> None:
    for minute in range(MAX_EARLIER_RUNS + 2):
        submitted(tmp_path, minute)
    assert found([submitted(tmp_path, 50)], [])[0] == "run2"
    assert len(found([submitted(tmp_path, 51)], [])) == MAX_EARLIER_RUNS


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"program": "eval"},
            r"different programs \(sequence-parallel, eval\): hpcprof compare --force compares them",
        ),
        ({"ranks": 4}, r"different numbers of ranks \(2, 4\)"),
    ],
)
def test_different_programs_and_rank_counts_are_refused(facts: dict[str, str | int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_comparable([run("a"), run("b", facts=facts)], "hpcprof compare --force")


def test_other_names_and_unknown_facts_are_no_difference() -> None:
    unknown: RunData = run("b", facts={"program": None, "ranks": None, "workload": "another name"})
    check_comparable([run("a"), unknown], "")


@pytest.mark.parametrize(
    ("kernel", "step", "refused"),
    [
        ("gemm_F1L204", "", False),
        ("gemm_F1L210", "", False),  # The next version of a program of OpenMP has other lines.
        ("jacobi", "iteration", False),
        ("jacobi", "sweep", True),
    ],
)
def test_runs_of_unknown_programs_need_a_kernel_or_a_step_in_common(
    kernel: str, step: str, refused: bool
) -> None:
    def of(name: str, kernel: str, step: str, program: str | None = None) -> RunData:
        tables: dict[str, list[dict[str, object]]] = {
            "kernels": [{"name": kernel}, {"name": None}],  # An export may lack a name.
            "step_ranges": [{"range": step, "chosen": 1}, {"range": "any", "chosen": 0}],
        }
        return run(name, facts={"program": program}, tables=tables)

    runs = [of("a", "gemm_F1L204", "iteration"), of("b", kernel, step)]
    with pytest.raises(UsageError, match="a and b have neither a kernel") if refused else nullcontext():
        check_comparable(runs, "hpcprof compare --force")
    # Two versions of one program may have no kernel in common.
    check_comparable([of("a", "gemm", "iteration", "train"), of("b", kernel, step, "train")], "")


@pytest.mark.parametrize(
    ("job", "program"),
    [
        (JOB, "train"),
        (msgspec.structs.replace(JOB, name="candidate", arguments=["python3", "-u", "b/train.py"]), "train"),
        (msgspec.structs.replace(JOB, workload="ddp", arguments=["--steps", "3"]), "ddp"),
    ],
)
def test_a_program_is_its_script_or_workload(job: Job, program: str) -> None:
    assert job.program == program
