"""Launch calls without an operation, and what explains that they have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcprof.analysis.steps.capture_losses import capture_losses
from hpcprof.analysis.steps.lost_launches import (
    captured_launches,
    lost_launches,
    steps_with_lost_launches,
)
from hpcprof.profiles.losses import LossKind
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.timelines import COMP, timeline

MS = 1_000_000
STEPS = [(at * MS, at * MS + 900_000, "iteration", 0) for at in range(1, 9)]


def program(lost: tuple[int, ...] = (), names: tuple[str, ...] = ("cudaLaunchKernel",) * 8) -> Timeline:
    """Return eight steps of one kernel each, without the kernels of some steps."""
    rows = [(at * MS + 20_000, at * MS + 120_000, COMP, at * MS + 10_000, 0) for at in range(1, 9)]
    whole = timeline(rows, STEPS)
    texts = np.append(whole.strings, list(dict.fromkeys(names)))
    number = np.array([texts.tolist().index(name) for name in names], np.int64)
    kept = ~np.isin(np.arange(8), lost)
    calls = replace(whole.calls, name=number, end=whole.calls.start + 5_000)
    return replace(whole, strings=texts, calls=calls, kernels=whole.kernels.take(kept))


def test_a_launch_without_a_kernel_is_lost_with_its_step() -> None:
    found = program(lost=(2, 3))
    assert lost_launches(found).tolist() == [2, 3]
    assert np.flatnonzero(steps_with_lost_launches(found)).tolist() == [2, 3]
    (loss,) = [loss for loss in capture_losses(found) if loss.kind is LossKind.MISSING]
    assert loss.sentence == "2 of 8 launch calls have no operation on the GPU in the profile"


def test_graphs_without_nodes_and_an_event_of_their_own_are_lost_as_graphs() -> None:
    names = ["cudaGraphLaunch_v10000" if at % 2 else "cudaLaunchKernel" for at in range(8)]
    (loss,) = [
        loss for loss in capture_losses(program((1, 3), tuple(names))) if loss.kind is LossKind.MISSING
    ]
    assert loss.sentence == "2 of 4 CUDA graphs have no operation on the GPU in the profile"
    assert "cuda-graph-trace=node" in loss.remedy


def test_a_gpu_that_was_not_recorded_lacks_every_launch() -> None:
    found = program(lost=tuple(range(8)))
    (loss,) = [loss for loss in capture_losses(found) if loss.kind is LossKind.MISSING]
    assert (loss.count, loss.of) == (8, 8) and "--kernel-trace" in loss.remedy
    assert steps_with_lost_launches(found).all()


def test_launches_into_a_graph_and_at_the_end_of_a_capture_lack_nothing() -> None:
    names = ["cudaLaunchKernel"] * 8
    names[1], names[4] = "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000"
    captured = program((1, 2, 3, 4), tuple(names))
    assert not len(lost_launches(captured)) and captured_launches(captured) == 2
    assert not len(lost_launches(program((7,))))
    assert not len(lost_launches(program()))
    # The GPU had been idle for long when these two were launched.
    assert lost_launches(program((5, 6, 7))).tolist() == [5, 6]
    assert np.flatnonzero(steps_with_lost_launches(program((5, 6, 7)))).tolist() == [5, 6, 7]


def test_launches_after_the_profiler_was_stopped_are_no_loss() -> None:
    names = ["cudaLaunchKernel"] * 8
    names[4] = "cudaProfilerStop_v4000"
    assert lost_launches(program((2, 4, 5, 6), tuple(names))).tolist() == [2]


def test_a_graph_without_nodes_is_lost_and_a_callback_is_not() -> None:
    names = ["cudaLaunchKernel"] * 8
    names[2], names[3] = "cudaGraphLaunch_v10000", "cudaLaunchHostFunc_v10000"
    assert lost_launches(program((2, 3), tuple(names))).tolist() == [2]


def test_a_launch_of_sycl_without_a_kernel_is_lost() -> None:
    # intel/torch-xpu-ops#3985: fills have records on the GPU, kernels have none.
    names = ["urEnqueueUSMFill", "urQueueFinish", *["urEnqueueKernelLaunchWithArgsExp"] * 6]
    assert lost_launches(program((1, 2, 3), tuple(names))).tolist() == [2, 3]
