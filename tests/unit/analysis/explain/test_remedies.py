"""Remedies of findings."""

from __future__ import annotations

import re

import pytest

from hpcprof.analysis.explain.explanation import Cause
from hpcprof.analysis.explain.remedies import remedy


@pytest.mark.parametrize("where", ["load", "optimizer", "backward", "step"])
@pytest.mark.parametrize("cause", Cause)
def test_a_program_in_jax_gets_no_remedy_of_pytorch(cause: Cause, where: str) -> None:
    said = remedy(cause, where, (1,), jax=True)
    assert said
    assert not re.search(r"torch|DataLoader|CUDA_ALLOC|AdamW|DistributedDataParallel|pin_memory|\{", said)


def test_slow_input_names_the_loader_of_the_framework() -> None:
    assert "DataLoader(num_workers" in remedy(Cause.HOST_WORK, "load", (0,))
    assert "jax.device_put of the next batch" in remedy(Cause.HOST_WORK, "load", (0,), jax=True)
    assert "jax.device_put" in remedy(Cause.LATE_RANK_HOST, "next_batch", (1,), jax=True)
