"""The peak rates of GPUs."""

from __future__ import annotations

import pytest

from hpcprof.profiles.gpu_peaks import memory_bytes_per_s, peaks_of


@pytest.mark.parametrize(
    ("gpu", "fp16", "memory"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, None),
        ("NVIDIA H100 NVL", 835.5, None),
        ("AMD Instinct MI250X", 191.5, 1.638),
        ("AMD Instinct MI300A", 980.6, 5.3),
        ("AMD Instinct MI300X OAM", 1307.4, 5.3),
        ("AMD Instinct MI325X", 1307.4, 6.0),
        # 256 compute units at 2.4 GHz with 4,096 operations a cycle.
        ("AMD Instinct MI355X", 2516.6, 8.0),
    ],
)
def test_a_gpu_is_known_by_a_part_of_its_name(gpu: str, fp16: float, memory: float | None) -> None:
    assert peaks_of(gpu)["fp16"] == fp16
    assert memory_bytes_per_s(gpu) == (None if memory is None else memory * 1e12)


def test_an_unknown_gpu_has_no_peaks() -> None:
    assert (peaks_of("Radeon VII"), memory_bytes_per_s("Radeon VII")) == ({}, None)
