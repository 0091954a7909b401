"""Events that a timeline shows to be missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.steps.capture_losses import capture_losses
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.timeline import NO_CORRELATION, ApiCalls, Timeline, concatenate
from tests.unit.analysis.timelines import COMM, COMP, MEM, timeline

MS = 1_000_000
PHASES = ("data", "forward", "backward")


def steps(count: int) -> list[tuple[Any, ...]]:
    """Return steps of 100 from 1000 on, each with all phases."""
    begins = range(1000, 1000 + 100 * count, 100)
    return [
        row
        for begin in begins
        for row in [
            (begin, begin + 99, "iteration", 0),
            *((begin + 30 * i, begin + 30 * i + 20, name, 0) for i, name in enumerate(PHASES)),
        ]
    ]


def found(ranges: list[tuple[Any, ...]]) -> list[str]:
    return [loss.detail for loss in capture_losses(timeline(ranges=ranges)) if loss.kind is LossKind.STEP]


def test_operations_without_a_launch_call_are_counted_by_kind() -> None:
    operations = [(10, 20, COMP, 5, 0), (20, 30, COMM, None), (30, 40, COMP, None), (40, 50, MEM, None)]
    assert capture_losses(timeline(operations)) == [
        Loss(LossKind.LAUNCH, Subject.KERNEL, 2, 3),
        Loss(LossKind.LAUNCH, Subject.MEMORY, 1, 1),
    ]


def test_what_was_launched_before_the_capture_is_first_on_its_stream_and_has_lower_numbers() -> None:
    """Rebuilt from a public trace of ResNet on an MI300X whose GPU rests for 2 ms as the capture begins."""

    def numbered(operations: list[tuple[Any, ...]]) -> Timeline:
        """Return a timeline whose launches count from 1."""
        whole = timeline(operations)
        kernels, calls = whole.kernels, whole.calls
        return replace(
            whole,
            kernels=replace(kernels, correlation=kernels.correlation + 1),
            calls=replace(calls, correlation=calls.correlation + 1),
        )

    backlog = [(10, 20, COMP, None), (2 * MS, 2 * MS + 10, COMP, None)]
    launched = (2 * MS + 40, 2 * MS + 50, COMP, 35, 0)
    assert capture_losses(numbered([*backlog, launched, (3 * MS, 3 * MS + 10, COMP, None)])) == [
        Loss(LossKind.LAUNCH, Subject.KERNEL, 1, 4),
        Loss(LossKind.QUEUED, Subject.KERNEL, 2, 4),
    ]
    # The launch of another stream has the number 4, so that of the operation 5 was inside the capture.
    other_stream = [(60, 70, COMP, 55, 0, 0, 1), (90, 95, COMP, None, 0, 0, 2), (98, 99, COMP, 97, 0, 0, 2)]
    lost = numbered([*backlog, launched, *other_stream])
    assert [(loss.kind, loss.count) for loss in capture_losses(lost)] == [
        (LossKind.LAUNCH, 1),
        (LossKind.QUEUED, 2),
    ]


def test_operations_without_any_number_of_a_launch_are_unlinked_and_not_begun_too_early() -> None:
    """Rebuilt from mlcommons/chakra#128: PyTorch on ROCm wrote no correlations."""
    whole = timeline([(10, 20, COMP, 5, 0), (30, 40, COMP, 25, 0)])
    calls = replace(whole.calls, correlation=np.full(2, -1), name=np.zeros(2, np.int64))
    texts = np.array(["hipLaunchKernel", *whole.strings[1:]], object)
    (loss,) = capture_losses(replace(whole, calls=calls, strings=texts))
    assert (loss.kind, loss.count) == (LossKind.UNLINKED, 2)
    assert "links no call" in loss.sentence and "Begin the capture" not in loss.remedy


def test_a_whole_timeline_and_an_empty_one_lack_nothing() -> None:
    assert capture_losses(timeline([(1010, 1020, COMP, 1005, 0)], steps(3))) == []
    assert capture_losses(timeline()) == []


@pytest.mark.parametrize("missing", [1, 2])
def test_the_last_phases_of_a_step_before_the_first_one_tell_that_the_capture_began_inside_it(
    missing: int,
) -> None:
    before = [(900 + 30 * i, 920 + 30 * i, name, 0) for i, name in enumerate(PHASES)][missing:]
    assert found([*before, *steps(3)]) == ["began"]


def test_the_first_phases_of_a_step_after_the_last_one_tell_that_the_capture_ended_inside_it() -> None:
    assert found([*steps(3), (1300, 1320, "data", 0), (1330, 1350, "forward", 0)]) == ["ended"]


def test_a_step_that_is_still_open_tells_that_the_capture_ended_inside_it() -> None:
    made = timeline(ranges=[*steps(2), (1200, 1290, "iteration", 0)])
    closed = np.ones(len(made.ranges), np.int64)
    closed[-1] = 0
    losses = capture_losses(replace(made, ranges=replace(made.ranges, closed=closed)))
    assert losses == [Loss(LossKind.STEP, Subject.CAPTURE, detail="ended")]


@pytest.mark.parametrize(
    "others",
    [
        [(900, 920, "data", 0), (930, 950, "forward", 0), (960, 980, "backward", 0)],
        [(900, 920, "data", 0), (930, 950, "forward", 0)],
        [(960, 980, "backward", 1)],
        [(960, 980, "setup", 0)],
        [(2000, 2010, "backward", 0)],
    ],
    ids=[
        "a whole step without its range",
        "first phases",
        "another thread",
        "another name",
        "after the steps",
    ],
)
def test_ranges_outside_the_steps_that_are_not_the_rest_of_one_tell_nothing(
    others: list[tuple[Any, ...]],
) -> None:
    assert found([*others, *steps(3)]) == []


@pytest.mark.parametrize(("launched", "said"), [((5, 25, 45), []), ((5,), ["2 of 3 executions of XLA's"])])
def test_executions_without_an_operation_are_a_loss(launched: tuple[int, ...], said: list[str]) -> None:
    """Rebuilt from AMD-AGI/TraceLens jax_conv_minimal_legacy: of eight GPUs one has kernels."""
    programs = [(at, at + 18, "XlaModule:#hlo_module=jit_conv,program_id=1#", 0) for at in (0, 20, 40)]
    losses = capture_losses(timeline([(at + 2, at + 9, COMP, at, 0) for at in launched], programs))
    assert [loss.sentence[: len("2 of 3 executions of XLA's")] for loss in losses] == said


@pytest.mark.parametrize(("copied", "lost"), [(False, 3), (True, 0)])
def test_copies_that_were_not_traced_are_a_loss(copied: bool, lost: int) -> None:
    """Rebuilt from a public database of rocprofv3 without copies, HGLiu1998/batched_gemm 28_results.db."""
    made = timeline([(10, 20, COMP, 5, 0), (50, 60, MEM if copied else COMP, 45, 0)])
    copies = made.calls.take(np.zeros(3, np.int64))
    copies = replace(copies, correlation=np.full(3, NO_CORRELATION), name=np.full(3, len(made.strings)))
    strings = np.array([*made.strings.tolist(), "hipMemcpy"], object)
    losses = capture_losses(replace(made, calls=concatenate(ApiCalls, (made.calls, copies)), strings=strings))
    sentences = [loss.sentence for loss in losses]
    assert sentences == ["3 of 3 memory copies have no operation on the GPU in the profile"] * bool(lost)
    assert all("--memory-copy-trace" in loss.remedy for loss in losses)


@pytest.mark.parametrize(
    ("launches", "steps"), [((1005, 2005), [1, 2]), ((1005, 2005, 3005), [1, 2, 3]), ((), [1, 2, 3])]
)
def test_a_mark_of_pytorchs_profiler_in_which_nothing_began_is_no_step(
    launches: tuple[int, ...], steps: list[int]
) -> None:
    """Rebuilt from a trace of an MI250 in facebookresearch/HolisticTraceAnalysis, tests/data/amd_trace."""
    operations = [(at + 5, at + 500, COMP, at, 0) for at in launches]
    marks = [(1000 * i, 1000 * i + 900, f"ProfilerStep#{i}", 0) for i in (1, 2, 3)]
    made = timeline(operations, marks)
    assert steps_of(made).number.tolist() == steps
    assert [loss.kind for loss in capture_losses(made)] == [LossKind.STEP] * (len(steps) < 3)


def test_work_that_was_launched_before_the_capture_is_in_no_step() -> None:
    """Rebuilt from a public trace of SGLang: a kernel of another stream ran beside the batch before."""
    beside, late = (70_000, 73_000, COMP, 60_000, 0, 0, 2), (493 * MS, 494 * MS, COMP, 100_000, 0, 0, 3)
    rest = [(494 * MS + i, 494 * MS + i + 1, COMP, 494 * MS, 0, 0, 3) for i in range(99)]
    steps = [(0, 500 * MS, "iteration", 0)]
    trace = timeline([beside, late, *rest], steps)
    (loss,) = capture_losses(trace)
    assert loss.sentence.startswith("at the beginning of the capture, the GPU did work for 492.9 ms that was")
    assert step_intervals(trace).start.tolist() == [493 * MS]
    # Of a stream that has worked before, or in the middle of a capture, it may be anything.
    worked = timeline([(*beside[:6], 3), late, *rest], steps)
    middle = timeline([*((i, i + 1, COMP, 0, 0, 0, 2) for i in range(99)), late, *rest], steps)
    assert not capture_losses(worked) and not capture_losses(middle)
    assert step_intervals(worked).start.tolist() == [70_000]


def test_the_first_launch_of_a_program_waits_for_no_earlier_work() -> None:
    """Rebuilt from a public export of a video filter on an Orin: its first kernel started 5.4 ms late."""
    setup, first = (70_000, 73_000, MEM, 60_000, 0, 0, 2), (606 * MS, 607 * MS, COMP, 600 * MS, 0, 0, 3)
    rest = [(607 * MS + i, 607 * MS + i + 1, COMP, 606 * MS, 0, 0, 3) for i in range(99)]
    made = timeline([setup, first, *rest], [(0, 700 * MS, "iteration", 0)])
    assert not capture_losses(made)
    assert step_intervals(made).start.tolist() == [70_000]
