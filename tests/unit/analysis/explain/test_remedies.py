"""Remedies of findings."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hpcprof.analysis.explain.cause import Cause, Stack, find_cause, for_device
from hpcprof.analysis.explain.culprits import _replays_graphs, remedy_for
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.timeline import Timeline
from tests.unit.explanations import finding

_NO_EVENTS = "No CUDA events collected. Does the process use CUDA?"
OF_MEMORY = (Cause.OUT_OF_MEMORY, Cause.MEMORY_IMBALANCE, Cause.HOST_MEMORY)


@pytest.mark.parametrize("where", ["load", "optimizer", "backward", "step"])
@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in OF_MEMORY])
def test_a_program_in_jax_gets_no_remedy_of_pytorch(cause: Cause, where: str) -> None:
    said = find_cause(cause).advise(where, (1,), stack="jax")
    assert said
    assert not re.search(r"torch|DataLoader|CUDA_ALLOC|AdamW|DistributedDataParallel|pin_memory|\{", said)


@pytest.mark.parametrize("where", ["step", "between MPI_Recv and MPI_Send"])
@pytest.mark.parametrize(
    "cause",
    [Cause.EXPOSED_COMMUNICATION, Cause.PIPELINE_BUBBLE, Cause.STEP_SPIKES, Cause.STEP_DRIFT],
)
def test_a_program_with_mpi_gets_no_remedy_of_gpus_or_python(cause: Cause, where: str) -> None:
    usual = find_cause(cause).advise(where, (0, 1))
    said = remedy_for("mpi", replace(finding(5, cause=cause), where=where, remedy=usual))
    assert not re.search(r"GPU|stream|layers|microbatch|gc\.|tensors|\{", said)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("nsys NVIDIA H200", "Launch it as one CUDA graph (cudaStreamBeginCapture, cudaGraphLaunch)"),
        ("rocpd AMD Instinct MI300X", "Launch it as one HIP graph (hipStreamBeginCapture, hipGraphLaunch)"),
        ("unitrace Intel(R) Data Center GPU Max 1550", "Launch it as one SYCL graph"),
        ("ascend Ascend910B", "Launch it as one NPU graph, or fuse"),
    ],
)
def test_advice_is_in_the_words_of_the_device(device: str, expected: str) -> None:
    advice = find_cause(Cause.SMALL_KERNELS).advise("it", (0,), stack="cuda")
    assert for_device(advice, device).startswith(expected)
    torch = find_cause(Cause.SMALL_KERNELS).advise("it", (0,))
    assert ("torch.npu.make_graphed_callables" in for_device(torch, device)) == ("ascend" in device)
    waits = for_device("2 waits[nsys: (nsys)][torch: (records them with enable_cuda_sync_events)]", device)
    assert waits == ("2 waits (nsys)" if "NVIDIA" in device else "2 waits")
    assert for_device("epoch[train:1]", device) == "epoch[train:1]"
    assert for_device("a CUDA graph", device).startswith("an NPU" if "ascend" in device else "a ")


_OF_NVIDIA = re.compile(
    r"\b(?:cuda|cu)[A-Z]|CUDA|cuDNN|nvtx|torch\.cuda|'cuda'|NCCL_MAX_CTAS|\bSMs|tensor cores"
)
_OF_AMD = re.compile(r"\bhip[A-Z]|HIP|rocprof|roctx")


@pytest.mark.parametrize(
    "device",
    [
        *("torch AMD Instinct MI300X", "rocprofv3 gfx942", "torch Intel(R) Arc", "torch NVIDIA H100"),
        *("unitrace Intel(R) Data Center GPU Max 1550", "ascend Ascend NPU", "xplane NVIDIA H100"),
    ],
)
def test_no_remedy_names_a_tool_or_an_interface_of_another_stack(device: str) -> None:
    causes = [find_cause(cause) for cause in Cause]
    advice = {text for cause in causes for text in (cause.remedy, *cause.remedies.values())}
    advice |= {option.text for cause in causes for option in cause.place_remedies}
    kinds = [(kind, subject, of) for kind in LossKind for subject in Subject for of in (2, 3)]
    advice |= {Loss(kind, subject, 2, of, _NO_EVENTS).remedy for kind, subject, of in kinds}
    is_amd = bool(re.search("AMD|gfx", device))
    # ROCm's PyTorch has the names of CUDA.
    texts = [re.sub(r"torch\.cuda|'cuda'", "", text) if is_amd else text for text in advice]
    words = [for_device(text, device) for text in texts]
    assert words.count("") == texts.count("")
    assert not [text for text in words if re.search(r"nsys|\[[a-z|]+:", text)]
    assert is_amd or not [text for text in words if _OF_AMD.search(text)]
    assert "NVIDIA" in device or not [text for text in words if _OF_NVIDIA.search(text)]
    assert ("rocprofv3 --" in " ".join(words)) == device.startswith("roc")


def test_slow_input_names_the_loader_of_the_framework() -> None:
    work, late = find_cause(Cause.HOST_WORK), find_cause(Cause.LATE_RANK_HOST)
    assert "DataLoader(num_workers" in work.advise("load", (0,))
    assert "jax.device_put of the next batch" in work.advise("load", (0,), stack="jax")
    assert "jax.device_put" in late.advise("next_batch", (1,), stack="jax")
    modules = ("DistributedDataParallel.forward", "SyncBatchNorm", "offload", "metadata_update")
    collectives = ("## all2all_tw_data:init ##", "## sparse_data_dist ##", "broadcast_inputs")
    for place in (*modules, *collectives):
        assert "DataLoader" not in work.advise(place, (0,))


@pytest.mark.parametrize(
    "cause", ["host_bound", "host_sync", "device_allocation", "blocking_copy", "small_kernels"]
)
def test_a_program_in_cuda_gets_no_remedy_of_pytorch(cause: str) -> None:
    usual = find_cause(cause).advise("", (0,))
    said = remedy_for("cuda", replace(finding(5, cause=Cause(cause)), where="step", ranks=(0,), remedy=usual))
    assert not re.search(r"torch|DataLoader|CUDA_ALLOC|\.item|\{", said)
    kept = replace(finding(5, cause=Cause(cause)), remedy="Check once in a step.")
    assert remedy_for("cuda", kept) == kept.remedy


@pytest.mark.parametrize("cause", ["host_bound", "small_kernels"])
@pytest.mark.parametrize("call", ["cudaGraphLaunch_v10000", "urEnqueueCommandBufferExp", "cudaLaunchKernel"])
def test_a_program_that_replays_a_graph_is_not_told_to_make_one(cause: str, call: str) -> None:
    calls = SimpleNamespace(name=np.array([1, 1]))
    timeline = SimpleNamespace(calls=calls, strings=np.array(["other", call], object))
    replays = _replays_graphs(cast(Timeline, timeline))
    usual = find_cause(cause).advise("", (0,))
    found = replace(finding(5, cause=Cause(cause)), where="step", ranks=(0,), remedy=usual)
    stacks: tuple[Stack, ...] = ("", "cuda")
    for stack in stacks:
        said = remedy_for(stack, found, replays_graphs=replays)
        assert ("that the program replays" in said) == replays == (call != "cudaLaunchKernel")
    assert "XLA" in remedy_for("jax", found, replays_graphs=True) or cause == "host_bound"


@pytest.mark.parametrize(("where", "turn"), [("", False), ("", True), ("optimizer", True)])
def test_stacks_change_only_advice_to_record_them(where: str, turn: bool) -> None:
    """The step of whole-step findings may have any name, and a late rank may be another in each step."""
    usual = find_cause(Cause.LATE_RANK_HOST).advise(where, (0, 1), in_turn=turn)
    found = replace(finding(5, cause=Cause.LATE_RANK_HOST), where=where or "load", ranks=(0, 1), remedy=usual)
    assert remedy_for("", found, has_stacks=True) == usual


@pytest.mark.parametrize("cause", OF_MEMORY)
def test_a_finding_on_memory_keeps_its_own_remedy(cause: Cause) -> None:
    assert remedy_for("jax", finding(5, cause=cause)) == "Prefetch."


@pytest.mark.parametrize("where", ["step", "between MPI_Waitall and MPI_Irecv"])
def test_advice_about_late_hosts_is_a_sentence_for_several_ranks_too(where: str) -> None:
    advice = find_cause(Cause.LATE_RANK_HOST).advise(where, (2, 3))
    assert "these ranks" in advice
    assert not re.search(r"these ranks \w+s\b|\bits\b", advice)
