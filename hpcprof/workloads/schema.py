"""The results file that every rank of a workload writes; `hpcprof.profiles.readers.results` reads it back.

Only the standard library is imported here, because the collect side must never load torch.
Times are whole nanoseconds. A float that is not a number is ``null`` in the file, since JSON has no NaN.
"""

from __future__ import annotations

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
    """How far one rank's output is from ``reference``.

    ``relative_error`` is ``norm(output - reference) / norm(reference)`` over ``rows`` sampled rows, NaN
    where the output is not finite; the check passes below ``bound``.
    """

    passed: bool
    relative_error: float
    bound: float
    rows: int
    reference: str


@dataclass(frozen=True)
class Figures:
    """What the times of a mode mean; None where it does not apply or is not known.

    Attributes
    ----------
    step : Summary
        Of the steps' latencies.
    spread_pct : float
        The latencies' standard deviation, in percent of their mean.
    skew_p50_ns : int
        The median over the steps of the slowest rank's time less the fastest's.
    tflops : float
        10^12 operations of a step a second on each rank, by the median latency.
    bus_gbps : float or None
        10^9 bytes of all collectives of a step over each rank's links a second, by the same.
    of_bound_pct, hidden_pct : float or None
        The bound over the latency; (serial - latency) over (serial - bound).
    of_peak_pct : float or None
        ``tflops`` of the datasheet's.
    marks_pct : float
        What the marks of a step cost, in percent of it.
    hidden_low_pct, hidden_high_pct : float or None
        The 95 % interval of the median share that is hidden, each step with the serial one of its round.
    marked : Summary or None
        Of the latencies of the steps whose phases are marked, where ``step`` is of others without.
    overlapped : bool or None
        Whether that shows that communication and compute overlap; None for the serial mode and where it
        cannot be told.
    """

    step: Summary
    spread_pct: float
    skew_p50_ns: int
    tflops: float
    bus_gbps: float | None
    of_bound_pct: float | None
    hidden_pct: float | None
    of_peak_pct: float | None
    marks_pct: float
    hidden_low_pct: float | None = None
    hidden_high_pct: float | None = None
    marked: Summary | None = None
    overlapped: bool | None = None


@dataclass(frozen=True)
class GpuState:
    """A GPU while it works: clocks in MHz, power in W, temperature in °C, and what slows it down."""

    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    throttled_by: list[str]


@dataclass(frozen=True)
class ModeResult:
    """What one rank measured of one mode; the lists are those of `RankResult`.

    ``peak_bytes`` is the most that PyTorch had allocated on the GPU during a step of this mode, with what all
    modes share and without symmetric memory; None on a CPU.
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
    """What one rank's training loop measured beside times.

    ``loss`` holds one value a measured step, null where it is no number; it is empty where the model does not
    tell. ``rate`` is the ``unit`` (``tokens`` or ``samples``) per second of all ranks together, at the median
    latency of a step. ``bucket_bytes`` are the sizes of DDP's buckets of gradients, as DDP
    rebuilt them after its first step where ``buckets_rebuilt``. ``memory_bytes`` are peaks.
    ``captured`` are the first and last step of each span that was profiled, counted as measured steps.
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
    """What one rank measured.

    ``step_ns`` and each list of ``phase_ns`` hold one time a measured step, in the order of the steps, on
    this rank. ``marked_ns`` is empty where these are the same steps; else it holds the times of those whose
    phases are marked, and the steps of ``step_ns`` have no such marks. ``latency_ns`` holds the maximum over
    all ranks of each step. ``summary`` has the key ``step`` (of ``step_ns``) and one key a phase.
    ``correctness`` is None where there is nothing to compare with.

    Where several modes were measured in turns, ``modes`` holds all of them, ``mode`` is the name of the
    first, and the fields above and ``figures`` are empty or None. ``bound_ns`` is what a step takes if
    communication and compute overlap perfectly, by the phases of the serial mode; None where that was not
    measured beside others. Of a sweep this is the first point, and ``points`` holds all of them, each whole
    and with its name in ``point``.
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
    points: list[RankResult] = field(default_factory=list)

    def every_point(self) -> list[RankResult]:
        """Return the points of a sweep, or else this result alone."""
        return self.points or [self]


def summarize(values: Sequence[int]) -> Summary:
    """Summarize times.

    Parameters
    ----------
    values : sequence of int
        Nanoseconds, at least one. Percentiles interpolate linearly between neighbours (numpy's default
        method); the deviation of a single value is 0.

    Raises
    ------
    ValueError
        If there are no values.
    """
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
    """Interpolate in whole numbers: a float would lose nanoseconds above 2**53."""
    index, hundredths = divmod(percent * (len(ordered) - 1), 100)
    if hundredths == 0:
        return ordered[index]
    return ordered[index] + ((ordered[index + 1] - ordered[index]) * hundredths + 50) // 100


def slowest_rank_ns(everyone: Sequence[Sequence[int]]) -> list[int]:
    """Return each step's time on the rank that took longest, of every rank's times."""
    return [max(step) for step in zip(*everyone, strict=True)]


def to_json(result: RankResult) -> str:
    """Return ``result`` as JSON text that any JSON parser reads."""
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
    """Write ``result`` into ``folder`` (made if it is missing) atomically and return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(result.rank)
    with replacing(path) as temporary, temporary.open("x", encoding="utf-8") as stream:
        stream.write(to_json(result))
    return path
