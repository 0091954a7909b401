"""Contradictions between analyses are found, said, and never shown as figures."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.framework.crosschecks import contradictions
from hpcprof.analysis.steps.phases import distribution
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results import rank_task
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.results.rank_tables import RANK_TABLES, read_rank_table
from hpcprof.results.rank_task import ProfileResults, ProfileTask, analyze_profile

DATA = Path(__file__).parents[3] / "data"
PLANTED: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], set[str], str]] = {
    "a nanosecond too many in a part": (
        "breakdown",
        lambda row: {"idle_ns": row["idle_ns"] + 1},
        {"breakdown"},
        "do not add up to its span",
    ),
    "a part below zero": (
        "breakdown",
        lambda row: {"idle_ns": -1, "compute_ns": row["compute_ns"] + row["idle_ns"] + 1},
        {"breakdown"},
        "do not add up to its span",
    ),
    "a kernel that one table lacks": (
        "kernels_by_shape",
        lambda row: {"instances": row["instances"] - 1},
        {"kernels", "kernels_by_shape"},
        "differ in instances",
    ),
    "a nanosecond that one table lacks": (
        "kernels",
        lambda row: {"total_ns": row["total_ns"] - 1},
        {"kernels", "kernels_by_shape"},
        "differ in total_ns",
    ),
    "a phase longer than its steps": (
        "phases",
        lambda row: {"p50_ns": 10**12},
        {"phases", "step_times"},
        "takes longer than its steps",
    ),
    "a phase that loses time": (
        "phases",
        lambda row: {"mean_ns": row["mean_ns"] - 10},
        {"phases", "step_times"},
        "the phases add up to",
    ),
    "a nanosecond too many in a part of a step": (
        "step_parts",
        lambda row: {"compute_ns": row["compute_ns"] + 1},
        {"step_parts"},
        "do not add up to its wall time",
    ),
    "a cause that loses idle time": (
        "idle_causes",
        lambda row: {"idle_ns_per_step": row["idle_ns_per_step"] + 1000},
        {"idle_causes"},
        "the causes of idle time add up to",
    ),
    "a phase in more steps than there are": (
        "phases",
        lambda row: {"steps": row["steps"] + 1},
        {"phases", "step_times"},
        "takes longer than its steps",
    ),
}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profiles") / "rank00000.sqlite"
    path.write_bytes(lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()))
    return path


def has_rows(found: ProfileResults, name: str, folder: Path) -> bool:
    """Return whether an analysis has rows, among the results or in the files beside the events."""
    if name not in RANK_TABLES:
        return found.tables[name].count > 0
    return len(read_rank_table(RankEvents(folder, "run", 0, found.sha256), name)) > 0


@pytest.mark.parametrize("planted", PLANTED)
def test_a_contradiction_is_said_and_its_figures_are_not_stored(
    planted: str, export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis, change, concerned, says = PLANTED[planted]
    analyse = rank_task._table

    def changed(name: str, *others: Any) -> AnalysisTable:
        result = analyse(name, *others)
        if name == analysis:
            for column, value in change({name: values[0] for name, values in result.columns.items()}).items():
                result.columns[column][0] = value
        return result

    monkeypatch.setattr(rank_task, "_table", changed)
    found = analyze_profile(ProfileTask(export, 0, events=tmp_path, run_id="run"))
    assert isinstance(found, ProfileResults)
    (warning,) = found.warnings
    assert warning.startswith(f"{export}: ")
    assert says in warning
    for name in concerned:
        assert not has_rows(found, name, tmp_path)
        assert says in found.tables[name].reasons[0]
    assert all(has_rows(found, name, tmp_path) or of.reasons for name, of in found.tables.items())
    untouched = {"kernels", "breakdown", "phases", "api", "ranges"} - concerned
    assert all(has_rows(found, name, tmp_path) for name in untouched)


def test_a_real_profile_has_no_contradiction(export: Path) -> None:
    found = analyze_profile(ProfileTask(export, 0))
    assert isinstance(found, ProfileResults)
    assert found.warnings == ()
    assert all(found.tables[name].count for name in ("breakdown", "kernels", "phases"))


def test_a_profile_without_results_contradicts_nothing(export: Path) -> None:
    found = analyze_profile(ProfileTask(DATA / "ncu/roofline.raw.csv.gz", 0))
    assert isinstance(found, ProfileResults)
    assert found.warnings == ()


@given(st.lists(st.tuples(st.integers(1, 10**12), st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_phases_that_are_inside_their_steps_contradict_nothing(steps: list[tuple[int, float, bool]]) -> None:
    inside = [int(latency * share) for latency, share, there in steps if there]
    rest = [latency - int(latency * share) if there else latency for latency, share, there in steps]
    results: dict[str, Any] = {"breakdown": {}, "phases": {}}
    results |= {key: {"instances": [], "total_ns": []} for key in ("kernels", "kernels_by_shape")}
    results |= {"step_parts": {"idle_ns": []}, "idle_causes": {"idle_ns_per_step": []}}
    results["step_times"] = {"wall_ns": [latency for latency, *_ in steps]}
    if inside:
        found = [
            {"phase": name, **distribution(np.array(values))}
            for name, values in (("forward", inside), ("(rest)", rest))
        ]
        results["phases"] = {name: [row[name] for row in found] for name in found[0]}
    assert contradictions(results) == {}
