"""``hpcprof submit`` and ``hpcprof sweep`` note what a user should know."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.submit import command as submit
from hpcprof.cli.sweep import command as sweep

POLARIS = ["--site", "polaris", "--account", "a", "-o", "filesystems=home", "--queue", "preemptable"]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_notes_second_hand_facts_on_standard_error() -> None:
    done = CliRunner().invoke(submit, ["--dry-run", "--site", "perlmutter", "--account", "a", "--", "true"])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("hpcprof: note: the facts about site perlmutter are second hand: NERSC")
    assert done.stderr.count("\n") == 1
    assert "second hand" not in done.stdout


def test_a_sweep_notes_the_queue_once_for_all_its_runs() -> None:
    done = CliRunner().invoke(sweep, ["--dry-run", *POLARIS, "-P", "a=1,2,3", "--", "echo", "{a}"])
    assert done.exit_code == 0, done.output
    assert done.stderr == (
        "hpcprof: note: queue preemptable: jobs are killed without warning when the demand queue needs "
        "nodes, and run again (-r y).\n"
    )


def test_a_job_on_this_machine_needs_no_note() -> None:
    done = CliRunner().invoke(submit, ["--dry-run", "--", "true"])
    assert (done.exit_code, done.stderr) == (0, "")
