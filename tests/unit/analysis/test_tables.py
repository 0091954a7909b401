"""The tables of every analysis of the catalogue."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from hpcprof.analysis.framework.declaration import Analysis, Kind, Scope
from hpcprof.analysis.framework.outcome import (
    WHOLE_RUN,
    AnalysisTable,
    Outcome,
    analyze_rank,
    analyze_run,
    data_frame,
    joined_tables,
)
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.kernel_report import KernelReport
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.over_all_ranks import analyze
from tests.unit.analysis.timelines import COMP, timeline

FIXTURES = {
    ProfileContent.TIMELINE: ["sequence_parallel", "torch_step", "allocator"],
    ProfileContent.KERNEL_REPORT: ["kernel_report"],
}
RANK = [analysis for analysis in ANALYSES.values() if analysis.scope is Scope.RANK]
# What only some profiles record.
ONLY = {
    "memory_usage": ("allocator",),
    "hta_breakdown": ("allocator", "torch_step"),
    "rank_collectives": ("sequence_parallel", "torch_step"),
    "slowdown": ("torch_step",),
    "exposed_communication": ("sequence_parallel", "torch_step"),
    "modules": (),
    **dict.fromkeys(("mpi_call_list", "mpi_operation_list", "mpi_regions", "offload"), ()),
    **dict.fromkeys(("useful_counters", "kernel_counters", "os_calls", "device_metrics", "ncu_rules"), ()),
    **dict.fromkeys(
        ("operators", "operators_by_shape", "operator_kernels", "idle_threads"), ("allocator", "torch_step")
    ),
}
# What a profile need not tell, without a word about it.
NULLABLE = {
    "rank_collectives": ("comm_ranks", "world_ranks", "step", "peer", "comm_peer"),
    "idle_causes": ("range", "api"),
    "step_idle_causes": ("range",),
}
# hpcprof explain computes the critical path, not a collect; the profiles here have no messages, no MPI,
# no snapshots of memory and no logs of Darshan, and the samples no long steps.
OTHERS = (
    *("critical_path", "profiler_cost", "operation_slowdowns", "point_to_point", "point_to_point_summary"),
    *("mpi_calls", "mpi_waits", "mpi_delays", "mpi_matrix", "pop"),
    *("memory_use", "memory_snapshots", "memory", "memory_over_step", "host_memory"),
    *("coincidences", "darshan_files", "darshan_ranks", "darshan_steps", "expert_balance"),
)
RUN = [one for one in ANALYSES.values() if one.scope is Scope.RUN and one.name not in OTHERS]


@pytest.mark.parametrize(
    ("analysis", "fixture"),
    [pytest.param(a, f, id=f"{a.name}-{f}") for a in RANK for f in FIXTURES[a.reads]],
)
def test_the_columns_are_those_of_the_catalogue(
    analysis: Analysis, fixture: str, request: pytest.FixtureRequest
) -> None:
    outcome = analyze_rank(analysis, request.getfixturevalue(fixture), 3)
    assert outcome.frame.columns.tolist() == [column.name for column in analysis.columns]
    if fixture not in ONLY.get(analysis.name, (fixture,)):
        assert len(outcome.frame) == 0
        assert outcome.reasons[3]
        return
    assert len(outcome.frame)
    assert set(outcome.frame["rank"]) == {3}
    for column in analysis.columns:
        values = outcome.frame[column.name].tolist()
        if outcome.reasons or column.name in NULLABLE.get(analysis.name, ()):
            # The reason says why a value is missing.
            values = [value for value in values if value is not None]
        expected = {"int": int, "float": float, "text": str}[column.kind.value]
        # A kernel that does not use the tensor cores has no type of theirs.
        present = [value for value in values if value is not None or column.name != "tensor_type"]
        assert all(isinstance(value, expected) for value in present), column


@pytest.mark.parametrize("fixture", FIXTURES[ProfileContent.TIMELINE])
def test_no_analysis_keeps_a_timeline_that_is_no_longer_used(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    profile = replace(request.getfixturevalue(fixture))
    for analysis in RANK:
        if analysis.reads is ProfileContent.TIMELINE:
            analyze_rank(analysis, profile, 0)
    alive = weakref.ref(profile)
    del profile
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("analysis", RUN, ids=lambda a: a.name)
def test_run_analyses_return_the_columns_of_the_catalogue(
    analysis: Analysis, sequence_parallel: Timeline, kernel_report: KernelReport
) -> None:
    profiles: dict[ProfileContent, Timeline | KernelReport] = {
        ProfileContent.TIMELINE: sequence_parallel,
        ProfileContent.KERNEL_REPORT: kernel_report,
    }

    def result(needed: Analysis) -> AnalysisTable:
        if needed.scope is Scope.RUN:
            return analyze(needed, {name: result(ANALYSES[name]) for name in needed.computed_from})
        return joined_tables([analyze_rank(needed, profiles[needed.reads], rank) for rank in (0, 1)])

    rows = result(analysis).frame
    assert rows.columns.tolist() == [column.name for column in analysis.columns]
    assert len(rows)


@pytest.mark.parametrize("name", ["kernels", "api", "range_gpu", "breakdown", "overlap"])
def test_a_cpu_trace_gives_no_row_and_one_sentence(name: str) -> None:
    outcome = analyze_rank(ANALYSES[name], timeline([], [(0, 10, "iteration")]), 0)
    assert len(outcome.rows) == 0
    assert outcome.reasons[0].startswith("no CUDA")
    assert "rank00000.sqlite" in outcome.reasons[0]


def test_an_empty_timeline_breaks_no_analysis() -> None:
    for analysis in RANK:
        outcome = analyze_rank(analysis, timeline(), 0)
        assert len(outcome.rows) == 0
        assert outcome.reasons[0]


def test_operations_without_ranges_and_outside_ranges_are_told_apart() -> None:
    analysis = ANALYSES["range_gpu"]
    (reason,) = analyze_rank(analysis, timeline([(0, 5, COMP, 0)]), 0).reasons.values()
    assert reason == "no ranges in rank00000.sqlite"
    outside = analyze_rank(analysis, timeline([(0, 5, COMP, 50)], [(0, 10, "iteration")]), 0)
    assert outside.reasons[0] == "no GPU operation of rank00000.sqlite was launched inside a range"


def test_what_stands_on_another_analysis_takes_over_why_values_are_missing() -> None:
    found = analyze_run(ANALYSES["skew"], {"skew_summary": AnalysisTable({}, {WHOLE_RUN: "no rank has any"})})
    assert (len(found.rows), found.reason) == (0, "no rank has any")


@pytest.mark.parametrize("missing", [False, True])
def test_an_outcome_of_columns_has_these_columns(missing: bool) -> None:
    values: dict[Kind, list[object]] = {Kind.INT: [0, 2**53], Kind.FLOAT: [0.1, -1e300], Kind.TEXT: ["a", ""]}
    for analysis in ANALYSES.values():
        columns = {
            column.name: [*values[column.kind], *([None] if missing else [])] for column in analysis.columns
        }
        found = Outcome(data_frame(analysis.columns, columns))
        assert found.columns() == columns
        assert found.rows.columns.tolist() == list(columns)
