"""The table that rank 0 prints."""

from __future__ import annotations

from hpcprof.workloads.schema import RankResult, Summary, summarize
from hpcprof.workloads.sequence_parallel.options import Parameters


def table(result: RankResult, parameters: Parameters, nodes: int, worst_error: float) -> str:
    """Return the lines to print.

    Parameters
    ----------
    result : RankResult
        Rank 0's, with the step latencies over all ranks.
    parameters : Parameters
        The shape, for the rate.
    nodes : int
        Nodes of the run.
    worst_error : float
        The largest relative error of all ranks; NaN if one is not finite.
    """
    latency = summarize(result.latency_ns or result.step_ns)
    phases = {name: result.summary[name] for name in result.phase_ns}
    check = result.correctness
    sign = "<" if worst_error < check.bound else "NOT below"
    return "\n".join(
        [
            f"{result.workload} ({result.mode}): {_count(result.world_size, 'rank')} "
            f"on {_count(nodes, 'node')}, {result.device}, {result.backend}, {parameters.dtype}",
            f"R = {parameters.rows} rows, h = {parameters.hidden_size}, f = {parameters.inner_size}",
            "",
            f"{'':<32}{'p50 ms':>10}{'p95 ms':>10}{'n':>6}",
            _row("step, maximum over ranks", latency),
            *(_row(f"{name}, rank {result.rank}", summary) for name, summary in phases.items()),
            "",
            f"{_rate(parameters, result, latency)} per {_unit(result)}: 4 R h f / N over the p50 of a step, "
            f"n = {latency.n}",
            f"relative error {worst_error:.1e} {sign} {check.bound:.0e}, worst rank, "
            f"n = {check.rows} rows a rank; reference: {check.reference}",
            *(f"note: {note}" for note in result.notes),
        ]
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _row(label: str, summary: Summary) -> str:
    return f"{label:<32}{summary.p50_ns / 1e6:>10.3f}{summary.p95_ns / 1e6:>10.3f}{summary.n:>6}"


def _rate(parameters: Parameters, result: RankResult, latency: Summary) -> str:
    """Return FLOP per second: two matmuls of 2 R h f / N each, the collectives' time included."""
    work = 4 * parameters.rows * parameters.hidden_size * parameters.inner_size / result.world_size
    # FLOP per nanosecond are GFLOP per second.
    return f"{work / latency.p50_ns / 1e3:.3f} TFLOP/s"


def _unit(result: RankResult) -> str:
    return "rank" if result.device == "cpu" else "GPU"
