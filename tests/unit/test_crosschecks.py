"""The analyses of recorded profiles do not contradict each other, and a contradiction is found."""

from __future__ import annotations

import copy
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.steps.phases import distribution
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline
from tests.crosschecks import AnalysisColumns, contradictions

DATA = Path(__file__).parents[1] / "data"
CHECKED = (
    *("breakdown", "kernels", "kernels_by_shape", "phases", "step_times", "step_parts"),
    *("idle_causes", "step_idle_causes"),
)
RECORDED = (
    *(
        "sp_bf16_rank0.sqlite.xz",
        "sp_serial_rank1.sqlite.xz",
        "ddp_cap2_rank0.sqlite.xz",
        "cuda_graphs.sqlite.xz",
    ),
    *("planted_host_work_rank0.sqlite.xz", "planted_late_rank_gpu_rank0.sqlite.xz"),
    *(
        "ddp_steps_rank0.pt.trace.json.gz",
        "pipeline_rank0.pt.trace.json.gz",
        "cpu_ddp_rank0.pt.trace.json.gz",
    ),
)
PLANTED: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "a nanosecond too many in a part": (
        "breakdown",
        lambda row: {"idle_ns": row["idle_ns"] + 1},
        "do not add up to its span",
    ),
    "a part below zero": (
        "breakdown",
        lambda row: {"idle_ns": -1, "compute_ns": row["compute_ns"] + row["idle_ns"] + 1},
        "do not add up to its span",
    ),
    "a kernel that one table lacks": (
        "kernels_by_shape",
        lambda row: {"instances": row["instances"] - 1},
        "differ in instances",
    ),
    "a nanosecond that one table lacks": (
        "kernels",
        lambda row: {"total_ns": row["total_ns"] - 1},
        "differ in total_ns",
    ),
    "a phase longer than its steps": (
        "phases",
        lambda row: {"p50_ns": 10**12},
        "takes longer than its steps",
    ),
    "a phase that loses time": (
        "phases",
        lambda row: {"mean_ns": row["mean_ns"] - 10},
        "the phases add up to",
    ),
    "a nanosecond too many in a part of a step": (
        "step_parts",
        lambda row: {"compute_ns": row["compute_ns"] + 1},
        "do not add up to its wall time",
    ),
    "a cause that loses idle time": (
        "idle_causes",
        lambda row: {"idle_ns_per_step": row["idle_ns_per_step"] + 1000},
        "the causes of idle time add up to",
    ),
    "a step whose causes lose a nanosecond": (
        "step_idle_causes",
        lambda row: {"idle_ns": row["idle_ns"] + 1},
        "the causes of the idle time of step",
    ),
    "a phase in more steps than there are": (
        "phases",
        lambda row: {"steps": row["steps"] + 1},
        "takes longer than its steps",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, AnalysisColumns]]:
    """Analyze a recorded profile."""

    def analyze(name: str) -> dict[str, AnalysisColumns]:
        path = DATA / name
        if path.suffix == ".xz":
            path = tmp_path_factory.mktemp("profiles") / path.stem
            path.write_bytes(lzma.decompress((DATA / name).read_bytes()))
        profile = read_profile(path)
        assert isinstance(profile, Timeline)
        return {one: analyze_rank(ANALYSES[one], profile, 0).columns for one in CHECKED}

    return analyze


@pytest.fixture(scope="module")
def recorded(results: Callable[[str], dict[str, AnalysisColumns]]) -> dict[str, AnalysisColumns]:
    return results(RECORDED[0])


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_profile_has_no_contradiction(
    name: str, results: Callable[[str], dict[str, AnalysisColumns]]
) -> None:
    found = results(name)
    assert found["breakdown"]["span_ns"] or found["step_times"]["wall_ns"]
    assert contradictions(found) == []


@pytest.mark.parametrize("planted", PLANTED)
def test_a_contradiction_is_found(planted: str, recorded: dict[str, AnalysisColumns]) -> None:
    analysis, change, says = PLANTED[planted]
    results: Any = copy.deepcopy(recorded)
    columns = results[analysis]
    for column, value in change({name: values[0] for name, values in columns.items()}).items():
        columns[column] = [value, *columns[column][1:]]
    assert any(says in sentence for sentence in contradictions(results))


@given(st.lists(st.tuples(st.integers(1, 10**12), st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_phases_that_are_inside_their_steps_contradict_nothing(steps: list[tuple[int, float, bool]]) -> None:
    inside = [int(latency * share) for latency, share, there in steps if there]
    rest = [latency - int(latency * share) if there else latency for latency, share, there in steps]
    results: dict[str, Any] = {"breakdown": {}, "phases": {}}
    results |= {key: {"instances": [], "total_ns": []} for key in ("kernels", "kernels_by_shape")}
    results |= {"step_parts": {"idle_ns": []}, "idle_causes": {"idle_ns_per_step": []}}
    results["step_idle_causes"] = {"idle_ns": []}
    results["step_times"] = {"wall_ns": [latency for latency, *_ in steps]}
    if inside:
        found = [
            {"phase": name, **distribution(np.array(values))}
            for name, values in (("forward", inside), ("(rest)", rest))
        ]
        results["phases"] = {name: [row[name] for row in found] for name in found[0]}
    assert contradictions(results) == []
