"""The table that rank 0 prints."""

from __future__ import annotations

from hpcprof.workloads.schema import Correctness, RankResult, Summary, summarize
from hpcprof.workloads.sequence_parallel.options import Parameters


def table(result: RankResult, parameters: Parameters, nodes: int, worst_errors: dict[str, float]) -> str:
    """Return the lines to print.

    Parameters
    ----------
    result : RankResult
        Rank 0's, with the step latencies over all ranks.
    parameters : Parameters
        The shape, for the rate.
    nodes : int
        Nodes of the run.
    worst_errors : dict
        By mode, the largest relative error of all ranks; NaN if one is not finite.
    """
    names = ", ".join(result.modes) or result.mode
    check = result.correctness
    assert check is not None
    return "\n".join(
        [
            f"{result.workload} ({names}): {_count(result.world_size, 'rank')} "
            f"on {_count(nodes, 'node')}, {result.device}, {result.backend}, {parameters.dtype}",
            f"R = {parameters.rows} rows, h = {parameters.hidden_size}, f = {parameters.inner_size}",
            "",
            *(_of_modes(result, parameters) if result.modes else _of_one(result, parameters)),
            *(_correct(name, worst, check) for name, worst in worst_errors.items()),
            f"n = {check.rows} rows a rank; reference: {check.reference}",
            *(f"note: {note}" for note in result.notes),
        ]
    )


def _of_one(result: RankResult, parameters: Parameters) -> list[str]:
    latency = summarize(result.latency_ns or result.step_ns)
    phases = {name: result.summary[name] for name in result.phase_ns}
    return [
        f"{'':<32}{'p50 ms':>10}{'p95 ms':>10}{'n':>6}",
        _row("step, maximum over ranks", latency),
        *(_row(f"{name}, rank {result.rank}", summary) for name, summary in phases.items()),
        "",
        f"{_rate(parameters, result, latency):.3f} TFLOP/s per {_unit(result)}: 4 R h f / N over the p50 of "
        f"a step, n = {latency.n}",
    ]


def _of_modes(result: RankResult, parameters: Parameters) -> list[str]:
    """Return a line a mode: its step, and how near that is to perfect overlap."""
    heads = f"{'p50 ms':>9}{'p95 ms':>9}{f'TFLOP/s/{_unit(result)}':>14}{'of bound':>10}{'hidden':>9}"
    lines = [f"{'step, maximum over ranks':<26}{heads}"]
    serial = result.modes.get("serial")
    for name, mode in result.modes.items():
        latency = summarize(mode.latency_ns)
        line = f"{name:<26}{latency.p50_ns / 1e6:>9.3f}{latency.p95_ns / 1e6:>9.3f}"
        line += f"{_rate(parameters, result, latency):>14.1f}"
        if result.bound_ns is not None and serial is not None:
            slowest = summarize(serial.latency_ns).p50_ns
            line += f"{100 * result.bound_ns / latency.p50_ns:>8.1f} %"
            can_hide = slowest - result.bound_ns
            if can_hide > 0:
                line += f"{100 * (slowest - latency.p50_ns) / can_hide:>7.1f} %"
        lines.append(line)
    fastest = min(result.modes, key=lambda name: summarize(result.modes[name].latency_ns).p50_ns)
    lines += ["", f"fastest: {fastest}; n = {len(result.step_ns)} steps of each mode, in turns"]
    if result.bound_ns is not None and serial is not None:
        parts = ", ".join(
            f"{name} {summarize(times).p50_ns / 1e6:.3f}" for name, times in serial.phase_ns.items()
        )
        lines += [
            f"bound {result.bound_ns / 1e6:.3f} ms: the larger of both matmuls and both collectives, alone",
            f"parts of serial, ms, rank {result.rank}: {parts}",
        ]
    return lines


def _correct(name: str, worst: float, check: Correctness) -> str:
    sign = "<" if worst < check.bound else "NOT below"
    return f"{name}: relative error {worst:.1e} {sign} {check.bound:.0e}, worst rank"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _row(label: str, summary: Summary) -> str:
    return f"{label:<32}{summary.p50_ns / 1e6:>10.3f}{summary.p95_ns / 1e6:>10.3f}{summary.n:>6}"


def _rate(parameters: Parameters, result: RankResult, latency: Summary) -> float:
    """Return TFLOP per second: two matmuls of 2 R h f / N each, the collectives' time included."""
    work = 4 * parameters.rows * parameters.hidden_size * parameters.inner_size / result.world_size
    # FLOP per nanosecond are GFLOP per second.
    return work / latency.p50_ns / 1e3


def _unit(result: RankResult) -> str:
    return "rank" if result.device == "cpu" else "GPU"
