"""The sample sizes that a report gives for each analysis."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hpcprof.analysis.framework.outcome import AnalysisTable, Row
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.report.contents import Contents, gather, sample_sizes
from hpcprof.report.terminal import full_report
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus
from tests.submitted_run import MakeRun, make_run

__all__ = ["make_run"]

# Columns that hold the number of samples of a row, or name the single event that it describes.
COUNTS = {
    *("instances", "count", "calls", "num_calls", "steps", "overlapped_n", "collectives", "ranks"),
    "operators",
    "messages",
    "samples",
    *("id", "seq", "latency_ns", "wall_ns", "runs", "n_a", "gaps", "reads"),
}
# The limits of device and job, what ncu measured one by one, and lists of single calls, operations and steps.
OF_NO_SAMPLES = {
    "ncu_peaks",
    "roofline",
    "mpi_call_list",
    "mpi_operation_list",
    "mpi_regions",
    "step_idle_causes",
    "offload",
    "useful_counters",
    "job_resources",
    "coincidences",
    "memory_use",
    "memory_snapshots",
    "memory",
    "memory_over_step",
}


def stored(rows: list[Row]) -> AnalysisTable:
    return AnalysisTable({name: [row[name] for row in rows] for name in (rows[0] if rows else ())}, {})


def test_operations_steps_and_ranks_are_those_of_the_ranks_in_the_rows() -> None:
    analyses = {
        "breakdown": stored([{"rank": 0}, {"rank": 1}]),
        "kernels": stored([{"rank": r, "instances": n} for r, n in ((0, 1000), (0, 20), (1, 980), (7, 5))]),
        "memops": stored([{"rank": 1, "count": 1}]),
        "step_times": stored([{"rank": r} for r in (0, 0, 1, 1, 7)]),
    }
    said = sample_sizes("breakdown", analyses)
    assert said == "n: 2,000 kernels and 1 memory operation on 2 ranks, 2 steps each"
    assert sample_sizes("steps", analyses) == "n: 3 ranks"
    analyses["step_times"] = stored([{"rank": r} for r in (0, 1, 1)])
    assert sample_sizes("breakdown", analyses).endswith(" on 2 ranks, 1 to 2 steps each")
    analyses["breakdown"] = stored([{"rank": 0}])
    assert sample_sizes("breakdown", analyses) == "n: 1,020 kernels and 0 memory operations on 1 rank, 1 step"


@pytest.mark.parametrize(("devices", "shown"), [([(0, 0), (1, 1)], False), ([(0, 0), (0, 1)], True)])
def test_the_breakdown_by_device_is_shown_where_a_rank_uses_several(
    devices: list[tuple[int, int]], shown: bool
) -> None:
    analyses = {name: stored([]) for name in ANALYSES}
    analyses["device_breakdown"] = stored([{"rank": rank, "device": device} for rank, device in devices])
    profile: Any = SimpleNamespace(kind="nsys", devices="")
    contents = Contents(
        Run("r", Path("r")), None, [], {0: profile}, analyses, [], [], lambda *options: options[-1]
    )
    assert ("device_breakdown" in contents.shown()) is shown


def test_an_analysis_without_rows_has_no_samples() -> None:
    empty = {name: stored([]) for name in ANALYSES}
    assert {sample_sizes(name, empty) for name in ANALYSES} == {""}


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_gives_its_sample_sizes_in_its_rows_or_in_a_line_below(name: str) -> None:
    rows = {name: stored([{"rank": 0, "instances": 1, "count": 1}]) for name in ANALYSES}
    told = COUNTS & {column.name for column in ANALYSES[name].columns}
    assert told or sample_sizes(name, rows) or name in OF_NO_SAMPLES


def test_a_report_says_why_the_launcher_of_a_run_that_failed_started_no_rank(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(started="now", finished="255", setup_failed="module load mpich failed")
    (run.path / "logs").mkdir()
    (run.path / "logs/job.err").write_text("srun: unrecognized option '--foo'\n")
    store = open_store(None, tmp_path)
    unstarted = "no rank was started: the launcher refused an option (srun: unrecognized option '--foo')"
    failed = gather(run, store, JobStatus(JobState.FAILED, "exit code 255", 255))
    assert failed.warnings[:2] == ["module load mpich failed", unstarted]
    page = Console(width=200)
    with page.capture() as printed:
        page.print(full_report(failed, 200))
    told = ("module load mpich failed", unstarted, "rank 0: was not started")
    assert [text for text in printed.get().splitlines() if text in told] == [*told]
    assert unstarted not in gather(run, store, JobStatus(JobState.RUNNING)).warnings
