"""The analyses that each kind of loss affects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.losses import losses_of, touches
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.readers.declaration import ProfileContent

EVERY = ANALYSES | {name: one for name, one in ACROSS_RUNS.items() if name not in ANALYSES}


def touched(loss: Loss) -> set[str]:
    return {name for name, analysis in EVERY.items() if touches(loss, analysis)}


def test_kernels_that_are_left_out_touch_all_that_reads_kernels_and_nothing_else() -> None:
    found = touched(Loss(LossKind.ROW, Subject.KERNEL, 57, 172, "end"))
    assert {"kernels", "breakdown", "step_times", "steps_summary", "collectives", "compare"} <= found
    assert not found & {"api", "ranges", "memops", "memory_usage", "ncu_kernels"}


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (Loss(LossKind.FIELD, Subject.COPY, 1, 2, "bytes"), {"memops"}),
        (Loss(LossKind.FIELD, Subject.COPY, 1, 2, "srcKind"), set()),
        (Loss(LossKind.ROW, Subject.ALLOCATION, 1, 2, "args"), {"memory_usage"}),
        (
            Loss(LossKind.STEP, Subject.CAPTURE, detail="began"),
            {
                "phases",
                "step_times",
                "steps",
                "steps_summary",
                "skew",
                "skew_summary",
                "compare",
                "scaling",
                "scaling_models",
            }
            | {
                "phase_times",
                "step_parts",
                "step_account",
                "step_kinds",
                "idle_causes",
                "step_idle_causes",
                "idle_threads",
                "critical_path",
                "profiler_cost",
            }
            | {
                "mpi_regions",
                "device_metrics",
                "offload",
                "useful_counters",
                "os_calls",
                "mpi_calls",
                "mpi_delays",
                "mpi_matrix",
                "mpi_waits",
                "pop",
            }
            | {"step_difference", "kernel_difference", "collective_difference", "idle_difference"},
        ),
        (
            Loss(LossKind.ROW, Subject.METRIC, 1, None, "form"),
            {"ncu_kernels", "ncu_occupancy", "ncu_peaks", "ncu_rules", "roofline"},
        ),
        (Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, detail="CPU sampling was not possible."), set()),
    ],
)
def test_a_loss_touches_what_is_computed_from_it(loss: Loss, found: set[str]) -> None:
    assert touched(loss) == found


def test_a_missing_launch_touches_what_joins_operations_with_their_calls() -> None:
    found = touched(Loss(LossKind.LAUNCH, Subject.KERNEL, 1, 2))
    assert {"launches", "range_gpu", "step_times", "steps_summary", "skew"} <= found
    assert not found & {"kernels", "breakdown", "overlap", "api"}


def test_a_warning_about_cuda_touches_no_analysis_of_ranges_alone_and_the_other_way_round() -> None:
    cuda, nvtx = (
        touched(Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, detail=f"Not all {what} events were collected."))
        for what in ("CUDA", "NVTX")
    )
    assert "kernels" in cuda - nvtx and "api" in cuda - nvtx
    assert "ranges" in nvtx - cuda
    assert "step_times" in cuda & nvtx


def test_graphs_that_hide_their_kernels_touch_the_tables_of_kernels() -> None:
    assert {"kernels", "breakdown"} <= touched(Loss(LossKind.GRAPH, Subject.GRAPH, 3))


def test_every_analysis_that_takes_over_no_other_one_says_what_it_reads() -> None:
    alone = {
        name for name, one in EVERY.items() if not one.computed_from and one.reads is ProfileContent.TIMELINE
    }
    assert all(EVERY[name].events for name in alone)


def test_an_unknown_analysis_is_touched_by_every_loss_of_its_kind_of_profile() -> None:
    unknown = replace(ANALYSES["memops"], name="of_a_plugin", events=None)
    for subject in Subject:
        for kind in (LossKind.ROW, LossKind.FIELD, LossKind.LAUNCH):
            assert touches(Loss(kind, subject, 1, 2, "bytes"), unknown) is (
                subject not in (Subject.METRIC, Subject.RECORD)
            )
    assert unknown.scope is Scope.RANK


def test_the_sentences_of_an_analysis_leave_out_what_does_not_touch_it() -> None:
    found = [
        (3, Loss(LossKind.ROW, Subject.KERNEL, 57, 172, "end")),
        (3, Loss(LossKind.FIELD, Subject.COPY, 1, 2, "bytes")),
    ]
    assert losses_of(ANALYSES["kernels"], found) == (
        "rank 3: 57 of 172 kernels have no valid end and are left out",
    )
