"""Remedies of findings."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hpcprof.analysis.explain.explanation import Cause
from hpcprof.analysis.explain.remedies import remedy, with_remedies_of
from tests.unit.explanations import explained, finding

OF_MEMORY = (Cause.OUT_OF_MEMORY, Cause.MEMORY_IMBALANCE, Cause.HOST_MEMORY)


@pytest.mark.parametrize("where", ["load", "optimizer", "backward", "step"])
@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in OF_MEMORY])
def test_a_program_in_jax_gets_no_remedy_of_pytorch(cause: Cause, where: str) -> None:
    said = remedy(cause, where, (1,), program="jax")
    assert said
    assert not re.search(r"torch|DataLoader|CUDA_ALLOC|AdamW|DistributedDataParallel|pin_memory|\{", said)


@pytest.mark.parametrize("where", ["step", "between MPI_Recv and MPI_Send"])
@pytest.mark.parametrize(
    "cause",
    [Cause.EXPOSED_COMMUNICATION, Cause.PIPELINE_BUBBLE, Cause.STEP_SPIKES, Cause.STEP_DRIFT],
)
def test_a_program_with_mpi_gets_no_remedy_of_gpus_or_python(cause: Cause, where: str) -> None:
    (said,) = with_remedies_of("mpi", explained(replace(finding(5, cause=cause), where=where))).findings
    assert said.remedy != "Prefetch."
    assert not re.search(r"GPU|stream|layers|microbatch|gc\.|tensors|\{", said.remedy)


def test_slow_input_names_the_loader_of_the_framework() -> None:
    assert "DataLoader(num_workers" in remedy(Cause.HOST_WORK, "load", (0,))
    assert "jax.device_put of the next batch" in remedy(Cause.HOST_WORK, "load", (0,), program="jax")
    assert "jax.device_put" in remedy(Cause.LATE_RANK_HOST, "next_batch", (1,), program="jax")


@pytest.mark.parametrize("cause", OF_MEMORY)
def test_a_finding_on_memory_keeps_its_own_remedy(cause: Cause) -> None:
    (kept,) = with_remedies_of("jax", explained(finding(5, cause=cause))).findings
    assert kept.remedy == "Prefetch."
