"""The studies that measure a site: its network, and the costs of Nsight Systems for single calls of CUDA.

The site keeps what they measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.study.runs import Progress, StudyRuns, for_workload, read_table
from hpcprof.workloads.calls.options import OUTPUT as CALLS_TABLE
from hpcprof.workloads.network.options import OUTPUT as NETWORK_TABLE

if TYPE_CHECKING:  # the command's help needs none of these
    from hpcprof.analysis.predict.network import Sample
    from hpcprof.results.ask.site_measurements import SiteCallCosts, SiteNetwork
    from hpcprof.runs.directory import Run
    from hpcprof.submit.jobs.job import JobSpec

_NETWORK, _CALLS = "network", "calls"
"""The workloads of the studies."""

_PROFILERS = ("none", "nsys", "nsys", "none")
"""Those of the runs that time calls."""


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

    site, job = resolve(replace(for_workload(request, _NETWORK), profiler="none"))
    runs = StudyRuns(1, request.runs_dir, request.template, db, progress, command_line)
    with runs.cancelled_on_interrupt():
        run = runs.make(1, site, job, label=_NETWORK)
    network = fit_network(site.name, run.id, job.ranks_per_node, read_samples(run.path / NETWORK_TABLE))
    return NetworkStudy(run, network, keep_measurement(site.name, NETWORK, network))


def read_samples(path: Path) -> list[Sample]:
    """Return the times in a table of the workload ``network``.

    Raises HpcprofError if it is missing or damaged.
    """
    from hpcprof.analysis.predict.network import Sample

    def sample(row: Mapping[str, str]) -> Sample:
        return Sample(row["op"], float(row["bytes"]), int(row["ranks"]), 1e3 * float(row["time_us"]))

    return read_table(path, sample)


@dataclass(frozen=True)
class CallCostStudy:
    """A complete study of calls: its runs, the costs, and the file that keeps them."""

    runs: tuple[Run, ...]
    costs: SiteCallCosts
    path: Path


def run_call_costs(
    request: JobSpec,
    *,
    db: str | None = None,
    progress: Progress | None = None,
    command_line: Sequence[str] | None = None,
) -> CallCostStudy:
    """Time single calls alone, twice recorded and alone again, as ``hpcprof study call-costs`` does.

    Parameters
    ----------
    request : JobSpec
        The job: its site, on one rank. Its program holds options of the workload ``calls``.
    db, progress, command_line
        As for `run_slowdown`.

    Raises
    ------
    UsageError
        If the request is wrong; then nothing is submitted.
    HpcprofError
        If a run fails, or its table cannot be read.
    """
    from hpcprof.results.ask.site_measurements import CALLS, CallTimes, SiteCallCosts, keep_measurement
    from hpcprof.submit.jobs.request import resolve

    request = for_workload(request, _CALLS)
    nsys_options = {**request.profiler_options, "capture": "whole"}
    jobs = [
        resolve(
            replace(request, profiler=profiler, profiler_options=nsys_options if profiler == "nsys" else {})
        )
        for profiler in _PROFILERS
    ]
    study = StudyRuns(len(jobs), request.runs_dir, request.template, db, progress, command_line)
    with study.cancelled_on_interrupt():
        runs = tuple(study.make(number, site, job) for number, (site, job) in enumerate(jobs, 1))
    tables = [read_calls(run.path / CALLS_TABLE) for run in runs]
    alone, traced, traced_again, alone_again = (
        {kind: ns for kind, (_, ns) in table.items()} for table in tables
    )
    kinds = {
        kind: CallTimes(call, (alone[kind], alone_again[kind]), (traced[kind], traced_again[kind]))
        for kind, (call, _) in tables[0].items()
    }
    version = study.store.profiles(runs[1].id)[0].profiler_version or ""
    costs = SiteCallCosts(jobs[0][0].name, tuple(run.id for run in runs), version, kinds)
    return CallCostStudy(runs, costs, keep_measurement(costs.site, CALLS, costs))


def read_calls(path: Path) -> dict[str, tuple[str, int]]:
    """Return the call of each kind with its time in ns, from a table of the workload ``calls``.

    Raises HpcprofError if it is missing or damaged.
    """
    return dict(read_table(path, lambda row: (row["kind"], (row["call"], int(row["ns"])))))
