"""The results file is read back as it was written, and a damaged one is rejected in one sentence."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.readers.results import parse_result
from hpcprof.workloads.schema import (
    SCHEMA_VERSION,
    Correctness,
    ModeResult,
    RankResult,
    summarize,
    to_json,
    write,
)

DATA = Path(__file__).parents[3] / "docs" / "data"


def result(**changes: Any) -> RankResult:
    times = [30, 10, 20]
    whole = RankResult(
        schema_version=SCHEMA_VERSION,
        workload="sequence-parallel",
        mode="serial",
        rank=3,
        world_size=4,
        local_rank=1,
        host="node7",
        device="cpu",
        backend="gloo",
        parameters={"steps": 3, "dtype": "float32", "rate": 0.5, "flag": True, "nothing": None},
        versions={"torch": "2.13.0"},
        profiler="none",
        step_ns=times,
        phase_ns={"allgather": [1, 2, 3]},
        summary={"step": summarize(times), "allgather": summarize([1, 2, 3])},
        latency_ns=[31, 11, 21],
        correctness=Correctness(True, 1e-7, 1e-5, 16, "float64"),
        notes=["a note with ünïcode"],
    )
    return dataclasses.replace(whole, **changes)


MODE = ModeResult([1], {}, [1], Correctness(True, 1e-7, 1e-5, 16, "float64"))


def damaged(change: Any) -> str:
    data = json.loads(to_json(result()))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize("latency", [[31, 11, 21], None])
def test_what_is_written_is_read_back_equal(latency: list[int] | None) -> None:
    original = result(latency_ns=latency)
    assert parse_result(to_json(original)) == original


def test_a_scalar_parameter_keeps_its_type() -> None:
    parameters = parse_result(to_json(result())).parameters
    assert [type(v) for v in parameters.values()] == [int, str, float, bool, type(None)]


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_an_error_that_is_no_number_is_strict_json_and_comes_back_as_nan(error: float) -> None:
    text = to_json(result(correctness=Correctness(False, error, 1e-5, 16, "float64")))
    assert "NaN" not in text and "Infinity" not in text
    assert math.isnan(parse_result(text).correctness.relative_error)


@pytest.mark.parametrize("shape", [path.name for path in DATA.glob("*.json")])
def test_the_published_results_are_read(shape: str) -> None:
    found = parse_result((DATA / shape).read_text())
    assert parse_result(to_json(found)) == found
    assert found.bound_ns is not None
    for mode in found.modes.values():
        assert mode.correctness.passed
        assert mode.figures is not None
        assert mode.figures.step == summarize(mode.latency_ns)
        assert mode.figures.of_bound_pct == pytest.approx(100 * found.bound_ns / mode.figures.step.p50_ns)


def test_an_error_that_is_no_number_is_read_of_every_mode() -> None:
    wrong = Correctness(False, math.nan, 1e-5, 16, "float64")
    modes = {name: ModeResult([1], {}, [1], wrong) for name in ("serial", "chunked")}
    found = parse_result(to_json(result(modes=modes))).modes
    assert all(math.isnan(mode.correctness.relative_error) for mode in found.values())


def test_the_points_of_a_sweep_are_read_back_each_whole() -> None:
    wrong = Correctness(False, math.nan, 1e-5, 16, "float64")
    points = [result(point="s=1"), result(point="s=2", correctness=wrong, modes={"m": MODE})]
    swept = dataclasses.replace(points[0], points=points)
    text = to_json(swept)
    assert "NaN" not in text
    found = parse_result(text)
    assert [one.point for one in found.every_point()] == ["s=1", "s=2"]
    assert found.points[0] == points[0]
    assert math.isnan(found.points[1].correctness.relative_error)
    assert result().every_point() == [result()]
    with pytest.raises(ValueError, match="latency_ns has 2 times, but step_ns has 3"):
        parse_result(to_json(dataclasses.replace(swept, points=[result(latency_ns=[1, 2])])))


@pytest.mark.parametrize("path", sorted(DATA.glob("h200x4-*.json")), ids=lambda path: path.stem)
def test_a_file_of_version_1_is_read_without_its_second_copy_of_the_first_mode(path: Path) -> None:
    text = path.read_text()
    old = json.loads(text)
    assert old["schema_version"] == 1 and old["step_ns"]
    found = parse_result(text)
    for point in (found, *found.points):
        assert point.schema_version == SCHEMA_VERSION
        assert (point.step_ns, point.phase_ns, point.summary, point.marked_ns) == ([], {}, {}, [])
        assert (point.latency_ns, point.correctness, point.figures) == (None, None, None)
    first = found.modes[found.mode]
    assert (first.step_ns, first.latency_ns) == (old["step_ns"], old["latency_ns"])
    assert first.figures is not None
    assert dataclasses.asdict(first.figures)["step"] == old["figures"]["step"]


def test_a_file_of_version_1_with_one_mode_keeps_everything() -> None:
    assert parse_result(damaged(lambda d: d.update(schema_version=1))) == result()


def test_the_lists_of_every_mode_must_have_equal_lengths() -> None:
    with pytest.raises(ValueError, match="latency_ns has 2 times, but step_ns has 1"):
        parse_result(to_json(result(modes={"m": dataclasses.replace(MODE, latency_ns=[1, 2])})))


def test_a_key_from_a_later_hpcprof_is_ignored() -> None:
    assert parse_result(damaged(lambda d: d.update(later=1))) == result()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the text is not JSON"),
        ("[" * 100_000, "the text is not JSON"),
        ("[]", "schema_version is None"),
        (
            damaged(lambda d: d.update(schema_version=0)),
            "schema_version is 0: this hpcprof reads versions up to 2",
        ),
        (
            damaged(lambda d: d.update(schema_version=3)),
            "schema_version is 3: this hpcprof reads versions up to 2",
        ),
        (damaged(lambda d: d.update(schema_version="1")), "schema_version is '1': this hpcprof reads"),
        (damaged(lambda d: d.pop("host")), "missing required field host"),
        (damaged(lambda d: d["summary"]["step"].pop("n")), r"missing required field n - at \$\.summary"),
        (damaged(lambda d: d.update(rank="3")), r"Expected int, got str - at \$\.rank"),
        (damaged(lambda d: d.update(rank=True)), r"Expected int, got bool - at \$\.rank"),
        (damaged(lambda d: d["step_ns"].append(1.5)), r"Expected int, got float - at \$\.step_ns"),
        (damaged(lambda d: d.update(phase_ns=[])), r"Expected object, got array - at \$\.phase_ns"),
        (damaged(lambda d: d.update(latency_ns="x")), r"got str - at \$\.latency_ns"),
        (damaged(lambda d: d.update(correctness=1)), r"got int - at \$\.correctness"),
        (damaged(lambda d: d["correctness"].update(bound="x")), r"got str - at \$\.correctness\.bound"),
        (damaged(lambda d: d["versions"].update(torch=2)), r"Expected str, got int - at \$\.versions"),
        (damaged(lambda d: d["step_ns"].pop()), "phase_ns.allgather has 3 times, but step_ns has 2"),
        (damaged(lambda d: d["latency_ns"].pop()), "latency_ns has 2 times, but step_ns has 3"),
        (damaged(lambda d: d["marked_ns"].append(1)), "marked_ns has 1 times, but step_ns has 3"),
    ],
)
def test_damage_is_refused_with_a_sentence_that_names_it(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_result(text)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200))
def test_a_summary_agrees_with_numpy(values: list[int]) -> None:
    found = summarize(values)
    for percent, value in ((50, found.p50_ns), (95, found.p95_ns), (99, found.p99_ns)):
        assert abs(value - np.percentile(values, percent)) <= 0.51
    assert abs(found.mean_ns - np.mean(values)) <= 0.51
    deviation = np.std(values, ddof=1) if len(values) > 1 else 0
    assert abs(found.stddev_ns - deviation) <= 0.51 + 1e-9 * deviation
    assert (found.n, found.min_ns, found.max_ns) == (len(values), min(values), max(values))


def test_nothing_cannot_be_summarized() -> None:
    with pytest.raises(ValueError, match="no times"):
        summarize([])


def test_the_file_is_named_by_the_rank_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = write(result(), tmp_path / "new" / "results")
    assert path == tmp_path / "new" / "results" / "rank00003.json"
    assert [p.name for p in path.parent.iterdir()] == ["rank00003.json"]
    assert parse_result(path.read_text(encoding="utf-8")) == result()


def test_the_files_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = write(result(), tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = write(result(), tmp_path)
    with pytest.raises(TypeError):
        write(result(host=object()), tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert parse_result(path.read_text(encoding="utf-8")) == result()
