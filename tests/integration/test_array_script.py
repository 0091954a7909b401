"""The script of a job array under real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hpcprof.submit.rendering.job_scripts import render_array
from hpcprof.submit.sites.files import load_site
from tests.jobs import echoing

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
INDEX = {"generic-slurm": "SLURM_ARRAY_TASK_ID", "generic-pbs": "PBS_ARRAY_INDEX"}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("site", INDEX)
def test_the_index_chooses_the_job_script_that_runs(site: str, shell: str, tmp_path: Path) -> None:
    sweep = tmp_path / "a-b+c=d@e,f&g" / "s-0a1b"
    loaded = load_site(site)
    jobs = echoing(loaded, "first", "$(echo second) 'third' \n")
    script, _ = render_array(loaded, jobs, sweep, ["hpcprof", "a\nb"])
    for index in (0, 1):
        member = sweep.with_name(f"{sweep.name}.{index}")
        member.mkdir(parents=True)
        (member / "job.sh").write_text(f'echo "this is {index} of $0"; exit {index + 3}\n')

    def run(index: str | None) -> subprocess.CompletedProcess[str]:
        environment = {INDEX[site]: index} if index is not None else {}
        return subprocess.run(
            [shell], input=script, env=environment, cwd=tmp_path, capture_output=True, text=True
        )

    assert [run(index).returncode for index in "01"] == [3, 4]
    assert run("1").stdout == f"this is 1 of {shell}\n"
    for wrong in ("2", "../s", None):
        done = run(wrong)
        assert done.returncode == 1
        assert done.stderr == (
            f"hpcprof: no run has the index '{wrong or ''}': submit this script as an array of 0-1.\n"
        )
