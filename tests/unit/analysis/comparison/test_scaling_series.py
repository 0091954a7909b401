"""Runs that form a scaling series, and its kind by their parameters."""

from __future__ import annotations

import pytest

from hpcprof.analysis.comparison.scaling_series import ScalingSetup, find_series, relevant_parameters
from hpcprof.workloads.catalogue import Size
from hpcprof.workloads.schema import Scalar


def series(*runs: tuple[int, dict[str, Scalar]], size: Size | None = None) -> list[tuple[str, str, set[int]]]:
    """Return the kind, the size and the numbers of ranks of each series."""
    found = find_series([ScalingSetup(ranks, None, parameters) for ranks, parameters in runs], size)
    return sorted((one.kind.value, one.size, {runs[i][0] for i in one.runs}) for one in found)


def over(*ranks: int, **sizes: str) -> list[tuple[int, dict[str, Scalar]]]:
    """Build runs whose parameters are 64, 64 a rank ("grow") or 64 in all ("shrink")."""
    runs: list[tuple[int, dict[str, Scalar]]] = []
    for n in ranks:
        of = {"stay": 64, "grow": 64 * n, "shrink": 64 // n}
        runs.append((n, {name: of[change] for name, change in sizes.items()}))
    return runs


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"n": "grow"}, ("weak", "n=64 a rank")),
        ({"batch": "shrink"}, ("strong", "batch=64 in all")),
        ({"n": "stay"}, ("unknown", "")),
        ({}, ("unknown", "")),
        (
            {"global_batch_size": "stay", "micro_batch_size": "stay"},
            ("strong", "global_batch_size=64 in all"),
        ),
        ({"training.local_batch_size": "stay"}, ("weak", "training.local_batch_size=64 a rank")),
        ({"per_device_train_batch_size": "stay"}, ("weak", "per_device_train_batch_size=64 a rank")),
        ({"per_device_batch": "stay", "accumulate": "shrink"}, ("strong", "accumulate=64 in all")),
        ({"micro_batch_size": "stay", "layers": "grow"}, ("weak", "layers=64 a rank")),
        ({"per-gpu-batch": "shrink", "hidden": "stay"}, ("strong", "per-gpu-batch=64 in all")),
    ],
)
def test_the_parameters_tell_strong_from_weak_scaling(
    sizes: dict[str, str], expected: tuple[str, str]
) -> None:
    assert series(*over(1, 2, 4, **sizes)) == [(*expected, {1, 2, 4})]


@pytest.mark.parametrize("sizes", [{"global_batch": "shrink"}, {"per_rank_batch": "grow"}])
def test_a_size_that_contradicts_its_name_makes_no_series(sizes: dict[str, str]) -> None:
    assert series(*over(1, 2, 4, **sizes)) == []


@pytest.mark.parametrize(
    ("size", "change", "expected"),
    [
        (Size("n", per_rank=False), "stay", [("strong", "n=64 in all", {1, 2})]),
        (Size("n", per_rank=False), "grow", [("weak", "n=64 a rank", {1, 2})]),
        (Size("n", per_rank=False), "shrink", []),
        (Size("n", per_rank=True), "stay", [("weak", "n=64 a rank", {1, 2})]),
        (Size("n", per_rank=True), "shrink", [("strong", "n=64 in all", {1, 2})]),
        (Size("n", per_rank=True), "grow", []),
        (Size("m", per_rank=False), "grow", []),
    ],
)
def test_what_a_workload_declares_decides(
    size: Size, change: str, expected: list[tuple[str, str, set[int]]]
) -> None:
    runs = [(n, {**parameters, "m": 8}) for n, parameters in over(1, 2, n=change)]
    assert series(*runs, size=size) == expected


def test_the_sides_of_a_grid_scale_by_their_product() -> None:
    grid: list[tuple[int, dict[str, Scalar]]] = [(1, {"nx": 64, "ny": 64, "nz": 8})]
    grid += [(2, {"nx": 128, "ny": 64, "nz": 8}), (4, {"nx": 128, "ny": 128, "nz": 8})]
    assert series(*grid) == [("weak", "nx x ny=4096 a rank", {1, 2, 4})]


def test_sides_that_grow_and_shrink_make_no_series() -> None:
    assert series((1, {"nx": 64, "ny": 64}), (2, {"nx": 512, "ny": 16})) == []


def test_a_weak_series_tells_that_another_with_the_same_size_is_strong() -> None:
    runs = [*over(1, 2, 4, n="grow"), *over(2, 4, n="stay")]
    assert series(*runs) == [("strong", "n=64 in all", {1, 2, 4}), ("weak", "n=64 a rank", {1, 2, 4})]


def test_a_sweep_over_a_parameter_at_each_rank_count_does_not_scale_it() -> None:
    runs: list[tuple[int, dict[str, Scalar]]] = [(n, {"batch": b}) for n in (1, 2, 4) for b in (8, 16)]
    assert series(*runs) == [("unknown", "", {1, 2, 4})] * 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 64}, {"n": 65}),
        ({"dtype": "fp32"}, {"dtype": "bf16"}),
        ({"n": 1}, {"m": 1}),
        ({"x": 0.5}, {"x": 1.0}),
    ],
)
def test_parameters_that_do_not_follow_the_ranks_make_no_series(
    one: dict[str, Scalar], other: dict[str, Scalar]
) -> None:
    assert series((1, one), (2, other)) == []


def test_runs_on_one_number_of_ranks_are_no_series() -> None:
    assert series((2, {"n": 1}), (2, {"n": 1}), (2, {"n": 2})) == []


def test_a_parameter_that_counts_the_ranks_tells_nothing() -> None:
    runs: list[tuple[int, dict[str, Scalar]]] = [(n, {"nproc": str(n), "n": 64}) for n in (1, 2, 4)]
    assert series(*runs) == [("unknown", "", {1, 2, 4})]


def test_parameters_that_do_not_change_a_step_are_left_out() -> None:
    names = "steps max-train-steps num_train_epochs steps_per_epoch seed lr learning_rate output_dir log-dir"
    irrelevant = [*names.split(), "run_name", "step_timeout", "master_port", "cuda_visible_devices"]
    kept: dict[str, Scalar] = {"batch_size": 8, "model_name": "gpt2", "train_file": "a", "time_steps": 3}
    kept["gradient_accumulation_steps"] = 4
    assert relevant_parameters(dict.fromkeys(irrelevant, 1) | kept) == kept
