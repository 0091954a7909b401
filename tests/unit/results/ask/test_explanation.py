"""Explaining a run: what is gathered, what is kept, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from hpcprof.analysis.explain.changes import Change, Prediction
from hpcprof.analysis.explain.explanation import (
    GIVEN,
    MEASURED,
    REFERENCE,
    CallCost,
    Explanation,
    StepAlone,
    StepSummary,
    unpriced_finding,
)
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.framework.outcome import WHOLE_RUN, AnalysisTable
from hpcprof.common.errors import HpcprofError, StoreError, UsageError
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.timeline import Gpu
from hpcprof.results.ask.explanation import (
    _late_ranks,
    explain,
    explain_for_report,
    explain_inputs,
    kept_explanation,
    what_if,
    with_live_findings,
)
from hpcprof.results.ask.step_alone import step_alone
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.results.store.store import RankResults, Store, open_store
from hpcprof.results.store.tables import ProfileRow, RunRow
from hpcprof.runs.directory import Run, save
from tests.submitted_run import MakeRun, make_run
from tests.unit.explanations import explained, finding

__all__ = ["make_run"]

PATH = {"rank": 0, "kind": "host", "name": "x", "range": "data", "ns_per_step": 7, "share_pct": 50.0}
PREDICTION = Prediction(9, 8, 10, 10, 0.1, 5, 9, 10)


@dataclass
class Graph:
    """Takes the place of the graph and its replay, and keeps what it was given."""

    explanation: Explanation
    inputs: list[ExplainInputs] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def explain_run(self, inputs: ExplainInputs) -> tuple[Explanation, pd.DataFrame]:
        self.inputs.append(inputs)
        return self.explanation, pd.DataFrame([PATH])

    def predict(self, inputs: ExplainInputs, changes: Sequence[Change]) -> Prediction:
        self.inputs.append(inputs)
        self.changes += changes
        return PREDICTION


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    made = Graph(explained(finding(13), finding(2), finding(None)))
    monkeypatch.setattr("hpcprof.analysis.explain.explain.explain_run", made.explain_run)
    monkeypatch.setattr("hpcprof.analysis.explain.whatif.predict", made.predict)
    return made


def profile(rank: int, sha256: str = "a", kind: str = "nsys", version: int = ANALYSIS_VERSION) -> ProfileRow:
    return ProfileRow("run", rank, "f", sha256 * 64, 1, kind, None, "", None, None, version)


def table(analysis: str, name: str, values: list[str]) -> AnalysisTable:
    """Return rows with a name, each with a count of 1 as far as the table has one."""
    counts = {"kernels": "instances", "api": "num_calls", "operators": "calls"}
    columns: dict[str, list[Any]] = {"rank": [0] * len(values), name: [*values]}
    if analysis in counts:
        columns[counts[analysis]] = [1] * len(values)
    return AnalysisTable(columns)


def put(store: Store, run: Run, one: ProfileRow, losses: Sequence[Loss] = ()) -> None:
    tables = {
        "ranges": table("ranges", "range", ["iteration", "data"]),
        "kernels": table("kernels", "name", ["gemm_bf16"]),
        "api": table("api", "name", ["cudaMalloc"]),
    }
    gpus = [Gpu(0, "NVIDIA H200", sm_count=132)]
    store.put_profiles(
        RunRow(run.id, str(run.path)), [RankResults(one, tables if one.rank == 0 else {}, gpus, (), losses)]
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run("run", tmp_path)


@pytest.fixture
def store(run: Run) -> Store:
    """A store with the profiles of ranks 0 and 1."""
    store = open_store(str(run.path / "results.db"), run.path)
    store.prepare()
    put(store, run, profile(0), [Loss(LossKind.ROW, Subject.KERNEL, 57, 172, "end")])
    harmless = Loss(LossKind.NOTE, Subject.CAPTURE, detail="Not all CUDA events might have been collected")
    unread = Loss(LossKind.ROW, Subject.MPI_OPERATION, 120, None, "record (SendRecv)")
    put(store, run, profile(1), [harmless, Loss(LossKind.ROW, Subject.ALLOCATION, 1, 2, "args"), unread])
    return store


def test_an_explanation_is_computed_once_and_kept_with_its_critical_path(
    run: Run, store: Store, graph: Graph
) -> None:
    assert kept_explanation(run, store) is None
    assert explain(run, store) == explain(run, store) == graph.explanation == kept_explanation(run, store)
    assert len(graph.inputs) == 1
    path = store.table(run.id, "critical_path")
    assert (path.rows, path.reasons) == ([PATH], {})
    costs = store.table(run.id, "profiler_cost")
    assert (costs.rows, costs.reasons) == ([], {-1: "the profiler's share of a step is unknown"})
    cost = CallCost("cudaLaunchKernel", 500.0, 9_000, 8_000, 10_000, GIVEN)
    graph.explanation = replace(
        graph.explanation, step=replace(graph.explanation.step, profiler_cost=(cost,))
    )
    explain(run, store, step_ns=7)
    assert store.table(run.id, "profiler_cost").rows == [asdict(cost)]


def test_a_given_step_time_is_kept_for_later_explanations(run: Run, store: Store, graph: Graph) -> None:
    alone = StepAlone(4_000_000, 4_000_000, 4_000_000, GIVEN)
    explain(run, store)
    graph.explanation = replace(graph.explanation, step=replace(graph.explanation.step, alone_ns=alone))
    explain(run, store, step_ns=4_000_000)
    assert [one.alone for one in graph.inputs] == [None, alone]
    assert explain(run, store) == explain(run, store, step_ns=4_000_000) == graph.explanation
    explain(run, store, as_recorded=True)
    assert [one.alone for one in graph.inputs] == [None, alone, None]
    values = {**graph.explanation.as_json(), "version": 1}
    assert store.put_analyses(run.id, WHOLE_RUN, {}, {0: "a" * 64, 1: "a" * 64}, json.dumps(values))
    explain(run, store)
    assert [one.alone for one in graph.inputs] == [None, alone, None, alone]


def test_the_steps_that_ranks_noted_before_they_were_recorded_are_those_alone(
    run: Run, store: Store, graph: Graph
) -> None:
    folder = run.path / "state" / "alone"
    folder.mkdir(parents=True)
    halves = [{"steps": 3, "elapsed_ns": 33}, {"steps": 4, "elapsed_ns": 37}]
    (folder / "rank00000.json").write_text(json.dumps(halves))
    (folder / "rank00001.json").write_text(json.dumps([{"steps": 7, "elapsed_ns": 63}]))
    (folder / "rank00002.json").write_text("[{")
    explain(run, store)
    assert [one.alone for one in graph.inputs] == [StepAlone(10, 9, 11, MEASURED)]


@pytest.mark.parametrize("source", ["hpcprof", "PyTorch profiler", "launches"])
def test_the_program_without_the_profiler_tells_the_step_alone(
    source: str, run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = run.path / "reference" / "state"
    (state / "steps").mkdir(parents=True)
    line = {"time": 1.0, "step": 29, "steps": 15, "wall_ns": 30_000_000, "max_ns": 30_000_000}
    lines = [{**line, "step": 14}, {**line, "wall_ns": 20_000_000}]
    (state / "steps" / "rank00000.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (state / "rank00000.times").write_text("100.00 180.00\n")
    shutil.copytree(state / "steps", run.path / "state" / "steps")
    (run.path / "state" / "rank00000.times").write_text("300.00 390.00\n")
    tables = {
        "step_ranges": [{"chosen": True, "source": source}],
        "step_kinds": [{"elapsed_ns": 30_000_000, "steps": 1000}],
    }
    kept = SimpleNamespace(
        explanation=lambda _: None,
        exists=lambda: True,
        table=lambda _, name: SimpleNamespace(rows=tables[name]),
    )
    alone = step_alone(run, cast(Store, kept))
    if source != "launches":
        assert alone == StepAlone(22_500_000, 20_000_000, 25_000_000, REFERENCE)
        # The program marks parts of its optimizer's steps itself.
        tables["step_kinds"] = [{"elapsed_ns": 10_000_000, "steps": 1000}]
        assert (step_alone(run, cast(Store, kept)) == alone) == (source == "hpcprof")
    else:
        # nsys takes 0.2 to 2.8 s of the 10 s once.
        assert alone == StepAlone(21_000_000, 20_200_000, 22_800_000, REFERENCE)
        tables["step_kinds"] = [{"elapsed_ns": 30_000_000, "steps": 100}]
        assert step_alone(run, cast(Store, kept)) is None


def test_a_changed_profile_is_explained_anew(run: Run, store: Store, graph: Graph) -> None:
    explain(run, store)
    put(store, run, profile(1, "b"))
    assert kept_explanation(run, store) is None
    explain(run, store)
    assert len(graph.inputs) == 2


def test_the_graph_gets_the_ranks_tables_losses_and_gpus_of_the_run(
    run: Run, store: Store, graph: Graph
) -> None:
    explain(run, store)
    (inputs,) = graph.inputs
    assert inputs.ranks == (0, 1)
    assert inputs.tables["ranges"]["range"].tolist() == ["iteration", "data"]
    assert list(inputs.losses) == [0, 1]
    assert [loss.subject for loss in inputs.losses[1]] == [Subject.MPI_OPERATION]
    assert "57 of 172 kernels" in inputs.losses[0][0].sentence
    assert inputs.gpus[1] == (Gpu(0, "NVIDIA H200", sm_count=132),)
    assert inputs.world_size == 0


def test_an_explanation_of_an_earlier_version_counts_only_where_the_run_is_out_of_reach(
    run: Run, store: Store, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    explain(run, store)
    monkeypatch.setattr("hpcprof.results.ask.explanation.ANALYSIS_VERSION", ANALYSIS_VERSION + 1)
    monkeypatch.setattr("hpcprof.results.store.analysis_version.ANALYSIS_VERSION", ANALYSIS_VERSION + 1)
    assert kept_explanation(run, store) is None
    assert kept_explanation(Run("run", run.path / "gone"), store) == graph.explanation
    with pytest.raises(HpcprofError, match="collected by an earlier version of hpcprof: run hpcprof collect"):
        explain(run, store)


def test_an_explanation_in_other_words_is_computed_again_without_a_collect(
    run: Run, store: Store, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    explain(run, store)
    monkeypatch.setattr("hpcprof.results.ask.explanation._VERSION", 0)
    assert kept_explanation(run, store) is None
    assert kept_explanation(Run("run", run.path / "gone"), store) == graph.explanation
    assert explain(run, store) == kept_explanation(run, store) == graph.explanation
    assert len(graph.inputs) == 2


def test_whoever_may_only_read_the_database_gets_an_explanation_too(
    run: Run, store: Store, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise StoreError("attempt to write a readonly database")

    monkeypatch.setattr(Store, "put_analyses", refuse)
    assert explain(run, store) == graph.explanation


def test_an_explanation_is_computed_again_if_a_collect_has_overtaken_it(
    run: Run, store: Store, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_analyses, lost = Store.put_analyses, iter([True])
    monkeypatch.setattr(Store, "put_analyses", lambda *given: not next(lost, False) and put_analyses(*given))
    assert explain(run, store) == graph.explanation
    assert len(graph.inputs) == 2


def test_what_cannot_be_explained_is_refused_with_one_sentence(run: Run, tmp_path: Path) -> None:
    empty = open_store(str(tmp_path / "empty.db"), tmp_path)
    with pytest.raises(HpcprofError, match=r"run has not been collected: run hpcprof collect .* first"):
        explain(Run("run", tmp_path / "elsewhere"), empty)
    with pytest.raises(HpcprofError, match=r"run has no profile\."):
        what_if(run, empty, [])
    empty.prepare()
    put(empty, run, profile(0, kind="ncu"))
    with pytest.raises(HpcprofError, match="has no timelines to explain"):
        explain(run, empty)


def test_changes_are_checked_and_replayed(run: Run, store: Store, graph: Graph) -> None:
    assert what_if(run, store, ["range:data*0", "kernel:bf16*0.5@1"]) == PREDICTION
    assert graph.changes == [Change("range", "data", 0), Change("kernel", "bf16", 0.5, rank=1)]
    assert what_if(run, store, []) == PREDICTION
    assert what_if(run, store, ["range:iteration/data*0", "api:Malloc$*0", "rank:1=median"]) == PREDICTION


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("range:dat*0", "unknown range 'dat' in 'range:dat*0'; did you mean 'data'?"),
        ("kernel:fp8*0", "'kernel:fp8*0': no kernel of the run matches 'fp8'."),
        ("api:cudaFree*0", "no API call of the run matches 'cudaFree'."),
        ("rank:2=median", "unknown rank '2' in 'rank:2=median'. Valid: 0, 1."),
        ("copy*0@9", "unknown rank '9'"),
    ],
)
def test_a_change_of_what_the_run_does_not_have_is_refused(
    text: str, sentence: str, run: Run, store: Store, graph: Graph
) -> None:
    with pytest.raises(UsageError) as refused:
        what_if(run, store, [text])
    assert sentence in str(refused.value)
    assert not graph.inputs


def test_one_rank_has_no_others_to_be_like(run: Run, tmp_path: Path, graph: Graph) -> None:
    store = open_store(str(tmp_path / "one.db"), tmp_path)
    store.prepare()
    put(store, run, profile(0))
    with pytest.raises(UsageError, match="needs the other ranks, and only rank 0 was profiled"):
        what_if(run, store, ["rank:0=median"])


def test_a_report_explains_the_run_once_and_says_how_many_ranks_are_read(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_twice(inputs: ExplainInputs) -> tuple[Explanation, pd.DataFrame]:
        for rank in (0, 0, 1, 1):
            inputs.read(rank)
        return explained(), pd.DataFrame([PATH])

    readable = replace(explain_inputs(run, store), read=lambda rank: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr("hpcprof.results.ask.explanation.explain_inputs", lambda *_: readable)
    monkeypatch.setattr("hpcprof.analysis.explain.explain.explain_run", read_twice)
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        assert explain_for_report(run, store, lambda *done: seen.append(done)) == ""
    assert kept_explanation(run, store) == explained()
    assert seen == [(1, 2), (1, 2), (2, 2), (2, 2)]


def test_what_has_no_timeline_needs_no_explanation(run: Run, tmp_path: Path, graph: Graph) -> None:
    store = open_store(str(tmp_path / "new.db"), tmp_path)
    assert explain_for_report(run, store) == ""
    store.prepare()
    put(store, run, profile(0, kind="ncu"))
    assert explain_for_report(run, store) == ""
    assert not graph.inputs


@pytest.mark.parametrize("error", [HpcprofError("the profile of rank 0 is gone."), ValueError("a bug")])
def test_a_report_says_why_it_has_no_explanation(
    error: Exception, run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(inputs: ExplainInputs) -> object:
        raise error

    monkeypatch.setattr("hpcprof.analysis.explain.explain.explain_run", fail)
    assert str(error) in explain_for_report(run, store)
    assert kept_explanation(run, store) is None


def test_shares_of_noted_steps_are_of_the_step_that_the_explanation_names(make_run: MakeRun) -> None:
    run = save(make_run(finished="0", started="2026-11-21T02:16:00Z"))
    store = open_store(None, run.path.parent)
    (run.path / "state/steps").mkdir()
    for steps, told in ((20, ()), (40, ("earlier steps",))):
        step, time, lines = -1, 1_795_227_360.0, []
        for at in range(80):
            wall = 27_000_000 if at > 50 else 18_000_000 + at % 3
            step, time = step + steps, time + steps * wall / 1e9
            line = {"time": time, "step": step, "steps": steps, "wall_ns": wall, "max_ns": wall}
            lines.append(f"{json.dumps(line)}\n")
        (run.path / "state/steps/rank00000.jsonl").write_text("".join(lines))
        found = explain(run, store)
        (drift,) = found.findings
        elapsed = found.step.elapsed_ns
        assert elapsed is not None and found.step.steps == 80 * steps
        assert tuple(item.what for item in found.not_judged[1:]) == told
        share = 100 * (drift.saving_ns or 0) / elapsed
        assert (drift.share_pct == pytest.approx(share, abs=0.001)) == (not told)
    reason = "findings are of the last 2,000 steps, which take 23.22 ms each"
    assert found.not_judged[1].reason == reason
    # A profile without steps leaves those that the program noted.
    recorded_nothing = replace(found, step=StepSummary(None, 0, 1, 0, None))
    assert with_live_findings(recorded_nothing, run, store).step == found.step


def test_what_one_remedy_records_is_one_finding_of_incompleteness(make_run: MakeRun) -> None:
    run = save(make_run(finished="0", started="2026-11-21T02:16:00Z"))
    lost = Loss(LossKind.FIELD, Subject.MPI_OPERATION, 4, None, "synchronization of their windows")
    given = (finding(3), unpriced_finding("capture_incomplete", (), lost.sentence, (), lost.remedy, "high"))
    (run.path / "state/rank00000.untraced").write_text("MPI_Win_lock\n")
    store = open_store(None, run.path.parent)
    first, both = with_live_findings(explained(*given), run, store).findings
    assert first == given[0]
    assert lost.sentence in both.where and "MPI_Win_lock" in both.where
    assert both.remedy.startswith("Record MPI with Score-P")


@pytest.mark.parametrize(("replayed", "verdict"), [(False, "straggler"), (True, "even")])
def test_a_rank_of_a_replayed_table_is_late_only_by_a_finding(replayed: bool, verdict: str) -> None:
    late = {"lateness_p50_ns": 9, "lateness_low_ns": 8, "lateness_high_ns": 10, "elapsed_ns": 100}
    summary = AnalysisTable(
        {name: [value] for name, value in {"rank": 2, **late}.items()} | {"verdict": ["?"]}
    )
    skew = AnalysisTable({"rank": [2], "lateness_p50_ns": [9], "verdict": ["?"]})
    found = _late_ranks(explained(), summary, skew, replayed=replayed)
    assert found["skew"].columns["verdict"] == [verdict]
    assert found["skew"].columns["lateness_p50_ns"] == [0 if replayed else 9]
