"""The tables about the nodes of a run, from their samples and the steps of its ranks.

A row covers whole steps in which at least one sample lies. Nothing is interpolated: a sample counts for the
steps in which it was taken, and the growth of a counter between two samples for the steps at their midpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import msgspec
import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, outcome_of_rows
from hpcprof.analysis.telemetry.coincidences import REASONS, RunSteps
from hpcprof.analysis.telemetry.coincidences import coincidences as coincidence_rows
from hpcprof.analysis.telemetry.declarations import NO_SAMPLES
from hpcprof.common.units import counted
from hpcprof.node.telemetry import METRICS
from hpcprof.profiles.readers.telemetry import NodeTelemetry, Series, growth
from hpcprof.profiles.timeline import Floats, Ints
from hpcprof.runs.live_steps import StepMark

_NO_GPU = "no GPU was sampled"
_NO_RANK = "no process of a rank was sampled"
_NO_COINCIDENCE = (
    "no rank and no long steps differ from the others in what was sampled, or too few steps are known"
)
_MAX_ROWS, _MAX_BLOCKS = 200_000, 60
"""Maximum number of rows of a table, and of blocks of steps."""

_PROFILED_CLOCK = ("GPC Clock Frequency", "MHz")
"""The clock of a GPU's SMs, as nsys names it, and its unit."""

_MIN_ROW_S = 1.0
"""Minimum seconds of a row about energy or another metric that is sampled once a second."""

_UNIT_SUFFIXES = ("_bytes", "_mhz", "_pct", "_s", "_w", "_j", "_c")
_MIN_CHECKPOINT_BYTES, _MIN_CHECKPOINT_RATIO = 10e6, 10.0
"""Minimum bytes written in a block with a checkpoint, and minimum ratio to the median of the blocks."""

_MIN_IDLE_PCT, _MIN_ADVICE_MINUTES = 50.0, 10.0
"""Minimum idle share of a resource in percent, and minimum minutes of a job, for advice."""


@dataclass(frozen=True)
class Requested:
    """The resources that a job asked for; None for what it left to the site.

    ``cores`` and ``gpus`` are for all ranks together, ``memory_bytes`` is for a node.
    """

    cores: int | None = None
    gpus: int | None = None
    memory_bytes: float | None = None
    walltime_s: float | None = None


@dataclass(frozen=True)
class RunTelemetry:
    """The samples of all nodes of a run, and the steps of its ranks on the clocks of these nodes."""

    nodes: Sequence[NodeTelemetry]
    steps: Mapping[int, Sequence[StepMark]] = field(default_factory=dict)
    """By rank, in the order of time; may be empty."""
    requested: Requested = Requested()
    run_steps: RunSteps | None = None
    """The steps that the profiles have, else those that a rank noted."""
    items_per_step: float | None = None
    """Tokens or samples, as ``item`` says, that all ranks process in a step; None if unknown."""
    item: str = ""
    profiled: Sequence[dict[str, Any]] = ()
    """Rows of ``telemetry`` from profiles (``device_metrics``); ``profiled_loss`` says what they lack."""
    profiled_loss: str = ""


class Blocks(msgspec.Struct, frozen=True):
    """Consecutive times; ``first`` and ``last`` are the steps in each, None where it is not of steps."""

    phase: list[str]
    first: list[int | None]
    last: list[int | None]
    edges: Floats  # shape (n + 1,)

    def __len__(self) -> int:
        return len(self.phase)

    def of(self, times: Floats) -> Ints:
        """Return the block in which each moment lies; -1 and n for those outside."""
        return np.searchsorted(self.edges, times, side="left") - 1

    def columns(self, block: int) -> dict[str, Any]:
        """Return the columns ``first_step``, ``last_step`` and ``phase`` of a row about a block."""
        return {"first_step": self.first[block], "last_step": self.last[block], "phase": self.phase[block]}


def telemetry_tables(run: RunTelemetry) -> dict[str, Outcome]:
    """Compute the tables about the nodes of a run, by their names; empty without samples."""
    if not any(node.series for node in run.nodes) and not run.profiled:
        return {}
    damaged = sum(node.damaged for node in run.nodes)
    reason = f"{counted(damaged, 'line')} of samples could not be read" if damaged else ""
    series = sum(len(node.series) for node in run.nodes)
    blocks_by_node = [*_blocks_by_node(run, max(1, min(_MAX_BLOCKS, _MAX_ROWS // max(1, series))))]
    by_table = {
        "job_resources": list(_resources(run)),
        "energy": list(_energy(run)),
        "clocks": [row for node, blocks in blocks_by_node for row in _clocks(node, blocks)]
        + [*_profiled_clocks(run)],
        "neighbours": [row for node in run.nodes for row in _neighbours(node)],
        "io": [row for node, blocks in blocks_by_node for row in _io(node, blocks)],
        "coincidences": list(coincidence_rows(run.nodes, run.run_steps)),
        "telemetry": [row for node, blocks in blocks_by_node for row in _samples(node, blocks)]
        + [*run.profiled],
    }
    reasons_by_table = {"energy": _NO_GPU, "clocks": _NO_GPU, "coincidences": _NO_COINCIDENCE}
    if run.nodes and not any(node.ranks for node in run.nodes):
        reasons = {text for node in run.nodes for kind, text in node.missing.items() if "ranks" in kind}
        reasons_by_table |= dict.fromkeys(("neighbours", "io"), ": ".join([_NO_RANK, *sorted(reasons)]))
    tables = {
        name: outcome_of_rows(rows, reasons_by_table.get(name, NO_SAMPLES), reason)
        for name, rows in by_table.items()
    }
    if run.profiled_loss:
        both = "; ".join(filter(None, (reason, run.profiled_loss)))
        tables["telemetry"] = replace(tables["telemetry"], reason=both)
    return tables


def _blocks_by_node(run: RunTelemetry, most: int) -> Iterator[tuple[NodeTelemetry, dict[int | None, Blocks]]]:
    """Yield each node with the blocks of its ranks; the key None has the metrics that belong to no rank."""
    for node in run.nodes:
        blocks: dict[int | None, Blocks] = {}
        for rank in sorted(node.ranks):
            blocks[rank] = blocks_of(run.steps.get(rank, ()), *node.extent, most)
        first = next(iter(blocks.values()), None)
        blocks[None] = first or blocks_of((), *node.extent, most)
        yield node, blocks


def blocks_of(marks: Sequence[StepMark], begin: float, end: float, most: int) -> Blocks:
    """Join the steps of a rank into at most ``most`` blocks of about equal length, a second at least."""
    if len(marks) < 2:
        return Blocks(["run"], [None], [None], np.array([np.nextafter(begin, 0), max(begin, end)]))
    # The first line says when its last step ended, and not when its first one began.
    length = max(_MIN_ROW_S, (marks[-1].time - marks[0].time) / most)
    ends = [marks[0]]
    for mark in marks[1:]:
        if mark.time - ends[-1].time >= length and mark.step > ends[-1].step:
            ends.append(mark)
    if len(ends) < 2:
        ends = [marks[0], marks[-1]]
    phase = ["before", *["step"] * (len(ends) - 1), "after"]
    first = [None, *(mark.step + 1 for mark in ends[:-1]), None]
    last = [None, *(mark.step for mark in ends[1:]), None]
    edges = [min(begin, ends[0].time) - 1e-3, *(mark.time for mark in ends), max(end, ends[-1].time)]
    return Blocks(phase, first, last, np.array(edges))


def _samples(node: NodeTelemetry, blocks: Mapping[int | None, Blocks]) -> Iterator[dict[str, Any]]:
    for (device, metric), series in node.series.items():
        kind, unit = METRICS[metric]
        if kind == "bits" or len(series.times) < 2:
            continue
        rank = node.rank_of(device)
        rank_blocks = blocks.get(rank) or blocks[None]
        if kind == "counter":
            starts, ends, amounts = growth(series)
            times, values, unit = (starts + ends) / 2, amounts / (ends - starts), f"{unit}/s"
        else:
            times, values = series.times, series.values
        for block, samples in _samples_by_block(rank_blocks, times, values):
            yield {
                "rank": rank,
                "node": node.node,
                "device": device,
                **rank_blocks.columns(block),
                "metric": _without_unit(metric),
                "unit": unit,
                "samples": len(samples),
                "mean": float(samples.mean()),
                "min": float(samples.min()),
                "max": float(samples.max()),
            }


def _samples_by_block(blocks: Blocks, times: Floats, values: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield each block with samples, and the values of these."""
    at = blocks.of(times)
    for block in range(len(blocks)):
        samples = values[at == block]
        if len(samples):
            yield block, samples


def _without_unit(metric: str) -> str:
    return next((metric[: -len(unit)] for unit in _UNIT_SUFFIXES if metric.endswith(unit)), metric)


def _gpus(node: NodeTelemetry) -> Iterator[tuple[int, dict[str, Series]]]:
    """Yield each GPU that was sampled, with its samples by metric."""
    for gpu in range(len(node.gpus)):
        metrics = node.metrics_of(f"gpu{gpu}")
        if metrics:
            yield gpu, metrics


def _energy(run: RunTelemetry) -> Iterator[dict[str, Any]]:
    """Yield the energy of each GPU from the first to the last step of its rank, then of all GPUs."""
    total, longest, numbers = 0.0, 0.0, [0]
    for node in run.nodes:
        for gpu, metrics in _gpus(node):
            rank = node.rank_of_gpu(gpu)
            marks = run.steps.get(rank, ()) if rank is not None else ()
            begin, end = (marks[0].time, marks[-1].time) if len(marks) > 1 else node.extent
            joule = _energy_between(metrics, begin, end)
            if joule is None:
                continue
            steps = marks[-1].step - marks[0].step if len(marks) > 1 else 0
            total, longest = total + joule, max(longest, end - begin)
            numbers.append(steps)
            yield _energy_row(rank, node.node, gpu, steps, end - begin, joule)
    if longest:
        steps = max(numbers)
        whole = _energy_row(None, "", None, steps, longest, total)
        if steps and run.items_per_step:
            whole |= {"item": run.item, "joule_per_item": float(total / steps / run.items_per_step)}
        yield whole


def _energy_row(
    rank: int | None, node: str, gpu: int | None, steps: int, seconds: float, joule: float
) -> dict[str, Any]:
    return {
        "rank": rank,
        "node": node,
        "gpu": gpu,
        "steps": steps or None,
        "duration_s": round(seconds, 3),
        "energy_j": round(joule, 3),
        "mean_power_w": round(joule / seconds, 3),
        "joule_per_step": round(joule / steps, 4) if steps else None,
        "item": "",
        "joule_per_item": None,
    }


def _energy_between(metrics: Mapping[str, Series], begin: float, end: float) -> float | None:
    """Return the energy of a GPU during a time; None where its samples cover less than a second of it.

    Its counter is sampled seldom and its power often: the counter gives the sum, the power where it belongs.
    """
    counted, power = metrics.get("energy_j"), metrics.get("power_w")
    grown = None if counted is None else growth(counted)
    energy = grown
    if power is not None:
        energy = power.times[:-1], power.times[1:], power.values[1:] * np.diff(power.times)
        if grown is not None and len(grown[0]):
            inside, _ = _amount_during(energy, grown[0][0], grown[1][-1])
            energy = (*energy[:2], energy[2] * (float(grown[2].sum()) / inside if inside else 1.0))
    if energy is None:
        return None
    joule, seconds = _amount_during(energy, begin, end)
    return joule * (end - begin) / seconds if seconds >= _MIN_ROW_S else None


def _amount_during(amounts: tuple[Floats, Floats, Floats], begin: float, end: float) -> tuple[float, float]:
    """Return the part of evenly spread amounts in a window of time, and the part of it that they cover."""
    starts, ends, values = amounts
    shared = np.maximum(0.0, np.minimum(ends, end) - np.maximum(starts, begin))
    return float((values * shared / (ends - starts)).sum()), float(shared.sum())


def _clocks(node: NodeTelemetry, blocks: Mapping[int | None, Blocks]) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``clocks`` of a node: of each reason in a block, or one without a reason."""
    for gpu, metrics in _gpus(node):
        if "sm_mhz" not in metrics:
            continue
        rank = node.rank_of_gpu(gpu)
        rank_blocks, clock = blocks.get(rank) or blocks[None], metrics["sm_mhz"]
        reasons = metrics.get("throttle_reasons", Series(np.empty(0), np.empty(0)))
        masks = dict(_samples_by_block(rank_blocks, reasons.times, reasons.values))
        for block, samples in _samples_by_block(rank_blocks, clock.times, clock.values):
            mask = masks.get(block, np.empty(0)).astype(np.int64)
            lowered = {
                reason: 100.0 * float(np.mean((mask & bit) != 0))
                for bit, reason in REASONS.items()
                if (mask & bit).any()
            }
            for reason, share in (lowered or {"": 0.0}).items():
                yield {
                    "rank": rank,
                    "node": node.node,
                    "gpu": gpu,
                    **rank_blocks.columns(block),
                    "samples": len(samples),
                    "sm_mhz_mean": float(samples.mean()),
                    "sm_mhz_min": float(samples.min()),
                    "sm_mhz_max": float(samples.max()),
                    "reason": reason,
                    "throttled_pct": share if len(mask) else None,
                }


def _profiled_clocks(run: RunTelemetry) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``clocks`` of GPUs whose clock only the profile of their rank has."""
    sampled = {
        (node.node, f"gpu{gpu}") for node in run.nodes for gpu, metrics in _gpus(node) if "sm_mhz" in metrics
    }
    for row in run.profiled:
        is_clock = (row["metric"], row["unit"]) == _PROFILED_CLOCK
        number = row["device"].removeprefix("gpu")
        if is_clock and number.isdigit() and (row["node"], row["device"]) not in sampled:
            yield {
                **{key: row[key] for key in ("rank", "node", "first_step", "last_step", "phase", "samples")},
                "gpu": int(number),
                **{f"sm_mhz_{key}": row[key] for key in ("mean", "min", "max")},
                "reason": "",
                "throttled_pct": None,
            }


def _neighbours(node: NodeTelemetry) -> Iterator[dict[str, Any]]:
    """Yield the use of the run's cores by its ranks and by others, and the other processes on its GPUs.

    The cores that any rank may use count together: a process may move between them.
    """
    cores = sorted({core for place in node.ranks.values() for core in place.cores})
    busy = [node.series[f"cpu{core}", "busy_s"] for core in cores if (f"cpu{core}", "busy_s") in node.series]
    names = [(f"rank{rank}", "cpu_s") for rank in node.ranks]
    cpu_times = [node.series[name] for name in names if name in node.series]
    if busy and len(busy) == len(cores) and cpu_times:
        # Where all of these were sampled at once.
        times = busy[0].times
        for series in (*busy, *cpu_times):
            times = np.intersect1d(times, series.times)
        if len(times) > 1:
            seconds = np.diff(times)
            used = _counter_growth(cpu_times, times) / seconds
            foreign_use = np.maximum(0.0, _counter_growth(busy, times) / seconds - used)
            yield _neighbour_row(
                node, f"{counted(len(cores), 'core')} of the ranks", used, foreign_use, seconds
            )
    for gpu, metrics in _gpus(node):
        if "other_processes" in metrics:
            foreign_use = metrics["other_processes"].values
            yield _neighbour_row(node, f"gpu{gpu}", None, foreign_use, np.ones(len(foreign_use)))


def _counter_growth(series: Sequence[Series], times: Floats) -> Floats:
    """Return the growth of a sum of counters between moments at which all of them were sampled."""
    return sum(
        (np.maximum(0.0, np.diff(item.values[np.searchsorted(item.times, times)])) for item in series),
        np.zeros(len(times) - 1),
    )


def _neighbour_row(
    node: NodeTelemetry, device: str, rank_use: Floats | None, foreign_use: Floats, weights: Floats
) -> dict[str, Any]:
    return {
        "node": node.node,
        "device": device,
        "samples": len(foreign_use),
        "own_mean": None if rank_use is None else round(float(np.average(rank_use, weights=weights)), 3),
        "others_mean": round(float(np.average(foreign_use, weights=weights)), 3),
        "others_max": round(float(foreign_use.max()), 3),
    }


def _io(node: NodeTelemetry, blocks: Mapping[int | None, Blocks]) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``io`` of a node; far more written bytes than usual are a checkpoint."""
    for rank in sorted(node.ranks):
        step_blocks, metrics = blocks[rank], node.metrics_of(f"rank{rank}")
        sums: dict[str, list[float]] = {}
        for metric in ("read_bytes", "written_bytes", "io_calls", "io_wait_s"):
            if metric in metrics:
                starts, ends, amounts = growth(metrics[metric])
                at = step_blocks.of((starts + ends) / 2)
                sums[metric] = [float(amounts[at == block].sum()) for block in range(len(step_blocks))]
        if not sums:
            continue
        written = np.array(sums.get("written_bytes", [0.0] * len(step_blocks)))
        in_steps = np.array([phase == "step" for phase in step_blocks.phase])
        usual = float(np.median(written[in_steps])) if in_steps.any() else 0.0
        large = in_steps & (written >= _MIN_CHECKPOINT_BYTES) & (written > _MIN_CHECKPOINT_RATIO * usual)
        for block in range(len(step_blocks)):
            values = {metric: totals[block] for metric, totals in sums.items()}
            yield {
                "rank": rank,
                "node": node.node,
                **step_blocks.columns(block),
                "duration_s": round(float(step_blocks.edges[block + 1] - step_blocks.edges[block]), 3),
                "read_bytes": _integer_or_none(values.get("read_bytes")),
                "written_bytes": _integer_or_none(values.get("written_bytes")),
                "calls": _integer_or_none(values.get("io_calls")),
                "wait_s": values.get("io_wait_s"),
                "checkpoint": int(large[block]),
            }


def _integer_or_none(value: float | None) -> int | None:
    return None if value is None else int(value)


def _resources(run: RunTelemetry) -> Iterator[dict[str, Any]]:
    """Yield cores, memory, GPUs and walltime of the job; means are over the time of the samples.

    Advice is given on what the job asked for itself.
    """
    job = run.requested
    cpu = [_mean_and_peak_cores(node, rank) for node in run.nodes for rank in node.ranks]
    cpu_use = [use for use in cpu if use is not None]
    allowed = sum(len({core for place in node.ranks.values() for core in place.cores}) for node in run.nodes)
    if cpu_use:
        mean, most = (sum(use[at] for use in cpu_use) for at in (0, 1))
        yield _resource("cores", job.cores, allowed, mean, most, mean, "fewer cores")
    busy = [
        metrics["busy_pct"].values / 100
        for node in run.nodes
        for _, metrics in _gpus(node)
        if "busy_pct" in metrics
    ]
    if busy:
        mean, most = (sum(float(statistic(values)) for values in busy) for statistic in (np.mean, np.max))
        yield _resource("GPUs", job.gpus, len(busy), mean, most, mean, "fewer GPUs")
    memory = [
        (node.limits.get("memory_bytes", 0.0) / 2**30, series.values / 2**30)
        for node in run.nodes
        if (series := _memory_of(node)) is not None
    ]
    if memory:
        # The fullest node decides.
        limit, used = max(memory, key=lambda item: float(item[1].max()))
        size = job.memory_bytes and job.memory_bytes / 2**30
        mean, most = float(used.mean()), float(used.max())
        yield _resource("memory (GiB)", size, limit, mean, most, most, "less memory")
    extent = [node.extent for node in run.nodes if node.series]
    if job.walltime_s and extent:
        minutes = (max(end for _, end in extent) - min(begin for begin, _ in extent)) / 60
        advice = "a shorter walltime" if minutes >= _MIN_ADVICE_MINUTES else ""
        yield _resource("walltime (min)", job.walltime_s / 60, 0, minutes, minutes, minutes, advice)


def _memory_of(node: NodeTelemetry) -> Series | None:
    memory = [node.series.get((f"rank{rank}", "resident_bytes")) for rank in node.ranks]
    recorded = [series for series in memory if series is not None]
    times = reduce(np.intersect1d, [series.times for series in recorded] or [np.empty(0)])
    if len(times) < 2:
        return None
    values = np.add.reduce([series.values[np.searchsorted(series.times, times)] for series in recorded])
    return Series(times, values)


def _mean_and_peak_cores(node: NodeTelemetry, rank: int) -> tuple[float, float] | None:
    """Return the mean and the most cores that a rank uses, the most over a second; None if unknown."""
    series = node.series.get((f"rank{rank}", "cpu_s"))
    if series is None or series.times[-1] - series.times[0] < _MIN_ROW_S:
        return None
    _, ends, amounts = growth(series)
    if not len(ends):
        return None
    mean = float(amounts.sum() / (series.times[-1] - series.times[0]))
    seconds = np.floor(ends - series.times[0])
    sums = np.bincount(seconds.astype(np.int64), amounts)
    # The last second is not a whole one.
    return mean, float(max(mean, sums[:-1].max(initial=0.0)))


def _resource(
    name: str, request: float | None, default: float, mean: float, most: float, used: float, advice: str
) -> dict[str, Any]:
    """Return a row about a resource; without a ``request`` (None or 0), the job got the site's default."""
    requested = request or default or None
    idle = None if requested is None else max(0.0, 100.0 * (1 - used / requested))
    return {
        "resource": name,
        "requested": None if requested is None else round(requested, 3),
        "used_mean": round(mean, 3),
        "used_max": round(most, 3),
        "idle_pct": None if idle is None else round(idle, 1),
        "advice": advice if request and idle is not None and idle >= _MIN_IDLE_PCT else "",
    }
