"""The device, backend and cores of a rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import UsageError
from hpcprof.workloads.placement import choose_gpu, device_and_backend, thread_count


@pytest.mark.parametrize(
    ("device", "backend", "cuda", "expected"),
    [
        ("auto", "auto", True, ("cuda", "nccl")),
        ("auto", "auto", False, ("cpu", "gloo")),
        ("cpu", "auto", True, ("cpu", "gloo")),
        ("auto", "gloo", True, ("cpu", "gloo")),
        ("auto", "nccl", True, ("cuda", "nccl")),
        ("cuda", "nccl", True, ("cuda", "nccl")),
    ],
)
def test_auto_takes_cuda_where_it_is_and_the_backend_that_goes_with_the_device(
    device: str, backend: str, cuda: bool, expected: tuple[str, str]
) -> None:
    assert device_and_backend(device, backend, cuda=cuda) == expected


@pytest.mark.parametrize(
    ("device", "backend", "cuda", "sentence"),
    [
        ("cuda", "auto", False, "no CUDA device is visible"),
        ("auto", "nccl", False, "no CUDA device is visible"),
        ("cpu", "nccl", True, "--backend nccl does not support --device cpu: use gloo."),
        ("cuda", "gloo", True, "--backend gloo does not support --device cuda: use nccl."),
    ],
)
def test_a_device_that_is_absent_or_does_not_fit_is_one_sentence(
    device: str, backend: str, cuda: bool, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        device_and_backend(device, backend, cuda=cuda)


def test_ranks_that_see_all_gpus_take_them_by_local_rank() -> None:
    assert [choose_gpu([["a", "b", "c", "d"]] * 4, rank, "n") for rank in range(4)] == [0, 1, 2, 3]


def test_ranks_that_the_launcher_gave_one_gpu_each_take_their_own() -> None:
    assert [choose_gpu([["a"], ["b"], ["c"]], rank, "n") for rank in range(3)] == [0, 0, 0]


def test_ranks_that_share_part_of_the_gpus_get_different_ones() -> None:
    assert [choose_gpu([["a", "b"], ["a", "b"], ["c"]], rank, "n") for rank in range(3)] == [0, 1, 0]


@pytest.mark.parametrize("local_rank", [1, 2])
def test_more_ranks_than_gpus_is_one_sentence_on_the_ranks_without(local_rank: int) -> None:
    with pytest.raises(UsageError, match="node1 runs 3 ranks, but they see only 1 GPU: "):
        choose_gpu([["a"]] * 3, local_rank, "node1")


@given(st.integers(1, 64), st.integers(1, 64))
def test_unbound_ranks_together_never_run_more_threads_than_cores(cores: int, ranks: int) -> None:
    everyone = [frozenset(range(cores))] * ranks
    threads = [thread_count(everyone, rank) for rank in range(ranks)]
    assert min(threads) >= 1
    assert sum(threads) <= max(cores, ranks)


def test_bound_ranks_use_all_of_their_own_cores() -> None:
    assert thread_count([frozenset({0, 1, 2}), frozenset({3, 4, 5})], 1) == 3
