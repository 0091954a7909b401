"""Handing jobs to a scheduler that may have taken them without an answer."""

from __future__ import annotations

import pytest

from hpcprof.common.errors import SchedulerError
from hpcprof.runs.intent import read_intent
from hpcprof.submit.schedulers.command import submission_error
from hpcprof.submit.submission import _handing_over
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run


def test_an_interrupt_while_a_job_is_handed_over_names_the_run(make_run: MakeRun) -> None:
    run = make_run(job_id="")
    with pytest.raises(KeyboardInterrupt, match=f"{run.id} may be running: hpcprof status .*cancel"):  # noqa: SIM117
        with _handing_over(None, [run], run.path):
            raise KeyboardInterrupt
    assert read_intent(run) is not None


@pytest.mark.parametrize("refused", [True, False])
def test_a_run_whose_job_may_have_been_accepted_is_kept_and_named(refused: bool, make_run: MakeRun) -> None:
    run = make_run(job_id="")
    advice = "" if refused else f" If it did, hpcprof status {run.id} shows it."
    with pytest.raises(SchedulerError) as error, _handing_over(None, [run], run.path):
        raise submission_error("sbatch", "Socket timed out", refused=refused)
    assert str(error.value).endswith(f"the job: Socket timed out.{advice}")
    assert run.path.exists() != refused
    assert refused or read_intent(run) is not None
