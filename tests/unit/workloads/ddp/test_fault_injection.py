"""Effects of faults on a training, without a GPU and without other ranks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcprof.workloads.ddp import fault_injection
from hpcprof.workloads.ddp.fault_injection import (
    Arithmetic,
    Context,
    FaultInjection,
    LateSums,
    layers_of,
)
from hpcprof.workloads.ddp.faults import FAULTS, parse_faults

CPU = torch.device("cpu")


class Bucket:
    """A bucket of gradients, as DistributedDataParallel passes it to a hook."""

    def __init__(self, number: int, last: bool) -> None:
        self.number, self._last = number, last

    def index(self) -> int:
        """Return its number."""
        return self.number

    def buffer(self) -> torch.Tensor:
        """Return the gradients."""
        return torch.full((2,), float(self.number))

    def is_last(self) -> bool:
        """Return whether all other buckets came before."""
        return self._last


def context(rank: int = 0, precision: str = "fp32", sums: LateSums | None = None) -> Context:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    return Context(rank, CPU, layers_of(model), optimizer, Arithmetic(precision, CPU), sums)


def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times: list[float] = []
    # Threads of other tests may sleep too.
    monkeypatch.setattr(fault_injection, "time", SimpleNamespace(sleep=times.append))
    return times


@pytest.fixture(autouse=True)
def _usual_arithmetic() -> Iterator[None]:
    convolutions = torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = convolutions


def test_every_fault_has_an_effect() -> None:
    assert fault_injection.EFFECTS.keys() == FAULTS.keys()


def test_a_sleep_is_in_every_step_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    times = slept(monkeypatch)
    for rank in (0, 1):
        faults = FaultInjection(
            parse_faults("host_work:ms=7 late_rank_host:ms=9,rank=1"), context(rank), False
        )
        for step in range(2):
            faults.begin_step(-1, step, 2)
            faults.in_data()
    assert times == [0.007] * 2 + [0.007, 0.009] * 2


def test_spikes_come_every_so_many_steps_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    times = slept(monkeypatch)
    faults = FaultInjection(parse_faults("step_spikes:ms=6,every=2"), context(), True)
    spiked = []
    for step in range(20):
        faults.begin_step(0, step, 20)
        before = len(times)
        faults.in_data()
        spiked += [step] * (len(times) - before)
    # Five steps a block; each counts anew.
    assert spiked == [1, 3, 16, 18]


def test_blocks_take_turns_by_epoch_and_leave_the_warm_up_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    times = slept(monkeypatch)
    faults = FaultInjection(parse_faults("host_work:ms=1 host_work:ms=2"), context(), True)
    for epoch in range(-1, 3):
        for step in range(8):
            faults.begin_step(epoch, step, 8)
            faults.in_data()
    assert times == [0.001] * 4 + [0.002] * 4 + [0.001] * 4


def test_garbage_is_collected_among_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    place = context()
    gc.collect()
    before = len(gc.get_objects())
    faults = FaultInjection(parse_faults("gc:objects=50000"), place, False)
    assert len(gc.get_objects()) - before >= 50_000
    collected: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(None))
    faults.begin_step(0, 0, 1)
    faults.in_data()
    assert len(collected) == 1


def test_each_layer_is_read_while_the_fault_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: reads.append(tensor))
    place = context()
    faults = FaultInjection(parse_faults("host_sync"), place, True)
    counts = []
    for step in range(4):
        faults.begin_step(0, step, 4)
        reads.clear()
        torch.nn.Sequential(*place.layers)(torch.ones(1, 4))
        counts.append(len(reads))
    assert counts == [2, 0, 0, 2]


def test_parameters_are_updated_one_by_one_while_the_fault_acts() -> None:
    place = context()
    faults = FaultInjection(parse_faults("small_kernels"), place, True)
    found = []
    for step in range(4):
        faults.begin_step(0, step, 4)
        found.append(place.optimizer.param_groups[0]["foreach"])
    assert found == [False, None, None, False]


def test_matrices_are_multiplied_on_one_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[None] = []
    monkeypatch.setattr(torch, "mm", lambda *_, out: made.append(None))
    for rank in (0, 1):
        faults = FaultInjection(parse_faults("late_rank_gpu:matmuls=3,size=4,rank=1"), context(rank), False)
        faults.begin_step(0, 0, 1)
        faults.in_forward()
        assert len(made) == 3 * rank


def test_slow_math_switches_the_precision_off_and_back() -> None:
    place = context(precision="tf32")
    faults = FaultInjection(parse_faults("slow_math"), place, True)
    found = []
    for step in range(4):
        faults.begin_step(0, step, 4)
        found.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
    assert found == [("highest", False), ("high", True), ("high", True), ("highest", False)]


def test_autocast_is_around_the_forward_pass_only_where_it_is_wanted() -> None:
    for precision, expected in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        arithmetic = Arithmetic(precision, CPU)
        with arithmetic.around_forward():
            assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype is expected
        arithmetic.slow(True)
        with arithmetic.around_forward():
            assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype is torch.float32


def test_sums_are_held_back_until_the_last_bucket() -> None:
    started: list[int] = []

    def hook(state: Any, bucket: Any) -> Any:
        started.append(bucket.number)
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer() * 10)
        return done

    sums = LateSums(hook)
    faults = FaultInjection(parse_faults("exposed_communication"), context(sums=sums), True)
    buckets = [Bucket(0, last=False), Bucket(1, last=True)]
    for step, late in enumerate((True, False, False, True)):
        faults.begin_step(0, step, 4)
        started.clear()
        results = [sums.start(None, buckets[0])]
        assert started == ([] if late else [0])
        assert results[0].done() is not late
        results.append(sums.start(None, buckets[1]))
        assert started == [0, 1]
        assert [result.wait()[0].item() for result in results] == [0.0, 10.0]


def test_layers_are_those_of_the_longest_list_of_modules() -> None:
    inner = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(3))
    model = torch.nn.Module()
    model.first, model.blocks = torch.nn.Sequential(torch.nn.ReLU()), inner
    assert layers_of(model) == list(inner)
    plain = torch.nn.Module()
    plain.one = torch.nn.ReLU()
    assert layers_of(plain) == [plain.one]
