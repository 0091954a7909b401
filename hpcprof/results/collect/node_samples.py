"""The samples of the nodes of a run with the steps of its ranks, from the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from hpcprof.common.units import mebibytes
from hpcprof.profiles.readers.results import read_results
from hpcprof.profiles.readers.telemetry import has_telemetry, read_telemetry
from hpcprof.runs.live_steps import StepLine, step_lines

if TYPE_CHECKING:  # runs without samples do without
    from hpcprof.analysis.telemetry.tables import RunTelemetry
    from hpcprof.profiles.timeline import Ints
    from hpcprof.runs.directory import Run

_MAX_RANKS = 64


def items_per_step(run: Run, lines: Mapping[int, Sequence[StepLine]], ranks: int) -> dict[str, Any]:
    """Return the tokens or samples per step of a run, where its program or workload records them.

    If ``lines`` has only some of the ``ranks``, the others are assumed to process as much.
    """
    counts = [
        (last.items - first.items) / (last.step - first.step)
        for first, last in ((line[0], line[-1]) for line in lines.values())
        if last.step > first.step
    ]
    if counts and sum(counts) > 0:
        item = next(line[-1].item for line in lines.values() if line[-1].items)
        return {"items_per_step": sum(counts) * ranks / len(counts), "item": item}
    results = read_results(run.path).ranks
    training = results[0].training if results else None
    if training is None or not results[0].latency_ns:
        return {}
    per_step = training.rate * median(results[0].latency_ns) / 1e9
    return {"items_per_step": per_step, "item": training.unit.removesuffix("s")}


def run_telemetry(
    run: Run, captured: Callable[[], Mapping[int, tuple[float, Ints, Ints]]] = dict
) -> RunTelemetry | None:
    """Return the samples of the nodes of a run; None without any.

    In runs of many ranks those of a node have the steps of its first one: they wait for each other.
    ``captured`` returns the steps in the profiles (`hpcprof.analysis.telemetry.coincidences.captured_steps`).
    """
    if not has_telemetry(run.path):
        return None
    from hpcprof.analysis.telemetry.coincidences import MIN_UNITS, captured_steps, noted_steps
    from hpcprof.analysis.telemetry.tables import Requested, RunTelemetry

    nodes = read_telemetry(run.path)
    ranks = [sorted(node.ranks) for node in nodes if node.ranks]
    every_rank = sum(map(len, ranks)) <= _MAX_RANKS
    lines = step_lines(run, [rank for members in ranks for rank in (members if every_rank else members[:1])])
    steps = {rank: lines.get(rank if every_rank else members[0], ()) for members in ranks for rank in members}
    window = captured_steps(captured())
    if window is None or len(window.steps) < MIN_UNITS:
        window = noted_steps(next(iter(lines.values()), ()))
    sampled = RunTelemetry(nodes, steps, run_steps=window, **items_per_step(run, lines, sum(map(len, ranks))))
    if run.manifest is None:
        return sampled
    job = run.manifest.job
    return replace(
        sampled,
        requested=Requested(
            job.cpus_per_rank and job.cpus_per_rank * job.ranks,
            job.gpus_per_rank and job.gpus_per_rank * job.ranks,
            mebibytes(job.mem) * 2**20 if job.mem else None,
            float(job.walltime),
        ),
    )
