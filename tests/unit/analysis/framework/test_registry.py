"""The declarations of all analyses agree with each other and with themselves."""

from __future__ import annotations

import pytest

from hpcprof.analysis.framework.declaration import Analysis, Kind, Scope
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES, FULL_REPORT

EVERY = [*ANALYSES.values(), *ACROSS_RUNS.values()]


@pytest.mark.parametrize("analysis", EVERY, ids=lambda analysis: f"{analysis.name}-{analysis.scope.value}")
def test_a_declaration_names_columns_that_it_has(analysis: Analysis) -> None:
    kinds = {column.name: column.kind for column in analysis.columns}
    assert set(analysis.main_columns) <= set(kinds)
    assert all(kinds[name.removeprefix("-")] is not Kind.TEXT for name in analysis.sort_by)


@pytest.mark.parametrize("analysis", EVERY, ids=lambda analysis: f"{analysis.name}-{analysis.scope.value}")
def test_an_analysis_needs_only_what_is_computed_before_it(analysis: Analysis) -> None:
    before = list(ANALYSES)
    if analysis.scope is Scope.RUN:
        ranks = {name for name, one in ANALYSES.items() if one.scope is Scope.RANK}
        assert set(analysis.computed_from) <= ranks | set(before[: before.index(analysis.name)])
    else:
        assert set(analysis.needs) <= set(before)
        assert not (analysis.scope is Scope.RANK and analysis.needs)


def test_the_full_report_has_this_order() -> None:
    assert " ".join(FULL_REPORT) == (
        "steps_summary pop mpi_delays mpi_waits mpi_calls mpi_matrix phases "
        "breakdown device_breakdown overlap collectives_summary skew slowdown kernels memops "
        "operators roofline kernel_counters ncu_kernels ncu_occupancy ncu_rules "
        "range_gpu ranges api job_resources energy "
        "coincidences darshan_files memory_snapshots memory host_memory"
    )
    positions = [ANALYSES[name].report_position for name in FULL_REPORT]
    assert len(set(positions)) == len(positions)
