"""What the times mean: rates, and how near they are to the limits."""

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

# To hide less may be a matter of launches, and of marks: those that the serial mode has more cost up to 4 %.
_SEEN_PCT = 10
# Where perfect overlap would gain less of a serial step than this, nothing can be told.
_RELEVANT = 0.05
# Half the width of the 95 % interval of a median, in steps by the root of their number.
_HALF_WIDTH = 0.98


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


def part_rates(
    parts: Mapping[str, int], parameters: Parameters, ranks: int, backend: str
) -> dict[str, float]:
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


def hidden_interval(
    latency_ns: Sequence[int], serial_ns: Sequence[int], bound: int
) -> tuple[float, float] | None:
    """Return the 95 % interval of the median share of the hideable communication that is hidden, in percent.

    The shares are those of single steps, each with the serial step of its round; the interval lies between
    two of them and supposes nothing about their distribution.

    Parameters
    ----------
    latency_ns, serial_ns : sequence of int
        The steps of the mode and of the serial one in the order in which they were measured in turns.
    bound : int
        The step of perfect overlap.

    Returns
    -------
    (float, float) or None
        None where perfect overlap would not be faster than the serial mode.
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
    """Say whether a mode hid communication, by its step times; an operator may fall back to none silently.

    None where it cannot be told: one rank does not communicate, a CPU computes both on the same cores, and
    where communication is a small part of a step perfect overlap shows no more than chance.
    """
    if interval is None or ranks == 1 or device == "cpu" or serial - bound < _RELEVANT * serial:
        return None
    return interval[0] > _SEEN_PCT


def no_overlap(mode: str, found: Figures) -> str | None:
    """Return a sentence where a mode that should overlap does not show it, else None."""
    if found.overlapped is not False:
        return None
    return (
        f"{mode} did not overlap here, or gained nothing by it: its median step hides "
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
    """Return the figures of a mode.

    Parameters
    ----------
    ranks_ns : sequence of sequences of int
        The time of each step on each rank, in nanoseconds.
    parameters : Parameters
        The shape.
    device, backend : str
        The GPU's name and the library of the collectives.
    bound : int or None
        The bound, in nanoseconds.
    serial_ns : sequence of int or None
        The serial mode's latencies in nanoseconds, of the same rounds; the mode itself may be it.
    marks_pct : float
        What the marks of one step cost, in percent of it.
    overlaps : bool
        Whether the mode is to overlap anything; the serial one is not.
    marked_ns : sequence of int or None
        The latencies of further steps, whose phases are marked, in nanoseconds.
    """
    steps = list(zip(*ranks_ns, strict=True))
    latencies = [max(step) for step in steps]
    latency = summarize(latencies)
    p50, ranks = max(latency.p50_ns, 1), len(ranks_ns)
    # Operations a nanosecond are GFLOP a second.
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
