"""The study of a network: one job times communication, and a model of it is kept with the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.study.runs import Progress, StudyRuns, for_workload, read_table
from hpcprof.workloads.network.options import OUTPUT

if TYPE_CHECKING:  # the command's help needs none of these
    from hpcprof.analysis.predict.network import Sample
    from hpcprof.results.ask.site_measurements import SiteNetwork
    from hpcprof.runs.directory import Run
    from hpcprof.submit.jobs.job import JobSpec

_WORKLOAD = "network"


@dataclass(frozen=True)
class NetworkStudy:
    """A complete study of a network: its run, the model, and the file that keeps it."""

    run: Run
    network: SiteNetwork
    path: Path


def run_network(
    request: JobSpec,
    *,
    db: str | None = None,
    progress: Progress | None = None,
    command_line: Sequence[str] | None = None,
) -> NetworkStudy:
    """Measure the network of a site, as ``hpcprof study network`` does.

    Parameters
    ----------
    request : JobSpec
        The job: its site, nodes and ranks. Its program holds options of the workload ``network``.
    db, progress, command_line
        As for `run_slowdown`.

    Raises
    ------
    UsageError
        If the request is wrong; then nothing is submitted.
    HpcprofError
        If the run fails, or its table cannot be read.
    """
    from hpcprof.results.ask.site_measurements import NETWORK, fit_network, keep_measurement
    from hpcprof.submit.jobs.request import resolve

    site, job = resolve(replace(for_workload(request, _WORKLOAD), profiler="none"))
    runs = StudyRuns(1, request.runs_dir, request.template, db, progress, command_line)
    with runs.cancelled_on_interrupt():
        run = runs.make(1, site, job, label=_WORKLOAD)
    network = fit_network(site.name, run.id, job.ranks_per_node, read_samples(run.path / OUTPUT))
    return NetworkStudy(run, network, keep_measurement(site.name, NETWORK, network))


def read_samples(path: Path) -> list[Sample]:
    """Return the times in a table of the workload ``network``.

    Raises HpcprofError if it is missing or damaged.
    """
    from hpcprof.analysis.predict.network import Sample

    def sample(row: Mapping[str, str]) -> Sample:
        return Sample(row["op"], float(row["bytes"]), int(row["ranks"]), 1e3 * float(row["time_us"]))

    return read_table(path, sample)
