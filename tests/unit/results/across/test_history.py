"""The history of a metric over the runs of a program."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcprof.analysis.framework.run_data import RunData
from hpcprof.common.errors import UsageError
from hpcprof.results.across import history
from hpcprof.results.across.history import gated_histories, histories, may_be_gated, regressions
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import GitState, Manifest, Run, save, site_keys
from hpcprof.runs.job import Job
from hpcprof.runs.tags import change_tags
from hpcprof.submit.sites.files import load_site
from hpcprof.workloads.schema import SCHEMA_VERSION, Correctness, RankResult, Scalar, summarize, write
from tests.unit.analysis.comparison.test_compare import sampled


def timed(
    folder: Path,
    minute: int,
    step_ns: int,
    script: str = "train.py",
    ranks: int = 1,
    arguments: Sequence[str] = (),
    parameters: Mapping[str, Scalar] | None = None,
) -> Run:
    """Leave a run of a program that recorded its own steps, submitted in a minute of one hour."""
    name = f"run{minute:02}"
    command = ["python", script, *arguments]
    job = Job(name="train", site="local", workload=None, arguments=command, directory="/src")
    created = f"2026-11-21T02:{59 - minute:02d}:00+00:00"
    times = [step_ns] * 3
    result = RankResult(
        schema_version=SCHEMA_VERSION,
        workload="train",
        mode="serial",
        rank=0,
        world_size=ranks,
        local_rank=0,
        host="node0",
        device="cpu",
        backend="gloo",
        parameters=dict(parameters or {}),
        versions={},
        profiler="none",
        step_ns=times,
        phase_ns={},
        summary={"step": summarize(times)},
        latency_ns=times,
        correctness=Correctness(True, 0.0, 1e-5, 1, "float64"),
        notes=[],
    )
    write(result, folder / name / "results")
    git = GitState(f"{minute:02}" * 20, dirty=False)
    manifest = Manifest(name, created, ["hpcprof"], job, site_keys(load_site("local")), git=git)
    return save(Run(name, folder / name, manifest))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(None, tmp_path)


def test_the_run_from_which_on_steps_are_slower_is_marked_in_the_order_of_time(
    tmp_path: Path, store: Store
) -> None:
    # The later ones have the smaller numbers.
    for minute in range(14):
        timed(tmp_path, minute, 100_000 + 100 * (minute % 5) + 5_000 * (minute < 5))
    tagged = timed(tmp_path, 14, 100_000)
    change_tags(tagged, tmp_path, ["first"])
    (found,) = histories(store, tmp_path, None)
    assert (found.setup, found.apart) == ("train, 1 rank, local, cpu, none", {})
    assert [point.run for point in found.points] == [f"run{minute:02}" for minute in range(14, -1, -1)]
    (changed,) = [point for point in found.points if point.change_pct is not None]
    assert (changed.run, changed.commit) == ("run04", "040404040404")
    assert changed.change_pct == pytest.approx(5, abs=0.3)
    assert changed.change_probability is not None and changed.change_probability > 0.99
    assert found.points[0].tags == ("first",)
    assert {point.source for point in found.points} == {"3 steps of the program"}
    (only,) = histories(store, tmp_path, "train", tags=["first"])
    assert [point.run for point in only.points] == ["run14"]


def test_runs_on_other_numbers_of_ranks_have_a_history_of_their_own(tmp_path: Path, store: Store) -> None:
    for minute in range(5):
        timed(tmp_path, minute, 1000, ranks=1 + (minute > 2))
    assert [len(one.points) for one in histories(store, tmp_path, None)] == [3, 2]


def test_arguments_that_may_change_a_step_put_runs_apart_and_others_do_not(
    tmp_path: Path, store: Store
) -> None:
    for minute in range(6):
        size = ["--batch", "16"] if minute > 3 else []
        timed(
            tmp_path, minute, 1000, arguments=[*size, "--seed", str(minute), "--output-dir", f"out{minute}"]
        )
    large, default = sorted(histories(store, tmp_path, None), key=lambda one: len(one.points))
    assert [len(one.points) for one in (large, default)] == [2, 4]
    assert large.setup == "train, 1 rank, local, cpu, none, batch 16"
    assert (large.apart, default.apart) == ({"batch": "16"}, {"batch": "not given"})


def test_energy_is_judged_as_the_step_is_and_other_clocks_are_named(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest five runs take 20 % more energy, at a lower clock, in equally long steps."""
    for minute in range(14):
        timed(tmp_path, minute, 100_000 + 100 * (minute % 5))

    def with_samples(run: Run, store: Store) -> RunData:
        minute = int(run.id.removeprefix("run"))
        later, scatter = minute < 5, 7 * minute % 5 / 5
        machine = sampled((120.0 if later else 100.0) + scatter, 1410.0 if later else 1755.0)
        return replace(run_data(run, store), tables=machine.tables)

    monkeypatch.setattr(history, "run_data", with_samples)
    (steps,) = histories(store, tmp_path, None)
    assert not steps.regressed
    found, unjudged = gated_histories(["energy", "memory"], store, tmp_path, None)
    assert [one.metric for one in found] == [
        "energy_per_step_j",
        "memory_peak_bytes",
        "gpu_memory_peak_bytes",
    ]
    (worse,) = regressions([steps, *found])
    (changed,) = [point for point in worse.points if point.change_pct is not None]
    assert (worse.metric, changed.run, unjudged) == ("energy_per_step_j", "run04", [])
    assert changed.clocks == "the GPUs ran at 1,410 MHz since then and at 1,755 MHz before"
    # Who went back to the old level has no regression, and a higher clock is none.
    fell = replace(worse, points=(*worse.points, replace(changed, run="run", change_pct=-16.0)))
    assert regressions([fell]) == [] and not may_be_gated("overlap_pct")
    # A series of other arguments that nobody runs any more is not looked at.
    newer = replace(steps.points[-1], run="new", time=None)
    assert regressions([worse, replace(worse, points=(newer,))]) == [worse]
    monkeypatch.undo()
    assert gated_histories(["io"], store, tmp_path, None) == (
        [],
        ["Not judged: no run has io of its steps."],
    )


def test_runs_without_the_metric_are_told(tmp_path: Path, store: Store) -> None:
    timed(tmp_path, 1, 1000)
    shutil.rmtree(timed(tmp_path, 2, 1000).path / "results")
    without: list[str] = []
    (found,) = histories(store, tmp_path, None, without=without)
    assert ([point.run for point in found.points], without) == (["run01"], ["run02"])


def test_recorded_parameters_count_in_place_of_the_command(tmp_path: Path, store: Store) -> None:
    # The first names what is the default of the second.
    timed(tmp_path, 1, 1000, arguments=["--batch", "8"], parameters={"batch": 8, "ranks": 1})
    timed(tmp_path, 2, 1000, parameters={"batch": 8, "ranks": 1})
    timed(tmp_path, 3, 1000, parameters={"batch": 8, "ranks": 2})
    found = histories(store, tmp_path, None)
    assert [(len(one.points), one.apart) for one in found] == [
        (2, {"argument ranks": "1"}),
        (1, {"argument ranks": "2"}),
    ]


def test_what_is_wrong_is_one_sentence(tmp_path: Path, store: Store) -> None:
    with pytest.raises(UsageError, match=r"no run in .* has a step time"):
        histories(store, tmp_path, None)
    timed(tmp_path, 1, 1000)
    timed(tmp_path, 2, 1000, script="serve.py")
    with pytest.raises(UsageError, match=r"several programs: name one with --program: serve, train"):
        histories(store, tmp_path, None)
    with pytest.raises(UsageError, match=r"unknown program 'tran'; did you mean 'train'"):
        histories(store, tmp_path, "tran")
    with pytest.raises(UsageError, match=r"unknown metric 'stepns'; did you mean 'step_ns'"):
        histories(store, tmp_path, "train", "stepns")
    with pytest.raises(
        UsageError,
        match="no run of train has idle_per_step_ns: they have own_elapsed_per_step_ns, own_step_p50_ns, ",
    ):
        histories(store, tmp_path, "train", "idle_per_step_ns")
    with pytest.raises(UsageError, match="no run matches"):
        histories(store, tmp_path, None, tags=["none"])


def test_a_run_that_fails_as_nobody_foresaw_leaves_the_others_their_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minute in range(3):
        timed(tmp_path, minute, 10**7)

    def fail(run: Run, store: Store) -> RunData:
        return {other: run_data(run, store) for other in ("run00", "run02")}[run.id]

    monkeypatch.setattr(history, "run_data", fail)
    skipped: list[str] = []
    (found,) = histories(open_store(None, tmp_path), tmp_path, None, skipped=skipped)
    assert {point.run for point in found.points} == {"run00", "run02"}
    assert skipped == ["run01 is left out: an internal error of hpcprof, KeyError: 'run01'"]
