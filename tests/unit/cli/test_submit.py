"""``hpcprof submit`` and ``hpcprof sweep`` note what a user should know."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.collect import command as collect
from hpcprof.cli.job_options import unread_input
from hpcprof.cli.submit import command as submit
from hpcprof.cli.sweep import command as sweep
from hpcprof.common.daily import is_due
from hpcprof.submit.jobs import presence
from hpcprof.submit.schedulers.command import Refused
from tests.unit.submit.schedulers.standins import Slurm

POLARIS = ["--site", "polaris", "--account", "a", "-o", "filesystems=home", "--queue", "preemptable"]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The folder of these tests is one of those.
    monkeypatch.setattr(presence, "_NODE_LOCAL_FOLDERS", ())


def test_a_dry_run_notes_second_hand_facts_on_standard_error() -> None:
    done = CliRunner().invoke(submit, ["--dry-run", "--site", "perlmutter", "--account", "a", "--", "true"])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("hpcprof: note: the facts about site perlmutter are not verified: NERSC")
    assert done.stderr.count("\n") == 1
    assert "not verified" not in done.stdout


def test_a_note_of_the_scheduler_about_a_job_that_it_took_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm()
    slurm.install(monkeypatch)
    monkeypatch.setattr(slurm, "taken", lambda _: (0, "7\n", "sbatch: NOTE: 64000M was taken for 64G\n"))
    done = CliRunner().invoke(submit, ["--site", "generic-slurm", "--", "true"])
    assert done.exit_code == 0, done.output
    assert done.stderr == "hpcprof: note: sbatch: NOTE: 64000M was taken for 64G\n"


def test_a_file_that_no_rank_reads_is_noted_unless_a_loop_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "input").write_text("ecut=30\n")
    kept, file = os.dup(0), os.open("input", os.O_RDONLY)
    try:
        os.dup2(file, 0)
        write = "write -- bash -c './pw.x -v < input'"
        assert (
            unread_input(["./pw.x", "-v"])
            == f"no rank reads the standard input of this command (input): {write}"
        )
        os.lseek(0, 0, os.SEEK_SET)
        (tmp_path / "other").mkdir()
        monkeypatch.chdir("other")
        assert f"({tmp_path}/input)" in unread_input(["./pw.x"])
        os.read(0, 1)
        assert unread_input(["./pw.x"]) == ""
    finally:
        os.dup2(kept, 0)


def test_an_option_of_the_program_before_two_dashes_is_told_where_to_go() -> None:
    done = CliRunner().invoke(submit, ["python", "train.py", "--epochs", "3"])
    assert done.exit_code == 2
    assert "has no option --epochs; put the command with its options after --: " in done.stderr
    done = CliRunner().invoke(submit, ["-n", "2", "--", "./solver"])
    assert "no option -n: give the ranks by --nodes and --ranks-per-node" in done.stderr
    done = CliRunner().invoke(collect, ["last", "--force"])  # takes no program, but an option of that name
    assert (done.exit_code, "after --" in done.stderr) == (2, False)
    done = CliRunner().invoke(submit, ["--epochs"])
    assert (done.exit_code, "after --" in done.stderr) == (2, False)


def test_second_hand_facts_are_noted_once_a_day_for_each_site(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(site: str) -> bool:
        done = CliRunner().invoke(submit, ["--dry-run", "--site", site, "--account", "a", "--", "true"])
        assert done.exit_code == 0, done.output
        return "not verified" in done.stderr

    assert [noted(site) for site in ("perlmutter", "perlmutter", "juwels-booster", "perlmutter")] == [
        True,
        False,
        True,
        False,
    ]
    later = time.time() + 24 * 3600 + 1
    monkeypatch.setattr("hpcprof.common.daily.time.time", lambda: later)
    assert noted("perlmutter")


def test_second_hand_facts_are_noted_each_time_where_nothing_can_be_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert is_due("a note")
    assert is_due("a note")


def test_a_sweep_notes_the_queue_once_for_all_its_runs() -> None:
    done = CliRunner().invoke(sweep, ["--dry-run", *POLARIS, "-P", "a=1,2,3", "--", "echo", "{a}"])
    assert done.exit_code == 0, done.output
    assert done.stderr == (
        "hpcprof: note: queue preemptable: jobs are killed without warning when the demand queue needs "
        "nodes, and run again (-r y).\n"
    )


def test_a_sweep_that_the_scheduler_stops_says_which_runs_are_not_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Limited(Slurm):
        """Slurm that takes two jobs."""

        def taken(self, job_id: str) -> tuple[int, str, str]:
            """Accept a job, or name the limit."""
            self.refuses = len(self.jobs) == 2
            return super().taken(job_id)

    Limited().install(monkeypatch)
    arguments = ["--site", "generic-slurm", "-P", "a=1,2,3", "-P", "b=x,y", "--", "echo", "{a}{b}"]
    outcome = CliRunner().invoke(sweep, arguments)
    assert (outcome.exit_code, outcome.stdout.count("submitted ")) == (1, 2)
    assert outcome.stderr == "not submitted: a=2 b=x; a=2 b=y; a=3 b=x; a=3 b=y\n"
    assert isinstance(outcome.exception, Refused)


def test_a_job_on_this_machine_needs_no_note() -> None:
    done = CliRunner().invoke(submit, ["--dry-run", "--", "true"])
    assert (done.exit_code, done.stderr) == (0, "")
