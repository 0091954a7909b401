"""Rates that follow from the times, and how close they are to the limits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from hpcprof.workloads.schema import Figures, summarize
from hpcprof.workloads.sequence_parallel.cost_model import (
    BACKWARD_PHASES,
    FORWARD_PHASES,
    GPUS,
    is_matmul,
    link_bytes,
    step_flops,
)
from hpcprof.workloads.sequence_parallel.parameters import Parameters

# A smaller share may be due to launches and marks: the extra marks of the serial mode cost up to 4 %.
_SEEN_PCT = 10
# If perfect overlap would save less than this part of a serial step, the result would be noise.
_RELEVANT = 0.05
# The 95 % interval of the median of n steps reaches this times the square root of n steps to either side.
_HALF_WIDTH = 0.98


def bound_ns(parts: Mapping[str, int]) -> int:
    """Return the time of a step whose communication and compute overlap perfectly, in nanoseconds.

    It is max(matmuls, collectives), separately for forward and backward, since the backward begins after the
    forward.

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


def part_rates(
    parts: Mapping[str, int], parameters: Parameters, ranks: int, backend: str
) -> dict[str, float]:
    """Return the rate of each phase: TFLOP/s for a matmul, GB/s over the links of a rank for a collective.

    Collectives of gloo have no rate, because its reduce-scatter is implemented as another operation.
    """
    matmul = 2 * parameters.rows * parameters.hidden_size * parameters.inner_size / ranks
    found = {name: matmul / time / 1e3 for name, time in parts.items() if time and is_matmul(name)}
    if backend == "nccl" and ranks > 1:
        moved = link_bytes(parameters, ranks)
        # Bytes per nanosecond are GB/s.
        found |= {name: moved[name] / time for name, time in parts.items() if time and not is_matmul(name)}
    return found


def peak_tflops(device: str, dtype: str) -> float | None:
    """Return the dense peak rate of a GPU from its data sheet; None for an unknown GPU or type."""
    for gpu in GPUS:
        if any(name in device for name in gpu.name.split("/")):
            return gpu.tflops.get(dtype)
    return None


def hidden_interval(
    latency_ns: Sequence[int], serial_ns: Sequence[int], bound: int
) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the median share of hideable communication that is hidden.

    Each step gives one share, compared with the serial step of its round. The limits of the interval are two
    of these shares, so nothing is assumed about their distribution.

    Parameters
    ----------
    latency_ns, serial_ns : sequence of int
        The times of the steps of the mode and of the serial mode, in the order of the rounds.
    bound : int
        The time of a step with perfect overlap, in nanoseconds.

    Returns
    -------
    (float, float) or None
        In percent; None if perfect overlap would not be faster than the serial mode.
    """
    hideable = summarize(serial_ns).p50_ns - bound
    if hideable <= 0:
        return None
    shares = sorted(100 * (s - t) / hideable for s, t in zip(serial_ns, latency_ns, strict=True))
    outside = max(0, math.floor(len(shares) / 2 - _HALF_WIDTH * math.sqrt(len(shares))) - 1)
    return shares[outside], shares[-1 - outside]


def overlapped(
    interval: tuple[float, float] | None, *, serial: int, bound: int, device: str, ranks: int
) -> bool | None:
    """Return whether the step times show that a mode hides communication.

    PyTorch's fused operators may silently fall back to plain ones, which do not. The result is None if it
    cannot be known: a single rank does not communicate, a CPU uses the same cores for both, and if
    communication is only a small part of a step, the effect of overlap is within the noise.
    """
    if interval is None or ranks == 1 or device == "cpu" or serial - bound < _RELEVANT * serial:
        return None
    return interval[0] > _SEEN_PCT


def no_overlap(mode: str, found: Figures) -> str | None:
    """Return a note if a mode that should overlap does not, else None."""
    if found.overlapped is not False:
        return None
    return (
        f"{mode} did not overlap here, or gained nothing from it: its median step hides "
        f"{found.hidden_low_pct:.0f} to {found.hidden_high_pct:.0f} % (95 % interval) of the communication "
        "that perfect overlap would hide."
    )


def mode_figures(
    ranks_ns: Sequence[Sequence[int]],
    parameters: Parameters,
    *,
    device: str,
    backend: str,
    bound: int | None,
    serial_ns: Sequence[int] | None,
    marks_pct: float,
    overlaps: bool = True,
    marked_ns: Sequence[int] | None = None,
) -> Figures:
    """Compute the figures of a mode.

    Parameters
    ----------
    ranks_ns : sequence of sequences of int
        The time of each step on each rank, in nanoseconds.
    parameters : Parameters
        The shape.
    device, backend : str
        The name of the GPU and the communication library.
    bound : int or None
        The time of a step with perfect overlap, in nanoseconds.
    serial_ns : sequence of int or None
        The latencies of the serial mode in the same rounds, in nanoseconds.
    marks_pct : float
        The cost of the time marks of a step, in percent of its time.
    overlaps : bool
        Whether the mode is meant to overlap communication; the serial mode is not.
    marked_ns : sequence of int or None
        The latencies of separate steps with marked phases, in nanoseconds.
    """
    steps = list(zip(*ranks_ns, strict=True))
    latencies = [max(step) for step in steps]
    latency = summarize(latencies)
    p50, ranks = max(latency.p50_ns, 1), len(ranks_ns)
    # Operations per nanosecond are GFLOP/s.
    tflops = step_flops(parameters, ranks) / p50 / 1e3
    peak = peak_tflops(device, parameters.dtype)
    serial = None if serial_ns is None else summarize(serial_ns).p50_ns
    hidden_pct, hidden, did = None, None, None
    if serial_ns is not None and serial is not None and bound is not None:
        hidden = hidden_interval(latencies, serial_ns, bound)
        hidden_pct = None if hidden is None else 100 * (serial - p50) / (serial - bound)
        if overlaps:
            did = overlapped(hidden, serial=serial, bound=bound, device=device, ranks=ranks)
    moved = sum(link_bytes(parameters, ranks).values())
    return Figures(
        step=latency,
        spread_pct=100 * latency.stddev_ns / max(latency.mean_ns, 1),
        skew_p50_ns=round(statistics.median(max(step) - min(step) for step in steps)),
        tflops=tflops,
        bus_gbps=moved / p50 if backend == "nccl" else None,
        of_bound_pct=None if bound is None else 100 * bound / p50,
        hidden_pct=hidden_pct,
        of_peak_pct=None if peak is None else 100 * tflops / peak,
        marks_pct=marks_pct,
        hidden_low_pct=hidden[0] if hidden else None,
        hidden_high_pct=hidden[1] if hidden else None,
        marked=summarize(marked_ns) if marked_ns else None,
        overlapped=did,
    )
