"""The results file that every rank of a workload writes; `hpcprof.profiles.readers.results` reads it back.

This module imports the standard library only, because the collect side must never load torch. Times are whole
nanoseconds. NaN is written as ``null``, since JSON has no NaN.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hpcprof.common.atomic import replacing

SCHEMA_VERSION = 2

Scalar = int | float | str | bool | None


@dataclass(frozen=True)
class Summary:
    """Statistics of ``n`` times, in nanoseconds; ``stddev_ns`` is the sample standard deviation."""

    n: int
    p50_ns: int
    p95_ns: int
    p99_ns: int
    mean_ns: int
    stddev_ns: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True)
class Correctness:
    """The difference between the output of one rank and ``reference``.

    ``relative_error`` is ``norm(output - reference) / norm(reference)`` over ``rows`` sampled rows, or NaN if
    the output is not finite; the check passes if it is below ``bound``.
    """

    passed: bool
    relative_error: float
    bound: float
    rows: int
    reference: str


@dataclass(frozen=True)
class Figures:
    """Rates and shares that follow from the times of a mode; None if not applicable or unknown."""

    step: Summary
    spread_pct: float
    """The standard deviation of the latencies, in percent of their mean."""
    skew_p50_ns: int
    """The median over the steps of the slowest rank's time minus the fastest rank's."""
    tflops: float
    """The operations of a step on each rank over the median latency, in TFLOP/s."""
    bus_gbps: float | None
    """The bytes of all collectives of a step over the links of a rank, over the median latency, in GB/s."""
    of_bound_pct: float | None
    hidden_pct: float | None
    """The bound over the median latency, and (serial - latency) over (serial - bound), in percent."""
    of_peak_pct: float | None
    """``tflops`` in percent of the peak in the datasheet."""
    marks_pct: float
    """The cost of the time marks of a step, in percent of its time."""
    hidden_low_pct: float | None = None
    hidden_high_pct: float | None = None
    """The 95 % confidence interval of the median share of communication that is hidden; each step is compared
    with the serial step of its round.
    """
    marked: Summary | None = None
    """The summary of the latencies of steps with marked phases, if ``step`` covers steps without marks."""
    overlapped: bool | None = None
    """True if the interval shows that communication and compute overlap; None if serial or unknown."""
    of_bound_low_pct: float | None = None
    of_bound_high_pct: float | None = None
    """The 95 % confidence interval of the bound over the latency; each step is compared with the bound of its
    round. None where the result has no ``bound_parts_ns``.
    """
    of_alone_pct: float | None = None
    """``alone_bound_ns`` over the median latency, in percent."""


@dataclass(frozen=True)
class GpuState:
    """The state of a working GPU: clocks in MHz, power in W, temperature in °C, reasons for throttling."""

    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    throttled_by: list[str]


@dataclass(frozen=True)
class ModeResult:
    """The measurements of one mode on one rank; the lists are as in `RankResult`.

    ``peak_bytes`` is the most memory that PyTorch had allocated on the GPU during a step of this mode. It
    includes what all modes share and excludes symmetric memory; None on a CPU.
    """

    step_ns: list[int]
    phase_ns: dict[str, list[int]]
    latency_ns: list[int]
    correctness: Correctness
    peak_bytes: int | None = None
    figures: Figures | None = None
    marked_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Training:
    """The measurements of a training loop on one rank, apart from times.

    ``loss`` holds one value per measured step, null if the loss was not finite; it is empty if the loss is
    unknown. ``rate`` is the throughput of all ranks together in ``unit`` (``tokens`` or ``samples``) per
    second, at the median step latency. ``bucket_bytes`` holds the sizes of DDP's gradient buckets; if
    ``buckets_rebuilt``, as DDP rebuilt them after its first step. ``memory_bytes`` holds peaks. ``captured``
    holds the first and last measured step of each span that was profiled.
    """

    loss: list[float | None]
    rate: float
    unit: str
    bucket_bytes: list[int]
    buckets_rebuilt: bool
    memory_bytes: dict[str, int]
    captured: list[list[int]]


@dataclass(frozen=True)
class RankResult:
    """The measurements of one rank.

    ``step_ns`` and each list in ``phase_ns`` hold one time per measured step of this rank, in order. If
    phases were timed in separate steps, ``marked_ns`` holds the times of those steps, and the steps of
    ``step_ns`` carry no phase marks; otherwise ``marked_ns`` is empty. ``latency_ns`` holds the maximum of
    each step over all ranks. ``summary`` has the key ``step`` (of ``step_ns``) and one key per phase.
    ``correctness`` is None if there is no reference to compare with.

    If several modes were measured in turns, ``modes`` holds all of them, ``mode`` is the name of the first,
    and the fields above and ``figures`` are empty or None. ``bound_ns`` is the time that no mode can beat:
    the larger of the fastest matmuls and of the bytes over the links, each measured alone in turns with the
    modes. ``bound_parts_ns`` has both by direction; it is empty in results of earlier versions and of
    profiled runs, where ``bound_ns`` is the larger of the serial mode's matmuls and collectives.
    ``alone_bound_ns`` is that in any run. All of these are None or empty unless the serial mode was measured
    next to others. The result of a sweep is that of its first point, and ``points`` holds the complete
    results of all points, with the name of each in ``point``.
    """

    schema_version: int
    workload: str
    mode: str
    rank: int
    world_size: int
    local_rank: int
    host: str
    device: str
    backend: str
    parameters: dict[str, Scalar]
    versions: dict[str, str]
    profiler: str
    step_ns: list[int]
    phase_ns: dict[str, list[int]]
    summary: dict[str, Summary]
    latency_ns: list[int] | None
    correctness: Correctness | None
    notes: list[str]
    modes: dict[str, ModeResult] = field(default_factory=dict)
    bound_ns: int | None = None
    figures: Figures | None = None
    parts_ns: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    gpu_before: GpuState | None = None
    gpu_after: GpuState | None = None
    warmup_steps: int | None = None
    stable: bool | None = None
    training: Training | None = None
    marked_ns: list[int] = field(default_factory=list)
    point: str = ""
    points: "list[RankResult]" = field(default_factory=list)
    alone_bound_ns: int | None = None
    bound_parts_ns: dict[str, int] = field(default_factory=dict)

    def every_point(self) -> "list[RankResult]":
        """Return the results of all points of a sweep; without a sweep, this result only."""
        return self.points or [self]


def summarize(values: Sequence[int]) -> Summary:
    """Summarize times in ns; percentiles are interpolated linearly, as by numpy. ValueError without any."""
    if not values:
        raise ValueError("there are no times to summarize")
    ordered = sorted(values)
    return Summary(
        n=len(ordered),
        p50_ns=_percentile(ordered, 50),
        p95_ns=_percentile(ordered, 95),
        p99_ns=_percentile(ordered, 99),
        mean_ns=round(statistics.mean(ordered)),
        stddev_ns=round(statistics.stdev(ordered)) if len(ordered) > 1 else 0,
        min_ns=ordered[0],
        max_ns=ordered[-1],
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Interpolate with integers: floats would lose nanoseconds above 2**53."""
    index, hundredths = divmod(percent * (len(ordered) - 1), 100)
    if hundredths == 0:
        return ordered[index]
    return ordered[index] + ((ordered[index + 1] - ordered[index]) * hundredths + 50) // 100


def slowest_rank_ns(steps_of_ranks: Sequence[Sequence[int]]) -> list[int]:
    """Return the time of each step on its slowest rank, from the times of all ranks."""
    return [max(step) for step in zip(*steps_of_ranks, strict=True)]


def to_json(result: RankResult) -> str:
    """Return ``result`` as strict JSON."""
    data = asdict(result)
    for point in (data, *data["points"]):
        for check in (point["correctness"], *(mode["correctness"] for mode in point["modes"].values())):
            if check is not None and not math.isfinite(check["relative_error"]):
                check["relative_error"] = None
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def file_name(rank: int) -> str:
    """Return the name of a rank's results file."""
    return f"rank{rank:05d}.json"


def write(result: RankResult, folder: Path) -> Path:
    """Write ``result`` to a file in ``folder``, atomically, and return its path; create the folder first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(result.rank)
    with replacing(path) as temporary, temporary.open("x", encoding="utf-8") as stream:
        stream.write(to_json(result))
    return path
