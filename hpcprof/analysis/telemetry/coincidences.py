"""Tests whether the metrics of the nodes moved with the steps of a run, or whether that may be chance.

**Long steps, and a level that changes.**

1. Steps are joined to at most 400 consecutive units. Each metric has its mean, or its rate, in each unit.
2. The statistic is the sum of its ranks in the units with long steps (or, for a level, weighted by the time
   of the steps).
3. Its null distribution comes from 1,999 permutations of the units of the steps, which leave the samples as
   they are.
4. Beside single long steps, samples count relative to those around them: what rises during a whole run proves
   nothing about some steps.
5. Where both resemble their neighbours, blocks of units change places instead: twice as long as the series
   would have to be for independent values.
6. The largest statistic of all metrics decides about each of them (Westfall and Young), so that looking at
   many metrics raises no false alarms.

``benchmarks/coincidences.py`` has their rate, and the power.

**Ranks.** A rank is reported only if its value differs from the other ranks' values by more than it varies
over time (normal mean, for correlated units, times the number of looks), by 5 %, or, from four ranks on, by 3
% and five times as much as the others differ among themselves.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hpcprof.analysis.explain.step_series import MAX_SPIKES, drift, spikes
from hpcprof.analysis.statistics.confidence_intervals import correlation_factor
from hpcprof.analysis.steps.run_step import StepSeries
from hpcprof.common.robust import MAD_TO_DEVIATION
from hpcprof.node.telemetry import METRICS
from hpcprof.profiles.readers.telemetry import NodeTelemetry, Series, growth
from hpcprof.profiles.timeline import Floats, Ints, Mask

LEVEL = 0.005
"""The probability of a claim where nothing is connected: half of the false alarms that are allowed."""

MAX_UNITS, MIN_UNITS = 400, 16
"""Maximum number of units that steps are joined to, and minimum number for a test."""

_PERMUTATIONS = 1999
_MIN_BLOCKS, _MIN_LEVEL_BLOCKS = 8, 16
"""Minimum number of blocks that change places, for long steps and for a level."""

_MIN_DIFFERENCE, _MIN_DIFFERENCE_OF_FEW = 0.03, 0.05
"""Minimum relative difference of a row: from usual steps or several other ranks, and from few other ranks."""

_MAX_ROWS, _MAX_SERIES = 100, 4000
"""Maximum number of rows, and of series that are tested."""

_MIN_OTHERS, _MIN_DEVIATIONS = 3, 5.0
"""Minimum number of several other ranks, and minimum distance from them in their standard deviations."""

_MIN_REACH = 4
"""Minimum number of values on each side of one that it is compared with."""

_MAX_GAP_SHARE, _GAP_CENTRE, _MIN_WINDOW_S = 0.35, 0.3, 0.1
"""The windows before and after a long step: maximum length and place of the centre, as shares of the time to
the next long step, and minimum length in seconds."""

_MAX_UNIT_RATIO = 2.0
"""Maximum ratio of a unit to a long step of about the same length."""

_MIN_EXTENT_SHARE = 0.9
"""Minimum extent of samples that steps have to lie in, as a share of the longest: others are brief."""

_MIN_WAITING_SHARE = 0.05
"""Minimum share of the steps in which a rank waits for a core that other processes use."""

_MIN_POLLING_CORES = 0.9
"""Minimum CPU time, in cores, of a rank that may poll for other ranks instead of computing."""

_MIN_BLOCKED_SAMPLES = 5
"""Minimum number of samples in which a rank that waits is blocked."""

_MAX_FAULT_CPU_S = 2e-4
"""Maximum CPU time in the kernel for reading a page again, with making room for it, in seconds."""

_STATES = ("blocked_pct", "paging_pct")
"""States that a sample has of its instant only: it says nothing of the steps between two samples."""

_MIN_SAMPLED_SHARE = 0.25
"""Minimum share of the units in which the state was sampled."""

REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's reasons for lower clocks; idle GPUs and clocks that a user has set are none."""

_LOW_IS_WORSE = ("sm_mhz", "memory_mhz", "frequency_mhz")
_HIGH_IS_WORSE = (
    *("temperature_c", "ecc_errors", "pcie_replays", "nvlink_errors", "other_processes", "errors"),
    *("major_faults", "swapped_pages", "cpu_wait_s", "io_wait_s", "blocked_pct", "read_bytes"),
    *("written_bytes", "io_calls", "cpu_pressure_s", "memory_pressure_s", "io_pressure_s"),
    *("paging_pct", "memory_stall_s", "refaults"),
    *("cgroup_throttled_s", "oom_kills"),
)
_SIGNS = {**dict.fromkeys(_LOW_IS_WORSE, -1.0), **dict.fromkeys(_HIGH_IS_WORSE, 1.0)}
"""The metrics that may be a reason for longer steps, and in which direction."""


class RunSteps(NamedTuple):
    """Consecutive steps of a run, or lines about some of them, on the clocks of the nodes."""

    edges: Floats
    """In seconds since 1970; shape (n + 1,)."""
    last: Ints
    """The number of the last step before each edge; shape (n,)."""
    steps: Ints
    """Number of steps of each; shape (n,)."""
    wall: Ints
    longest: Ints
    """The usual and the longest of their times, in ns; shape (n,)."""

    @property
    def extent(self) -> tuple[int, int]:
        """The first and the last step."""
        return int(self.last[0]), int(self.last[-1])


class _TestedMetric(NamedTuple):
    """A metric of a device in each unit; ``sign`` is -1 where less of it makes steps longer."""

    rank: int | None
    node: str
    device: str
    metric: str
    unit: str
    sign: float
    values: Floats


class _Subject(msgspec.Struct, frozen=True):
    """Steps that a metric may move with: the weight of each unit, and the numbers of the steps."""

    name: str
    weights: Floats
    kept: Ints
    extent: tuple[int, int]


def coincidences(nodes: Sequence[NodeTelemetry], steps: RunSteps | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of the analysis ``coincidences``, the least probable first."""
    if steps is None or not nodes:
        return
    covered = _sampled_steps(steps, nodes)
    steps = _join_neighbours(covered)
    if len(steps.steps) < MIN_UNITS:
        return
    tested = list(_tested_metrics(nodes, steps.edges))[:_MAX_SERIES]
    subjects, long = list(_subjects(steps)), _times_of_long_steps(covered)
    rows: list[dict[str, Any]] = []
    for subject in subjects:
        if subject.name == "spikes" and long is not None:
            rows += _beside_usual_steps(nodes, covered, long, len(subjects))
        elif subject.name == "spikes":
            units, spiked = steps, subject
            if subject.weights.mean() > MAX_SPIKES:
                # Joined units hide the usual steps; the last ones show them.
                units = RunSteps(covered.edges[-MAX_UNITS - 1 :], *(c[-MAX_UNITS:] for c in covered[1:]))
                spiked = next((each for each in _subjects(units) if each.name == "spikes"), subject)
            if not spiked.weights.all():
                rows += _worse_metrics(spiked, _in_windows(nodes, units, spiked.weights > 0), len(subjects))
        else:
            rows += _worse_metrics(subject, tested, len(subjects))
    rows += [
        *_ranks_apart(tested, steps),
        *_waiting_ranks(nodes, steps),
        *_ranks_short_of_cores(nodes, tested, steps),
    ]
    yield from sorted(rows, key=lambda row: (row["p_value"] or 0.0, row["subject"], row["device"]))[
        :_MAX_ROWS
    ]


def _sampled_steps(steps: RunSteps, nodes: Sequence[NodeTelemetry]) -> RunSteps:
    """Return the steps during which all metrics were sampled, except briefly sampled metrics."""
    sampled = [series.times for node in nodes for series in node.series.values()]
    extents = np.array([(times[0], times[-1]) for times in sampled])
    length = extents[:, 1] - extents[:, 0]
    long = extents[length >= _MIN_EXTENT_SHARE * length.max()]
    begin, end = float(long[:, 0].max()), float(long[:, 1].min())
    inside = np.flatnonzero((steps.edges[:-1] >= begin) & (steps.edges[1:] <= end))
    if not len(inside):
        return RunSteps(np.empty(0), *np.empty((4, 0), np.int64))
    within = slice(int(inside[0]), int(inside[-1]) + 1)
    edges = steps.edges[within.start : within.stop + 1]
    return RunSteps(edges, *(column[within] for column in steps[1:]))


def _join_neighbours(steps: RunSteps) -> RunSteps:
    """Join neighbours until there are few enough; one's time is then the mean of theirs."""
    count = -(-len(steps.steps) // MAX_UNITS)
    if count < 2:
        return steps
    begin = np.arange(0, len(steps.steps), count)
    last = np.append(begin[1:], len(steps.steps))
    number = np.add.reduceat(steps.steps, begin)
    return RunSteps(
        np.append(steps.edges[begin], steps.edges[-1]),
        steps.last[last - 1],
        number,
        np.add.reduceat(steps.wall * steps.steps, begin) // number,
        np.maximum.reduceat(steps.longest, begin),
    )


def _in_windows(nodes: Sequence[NodeTelemetry], steps: RunSteps, long: Mask) -> list[_TestedMetric]:
    """Return the metrics in equal windows in the middle of each unit: longer ones hold more of a burst."""
    length = np.diff(steps.edges)
    width = np.minimum(length, min(np.median(length[long]), np.median(length[~long])))
    middle = (steps.edges[:-1] + steps.edges[1:]) / 2
    edges = np.column_stack((middle - width / 2, middle + width / 2)).ravel()
    tested = list(_tested_metrics(nodes, edges))[:_MAX_SERIES]
    return [series._replace(values=series.values[::2]) for series in tested]


def _subjects(steps: RunSteps) -> Iterator[_Subject]:
    """Yield the long steps, and the level of the steps, if there are any and it changes."""
    unit = np.repeat(np.arange(len(steps.steps)), steps.steps)
    high = spikes(single_steps(steps))
    long = np.bincount(unit[high], minlength=len(steps.steps)).astype(float)
    if len(high):
        # As one spike each: a unit has several only where units are long.
        yield _Subject("spikes", np.minimum(long, 1.0), np.arange(len(long)), steps.extent)
    calm = np.flatnonzero(long == 0)
    calm_steps = StepSeries(calm, steps.wall[calm], calm)
    if len(calm) >= MIN_UNITS and drift(calm_steps) is not None:
        yield _Subject("drift", calm_steps.wall.astype(float), calm, steps.extent)


def _times_of_long_steps(steps: RunSteps) -> tuple[Floats, Floats] | None:
    """Return the starts and ends of the long steps; None if each is a unit about as long as the others.

    A line is written when a step has ended, so that a long step is mostly the last one of its line.
    """
    line = np.repeat(np.arange(len(steps.steps)), steps.steps)
    long_lines = np.unique(line[spikes(single_steps(steps))])
    length = np.diff(steps.edges)
    is_comparable = (
        np.median(length) <= _MAX_UNIT_RATIO * np.median(length[long_lines]) if len(long_lines) else True
    )
    if is_comparable and not (steps.steps[long_lines] > 1).any():
        return None
    end = steps.edges[long_lines + 1]
    return np.maximum(end - steps.longest[long_lines] / 1e9, steps.edges[long_lines]), end


def _beside_usual_steps(
    nodes: Sequence[NodeTelemetry], steps: RunSteps, long: tuple[Floats, Floats], subjects: int
) -> Iterator[dict[str, Any]]:
    """Yield the metrics that are worse in long steps than just before and just after each of them.

    The three times are equally long: the mean over a short time is more often 0, and more often far off. By
    chance, each of the three is as likely to be the worst; so any of them is drawn instead of the long step,
    the same one in blocks of long steps that resemble each other.
    """
    begin, end = long
    before, after = begin - np.append(steps.edges[0], end[:-1]), np.append(begin[1:], steps.edges[-1]) - end
    width = np.minimum.reduce((end - begin, _MAX_GAP_SHARE * before, _MAX_GAP_SHARE * after))
    is_long_enough = width >= _MIN_WINDOW_S
    if np.count_nonzero(is_long_enough) < _MIN_BLOCKS:
        return
    # Next to a long step, a sample may be of both.
    middles = (begin - _GAP_CENTRE * before, (begin + end) / 2, end + _GAP_CENTRE * after)
    width = width[is_long_enough]
    edges = [middle[is_long_enough] + side * width / 2 for middle in middles for side in (-1, 1)]
    varied, values = [], []
    for test in list(_tested_metrics(nodes, np.column_stack(edges).ravel()))[:_MAX_SERIES]:
        thirds = np.append(test.values, np.nan).reshape(-1, 6)[:, [0, 2, 4]]
        if not _is_known(thirds, test.metric) or not np.isfinite(thirds[:, 1]).any():
            continue
        if np.nanstd(thirds) > 0 and np.isfinite(thirds[:, [0, 2]]).any():
            varied.append(test)
            values.append(test.sign * thirds)
    draw, tables = np.random.default_rng(0), [_ranks_around_mean(thirds) for thirds in values]
    lengths = [_block(_ranks(thirds[:, 1]), _ranks(thirds[:, 1]), False) for thirds in tables]
    for length in sorted(set(lengths)):
        places = [place for place, count in enumerate(lengths) if count == length]
        if len(width) < _MIN_BLOCKS * length:
            continue
        drawn = draw.integers(0, 3, (_PERMUTATIONS, -(-len(width) // length))).repeat(length, axis=1)
        chosen = np.vstack((np.ones(len(width), np.int64), drawn[:, : len(width)]))
        sums = np.column_stack([tables[place][np.arange(len(width)), chosen].sum(axis=1) for place in places])
        chances = np.minimum(1.0, subjects * len(set(lengths)) * _tail_frequency(sums))
        for place, p_value in zip(places, chances.tolist(), strict=True):
            test, signed = varied[place], varied[place].sign * values[place]
            then, usual = float(np.nanmean(signed[:, 1])), float(np.nanmean(signed[:, [0, 2]]))
            if test.sign * (then - usual) > 0 and _differs(then, usual):
                yield _row(test, "spikes", steps.extent, usual, then, p_value)


def _ranks_around_mean(thirds: Floats) -> Floats:
    """Return the ranks of the values less the mean of their row; 0 for the times without a sample."""
    finite = np.isfinite(thirds)
    ranks = np.zeros_like(thirds)
    ranks[finite] = _ranks(thirds[finite])
    mean = ranks.sum(axis=1, keepdims=True) / np.maximum(1, finite.sum(axis=1, keepdims=True))
    return np.where(finite, ranks - mean, 0.0)


def _tail_frequency(sums: Floats) -> Floats:
    """Return the frequency with which the highest drawn sum of all columns reaches each sum of the first row.

    Sums are compared in standard deviations of their columns.
    """
    spread = sums.std(axis=0)
    scores = (sums - sums.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    highest = np.sort(scores[1:].max(axis=1))
    above = len(highest) - np.searchsorted(highest, scores[0] - 1e-9)
    result: Floats = (1 + above) / (1 + len(highest))
    return result


def single_steps(steps: RunSteps) -> StepSeries:
    """Return the time of each step: the usual one of its line or, for the last step of a line, the longest.

    A line is written when a step has ended, so that a long step is mostly the last one of its line.
    """
    wall = np.repeat(steps.wall, steps.steps)
    ends = np.cumsum(steps.steps)
    wall[ends - 1] = steps.longest
    number = np.arange(len(wall)) + np.repeat(steps.last + 1 - ends, steps.steps)
    return StepSeries(number, wall, np.zeros(len(wall), np.int64))


def _tested_metrics(nodes: Sequence[NodeTelemetry], edges: Floats) -> Iterator[_TestedMetric]:
    """Yield the metrics that may be a reason for longer steps, as far as they vary."""
    for node in nodes:
        for (device, metric), series in node.series.items():
            kind, unit = METRICS[metric]
            rank = node.rank_of(device)
            if kind == "bits":
                for bit, reason in REASONS.items():
                    shares = Series(series.times, 100.0 * ((series.values.astype(np.int64) & bit) != 0))
                    yield _TestedMetric(
                        rank, node.node, device, reason, "%", 1.0, mean_in(shares, kind, edges)
                    )
            elif metric in _SIGNS:
                unit = f"{unit}/s" if kind == "counter" else unit
                values = mean_of_samples(series, edges) if metric in _STATES else mean_in(series, kind, edges)
                yield _TestedMetric(rank, node.node, device, metric, unit, _SIGNS[metric], values)
        for rank in node.ranks:
            foreign_cores = _foreign_cores(node, [rank], edges)
            if foreign_cores is not None:
                yield _TestedMetric(
                    rank, node.node, f"rank{rank}", "others_on_cores", "cores", 1.0, foreign_cores
                )


def _foreign_cores(node: NodeTelemetry, ranks: Collection[int], edges: Floats) -> Floats | None:
    """Return the number of cores of some ranks that other processes use in each unit; None if unknown.

    It is unknown for cores that other ranks share: these are no strangers. Ranks are sampled more often than
    cores. The ranks' use counts when the cores were sampled: else others would seem to use the cores before
    and after a rank that pauses within a second.
    """
    cores = sorted({core for rank in ranks for core in node.ranks[rank].cores})
    shared = any(set(cores) & set(place.cores) for rank, place in node.ranks.items() if rank not in ranks)
    busy = [node.series.get((f"cpu{core}", "busy_s")) for core in cores]
    cpu = [node.series.get((f"rank{rank}", "cpu_s")) for rank in ranks]
    core_use, rank_use = ([series for series in group if series is not None] for group in (busy, cpu))
    if shared or not cores or len(core_use) < len(busy) or len(rank_use) < len(cpu):
        return None
    used = np.add.reduce([mean_in(use, "counter", edges) for use in core_use])
    times = core_use[0].times
    beside = [Series(times, np.interp(times, use.times, use.values)) for use in rank_use]
    foreign_cores: Floats = np.maximum(
        0.0, used - np.add.reduce([mean_in(use, "counter", edges) for use in beside])
    )
    return foreign_cores


def mean_in(series: Series, kind: str, edges: Floats) -> Floats:
    """Return the mean of a metric between consecutive moments, or the rate of a counter.

    A value holds since the sample before, what a counter grew by is spread evenly over its time. States do
    not hold (`mean_of_samples`).
    """
    if len(series.times) < 2:
        return np.full(len(edges) - 1, np.nan)
    if kind == "counter":
        starts, ends, amounts = growth(series)
    else:
        starts, ends = series.times[:-1], series.times[1:]
        amounts = series.values[1:] * (ends - starts)
    total, time = (
        np.interp(edges, ends, np.cumsum(part), left=0.0) if len(ends) else np.zeros(len(edges))
        for part in (amounts, ends - starts)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        rates: Floats = np.diff(total) / np.diff(time)
    return rates


def mean_of_samples(series: Series, edges: Floats) -> Floats:
    """Return the mean of the samples between consecutive moments; NaN where there is none."""
    place = np.searchsorted(edges, series.times) - 1
    inside = (place >= 0) & (place < len(edges) - 1)
    sums, counts = (
        np.bincount(place[inside], weights, len(edges) - 1)
        for weights in (series.values[inside], np.ones(np.count_nonzero(inside)))
    )
    means: Floats = np.divide(sums, counts, out=np.full(len(edges) - 1, np.nan), where=counts > 0)
    return means


def _is_known(values: Floats, metric: str) -> bool:
    """Return whether a metric is known of all units or, of a state, of enough of them."""
    finite = np.isfinite(values)
    return bool(finite.all() or (metric in _STATES and finite.mean() >= _MIN_SAMPLED_SHARE))


def _worse_metrics(
    subject: _Subject, tested: Sequence[_TestedMetric], subjects: int
) -> Iterator[dict[str, Any]]:
    """Yield the metrics that are worse in the steps of a subject, with the probability of that by chance."""
    weights = subject.weights
    varied = [
        test
        for test in tested
        if _is_known(test.values[subject.kept], test.metric) and np.nanstd(test.values[subject.kept]) > 0
    ]
    worse = weights > (weights.min() + weights.max()) / 2
    if not varied or not worse.any():
        return
    values = np.array([test.sign * test.values[subject.kept] for test in varied])
    # A unit without a sample counts as a usual one, wherever it is.
    values = np.where(np.isfinite(values), values, np.nanmedian(values, axis=1, keepdims=True))
    chances = np.minimum(1.0, subjects * chance(weights, values, subject.name == "spikes"))
    for test, p_value in zip(varied, chances.tolist(), strict=True):
        series = test.values[subject.kept]
        valid = np.isfinite(series)
        if not valid[worse].any() or not valid[~worse].any():
            continue
        then, usual = float(series[worse & valid].mean()), float(np.median(series[~worse & valid]))
        if test.sign * (then - usual) > 0 and _differs(then, usual):
            yield _row(test, subject.name, subject.extent, usual, then, p_value)


def _differs(mean: float, other: float, least: float = _MIN_DIFFERENCE) -> bool:
    return abs(mean - other) >= least * max(abs(mean), abs(other))


def _row(
    test: _TestedMetric,
    subject: str,
    steps: tuple[int, int],
    usual: float,
    then: float,
    p_value: float | None,
) -> dict[str, Any]:
    """Return a row; ``p_value`` is None where waiting is counted itself and not tested."""
    return {
        "subject": subject,
        "rank": test.rank,
        "node": test.node,
        "device": test.device,
        "first_step": steps[0],
        "last_step": steps[1],
        "metric": test.metric,
        "unit": test.unit,
        "usual": usual,
        "then": then,
        "p_value": p_value,
        "beyond_chance": int(p_value is None or p_value <= LEVEL),
    }


def chance(weights: Floats, values: Floats, local: bool) -> Floats:
    """Return the probability that each metric is by chance as high where the weights are, for all together.

    With ``local`` values count relative to those around them, so that only near ones are alike. Weights have
    the shape (n,), values (m, n), and the result (m,).
    """
    ranks = np.array([_ranks(row) for row in (_beside_neighbours(values) if local else values)])
    lengths = np.array([_block(_ranks(weights), row, local) for row in ranks])
    kinds = np.unique(lengths)
    p_values = np.ones(len(values))
    draw = np.random.default_rng(0)
    for length in kinds.tolist():
        same_length = np.flatnonzero(lengths == length)
        if len(weights) >= (_MIN_BLOCKS if local else _MIN_LEVEL_BLOCKS) * length:
            p_values[same_length] = np.minimum(
                1.0, len(kinds) * _permutation_p_values(weights, ranks[same_length], length, draw)
            )
    return p_values


def _permutation_p_values(weights: Floats, ranks: Floats, length: int, draw: np.random.Generator) -> Floats:
    """Return the probabilities by permutations of blocks of the weights, adjusted for all rows of ranks."""
    count = len(weights)
    block = np.arange(count) // length
    keys = draw.random((_PERMUTATIONS, int(block[-1]) + 1))
    shift = draw.integers(0, count, _PERMUTATIONS) if length > 1 else np.zeros(_PERMUTATIONS, np.int64)
    turned = weights[(np.arange(count) + shift[:, np.newaxis]) % count]
    order = np.argsort(keys[:, block], axis=1, kind="stable")
    sums = np.vstack((weights, np.take_along_axis(turned, order, axis=1))) @ ranks.T
    return _tail_frequency(sums)


def _beside_neighbours(values: Floats) -> Floats:
    """Return the difference of each value of some series from the median of those around it."""
    reach = max(_MIN_REACH, values.shape[1] // 16)
    padded = np.pad(values, ((0, 0), (reach, reach)), mode="reflect")
    return values - np.median(sliding_window_view(padded, 2 * reach + 1, axis=1), axis=2)


def _ranks(values: Floats) -> Floats:
    """Return the ranks of values, the mean one of equal values, with mean 0."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[inverse.reshape(-1)]
    centred: Floats = ranks - ranks.mean()
    return centred


def _block(series: Floats, other: Floats, local: bool) -> int:
    """Return the length of blocks, a power of 2, that leave two series as much like their neighbours.

    A sum of products of n of them varies like a sum of n / length independent ones, with length 1 + 2 Σ of
    the products of both correlations (Bartlett). With ``local``, the sum ends where the first product is not
    positive: long steps may be periodic.
    """
    lags = max(1, len(series) // 4)
    # Values that alternate are not alike.
    products = np.maximum(_correlations(series, lags), 0.0) * np.maximum(_correlations(other, lags), 0.0)
    if local:
        products = products[: int(np.argmin(np.append(products, 0.0) > 0))]
    correlation_sum = 1.0 + 2.0 * float(products.sum())
    return 1 if correlation_sum < 1.5 else int(2 ** math.ceil(math.log2(2 * correlation_sum)))


def _correlations(values: Floats, lags: int) -> Floats:
    """Return the correlations of a series with mean 0 with itself after 1, 2, … ``lags`` places."""
    total = float(values @ values)
    if not total:
        return np.zeros(lags)
    # Few values seem less alike to their neighbours than they are.
    return np.array([float(values[:-k] @ values[k:]) / total for k in range(1, lags + 1)]) + 1 / len(values)


def _ranks_apart(tested: Sequence[_TestedMetric], steps: RunSteps) -> Iterator[dict[str, Any]]:
    by_metric: dict[str, dict[int, _TestedMetric]] = {}
    for test in tested:
        if test.rank is not None and _is_known(test.values, test.metric):
            by_metric.setdefault(test.metric, {})[test.rank] = test
    looks = sum(len(ranks) for ranks in by_metric.values() if len(ranks) > 1)
    for ranks in by_metric.values():
        if len(ranks) < 2:
            continue
        finite = np.isfinite([test.values for test in ranks.values()]).all(axis=0)
        if np.count_nonzero(finite) < MIN_UNITS:
            continue
        values_by_rank = {rank: test.values[finite] for rank, test in ranks.items()}
        for rank, test in ranks.items():
            other_values = np.array([values for other, values in values_by_rank.items() if other != rank])
            usual, then = float(np.median(other_values.mean(axis=1))), float(values_by_rank[rank].mean())
            several = len(other_values) >= _MIN_OTHERS
            least = _MIN_DIFFERENCE if several else _MIN_DIFFERENCE_OF_FEW
            if test.sign * (then - usual) <= 0 or not _differs(then, usual, least):
                continue
            if several and not _is_apart(then, other_values.mean(axis=1)):
                continue
            p_value = min(
                1.0,
                looks * _beyond_noise(test.sign * (values_by_rank[rank] - np.median(other_values, axis=0))),
            )
            yield _row(test, "rank", steps.extent, usual, then, p_value)


def _waiting_ranks(nodes: Sequence[NodeTelemetry], steps: RunSteps) -> Iterator[dict[str, Any]]:
    """Yield the ranks that wait for memory, or for files, for a share of the steps; that is no chance.

    For memory, all processes in the control group of a rank wait at once, as the kernel counts, or the rank
    waits for pages that are no longer in memory, as far as these had been there before. Reclaiming memory
    takes CPU time in the kernel: the rank's kernel time beyond the least of all ranks.
    """
    extent = steps.edges[[0, -1]]
    for node in nodes:
        refault_rate = _rate(node.series.get(("node", "refaults")), extent)
        system = {rank: _rate(node.series.get((f"rank{rank}", "system_s")), extent) for rank in node.ranks}
        for rank in node.ranks:
            metrics = node.metrics_of(f"rank{rank}")
            blocked = _samples_between(metrics.get("blocked_pct"), extent)
            enough = np.count_nonzero(blocked.values) >= _MIN_BLOCKED_SAMPLES
            waits = float(blocked.values.sum()) / len(blocked.times) if enough else 0.0
            stalled_pct = 100 * _rate(metrics.get("memory_stall_s"), extent)
            fault_rate = _rate(metrics.get("major_faults"), extent)
            paging_samples = _samples_between(metrics.get("paging_pct"), extent)
            paged = paging_samples.values[np.isin(paging_samples.times, blocked.times[blocked.values > 0])]
            refaulted = min(1.0, refault_rate / fault_rate) if fault_rate else 0.0
            paging = waits * float(paged.mean()) / 100 * refaulted if len(paged) else 0.0
            kernel = 100 * min(system[rank] - min(system.values()), _MAX_FAULT_CPU_S * fault_rate) * refaulted
            memory = max(paging, stalled_pct)
            for subject, metric, then in (
                ("memory", "memory_stall_s", memory + kernel if paging else memory),
                ("io", "blocked_pct", waits - (paging if len(paged) else stalled_pct)),
            ):
                if then >= 100 * _MIN_DIFFERENCE:
                    test = _TestedMetric(rank, node.node, f"rank{rank}", metric, "%", 1.0, extent)
                    yield _row(test, subject, steps.extent, 0.0, min(100.0, then), None)


def _samples_between(series: Series | None, extent: Floats) -> Series:
    """Return the samples of a metric between two moments."""
    if series is None:
        return Series(np.empty(0), np.empty(0))
    inside = (series.times > extent[0]) & (series.times <= extent[1])
    return Series(series.times[inside], series.values[inside])


def _rate(series: Series | None, extent: Floats) -> float:
    """Return the rate of a counter between two moments; 0 where it is unknown."""
    return 0.0 if series is None else float(np.nan_to_num(mean_in(series, "counter", extent)).sum())


def _ranks_short_of_cores(
    nodes: Sequence[NodeTelemetry], tested: Sequence[_TestedMetric], steps: RunSteps
) -> Iterator[dict[str, Any]]:
    """Yield the ranks that wait for a core for a share of the steps, while others use their cores.

    The kernel counts both. A rank waits for others at most as long as these use its cores, and no step is
    shorter than what another rank computes in it; the CPU time of a polling rank says nothing about its
    computation. A rank also waits for a core while its own threads use it, with or without other processes.
    """
    nodes_by_name = {node.node: node for node in nodes}
    used = {
        rank: _rate(node.series.get((f"rank{rank}", "cpu_s")), steps.edges[[0, -1]])
        for node in nodes
        for rank in node.ranks
    }
    alone = {test.rank: test.values for test in tested if test.metric == "others_on_cores"}
    waits = {test.rank: float(test.values.mean()) for test in tested if test.metric == "cpu_wait_s"}
    by_itself = [
        waits[rank]
        for rank, values in alone.items()
        if values.mean() < _MIN_WAITING_SHARE and math.isfinite(waits.get(rank, math.nan))
    ]
    for test in tested:
        if test.metric != "cpu_wait_s" or test.rank is None:
            continue
        foreign_cores = alone.get(test.rank)
        if foreign_cores is None:
            foreign_cores = _foreign_cores(
                nodes_by_name[test.node], nodes_by_name[test.node].ranks, steps.edges
            )
        if foreign_cores is None or not (np.isfinite(test.values).all() and np.isfinite(foreign_cores).all()):
            continue
        lowest = min(by_itself, default=0.0) if test.rank in alone else 0.0
        waited = np.maximum(0.0, test.values - lowest)
        share = float(np.minimum(waited, foreign_cores).mean())
        work = max(
            (cpu for rank, cpu in used.items() if rank != test.rank and cpu < _MIN_POLLING_CORES), default=0.0
        )
        share = min(share, 1.0 - work)
        if share >= _MIN_WAITING_SHARE:
            yield {**_row(test, "cores", steps.extent, 0.0, 100 * share, None), "unit": "%"}


def _is_apart(value: float, other_values: Floats) -> bool:
    """Return whether a value is farther from the others than these are from each other."""
    middle = float(np.median(other_values))
    return abs(value - middle) > _MIN_DEVIATIONS * MAD_TO_DEVIATION * float(
        np.median(np.abs(other_values - middle))
    )


def _beyond_noise(differences: Floats) -> float:
    """Return the probability that the mean of differences is above 0 by chance, for a normal mean."""
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    error *= correlation_factor(differences - differences.mean())
    mean = float(differences.mean())
    return 0.5 * math.erfc(mean / error / math.sqrt(2)) if error > 0 else 0.0


def captured_steps(times: Mapping[int, tuple[float, Ints, Ints]]) -> RunSteps | None:
    """Return the steps that the profiles of all ranks have, each with the time of the slowest rank.

    ``times`` has, by rank, the start of its first step in seconds since 1970, and the numbers and times in
    ns of its steps, which follow each other. The result is None if they have fewer than two steps in common.
    """
    parts = [
        (begin + np.cumsum(wall[: _consecutive(number)]) / 1e9, number[: _consecutive(number)], wall)
        for begin, number, wall in times.values()
    ]
    common = parts[0][1] if parts else np.empty(0, np.int64)
    for _, number, _ in parts:
        common = np.intersect1d(common, number)
    if len(common) < 2:
        return None
    places = [np.searchsorted(number, common) for _, number, _ in parts]
    ends = np.max([end[place] for (end, _, _), place in zip(parts, places, strict=True)], axis=0)
    wall = np.max([wall[place] for (_, _, wall), place in zip(parts, places, strict=True)], axis=0)
    edges = np.maximum.accumulate(np.append(ends[0] - wall[0] / 1e9, ends))
    return RunSteps(edges, common, np.ones(len(common), np.int64), wall, wall)


def _consecutive(number: Ints) -> int:
    """Return the length of the first run of consecutive numbers."""
    gaps = np.flatnonzero(np.diff(number) != 1)
    return int(gaps[0]) + 1 if len(gaps) else len(number)


def noted_steps(lines: Sequence[Any]) -> RunSteps | None:
    """Return the steps that a rank noted; None with fewer than two lines (`StepLine`).

    A line is one unit, or as many as its long steps divide it into. The first line says when its last step
    ended, and not when its first one began.
    """
    if len(lines) < 2:
        return None
    units = [unit for before, line in pairwise(lines) for unit in reversed([*_units(before.time, line)])]
    edges, *numbers = zip(*units, strict=True)
    columns = (np.array(column, np.int64) for column in numbers)
    return RunSteps(np.maximum.accumulate(np.array([lines[0].time, *edges], float)), *columns)


def _units(begin: float, line: Any) -> Iterator[tuple[float, int, int, int, int]]:
    """Yield the end of each unit of a line, and the other figures of `RunSteps`, the last unit first.

    The median of two steps is the longer one: the mean of all but the long steps is more precise.
    """
    long = line.long or ((line.step, line.max_ns),)
    remaining_ns = 1e9 * (line.time - begin) - sum(wall for _, wall in long)
    few = line.steps - len(long)
    usual = int(min(max(1, remaining_ns / few), line.wall_ns)) if few else line.wall_ns
    if not line.long:
        yield line.time, line.step, line.steps, usual, line.max_ns
        return
    end, last = line.time, line.step
    for step, wall in reversed(long):
        if last > step:
            yield end, last, last - step, usual, usual
            end -= (last - step) * usual / 1e9
        yield end, step, 1, wall, wall
        end, last = end - wall / 1e9, step - 1
    if last > line.step - line.steps:
        yield end, last, last - line.step + line.steps, usual, usual
