"""The table that rank 0 prints."""

from __future__ import annotations

from hpcprof.common.units import format_bytes
from hpcprof.workloads.schema import RankResult, Summary, summarize


def result_table(result: RankResult, nodes: int) -> str:
    """Return the table of rank 0's result as text; ``nodes`` is the number of nodes."""
    training = result.training
    assert training is not None
    latency = summarize(result.latency_ns or result.step_ns)
    rows = {"step, maximum over ranks": latency} | {
        f"{name}, rank {result.rank}": result.summary[name] for name in result.phase_ns
    }
    return "\n".join(
        [
            f"ddp ({result.parameters['model']}, hook {result.mode}): "
            f"{_counted(result.world_size, 'rank')} on {_counted(nodes, 'node')}, {result.device}, "
            f"{result.backend}",
            "",
            f"{'':<32}{'p50 ms':>10}{'p95 ms':>10}{'n':>6}",
            *(_row(name, summary) for name, summary in rows.items()),
            "",
            f"{training.rate:.1f} {training.unit}/s over all ranks",
            _loss(training.loss),
            _buckets(training.bucket_bytes, training.buckets_rebuilt),
            *(f"peak memory, {name}: {format_bytes(size)}" for name, size in training.memory_bytes.items()),
            *(f"captured: steps {first} to {last}" for first, last in training.captured),
            *(f"note: {note}" for note in result.notes),
        ]
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _row(label: str, summary: Summary) -> str:
    return f"{label:<32}{summary.p50_ns / 1e6:>10.3f}{summary.p95_ns / 1e6:>10.3f}{summary.n:>6}"


def _loss(losses: list[float | None]) -> str:
    if not losses:
        return "loss: unknown"
    first, last = (("not finite" if value is None else f"{value:.4f}") for value in (losses[0], losses[-1]))
    return f"loss: {first} at the first measured step, {last} at the last"


def _buckets(sizes: list[int], rebuilt: bool) -> str:
    if not sizes:
        return "buckets: unknown"
    state = "rebuilt" if rebuilt else "as first built"
    return f"buckets ({state}): {', '.join(map(format_bytes, sizes))}"
