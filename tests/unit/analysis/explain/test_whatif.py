"""A what-if predicts the step of the program that has the changed times."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.explain.changes import Prediction, parse_changes
from hpcprof.analysis.explain.whatif import predict
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.profiles.timeline import Category, Gpu, Timeline
from tests.unit.analysis.explain.programs import (
    MS,
    US,
    Host,
    Instruction,
    Launch,
    Once,
    Place,
    StreamWait,
    Wait,
    inputs_of,
    simulate,
)
from tests.unit.analysis.timelines import timeline as only_ranges

STEPS = 6


def program(data: int = 2 * MS, kernel: int = MS, communication: int = 2 * MS) -> list[Instruction]:
    return [
        Place("data", (Host(data),)),
        Place("forward", tuple(Launch(kernel, name="gemm") for _ in range(8))),
        StreamWait(17, 7),
        Launch(communication, 17, collective=True),
        StreamWait(7, 17),
        Place("optimizer", (Launch(MS, name="adam"), Wait())),
    ]


def what_if(*changes: str, ranks: tuple[list[Instruction], ...] = (program(), program())) -> Prediction:
    return predict(inputs_of(simulate(ranks, STEPS)), parse_changes(changes))


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("range:data*0", (program(data=0), program(data=0))),
        ("range:data+9ms", (program(data=11 * MS), program(data=11 * MS))),
        ("range:data+9ms@1", (program(), program(data=11 * MS))),
        ("gpu:forward*0.5", (program(kernel=MS // 2), program(kernel=MS // 2))),
        ("gpu:forward+8ms", (program(kernel=2 * MS), program(kernel=2 * MS))),
        ("gpu:forward+8ms@1", (program(), program(kernel=2 * MS))),
        ("kernel:nccl*0.25", (program(communication=MS // 2), program(communication=MS // 2))),
        ("kernel:nccl*3", (program(communication=6 * MS), program(communication=6 * MS))),
        ("kernel:^gemm$*0.5", (program(kernel=MS // 2), program(kernel=MS // 2))),
        ("comm*0", (program(communication=0), program(communication=0))),
        ("bandwidth*4", (program(communication=MS // 2), program(communication=MS // 2))),
    ],
)
def test_the_prediction_is_the_step_of_the_program_with_these_times(
    change: str, changed: tuple[list[Instruction], ...]
) -> None:
    truth = what_if(ranks=changed)
    found = what_if(change)
    assert found.wall_p50_ns == pytest.approx(truth.measured_p50_ns, rel=0.01)
    assert found.low_ns <= found.wall_p50_ns <= found.high_ns


def test_all_copies_are_those_within_the_gpu_too() -> None:
    copy = Launch(2 * MS, name="Memcpy DtoD (Device -> Device)", category=Category.MEM)
    with_copies: list[Instruction] = [copy, Launch(MS, name="gemm"), Wait()] * 4
    (gone, nearly_gone) = (what_if(change, ranks=(with_copies,)) for change in ("copy*0", "copy*0.001"))
    assert gone.wall_p50_ns == pytest.approx(nearly_gone.wall_p50_ns, rel=0.02)


def test_a_first_operation_that_starts_somewhat_late_moves_with_the_host_work_before_it() -> None:
    def host_bound(data: int) -> list[Instruction]:
        call = StreamWait(7, 17)  # before it, nothing of the host is known
        return [call, Place("data", (Host(data),)), Place("forward", (Launch(20 * US), Host(MS)) * 2)]

    def with_late_start(timeline: Timeline) -> Timeline:
        start = timeline.kernels.start.copy()
        start[0] += 15 * US
        return replace(timeline, kernels=replace(timeline.kernels, start=start))

    inputs = inputs_of(simulate([host_bound(5 * MS)], STEPS))
    late = replace(inputs, read=lambda rank: with_late_start(inputs.read(rank)))
    truth = predict(inputs_of(simulate([host_bound(0)], STEPS)), ())
    for one in (inputs, late):
        found = predict(one, parse_changes(["range:data*0"]))
        # Without a front that moves, the data of the first step would be taken out of the steps after it.
        assert found.elapsed_ns == pytest.approx(truth.measured_elapsed_ns, rel=0.03)


@pytest.mark.parametrize("further", [0, 1])
def test_a_replay_of_all_steps_measures_what_the_account_does_and_saves_as_much(further: int) -> None:
    inputs, changes = inputs_of(simulate((program(), program()), STEPS)), parse_changes(["range:data*0"])

    def predicted(steps: int, more: int) -> Prediction:
        row = {"steps": steps, "once_steps": 0, "wall_p50_ns": 20 * MS + more, "elapsed_ns": 21 * MS + more}
        tables = ChainMap({"step_kinds": pd.DataFrame([row])}, cast(Any, inputs.tables))
        return predict(replace(inputs, tables=tables), changes)

    steps = predicted(0, 0).steps
    before, after = predicted(steps, 0), predicted(steps + further, 7)
    if further:
        assert after == predicted(0, 0)
        return
    assert (before.measured_p50_ns, before.measured_elapsed_ns) == (20 * MS, 21 * MS)
    for name in ("wall_p50_ns", "low_ns", "high_ns", "measured_p50_ns", "elapsed_ns", "measured_elapsed_ns"):
        assert getattr(after, name) == getattr(before, name) + 7


def test_a_step_that_takes_long_once_is_gone_without_its_cause() -> None:
    dump = Once(5, (Place("dump", (Host(400 * MS),)),))
    found = what_if("range:dump*0", ranks=([dump, *program()], [dump, *program()]))
    assert found.elapsed_ns == pytest.approx(found.measured_p50_ns, rel=0.03)
    assert found.measured_elapsed_ns == pytest.approx(found.measured_p50_ns + 400 * MS / found.steps, rel=0.2)


def test_time_before_the_first_call_of_the_capture_is_in_no_step() -> None:
    copied = [Place("data", (Host(2 * MS), Launch(MS // 10), Wait())), *program()[1:]]
    steps = inputs_of(simulate((copied, copied), STEPS))
    before, after = (predict(steps, parse_changes(words)) for words in ([], ["range:data+40ms"]))
    assert after.wall_p50_ns - before.wall_p50_ns == pytest.approx(40 * MS, rel=0.001)
    assert after.elapsed_ns - before.elapsed_ns == pytest.approx(40 * MS, rel=0.001)
    # The last step, whose next one is not known, does not widen the interval.
    assert after.high_ns - after.low_ns < 12 * MS


def test_a_rank_becomes_like_the_others() -> None:
    late = program(data=9 * MS, kernel=2 * MS)
    found = what_if("rank:1=median", ranks=(program(), late, program()))
    assert found.wall_p50_ns == pytest.approx(what_if().measured_p50_ns, rel=0.01)


def test_without_changes_the_run_is_replayed_as_it_was() -> None:
    found = what_if()
    assert found.wall_p50_ns == pytest.approx(found.measured_p50_ns, rel=0.01)
    assert found.replay_error_pct == pytest.approx(0, abs=1)
    assert found.steps == STEPS


def test_kernels_of_communication_keep_what_they_wait_for_others() -> None:
    late = (program(), program(data=9 * MS))
    assert what_if("kernel:nccl*4", ranks=late) == what_if("comm*4", ranks=late)
    truth = what_if(ranks=(program(communication=8 * MS), program(data=9 * MS, communication=8 * MS)))
    assert what_if("kernel:nccl*4", ranks=late).wall_p50_ns == pytest.approx(truth.measured_p50_ns, rel=0.01)


def test_less_communication_never_predicts_a_longer_step() -> None:
    def reduced(ns: int) -> tuple[Instruction, ...]:
        return StreamWait(17, 7), Launch(ns, 17, collective=True)

    host_bound = [
        *reduced(3 * MS),
        *reduced(4 * MS),
        Host(3 * MS),
        Launch(3 * MS),
        *reduced(MS),
        Launch(MS),
    ]
    ranks = (host_bound, [Host(2 * MS), *host_bound])
    assert what_if("comm*0", ranks=ranks).wall_p50_ns <= what_if(ranks=ranks).wall_p50_ns


def test_no_interval_of_a_step_begins_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = SimpleNamespace(low=0.0, high=1e9)
    monkeypatch.setattr("hpcprof.analysis.explain.whatif.Uncertainty.saving_interval", lambda *given: unknown)
    monkeypatch.setattr("hpcprof.analysis.explain.whatif._unreplayed", lambda *given: (-100.0, 0.0))
    assert what_if("comm*0").low_ns == 0


def test_changes_add_up() -> None:
    both = what_if("range:data*0", "comm*0")
    truth = what_if(ranks=(program(data=0, communication=0),) * 2)
    assert both.wall_p50_ns == pytest.approx(truth.measured_p50_ns, rel=0.01)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("range:loader*0", "unknown range 'loader'. Valid: data, forward"),
        ("gpu:loader*0", "unknown range 'loader'. Valid: data, forward"),
        ("gpu:data+1ms", "the range 'data' launches no kernels in the replayed steps"),
        ("kernel:conv*0", "no kernel of the replayed steps has a name that matches 'conv'"),
        ("api:Malloc*0", "no API call of the replayed steps has a name that matches 'Malloc'"),
        ("rank:7=median", "unknown rank '7'. Valid: 0, 1"),
    ],
)
def test_what_the_run_does_not_have_is_named(change: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        what_if(change)
    assert said in str(error.value)


def test_a_capture_without_steps_is_replayed_as_one() -> None:
    timelines = simulate([[Launch(10 * US)]], 1)
    empty = inputs_of(timelines)
    timelines[0] = replace(timelines[0], ranges=timelines[0].ranges.take(np.zeros(0, np.int64)))
    alone = predict(empty, [])
    assert (alone.steps, alone.is_capture) == (1, True)
    origin = replace(timelines[0].origin, gpus=(Gpu(0, "A100"),))
    no_kernels = timelines[0].kernels.take(np.zeros(0, np.int64))
    timelines[0] = replace(timelines[0], kernels=no_kernels, origin=origin)
    with pytest.raises(HpcprofError, match=r"nothing can be replayed: no kernel is recorded on rank 0\.$"):
        predict(empty, [])
    timelines[0] = replace(only_ranges([], [(0, 9, "load", 0)]), origin=origin)
    with pytest.raises(
        HpcprofError, match=r"the program used no GPU, or its work was not traced \(nsys --trace=cuda\)\.$"
    ):
        predict(empty, [])
