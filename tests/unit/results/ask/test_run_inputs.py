"""The parts of a run that analyses over several runs read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.profiles.readers.results import parse_result
from hpcprof.results.ask import run_inputs
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.collect import timelines
from hpcprof.results.collect.timelines import Timelines
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.results.store.store import RankResults, open_store
from hpcprof.results.store.tables import ProfileRow, RunRow
from hpcprof.runs.directory import Run
from hpcprof.workloads.schema import write

DATA = Path(__file__).parents[4] / "docs" / "data"
TRACES = Path(__file__).parents[3] / "data"


@pytest.mark.parametrize("of_version_1", [True, False])
def test_the_own_clock_of_several_modes_is_that_of_the_first(of_version_1: bool, tmp_path: Path) -> None:
    text = (DATA / "h200x4-4608-9216-9216.json").read_text()
    result = parse_result(text)
    path = write(result, tmp_path / "results")
    if of_version_1:
        path.write_text(text)
    data = run_data(Run("run", tmp_path), open_store(None, tmp_path))
    assert list(data.own_step_ns) == result.modes["serial"].latency_ns
    assert data.parameters["mode"] == "serial"


def test_the_profiles_of_a_run_are_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {rank: TRACES / f"cpu_ddp_rank{rank}.pt.trace.json.gz" for rank in (0, 1)}
    looked: list[Run] = []

    def find(run: Run) -> Timelines:
        looked.append(run)
        return Timelines(paths, [])

    monkeypatch.setattr(timelines, "find_timelines", find)
    run, store = Run("run", tmp_path), open_store(str(tmp_path / "results.db"), tmp_path)
    store.prepare()
    for rank, path in paths.items():
        profile = ProfileRow(
            run.id, rank, path.name, "a" * 64, 1, "torch", None, "", None, None, ANALYSIS_VERSION
        )
        store.put_profiles(RunRow(run.id, str(run.path)), [RankResults(profile, {}, [], (), ())])
    data = run_data(run, store)
    assert [len(data.read(rank).operators) > 0 for rank in data.timeline_ranks] == [True, True]
    assert looked == [run]


def test_variables_that_number_ranks_are_no_differences_between_runs() -> None:
    facts = {("environment", "PMIX_RANK"): "0", ("environment", "NCCL_ALGO"): "Ring", ("host", "name"): "n1"}
    assert run_inputs._recorded_facts(facts) == {"environment NCCL_ALGO": "Ring"}
