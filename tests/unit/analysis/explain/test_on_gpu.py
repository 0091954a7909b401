"""Tests of the explanation of profiles that have the work of GPUs and no launch of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.explain.on_gpu import measured_by_ncu
from hpcprof.analysis.explain.whatif import predict
from hpcprof.analysis.predict.reduction import operations_of_timelines
from hpcprof.common.errors import HpcprofError
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.timeline import Gpu
from hpcprof.report.explanation import conclusion, in_short, unjudged_rows
from tests.unit.analysis.explain.programs import MS, Launch, inputs_of, simulate
from tests.unit.analysis.timelines import COMM, COMP, timeline

REMEDY = "trace API calls too (nsys --trace=cuda)"


def recorded(computing: int, communicating: int, steps: int = 8) -> ExplainInputs:
    """Return steps of 10 ms that compute and communicate for so many ms, one after the other."""
    operations: list[tuple[Any, ...]] = []
    for begin in range(0, 10 * MS * steps, 10 * MS):
        middle = begin + computing * MS
        operations.append((begin, middle, COMP, None))
        if communicating:
            operations.append((middle, middle + communicating * MS, COMM, None, 0, 0, 1))
    lost = Loss(LossKind.UNTRACED, Subject.KERNEL, len(operations), len(operations))
    return replace(inputs_of({0: timeline(operations)}), losses={0: (lost,)})


def explained(inputs: ExplainInputs) -> Explanation:
    return explain_run(inputs)[0]


@pytest.mark.parametrize(("steps", "whole", "time"), [(8, "a step", "6"), (3, "the capture", "18")])
def test_communication_that_takes_most_of_the_time_comes_before_the_missing_calls(
    steps: int, whole: str, time: str
) -> None:
    explanation = explained(recorded(1, 6, steps))
    first, second = explanation.shown()
    assert (first.cause, second.cause) == ("exposed_communication", "capture_incomplete")
    assert first.where.startswith(f"{whole}, of which it is 6") and f"({time}.00" in first.where
    assert first.saving_ns is None and "waiting for other ranks" in first.remedy
    sentences = " ".join(conclusion(explanation))
    assert "avings are unknown: no work on the GPU has a recorded launch" in sentences
    assert f"{REMEDY}." in sentences
    assert [subject for subject, _ in unjudged_rows(explanation)] == (["idle time of the GPU"] * (steps > 3))


def test_idle_time_has_no_cause_without_calls_of_the_host() -> None:
    (idle,) = (row for row in explained(recorded(1, 2)).not_judged if row.what == "idle time of the GPU")
    assert idle.reason == "the GPU is idle for 7.000 ms of a step (70 %), and only calls of the host tell why"


def test_where_the_gpu_computes_its_kernel_is_named_and_the_missing_calls_are_no_finding() -> None:
    explanation = explained(recorded(9, 0))
    assert explanation.shown() == ()
    (step, savings) = conclusion(explanation)
    assert step.startswith("A step takes 10.00 ms")
    assert "kernel takes 90 % of a step: submit --profiler ncu" in savings
    assert [finding.cause for finding in explained(recorded(4, 0)).shown()] == ["capture_incomplete"]
    # Without steps, as its GPU by an archive of Score-P, which names no maker.
    without_steps = explained(recorded(9, 0, steps=2))
    for sentences in (conclusion(without_steps), in_short(without_steps)):
        assert "of the capture: submit --profiler ncu" in " ".join(sentences)


def test_ncu_measures_no_kernel_of_another_maker_whose_gpu_may_have_no_name() -> None:
    first = simulate([[Launch(MS)]], 6)[0]
    assert measured_by_ncu("kernel", first, first.origin.gpus)
    assert not measured_by_ncu("kernel", first, [Gpu(0, "HIP Context 0")])
    strings = np.array([text.replace("cudaLaunch", "hipModuleLaunch") for text in first.strings], object)
    assert not measured_by_ncu("kernel", replace(first, strings=strings), ())


def test_a_prediction_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        HpcprofError, match=r"nothing can be replayed: no work on the GPU .* \(nsys --trace=cuda\)\.$"
    ):
        predict(recorded(1, 6), [])
    with pytest.raises(HpcprofError, match="neither the sizes nor the groups of collectives"):
        operations_of_timelines(recorded(1, 6))
