"""Remedies: what a practitioner would try first, with the option or the call to use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hpcprof.analysis.explain.explanation import Cause, Explanation, Finding

_GENERAL: dict[Cause, str] = {
    Cause.HOST_WORK: "Move the work of {where} off the step's path: prepare it in workers or a thread ahead "
    "of the step, or do it less often.",
    Cause.HOST_BOUND: "Launch {where} with less Python: torch.compile(mode='reduce-overhead') or CUDA graphs "
    "(torch.cuda.make_graphed_callables), or more work in each launch by larger batches.",
    Cause.HOST_SYNC: "Avoid .item(), .cpu() and synchronize() in {where}: keep values on the GPU, and read "
    "them once every few steps, or with non_blocking=True and an event.",
    Cause.DEVICE_ALLOCATION: "Let the caching allocator keep its memory: no torch.cuda.empty_cache() in "
    "{where}, tensors of steady sizes, and PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if it fragments.",
    Cause.BLOCKING_COPY: "Copy from pinned memory (DataLoader(pin_memory=True) or .pin_memory()) with "
    ".to(device, non_blocking=True), one step ahead on a stream of its own.",
    Cause.SMALL_KERNELS: "Launch less in {where}: torch.compile or CUDA graphs "
    "(torch.cuda.make_graphed_callables, mode='reduce-overhead'), or larger batches.",
    Cause.LATE_RANK_HOST: "Look at what {ranks} does in {where} that the others do not: input of another "
    "size, logging or checkpoints on one rank, cores shared with other processes (check --cpu-bind).",
    Cause.LATE_RANK_GPU: "Give {ranks} as much work as the others: batches of equal length, equal shards or "
    "experts; if its work is equal, check clocks and temperature of its GPU.",
    Cause.SERIAL_SECTION: "Share the work of {where} among the ranks, or let {ranks} do it while the others "
    "compute: parallel input and output (MPI-IO), fewer and larger requests, a second server.",
    Cause.LATE_RECEIVER: "Post the receives of {where} earlier (MPI_Irecv before the work), or send without "
    "waiting for the receiver (MPI_Isend, a larger eager limit).",
    Cause.WRONG_ORDER: "Receive in {where} what comes first (MPI_Waitany, MPI_ANY_TAG or MPI_ANY_SOURCE), or "
    "send the messages in the order in which they are needed.",
    Cause.SMALL_MESSAGES: "Send less often and more at once: pack what {where} sends to one rank into one "
    "message, reduce several values in one call, or use a neighborhood collective.",
    Cause.EXPOSED_COMMUNICATION: "Overlap the communication of {where} with compute: start it as soon as its "
    "data is ready, asynchronously on a stream of its own.",
    Cause.PIPELINE_BUBBLE: "Balance the stages: move layers away from the stage of {ranks}, or use more "
    "microbatches, or an interleaved schedule.",
    Cause.SLOW_MATH: "Use the tensor cores: torch.set_float32_matmul_precision('high') for TF32, or "
    "torch.autocast('cuda', dtype=torch.bfloat16).",
    Cause.CONTENTION: "Leave the communication fewer SMs (NCCL_MAX_CTAS, NCCL_NTHREADS), or overlap it with "
    "kernels that are bound by something else.",
    Cause.SLOW_IO: "Read and write beside the steps: load ahead in workers, write checkpoints in a thread or "
    "a process of their own, or to the node's own disk first. Fewer and larger requests, and fewer calls of "
    "fsync, help a shared file system.",
    Cause.BUSY_CORES: "Ask for nodes or cores of your own (--exclusive, --cpus-per-rank), bind each rank to "
    "cores that nothing else uses (--cpu-bind), and look for what else the job starts there.",
    Cause.MEMORY_PRESSURE: "Ask for more memory (--mem), put fewer ranks on a node, or keep less: fewer "
    "workers that load data, smaller caches. What a program maps and reads of files counts too.",
    Cause.STEP_SPIKES: "Look at what happens in these steps only: checkpoints, evaluation, logging, garbage "
    "collection (gc.freeze(), gc.disable() and collecting between epochs).",
    Cause.STEP_DRIFT: "Look for what grows: lists of tensors with a graph, longer inputs, the cache of the "
    "allocator; and check the clocks (hpcprof doctor), and what else runs there (--analysis "
    "neighbours).",
    Cause.CAPTURE_INCOMPLETE: "Profile every rank, and all kinds of events.",
}

_JAX: dict[Cause, str] = {
    Cause.HOST_BOUND: "Launch {where} with less Python: jit the whole step with its update (donate_argnums), "
    "run several steps in one program (jax.lax.scan), or give each more work.",
    Cause.HOST_SYNC: "Avoid float(), .item(), np.asarray() and block_until_ready() in {where}: keep values "
    "on the device, and read those of an earlier step, once every few steps.",
    Cause.DEVICE_ALLOCATION: "Let XLA keep its memory: leave XLA_PYTHON_CLIENT_PREALLOCATE on, donate the "
    "buffers that {where} replaces (donate_argnums), and keep shapes steady.",
    Cause.BLOCKING_COPY: "Start the copy one step ahead: jax.device_put of the next batch before the step "
    "that needs this one.",
    Cause.SMALL_KERNELS: "Let XLA fuse more in {where}: jit all of it together, jax.lax.scan over layers of "
    "one shape, or larger batches.",
    Cause.EXPOSED_COMMUNICATION: "Overlap the communication of {where} with compute: "
    "on GPUs with XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true; or shard so that less moves.",
    Cause.SLOW_MATH: "Use the tensor cores: jax.default_matmul_precision('tensorfloat32'), or inputs in "
    "bfloat16.",
    Cause.STEP_SPIKES: "Look at what happens in these steps only: compilation for a new shape "
    "(jax.config.update('jax_log_compiles', True) names it), checkpoints, evaluation, garbage collection.",
    Cause.STEP_DRIFT: "Look for what grows: lists of arrays that stay on the device, longer inputs, the "
    "number of compiled shapes; and check the clocks (hpcprof doctor), and what else runs there (--analysis "
    "neighbours).",
}
"""Remedies for programs in JAX, where they differ."""

_MPI: dict[Cause, str] = {
    Cause.EXPOSED_COMMUNICATION: "Begin the communication of {where} before work that does not need its "
    "data, with nonblocking calls, and wait for it after that work; or send less.",
    Cause.PIPELINE_BUBBLE: "Balance the stages: give {ranks} less of the work of {where}, or send smaller "
    "blocks, so that others begin earlier.",
    Cause.STEP_SPIKES: "Look at what happens in these steps only: output, checkpoints, more iterations of a "
    "solver, a new partition of the work; and at other processes on the cores.",
    Cause.STEP_DRIFT: "Look for what grows: particles or cells of a rank, iterations of a solver, lists that "
    "are never emptied; and at the clocks of the nodes.",
}
"""Remedies for programs with MPI and without a GPU, where they differ."""

JaxOrMpi = Literal["jax", "mpi"]
"""A program in JAX, or one with MPI and without a GPU."""

_OF_PROGRAM: dict[JaxOrMpi | None, dict[Cause, str]] = {"jax": _JAX, "mpi": _MPI}

_INPUT = ("data", "load", "batch", "input", "fetch")

_JAX_BY_WORD: tuple[tuple[Cause, tuple[str, ...], str], ...] = (
    (
        Cause.HOST_WORK,
        _INPUT,
        "Load ahead of the step: workers of the loader (mp_prefetch of grain, prefetch of tf.data) or a "
        "thread, and jax.device_put of the next batch while this step runs; do less per sample on the host.",
    ),
    (
        Cause.LATE_RANK_HOST,
        _INPUT,
        "The input of {ranks} is slower: balance the samples over the processes, and load ahead of the step "
        "(workers of the loader, and jax.device_put of the next batch while this step runs).",
    ),
)

_BY_WORD: tuple[tuple[Cause, tuple[str, ...], str], ...] = (
    (
        Cause.HOST_WORK,
        _INPUT,
        "Load ahead of the step: DataLoader(num_workers=…, prefetch_factor=…, persistent_workers=True), and "
        "do less per sample on the host.",
    ),
    (
        Cause.LATE_RANK_HOST,
        ("mpi_",),
        "Balance the work of {where}: {ranks} has more of it than the others, or is slower (check "
        "--cpu-bind, other processes on its cores, and the clocks of its node).",
    ),
    *((cause, ("mpi_",), _MPI[cause]) for cause in (Cause.PIPELINE_BUBBLE, Cause.EXPOSED_COMMUNICATION)),
    (
        Cause.LATE_RANK_HOST,
        _INPUT,
        "The input of {ranks} is slower: balance the samples over the ranks, and load ahead of the step "
        "(DataLoader(num_workers=…, prefetch_factor=…)).",
    ),
    (
        Cause.SMALL_KERNELS,
        ("optim", "step_update", "adam", "sgd"),
        "Use the fused optimizer, such as AdamW(fused=True), or foreach=True; torch.compile fuses others.",
    ),
    (
        Cause.EXPOSED_COMMUNICATION,
        ("backward",),
        "Let the gradients' all-reduces run beside the backward pass: DistributedDataParallel with buckets "
        "(bucket_cap_mb, gradient_as_bucket_view=True) instead of reducing after it.",
    ),
)
"""Remedies for places whose name contains a word."""


_IN_TURN = (
    "One rank or another is late in {where}, in each step by chance: look for work whose length varies there "
    "(iterations, input, memory), deal it out as ranks become free, or wait for each other less often."
)


def remedy(
    cause: Cause,
    where: str,
    ranks: Sequence[int],
    *,
    program: JaxOrMpi | None = None,
    in_turn: bool = False,
) -> str:
    """Return what to do about a cause in a place, in one or two sentences.

    ``in_turn`` says whether all ranks have the cause in turn, if they are late.
    """
    place = where.lower()
    by_word = _JAX_BY_WORD if program == "jax" else _BY_WORD
    chosen = next(
        (text for one, words, text in by_word if one is cause and any(word in place for word in words)),
        (_GENERAL | _OF_PROGRAM.get(program, {}))[cause],
    )
    chosen = _IN_TURN if in_turn and cause is Cause.LATE_RANK_HOST else chosen
    named = f"rank {ranks[0]}" if len(ranks) == 1 else "these ranks"
    said = chosen.format(where=where or "the step", ranks=named)
    # Such a place says where it is.
    return re.sub(r"\b(?:of|in) (between|before|after) MPI_", r"\1 MPI_", said)


def with_remedies_of(program: JaxOrMpi, explanation: Explanation) -> Explanation:
    """Return an explanation with the remedies for such a program."""
    # Findings on memory bring remedies of their own.
    about = _GENERAL if program == "jax" else _MPI

    def retold(finding: Finding) -> Finding:
        if finding.cause not in about:
            return finding
        return replace(finding, remedy=remedy(finding.cause, finding.where, finding.ranks, program=program))

    return explanation.changed(retold)
