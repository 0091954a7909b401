"""Columns of the model that every analysis reads."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.profiles.timeline import along_axes


@pytest.mark.parametrize(
    ("largest", "kind"), [(2**31 - 1, np.int32), (2**31, np.int64), (-1, np.int64), (-(2**63), np.int64)]
)
def test_sizes_take_half_the_memory_unless_one_does_not_fit(largest: int, kind: type) -> None:
    sizes = along_axes([np.array([1, 2]), np.array([largest, 1]), np.array([3, 4])])
    assert sizes.tolist() == [[1, largest, 3], [2, 1, 4]]
    assert sizes.dtype == kind


def test_sizes_of_no_kernels_have_three_axes() -> None:
    assert along_axes([np.empty(0, np.int64)] * 3).shape == (0, 3)
