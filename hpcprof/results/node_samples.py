"""The samples of the nodes of a run with the steps of its ranks, from the run's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcprof.common.units import mebibytes
from hpcprof.profiles.readers.telemetry import has_telemetry, read_telemetry
from hpcprof.submit.runs.live_steps import step_lines

if TYPE_CHECKING:  # runs without samples do without
    from hpcprof.analysis.telemetry.tables import RunTelemetry
    from hpcprof.submit.runs.directory import Run

_MOST_RANKS = 64


def run_telemetry(run: Run) -> RunTelemetry | None:
    """Return the samples of the nodes of a run; None without any.

    In runs of many ranks those of a node have the steps of its first one: they wait for each other.
    """
    if not has_telemetry(run.path):
        return None
    from hpcprof.analysis.telemetry.tables import Requested, RunTelemetry, StepMark

    nodes = read_telemetry(run.path)
    ranks = [sorted(node.ranks) for node in nodes if node.ranks]
    each = sum(map(len, ranks)) <= _MOST_RANKS
    lines = step_lines(run, [rank for of_node in ranks for rank in (of_node if each else of_node[:1])])
    marks = {rank: [StepMark(one.step, one.time) for one in own] for rank, own in lines.items()}
    steps = {rank: marks.get(rank if each else of_node[0], []) for of_node in ranks for rank in of_node}
    if run.manifest is None:
        return RunTelemetry(nodes, steps)
    job = run.manifest.job
    return RunTelemetry(
        nodes,
        steps,
        Requested(
            job.cpus_per_rank and job.cpus_per_rank * job.ranks,
            job.gpus_per_rank and job.gpus_per_rank * job.ranks,
            mebibytes(job.mem) * 2**20 if job.mem else None,
            float(job.walltime),
        ),
    )
