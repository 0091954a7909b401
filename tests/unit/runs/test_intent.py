"""Records of a run whose scheduler has not yet given the id of its job."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from hpcprof.runs.directory import Run
from hpcprof.runs.intent import note_intent, note_job_id, read_intent, remove_intent
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run


@pytest.fixture
def new(make_run: MakeRun) -> Run:
    """A run without a job id."""
    return make_run(job_id="")


def test_an_intent_names_the_process_that_submits(new: Run) -> None:
    note_intent(new)
    intent = read_intent(new)
    assert intent is not None
    assert (intent.host, intent.process.pid, intent.owner) == (platform.node(), os.getpid(), new.path.owner())
    assert intent.age_seconds() < 60
    assert (intent.alive(), intent.error) == (True, "")


def test_an_intent_knows_a_process_that_has_ended_but_not_one_of_another_machine(new: Run) -> None:
    note_intent(new, "sbatch did not answer\nwithin 4 s.")
    note = new.path / "state/submitting"
    ended = note.read_text().replace(f" {os.getpid()} ", " 1 ")
    note.write_text(ended)  # another process has the number now: its start time differs
    intent = read_intent(new)
    assert intent is not None
    assert (intent.alive(), intent.error) == (False, "sbatch did not answer\nwithin 4 s.")
    note.write_text(ended.replace(platform.node(), "login7"))
    intent = read_intent(new)
    assert intent is not None
    assert intent.alive() is None


def test_the_id_that_the_job_noted_ends_the_intent(new: Run) -> None:
    note_intent(new)
    note_job_id(new, "12_3")
    assert (new.job_id, read_intent(new)) == ("12_3", None)


def test_the_id_of_the_manifest_comes_before_that_of_the_job(make_run: MakeRun) -> None:
    run = make_run("7")
    note_job_id(run, "12")
    note_intent(run)
    assert (run.job_id, read_intent(run)) == ("7", None)


def test_a_removed_or_damaged_intent_is_none(new: Run) -> None:
    note_intent(new)
    remove_intent(new)
    remove_intent(new)
    assert read_intent(new) is None
    (new.path / "state/submitting").write_text("yesterday\n")
    assert read_intent(new) is None


def test_a_folder_of_profiles_has_no_job(tmp_path: Path) -> None:
    assert Run("adopted", tmp_path).job_id == ""
