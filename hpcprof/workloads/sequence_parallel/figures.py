"""What the times mean: rates, and how near they are to the limits."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hpcprof.workloads.schema import Figures, summarize
from hpcprof.workloads.sequence_parallel.options import Parameters
from hpcprof.workloads.sequence_parallel.plan import (
    BACKWARD_PHASES,
    FORWARD_PHASES,
    GPUS,
    is_matmul,
    link_bytes,
    step_flops,
)


def bound_ns(parts: Mapping[str, int]) -> int:
    """Return the time of a step whose communication and compute overlap perfectly, in nanoseconds.

    That is max(matmuls, collectives), forward and backward each: the backward begins when the forward has
    ended.

    Parameters
    ----------
    parts : mapping of str to int
        The time of each phase of the serial mode, in nanoseconds.
    """
    total = 0
    for names in (FORWARD_PHASES, BACKWARD_PHASES):
        present = [name for name in names if name in parts]
        compute = sum(parts[name] for name in present if is_matmul(name))
        total += max(compute, sum(parts[name] for name in present) - compute)
    return total


def rates(parts: Mapping[str, int], parameters: Parameters, ranks: int, backend: str) -> dict[str, float]:
    """Return what each part reached: TFLOP/s of a matmul, GB/s over a rank's links of a collective.

    gloo's collectives get none: its reduce-scatter is another operation inside.
    """
    matmul = 2 * parameters.rows * parameters.hidden_size * parameters.inner_size / ranks
    found = {name: matmul / time / 1e3 for name, time in parts.items() if time and is_matmul(name)}
    if backend == "nccl" and ranks > 1:
        moved = link_bytes(parameters, ranks)
        # Bytes a nanosecond are GB a second.
        found |= {name: moved[name] / time for name, time in parts.items() if time and not is_matmul(name)}
    return found


def peak_tflops(device: str, dtype: str) -> float | None:
    """Return the datasheet's dense rate of a GPU; None if it is not known here."""
    for gpu in GPUS:
        if any(name in device for name in gpu.name.split("/")):
            return gpu.tflops.get(dtype)
    return None


def figures(
    ranks_ns: Sequence[Sequence[int]],
    parameters: Parameters,
    *,
    device: str,
    backend: str,
    bound: int | None,
    serial: int | None,
    marks_pct: float,
) -> Figures:
    """Return the figures of a mode.

    Parameters
    ----------
    ranks_ns : sequence of sequences of int
        The time of each step on each rank, in nanoseconds.
    parameters : Parameters
        The shape.
    device, backend : str
        The GPU's name and the library of the collectives.
    bound, serial : int or None
        The bound and the serial mode's median latency, in nanoseconds.
    marks_pct : float
        What the marks of one step cost, in percent of it.
    """
    steps = list(zip(*ranks_ns, strict=True))
    latency = summarize([max(step) for step in steps])
    p50, ranks = max(latency.p50_ns, 1), len(ranks_ns)
    # Operations a nanosecond are GFLOP a second.
    tflops = step_flops(parameters, ranks) / p50 / 1e3
    peak = peak_tflops(device, parameters.dtype)
    hideable = (serial or 0) - (bound or 0)
    moved = sum(link_bytes(parameters, ranks).values())
    return Figures(
        step=latency,
        spread_pct=100 * latency.stddev_ns / max(latency.mean_ns, 1),
        skew_p50_ns=round(statistics.median(max(step) - min(step) for step in steps)),
        tflops=tflops,
        bus_gbps=moved / p50 if backend == "nccl" else None,
        of_bound_pct=None if bound is None else 100 * bound / p50,
        hidden_pct=100 * (serial - p50) / hideable if serial and bound and hideable > 0 else None,
        of_peak_pct=None if peak is None else 100 * tflops / peak,
        marks_pct=marks_pct,
    )
