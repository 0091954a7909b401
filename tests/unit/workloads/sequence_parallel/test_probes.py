"""The matmuls of a step alone compute what the modes compute, in any grouping."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcprof.workloads.sequence_parallel import probes as module
from hpcprof.workloads.sequence_parallel.buffers import allocate
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.sequence_parallel.probes import probes
from hpcprof.workloads.timing import UntimedPhases


def test_every_grouping_multiplies_all_rows_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "all_gather", lambda output, source: output.copy_(source))
    parameters = PointParameters(24, 16, direction="both")
    mode: Any = SimpleNamespace(row_groups=((5, 19), (14, 10)), adds=True)
    plain: Any = SimpleNamespace(row_groups=None, adds=False)
    with torch.no_grad():
        buffers = allocate(parameters, 0, 1, torch.device("cpu"))
        world: Any = SimpleNamespace(rank=0, size=1)
        found = dict(probes(parameters, world, buffers, [plain, mode]))
        # All rows of one rank are also all rows at once.
        assert list(found) == [
            f"matmuls {direction}, grouping {which}"
            for direction in ("forward", "backward")
            for which in (0, 1)
        ]
        backward = buffers.backward
        assert backward is not None
        for name, probe in found.items():
            buffers.partial.zero_()
            probe(1, UntimedPhases())
            if "forward" in name:
                expected = buffers.gathered @ buffers.weight_1 @ buffers.weight_2
            else:
                expected = backward.gathered @ buffers.weight_2.t() @ buffers.weight_1.t()
            torch.testing.assert_close(buffers.partial, expected, rtol=1e-4, atol=1e-4)
        right = buffers.gathered.t() @ backward.inner
        torch.testing.assert_close(backward.gradients.weight_1, right, rtol=1e-4, atol=1e-4)
