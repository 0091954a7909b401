"""The indices of job arrays, and ids that a scheduler gives again."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.schedulers.base import JobState, Record
from hpcprof.submit.schedulers.batch import BatchClient
from hpcprof.submit.schedulers.command import parse_array_indices
from hpcprof.submit.schedulers.slurm import SlurmScheduler
from tests.submitted_run import MakeRun


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3", [0, 1, 2, 3]),
        ("7", [7]),
        ("2-3%2", [2, 3]),
        ("0,2-3,10-14:2%1", [0, 2, 3, 10, 12, 14]),
        ("-", []),  # PBS, where none is left
        ("", []),
        ("1,3,...", [1, 3]),  # Slurm, cut
    ],
)
def test_ranges_steps_and_lists_are_read(text: str, expected: list[int]) -> None:
    assert parse_array_indices(text) == expected


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 7)), max_size=8))
def test_what_ranges_say_is_what_is_read(spans: list[tuple[int, int, int]]) -> None:
    text = ",".join(f"{first}-{first + length}:{step}" for first, length, step in spans)
    assert parse_array_indices(text) == [
        i for first, length, step in spans for i in range(first, first + length + 1, step)
    ]


class Listing(SlurmScheduler):
    """Slurm with a record of each job; ``cancelled`` has the jobs that were cancelled."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.cancelled: list[str] = []

    def states(self, job_ids: Sequence[str], since: datetime) -> dict[str, Record]:
        """Return the record of each job."""
        return dict.fromkeys(job_ids, self.record)

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Note the jobs."""
        self.cancelled += job_ids


def test_a_job_that_was_submitted_by_hand_is_the_runs_since_it_has_noted_its_id(make_run: MakeRun) -> None:
    run = make_run(started="now")
    created = datetime.fromisoformat(run.submission.created).timestamp()
    noted = run.path / "state" / "job_id"
    for hours, state in ((5.01, JobState.RUNNING), (0.0, JobState.ENDED)):
        noted.write_text("17\n")
        os.utime(noted, (created + hours * 3600,) * 2)
        submitted = time.time() - created - 5 * 3600
        client = BatchClient(Listing(Record(JobState.RUNNING, script="name", submitted_seconds=submitted)))
        assert client.poll([run])[run.id].state is state


@pytest.mark.parametrize(
    ("script", "hours", "is_own"),
    [
        ("/link/runs/RUN/job.sh", 5.0, True),  # queued again
        ("/tmp/copy-of-a-wrapper.sh", 0.01, True),
        ("", 5.0, True),  # a scheduler that does not show it
        ("(null)", 5.0, False),
        ("/runs/other/job.sh", 5.0, False),
        ("OTHER/job.sh", 0.01, False),  # a run that lies there, after a reset of the scheduler
        ("sbatch --parsable OTHER/job.sh", 0.01, False),
        ("OTHER/logs/job.out", 0.01, False),
        ("/moved/old-name/job.sh", 0.01, True),
        ("", -5.0, False),
    ],
)
def test_another_job_with_the_id_of_a_run_is_not_taken_for_it_and_never_cancelled(
    make_run: MakeRun, tmp_path: Path, script: str, hours: float, is_own: bool
) -> None:
    run = make_run(started="now")
    created = datetime.fromisoformat(run.submission.created).timestamp()
    ago = time.time() - created - hours * 3600
    other = tmp_path / "an other"
    other.mkdir()
    (other / "job.sh").touch()
    script = script.replace("RUN", run.id).replace("OTHER", str(other))
    scheduler = Listing(Record(JobState.RUNNING, script=script, submitted_seconds=ago))
    client = BatchClient(scheduler)
    status = client.poll([run])[run.id]
    assert (status.state is JobState.RUNNING) == is_own
    assert is_own or (status.provisional and "another job" in status.reason)
    client.cancel(run)
    assert bool(scheduler.cancelled) == is_own


@pytest.mark.parametrize("seconds", [60.0, None])
def test_a_job_whose_node_is_out_of_reach_is_cancelled_and_one_that_is_not_listed_is_not(
    make_run: MakeRun, seconds: float | None
) -> None:
    run = make_run(scheduler="slurm")
    scheduler = Listing(Record(JobState.UNKNOWN, "its node is out of reach", submitted_seconds=seconds))
    if seconds is None:
        with pytest.raises(SchedulerError, match="was not cancelled: its node is out of reach"):
            BatchClient(scheduler).cancel(run)
    else:
        BatchClient(scheduler).cancel(run)
    assert bool(scheduler.cancelled) == (seconds is not None)


def test_a_job_waits_for_a_preempted_one_of_a_plug_in_that_runs_again() -> None:
    client = BatchClient(Listing(Record(JobState.CANCELLED, preempted=True)))
    assert client.unfinished(["7"]) == ["7"]
