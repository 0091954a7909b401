"""Rates that follow from the times, and how close they are to the limits."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcprof.workloads.schema import Figures, summarize
from hpcprof.workloads.sequence_parallel import cost_model
from hpcprof.workloads.sequence_parallel.cost_model import is_matmul, link_bytes
from hpcprof.workloads.sequence_parallel.parameters import PointParameters

MATMULS = {"forward": "matmuls forward", "backward": "matmuls backward"}
"""Prefixes of the names of the probes of matmuls, by direction."""
LINKS = "links"
"""The name of the probe of the links, and of the phase in which it copies."""

DIRECTIONS = {"forward": cost_model.FORWARD_PHASES, "backward": cost_model.BACKWARD_PHASES}
"""The phases of each direction."""

# A smaller share may be due to launches and marks: the extra marks of the serial mode cost up to 4 %.
_MIN_HIDDEN_PCT = 10
# If perfect overlap would save less than this part of a serial step, the result would be noise.
_RELEVANT_SHARE = 0.05
# Half width of the 95 % interval of a median, in positions over the square root of the number of values.
_MEDIAN_INTERVAL_FACTOR = 0.98


@dataclass(frozen=True)
class Bound:
    """The time that no mode can beat, since all of them multiply and move the same data."""

    rounds_ns: list[int]
    """The bound in each round of steps, in nanoseconds."""
    parts_ns: dict[str, int]
    """The medians that it was computed from: the matmuls of each direction with the fastest groups of rows,
    and the bytes of its collectives over the links.
    """

    @property
    def p50_ns(self) -> int:
        """The median over the rounds."""
        return summarize(self.rounds_ns).p50_ns


def step_bound(
    probes: Mapping[str, Sequence[int]], parts: Mapping[str, int], moved: Mapping[str, int]
) -> Bound:
    """Return the bound of a step: for each direction, the larger of its matmuls and its bytes over the links.

    ``probes`` are the latencies of each probe in each round and ``parts`` the median times of the phases of
    the serial mode, in nanoseconds; ``moved`` are the bytes that each collective moves, from `link_bytes`.
    """
    bounds: list[list[int]] = []
    medians: dict[str, int] = {}
    copied = next((name for name in moved if name in ("allgather", "grad_allgather")), "")
    for direction, names in DIRECTIONS.items():
        groupings = [times for name, times in probes.items() if name.startswith(MATMULS[direction])]
        if not groupings:
            continue
        matmuls = min(groupings, key=lambda times: summarize(times).p50_ns)
        transferred = [name for name in names if name in moved]
        links = sum(parts[name] for name in transferred)
        if LINKS in probes:
            rate = summarize(probes[LINKS]).p50_ns / moved[copied]
            links = min(links, round(rate * sum(moved[name] for name in transferred)))
        medians |= {MATMULS[direction]: summarize(matmuls).p50_ns, f"{LINKS} {direction}": links}
        bounds.append([max(time, links) for time in matmuls])
    return Bound([sum(times) for times in zip(*bounds, strict=True)], medians)


def alone_bound_ns(parts: Mapping[str, int]) -> int:
    """Return the larger of the serial mode's matmuls and collectives, in nanoseconds.

    The directions are added, since the backward begins after the forward. A mode can beat this if smaller
    groups of rows fill the GPU better than all of them. ``parts`` are the times of the phases of the serial
    mode, in nanoseconds.
    """
    total = 0
    for names in DIRECTIONS.values():
        compute = sum(parts.get(name, 0) for name in names if is_matmul(name))
        total += max(compute, sum(parts.get(name, 0) for name in names) - compute)
    return total


def part_rates(
    parts: Mapping[str, int], parameters: PointParameters, ranks: int, backend: str
) -> dict[str, float]:
    """Return the TFLOP/s of matmuls and, but for gloo, the GB/s over the links of a rank of collectives."""
    matmul = 2 * parameters.rows * parameters.hidden_size * parameters.inner_size / ranks
    rates = {name: matmul / time / 1e3 for name, time in parts.items() if time and is_matmul(name)}
    if backend == "nccl" and ranks > 1:
        moved = link_bytes(parameters, ranks)
        # Bytes per nanosecond are GB/s.
        rates |= {name: moved[name] / time for name, time in parts.items() if time and not is_matmul(name)}
    return rates


def peak_tflops(device: str, dtype: str) -> float | None:
    """Return the dense peak rate of a GPU from its data sheet; None for an unknown GPU or type."""
    for gpu in cost_model.GPUS:
        if any(name in device for name in gpu.name.split("/")):
            return gpu.tflops.get(dtype)
    return None


def hidden_interval(
    latency_ns: Sequence[int], serial_ns: Sequence[int], bound: int
) -> tuple[float, float] | None:
    """Return the 95 % interval, in percent, of the median share of hideable communication that is hidden.

    Each step of the mode is compared with the serial step of its round; ``bound`` is the time of a step
    with perfect overlap. All are in ns. None if perfect overlap would not be faster than the serial mode.
    """
    hideable = summarize(serial_ns).p50_ns - bound
    if hideable <= 0:
        return None
    return median_interval([100 * (s - t) / hideable for s, t in zip(serial_ns, latency_ns, strict=True)])


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median: two of the values, so it assumes no distribution."""
    ordered = sorted(values)
    outside = max(0, math.floor(len(ordered) / 2 - _MEDIAN_INTERVAL_FACTOR * math.sqrt(len(ordered))) - 1)
    return ordered[outside], ordered[-1 - outside]


def overlapped(
    interval: tuple[float, float] | None, *, serial: int, bound: int, device: str, ranks: int
) -> bool | None:
    """Return whether the step times show that a mode hides communication.

    PyTorch's fused operators may silently fall back to plain ones, which do not. The result is None if it
    cannot be known: a single rank does not communicate, a CPU uses the same cores for both, and if
    communication is only a small part of a step, the effect of overlap is within the noise.
    """
    if interval is None or ranks == 1 or device == "cpu" or serial - bound < _RELEVANT_SHARE * serial:
        return None
    return interval[0] > _MIN_HIDDEN_PCT


def no_overlap(mode: str, stats: Figures) -> str | None:
    """Return a note if a mode that should overlap does not, else None."""
    if stats.overlapped is not False:
        return None
    return (
        f"{mode} did not overlap here, or gained nothing from it: its median step hides "
        f"{stats.hidden_low_pct:.0f} to {stats.hidden_high_pct:.0f} % (95 % interval) of the communication "
        "that perfect overlap would hide."
    )


def beyond_bound(mode: str, stats: Figures) -> str | None:
    """Return a warning if a mode is faster than the bound, beyond its interval, else None."""
    if stats.of_bound_low_pct is None or stats.of_bound_low_pct <= 100:
        return None
    return (
        f"WARNING: {mode} is faster than the bound, at {stats.of_bound_low_pct:.1f} to "
        f"{stats.of_bound_high_pct:.1f} % of it (95 % interval): its matmuls ran at a higher clock, or as no "
        "probe groups them"
    )


def mode_figures(
    ranks_ns: Sequence[Sequence[int]],
    parameters: PointParameters,
    *,
    device: str,
    backend: str,
    bound: Bound | None,
    serial_ns: Sequence[int] | None,
    marks_pct: float,
    alone: int | None = None,
    overlaps: bool = True,
    marked_ns: Sequence[int] | None = None,
) -> Figures:
    """Compute the figures of a mode, from the time of each step on each rank (``ranks_ns``).

    Times are in nanoseconds. ``serial_ns`` are the latencies of the serial mode in the same rounds, and
    ``marked_ns`` those of separate steps with marked phases. ``marks_pct`` is the cost of the time marks in
    percent of a step, and ``alone`` the value of `alone_bound_ns`. ``overlaps`` is false for a mode that is
    not meant to overlap communication, as the serial one.
    """
    steps = list(zip(*ranks_ns, strict=True))
    latencies = [max(step) for step in steps]
    latency = summarize(latencies)
    p50, ranks = max(latency.p50_ns, 1), len(ranks_ns)
    # Operations per nanosecond are GFLOP/s.
    tflops = cost_model.step_flops(parameters, ranks) / p50 / 1e3
    peak = peak_tflops(device, parameters.dtype)
    serial = None if serial_ns is None else summarize(serial_ns).p50_ns
    hidden_pct, hidden, overlap_shown, bound_share = None, None, None, None
    if bound is not None and bound.parts_ns:
        bound_share = median_interval(
            [100 * b / max(t, 1) for b, t in zip(bound.rounds_ns, latencies, strict=True)]
        )
    if serial_ns is not None and serial is not None and bound is not None:
        hidden = hidden_interval(latencies, serial_ns, bound.p50_ns)
        hidden_pct = None if hidden is None else 100 * (serial - p50) / (serial - bound.p50_ns)
        if overlaps:
            overlap_shown = overlapped(hidden, serial=serial, bound=bound.p50_ns, device=device, ranks=ranks)
    moved = sum(link_bytes(parameters, ranks).values())
    return Figures(
        step=latency,
        spread_pct=100 * latency.stddev_ns / max(latency.mean_ns, 1),
        skew_p50_ns=round(statistics.median(max(step) - min(step) for step in steps)),
        tflops=tflops,
        bus_gbps=moved / p50 if backend == "nccl" else None,
        of_bound_pct=None if bound is None else 100 * bound.p50_ns / p50,
        hidden_pct=hidden_pct,
        of_peak_pct=None if peak is None else 100 * tflops / peak,
        marks_pct=marks_pct,
        hidden_low_pct=hidden[0] if hidden else None,
        hidden_high_pct=hidden[1] if hidden else None,
        marked=summarize(marked_ns) if marked_ns else None,
        overlapped=overlap_shown,
        of_bound_low_pct=bound_share[0] if bound_share else None,
        of_bound_high_pct=bound_share[1] if bound_share else None,
        of_alone_pct=None if alone is None else 100 * alone / p50,
    )
