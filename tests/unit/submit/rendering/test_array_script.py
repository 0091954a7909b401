"""The script of a job array: its directives, and which job.sh it starts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hpcprof.common.errors import UsageError
from hpcprof.submit.rendering.job_scripts import render_array, render_scripts
from hpcprof.submit.sites.files import load_site, load_site_file
from tests.jobs import array, echoing, make_job


def test_slurm_an_array_has_its_members_directives_and_its_range(tmp_path: Path) -> None:
    assert [line for line in array("generic-slurm", tmp_path, "a", "b", "c") if "#SBATCH" in line] == [
        "#SBATCH --job-name=echo",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --time=00:05:00",
        "#SBATCH --propagate=CORE,STACK",
        f"#SBATCH --output={tmp_path}/s-0a1b.%a/logs/job.out",
        f"#SBATCH --error={tmp_path}/s-0a1b.%a/logs/job.err",
        "#SBATCH --array=0-2",
    ]


def test_slurm_reads_quotes_so_an_array_may_lie_in_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / "läufe {x} von it's, 100%j"
    logs = [
        line for line in array("generic-slurm", folder, "a", "b") if "/logs/" in line and "#SBATCH" in line
    ]
    words = [shlex.split(line)[1].replace("%%", "%") for line in logs]
    assert words == [f"--{name}={folder}/s-0a1b.%a/logs/job.{name[:3]}" for name in ("output", "error")]
    assert all("100%%j" in line for line in logs)
    for text in ("a\\b", "a\nb"):
        with pytest.raises(UsageError, match="choose another --runs-dir"):
            array("generic-slurm", tmp_path / text, "a")


def test_pbs_reads_quotes_too_but_has_no_shell_of_ours_in_such_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a b's, 100%"
    lines = [line for line in array("generic-pbs", folder, "a", "b") if "#PBS" in line]
    logs = [shlex.split(line)[1:] for line in lines if "/logs/" in line]
    assert logs == [
        [f"-{name[0]}", f"{folder}/s-0a1b.^array_index^/logs/job.{name}"] for name in ("out", "err")
    ]
    assert not [line for line in lines if " -S " in line]
    with pytest.raises(
        UsageError, match="has 'ä', which a batch directive cannot: choose another --runs-dir"
    ):
        array("generic-pbs", tmp_path / "läufe", "a")


def test_pbs_an_array_has_its_members_directives_and_its_range_and_may_run_again(tmp_path: Path) -> None:
    assert [line for line in array("generic-pbs", tmp_path, "a", "b", "c") if "#PBS" in line] == [
        "#PBS -N echo",
        "#PBS -l select=1",
        "#PBS -l walltime=00:05:00",
        f"#PBS -S {tmp_path}/s-0a1b.0/pbs_shell",
        f"#PBS -o {tmp_path}/s-0a1b.^array_index^/logs/job.out",
        f"#PBS -e {tmp_path}/s-0a1b.^array_index^/logs/job.err",
        "#PBS -r y",
        "#PBS -J 0-2",
    ]


def test_how_many_run_at_once_is_said_where_it_is_fewer_than_all(tmp_path: Path) -> None:
    assert "#SBATCH --array=0-2%2" in array("generic-slurm", tmp_path, "a", "b", "c", at_once=2)
    assert "#PBS -J 0-2%1" in array("generic-pbs", tmp_path, "a", "b", "c", at_once=1)
    assert "#PBS -J 0-2" in array("generic-pbs", tmp_path, "a", "b", "c", at_once=3)


def test_the_scripts_of_a_member_are_those_of_a_job_of_its_own(tmp_path: Path) -> None:
    site = load_site("generic-slurm")
    jobs = echoing(site, "a", "b")
    _, texts = render_array(site, jobs, tmp_path / "s-0a1b", ["hpcprof"])
    alone = [render_scripts(site, jobs[i], tmp_path / f"s-0a1b.{i}", ["hpcprof"]) for i in (0, 1)]
    assert texts == alone


def test_what_only_looks_like_a_line_break_in_a_comment_ends_no_directives(tmp_path: Path) -> None:
    site = load_site("generic-slurm")
    line = ["hpcprof", "a\u2028b\x0cc\x85d\ne\rf"]
    script, _ = render_array(site, echoing(site, "a", "b"), tmp_path / "s", line)
    assert "#SBATCH --nodes=1" in script


def test_runs_whose_directives_differ_are_no_array_and_the_difference_is_named(tmp_path: Path) -> None:
    site = load_site("generic-slurm")
    jobs = [*echoing(site, "a"), make_job(site, arguments=["echo"], walltime="10m", nodes=2)]
    with pytest.raises(UsageError) as refused:
        render_array(site, jobs, tmp_path / "s", ["hpcprof"])
    assert str(refused.value) == (
        "--array: the runs differ in #SBATCH --nodes=1, #SBATCH --time=00:05:00 and #SBATCH --nodes=2, "
        "#SBATCH --time=00:10:00, but those of an array share their directives; leave --array out."
    )


def test_pbs_an_array_that_may_not_run_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / "once.yaml").write_text('extends: generic-pbs\ndirectives: ["-r n"]\n')
    site = load_site_file(tmp_path / "once.yaml")
    with pytest.raises(UsageError, match="PBS accepts no array that cannot be run again"):
        render_array(site, echoing(site, "a", "b"), tmp_path / "s", ["hpcprof"])


def test_the_directives_and_the_shell_of_a_users_template_are_the_arrays_too(tmp_path: Path) -> None:
    template = tmp_path / "mine.sh.j2"
    template.write_text(
        "#!/bin/bash -l\n#SBATCH --exclusive\n#SBATCH --output={{ run_directory }}/mine.txt\n\n# more\n"
        "#SBATCH --nice\ntrue\nrun_dir={{ run_directory }}\n"
    )
    site = load_site("generic-slurm")
    script, _ = render_array(site, echoing(site, "a", "b"), tmp_path / "s", ["hpcprof"], template=template)
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash -l"
    assert [line for line in lines if "#SBATCH" in line] == [
        "#SBATCH --exclusive",
        f"#SBATCH --output={tmp_path}/s.%a/mine.txt",
        "#SBATCH --nice",
        "#SBATCH --array=0-1",
    ]


@pytest.mark.parametrize("edited", [True, False])
def test_directives_that_the_scheduler_would_not_read_are_refused(tmp_path: Path, edited: bool) -> None:
    file = tmp_path / "mine.sh"
    file.write_text("#!/bin/bash\nexport A=1\n#SBATCH --nodes=2\nrun_dir=/runs/1\n")
    files = {"script": file} if edited else {"template": file}
    site, local = load_site("generic-slurm"), load_site("local")
    (job,) = echoing(site, "a")
    with pytest.raises(UsageError, match="'#SBATCH --nodes=2' comes after the command 'export A=1'"):
        render_scripts(site, job, tmp_path / "run", ["hpcprof"], **files)
    # On this machine they have no effect wherever they are.
    (job,) = echoing(local, "a")
    render_scripts(local, job, tmp_path / "run", ["hpcprof"], **files)
