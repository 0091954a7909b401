"""Jobs of a Dask cluster that are submitted again; real jobs are tested on a real Slurm."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import HpcprofError, SchedulerError
from hpcprof.results.collect.executors.dask_jobs import _dask_jobqueue, _Jobs
from hpcprof.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.slurm import SlurmScheduler
from hpcprof.submit.worker_jobs import WorkerJobs, WorkerPlacement, make_worker_jobs

pytest.importorskip("distributed", reason="there is no Dask")

SUBMISSION = "Command exited with non-zero exit code.\nstdout:\n\nstderr:\nsbatch: error: no such partition\n"


@dataclass
class Job:
    """A job of dask-jobqueue."""

    job_id: str | None
    closed: list[str | None]
    status: object = None

    async def close(self) -> None:
        self.closed.append(self.job_id)


@dataclass
class Cluster:
    """The part of a cluster that hpcprof uses; it refuses jobs while ``refuses`` is set."""

    new_spec: str = "spec"
    worker_spec: dict[str, str] = field(default_factory=dict)
    workers: dict[str, Job] = field(default_factory=dict)
    refuses: bool = False
    submitted: int = 0
    closed: list[str | None] = field(default_factory=list)

    def sync(self, function: Callable[..., Any], *arguments: Any, callback_timeout: float) -> Any:
        return asyncio.run(function(*arguments))

    def __await__(self) -> Generator[Any, None, None]:
        return self._correct().__await__()

    async def _correct(self) -> None:
        for name in self.worker_spec.keys() - self.workers.keys():
            self.submitted += 1
            self.workers[name] = Job(None if self.refuses else str(self.submitted), self.closed)
        if self.refuses:
            raise RuntimeError(SUBMISSION)


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, JobState]:
    """The states that the scheduler tells of jobs by id; with ``silent`` among the ids it tells none."""
    known: dict[str, JobState] = {}

    def states(self: SlurmScheduler, job_ids: Sequence[str], since: object) -> Mapping[str, Record]:
        if "silent" in known:
            raise SchedulerError("squeue did not answer.")
        return {job_id: Record(known[job_id]) for job_id in job_ids if job_id in known}

    monkeypatch.setattr(SlurmScheduler, "states", states)
    monkeypatch.setattr("hpcprof.results.collect.executors.dask_jobs._ASK_SECONDS", 0)
    return known


def started(**options: Any) -> tuple[_Jobs, Cluster]:
    """Return the jobs of two nodes, submitted to a cluster."""
    cluster = Cluster(**options)
    wanted = WorkerJobs("slurm", "SLURMCluster", {"job_name": "w", "log_directory": "/logs"}, 2, 4)
    jobs = _Jobs(wanted, cluster)
    jobs.submit()
    return jobs, cluster


def test_a_job_that_has_ended_is_submitted_again_under_another_name(states: dict[str, JobState]) -> None:
    jobs, cluster = started()
    first, second = sorted(cluster.workers, key=lambda name: cluster.workers[name].job_id or "")
    states |= {"1": JobState.CANCELLED, "2": JobState.RUNNING}
    assert jobs(), "the new one waits in the queue"
    assert first not in cluster.workers
    assert second in cluster.workers
    assert {job.job_id for job in cluster.workers.values()} == {"2", "3"}
    assert cluster.closed == ["1"]
    states["3"] = JobState.QUEUED
    assert jobs()
    states["3"] = JobState.RUNNING
    assert not jobs()
    assert cluster.submitted == 3


def test_a_job_that_the_scheduler_has_forgotten_or_dask_has_dropped_is_submitted_again(
    states: dict[str, JobState],
) -> None:
    jobs, cluster = started()
    states["2"] = JobState.RUNNING
    cluster.workers.pop(next(name for name, job in cluster.workers.items() if job.job_id == "2"))
    jobs()
    assert {job.job_id for job in cluster.workers.values()} == {"3", "4"}


def test_while_the_scheduler_is_silent_no_job_is_given_up(states: dict[str, JobState]) -> None:
    jobs, cluster = started()
    states |= {"1": JobState.QUEUED, "2": JobState.QUEUED}
    assert jobs()
    states["silent"] = JobState.UNKNOWN
    assert jobs(), "what it said last still holds"
    assert cluster.submitted == 2


def test_jobs_that_keep_ending_end_the_collect_and_their_logs_are_named(states: dict[str, JobState]) -> None:
    jobs, cluster = started()
    with pytest.raises(HpcprofError, match=r"the jobs of the Dask workers keep ending: see /logs\."):
        for _ in range(10):
            jobs()
    assert cluster.submitted == 2 + 6


def test_a_job_that_cannot_be_submitted_is_tried_again_and_then_the_reason_is_told(
    states: dict[str, JobState],
) -> None:
    jobs, cluster = started(refuses=True)
    assert jobs.refusal == "sbatch: error: no such partition"
    with pytest.raises(HpcprofError, match="keep ending: sbatch: error: no such partition"):
        for _ in range(10):
            jobs()
    jobs, cluster = started(refuses=True)
    cluster.refuses = False
    jobs()
    assert jobs.refusal == ""
    assert len(cluster.workers) == 2


PBS_SCRIPT = """\
#!/usr/bin/env bash

#PBS -N dask-worker
#PBS -e /logs/
#PBS -o /logs/
#PBS -A climate
#PBS -q prod
#PBS -l select=1:system=big:ncpus=8
#PBS -l walltime=00:30:00
#PBS -k doe
module load python/3.11
export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False
"""


def test_a_job_of_pbs_has_the_site_s_directives_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site_configs").mkdir()
    (tmp_path / "site_configs/theirs.yaml").write_text(
        "scheduler: pbs\nqueue: prod\nselect: system=big\ndirectives: ['-k doe']\nmodules: [python/3.11]\n"
    )
    (tmp_path / "hpcprof.yaml").write_text("account: climate\n")
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "logs"
    place = WorkerPlacement("theirs", workers=8, walltime="30m")
    wanted = make_worker_jobs([Run("r", tmp_path / "r")], place, logs)
    # What dask-jobqueue writes for each job, without a cluster.
    job = getattr(_dask_jobqueue(), wanted.cluster).job_cls("tls://login:4000", name="w-0", **wanted.options)
    script, _, command = job.job_script().replace(str(logs), "/logs").partition(f"{sys.executable} ")
    assert script == PBS_SCRIPT
    assert command.startswith("-m distributed.cli.dask_worker tls://login:4000 --name w-0 --nthreads 1 ")
    assert "--nworkers 8 " in command


def test_dask_jobqueue_leaves_ctrl_c_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("dask_jobqueue")]:
        monkeypatch.delitem(sys.modules, name)
    before = signal.getsignal(signal.SIGINT)
    assert _dask_jobqueue().SLURMCluster
    assert signal.getsignal(signal.SIGINT) is before
