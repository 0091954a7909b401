"""Runs on a host that is reached by a real OpenSSH server, with a stand-in for PBS and with a real Slurm."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Hpcprof
from tests.integration.slurm_cluster import Cluster
from tests.integration.ssh_server import SshServer, Unavailable, ssh_server
from tests.integration.test_schedulers import STANDIN
from tests.integration.test_schedulers import running_slurm as running_slurm
from tests.waiting import until

pytestmark = pytest.mark.slow

TRACE = Path(__file__).parents[1] / "data/cpu_ddp_rank0.pt.trace.json.gz"
UNPACKED = "rank00000.pt.trace.json"
SITES = {
    "pbs": "extends: generic-pbs\nlauncher: {name: none}\n",
    "slurm": "extends: generic-slurm\nlauncher: {name: srun, arguments: [--mpi=none]}\n",
}

RECORDED = """
import json, os, pathlib, time
state = pathlib.Path(os.environ["HPCPROF_RUN_DIR"], "state")
def write(name, values):
    (state / name).parent.mkdir(exist_ok=True)
    (state / name).with_suffix(".new").write_text(json.dumps(values) + "\\n")
    (state / name).with_suffix(".new").rename(state / name)
line = {"time": time.time(), "step": 999, "steps": 1, "wall_ns": 10**12, "max_ns": 10**12}
write("steps/rank00000.jsonl", line)
while not (state / "capture.json").exists():
    time.sleep(0.1)
asked = json.loads((state / "capture.json").read_text())
last = asked["first"] + asked["steps"] - 1
answer = {"number": asked["number"], "state": "recorded", "first": asked["first"], "last": last}
write("captures/rank00000.json", answer)
time.sleep(300)
"""


def start(folder: Path, environment: dict[str, str]) -> Iterator[SshServer]:
    try:
        with ssh_server(folder, {"HOME": f"{folder}/home", **environment}) as server:
            yield server
    except Unavailable as missing:
        assert not os.environ.get("CI"), f"CI installs OpenSSH: {missing}"
        pytest.skip(str(missing))


@pytest.fixture
def ssh(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """A host ``cluster`` with the stand-in for PBS, which this machine does not have."""
    folder = tmp_path_factory.mktemp("ssh")
    (folder / "pbs").mkdir()
    environment = {
        "PBS_STANDIN": f"{folder}/pbs",
        "PBS_STANDIN_PYTHON": sys.executable,
        "PATH": f"{folder}/there:{STANDIN}:/usr/bin:/bin",
        "SQUEUE_FORMAT": "misleading",
    }
    for server in start(folder, environment):
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        yield server


@pytest.fixture
def pbs(ssh: SshServer, tmp_path: Path) -> SshServer:
    write_site(tmp_path, "pbs")
    return ssh


def write_site(folder: Path, name: str) -> None:
    (folder / "site_configs").mkdir(exist_ok=True)
    (folder / "site_configs" / f"{name}.yaml").write_text(SITES[name])


def submit(hpcprof: Hpcprof, *words: str) -> str:
    # The last --host counts.
    done = hpcprof("submit", "--host", "cluster", "--site", "pbs", "--walltime", "5m", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("submitted ")[2].strip()


def state(hpcprof: Hpcprof) -> str:
    return hpcprof("status").stdout.splitlines()[1].split()[1]


def test_a_run_is_submitted_followed_and_its_logs_are_read_by_ssh(
    pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    run = submit(hpcprof, "--", "sh", "-c", 'pwd; echo "it\'s $0 here"; exit 3', "a 'b' $c")
    until(lambda: state(hpcprof) == "failed")
    assert "exit code 3" in hpcprof("status").stdout
    assert f"{pbs.home}\nit's a 'b' $c here\n" in hpcprof("logs").stdout
    assert (pbs.home / "hpcprof-runs" / run / "job.sh").is_file()
    manifest = json.loads((tmp_path / "runs" / run / "run.json").read_text())
    assert manifest["site"]["host"] == "cluster"
    assert manifest["site"]["runs_dir"] == f"{pbs.home}/hpcprof-runs"
    assert manifest["job"]["directory"] == str(pbs.home)
    assert manifest["git"] is None


def test_a_host_behind_another_one_is_reached_by_one_connection(pbs: SshServer, hpcprof: Hpcprof) -> None:
    run = submit(hpcprof, "--host", "inner", "--", "sh", "-c", "echo there")
    until(lambda: state(hpcprof) == "completed")
    assert "there\n" in hpcprof("logs", run).stdout
    jumps = (pbs.folder / "sshd.log").read_text().count("Accepted publickey")
    assert jumps == 2  # to the jump host, and through it; all commands share them


class Terminal:
    """A terminal of its own, at which one command runs."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._own, terminal = pty.openpty()
        command = ["setsid", "--ctty", sys.executable, "-m", "hpcprof", *words]
        self._command = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder
        )
        self._terminal = terminal

    def type_at(self, prompt: str, text: str) -> str:
        """Wait for a prompt, type a text, and return what was printed until then."""
        printed = ""
        while prompt not in printed:
            assert select.select([self._own], [], [], 60)[0], printed
            printed += os.read(self._own, 4096).decode()
        os.write(self._own, text.encode())
        return printed

    def end(self) -> tuple[str, bool]:
        """Return what else was printed, and whether the terminal echoes after the command."""
        self._command.wait(60)
        echoes = bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)
        printed = ""
        while select.select([self._own], [], [], 0)[0]:
            printed += os.read(self._own, 4096).decode()
        os.close(self._terminal)
        os.close(self._own)
        return printed, echoes


def test_ssh_asks_once_in_the_terminal_and_never_without_one(
    pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    key, phrase = pbs.folder / "key", "open sesame"
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", phrase, "-f", key], check=True)
    job = ("submit", "--host", "cluster", "--site", "pbs", "--walltime", "5m", "--", "echo", "here")
    done = hpcprof(*job)
    assert (done.returncode, "run hpcprof in a terminal first" in done.stderr) == (1, True), done.stderr
    interrupted = Terminal(tmp_path, *job)
    interrupted.type_at("passphrase", "\x03")
    printed, echoes = interrupted.end()
    assert "interrupted" in printed and echoes
    asked = Terminal(tmp_path, *job)
    asked.type_at("passphrase", f"{phrase}\n")
    printed, _ = asked.end()
    assert "submitted" in printed and "passphrase" not in printed
    until(lambda: state(hpcprof) == "completed")
    assert "here\n" in hpcprof("logs").stdout


def test_a_run_is_cancelled_by_ssh(pbs: SshServer, hpcprof: Hpcprof) -> None:
    submit(hpcprof, "--", "sleep", "300")
    until(lambda: state(hpcprof) == "running")
    done = hpcprof("cancel", "last")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cancelled" in done.stdout


def test_a_folder_is_copied_and_its_commit_recorded(pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "data").mkdir(parents=True)
    (code / "sub").mkdir()
    (code / "data/large.bin").write_bytes(bytes(1000))
    (code / "sub/main.sh").write_text("cat ../name; ls ..\n")
    (code / "name").write_text("mine\n")
    (code / "model.pt").write_text("weights")
    for words in (["init", "-q"], ["add", "name"], ["commit", "-qm", "first"]):
        who = ["-c", "user.name=A", "-c", "user.email=a@b.example"]
        subprocess.run(["git", "-C", str(code), *who, *words], check=True)
    (tmp_path / "site_configs").rename(code / "sub/site_configs")
    chosen = ("--sync", "..", "--exclude", "data", "--exclude", "*.pt", "--exclude", "sub/site_configs")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hpcprof", "submit", "--host", "cluster", "--site", "pbs", *chosen),
            *("--walltime", "5m", "--runs-dir", str(tmp_path / "runs"), "--", "sh", "main.sh"),
        ],
        cwd=code / "sub",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "copied 2 files (" in done.stdout
    (code / "sub/site_configs").rename(tmp_path / "site_configs")
    until(lambda: state(hpcprof) == "completed")
    assert "mine\nname\nsub\n" in hpcprof("logs").stdout
    commit = subprocess.run(["git", "-C", str(code), "rev-parse", "HEAD"], capture_output=True, text=True)
    (manifest,) = (tmp_path / "runs").glob("*/run.json")
    assert json.loads(manifest.read_text())["git"] == {"commit": commit.stdout.strip(), "dirty": False}


def test_profiles_are_fetched_to_collect_and_to_report(
    pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    run = submit(hpcprof, "--", "sh", "-c", f'gunzip -c {TRACE} >"$HPCPROF_RUN_DIR/profiles/{UNPACKED}"')
    until(lambda: state(hpcprof) == "completed")
    assert not [*(tmp_path / "runs" / run / "profiles").iterdir()]
    done = hpcprof("report")
    assert done.returncode == 0, done.stderr
    assert "Steps" in done.stdout
    assert [path.name for path in (tmp_path / "runs" / run / "profiles").iterdir()] == [UNPACKED]
    assert "1 unchanged" in hpcprof("collect").stdout


def test_where_the_host_has_hpcprof_only_results_and_events_come_back(
    pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    (pbs.folder / "there").mkdir()
    there = pbs.folder / "there/hpcprof"
    there.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcprof "$@"\n')
    there.chmod(0o755)
    run = submit(hpcprof, "--", "sh", "-c", f'gunzip -c {TRACE} >"$HPCPROF_RUN_DIR/profiles/{UNPACKED}"')
    until(lambda: state(hpcprof) == "completed")
    done = hpcprof("collect")
    assert (done.returncode, "1 profile collected on cluster, into runs/hpcprof.db" in done.stdout) == (
        0,
        True,
    )
    here = tmp_path / "runs" / run
    assert not [*(here / "profiles").iterdir()]
    assert [*(here / "timeline").iterdir()]
    assert not (here / "collected.db").exists()
    report = hpcprof("report")
    assert (report.returncode, "Steps" in report.stdout) == (0, True), report.stderr
    events = hpcprof("query", "--events", "--format", "csv", "SELECT count(*) AS n FROM ranges")
    assert int(events.stdout.split()[1]) > 0


def test_a_job_there_collects_and_a_later_collect_takes_its_results(
    pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    run = submit(hpcprof, "--", "sh", "-c", f'gunzip -c {TRACE} >"$HPCPROF_RUN_DIR/profiles/{UNPACKED}"')
    until(lambda: state(hpcprof) == "completed")
    refused = hpcprof("collect", "--submit")
    assert refused.returncode == 1 and "on the PATH of cluster: leave it out" in refused.stderr
    (pbs.folder / "there").mkdir()
    there = pbs.folder / "there/hpcprof"
    there.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcprof "$@"\n')
    there.chmod(0o755)
    done = hpcprof("collect", "--submit", "--walltime", "3m")
    assert (done.returncode, "submitted on cluster" in done.stdout) == (0, True), done.stderr
    jobs = pbs.home / "hpcprof-runs" / run / "collect"
    until(lambda: [*jobs.glob("*/state/finished")])
    assert not (tmp_path / "runs" / run / "timeline").exists()
    assert "1 profile collected on cluster" in hpcprof("collect").stdout


def test_runs_of_a_sweep_are_one_job_array_there(pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path) -> None:
    words = ("--host", "cluster", "--site", "pbs", "--walltime", "5m", "--array", "--parameter", "word=a,b")
    done = hpcprof("sweep", *words, "--", "sh", "-c", "echo the {word}; pwd")
    assert done.returncode == 0, done.stderr
    members = sorted(path.name for path in (tmp_path / "runs").glob("*.[01]"))
    sweep = members[0].removesuffix(".0")
    until(lambda: hpcprof("status", sweep).stdout.count("completed") == 2)
    for member, word in zip(members, "ab", strict=True):
        assert f"the {word}\n{pbs.home}\n" in hpcprof("logs", member).stdout
        assert (pbs.home / "hpcprof-runs" / member / "job.sh").is_file()


def test_a_running_job_there_is_asked_to_record(pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path) -> None:
    """The program is a stand-in for ranks with PyTorch: it notes a step, and answers what it is asked."""
    program = tmp_path / "program.py"
    program.write_text(RECORDED)
    submit(hpcprof, "--", sys.executable, str(program))
    until(lambda: state(hpcprof) == "running" and "step 999" in hpcprof("status").stdout)
    done = hpcprof("capture", "last", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert "recorded steps 1003 to 1004 on 1 rank" in done.stdout
    assert hpcprof("cancel", "last").returncode == 0


def test_a_broken_connection_leaves_a_run_that_is_found_again(
    pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    # qsub takes the job, and then the connection breaks before its answer.
    ssh = pbs.folder / "bin/ssh"
    whole = ssh.read_text()
    broken = (
        'case "$*" in *"exec qsub"*) '
        + whole.splitlines()[1].removeprefix("exec ")
        + " >/dev/null; exit 255;; esac\n"
    )
    ssh.write_text(whole.replace("exec", f"{broken}exec", 1))
    done = hpcprof("submit", "--host", "cluster", "--site", "pbs", "--walltime", "5m", "--", "sleep", "300")
    assert (done.returncode, "cluster cannot be reached" in done.stderr) == (1, True), done.stderr
    ssh.write_text(whole)
    until(lambda: state(hpcprof) == "running")
    assert hpcprof("cancel", "last").returncode == 0


def test_a_host_that_is_away_is_named_and_the_copy_is_shown(pbs: SshServer, hpcprof: Hpcprof) -> None:
    submit(hpcprof, "--", "sh", "-c", "echo started; sleep 20")
    until(lambda: "started" in hpcprof("logs").stdout)
    pbs.disconnect()
    pbs.process.terminate()
    pbs.process.wait()
    assert "unknown" in (shown := hpcprof("status").stdout) and "cluster cannot be reached" in shown
    logs = hpcprof("logs")
    assert "started" in logs.stdout and "this is the copy of the last look" in logs.stderr
    refused = hpcprof("submit", "--host", "cluster", "--site", "pbs", "--walltime", "5m", "--", "true")
    assert (refused.returncode, "cluster cannot be reached" in refused.stderr) == (1, True)


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "a b", "-l@cluster", "me@-x", "x;id", "", "@"])
def test_a_host_that_ssh_would_take_for_something_else_is_refused(host: str, hpcprof: Hpcprof) -> None:
    done = hpcprof("submit", f"--host={host}", "--site", "generic-slurm", "--", "true")
    assert (done.returncode, "write a host as ssh takes it" in done.stderr) == (2, True), done.stderr


def test_a_target_of_messages_does_not_leave_this_machine(hpcprof: Hpcprof, tmp_path: Path) -> None:
    write_site(tmp_path, "pbs")
    job = ("submit", "--site", "pbs", "--walltime", "5m", "--host", "login", "--dry-run", "--notify")
    done = hpcprof(*job, "mail:me@secret.example", "--", "true")
    assert done.returncode == 2 and "give a NAME for a job on login" in done.stderr
    assert "secret" not in done.stderr
    done = hpcprof(*job, "me", "--", "true")
    assert done.returncode == 0 and 'hpcprof/notify" me' in done.stdout, done.stderr + done.stdout


def test_sites_without_a_login_node_have_no_host(hpcprof: Hpcprof) -> None:
    done = hpcprof("submit", "--host", "cluster", "--", "true")
    assert (done.returncode, "has no batch system on a login node" in done.stderr) == (2, True)


def test_a_file_of_the_working_folder_names_no_host(hpcprof: Hpcprof, tmp_path: Path) -> None:
    (tmp_path / "hpcprof.yaml").write_text("sites: {generic-slurm: {host: evil.example}}\n")
    done = hpcprof("submit", "--site", "generic-slurm", "--", "true")
    assert (done.returncode, "a folder's file cannot name a host" in done.stderr) == (2, True)
    (tmp_path / "hpcprof.yaml").unlink()
    (tmp_path / "site_configs").mkdir()
    (tmp_path / "site_configs/mine.yaml").write_text("extends: generic-slurm\nhost: evil.example\n")
    done = hpcprof("submit", "--site", "mine", "--", "true")
    assert (done.returncode, "can name a host" in done.stderr) == (2, True)


def test_the_users_configuration_names_host_account_and_folder(
    pbs: SshServer, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    for key, value in (
        ("host", "cluster"),
        ("user", os.environ.get("USER", "root")),
        ("runs_dir", "elsewhere/runs"),
    ):
        done = hpcprof("config", "set", f"sites.pbs.{key}", value)
        assert done.returncode == 0, done.stderr
    done = hpcprof("submit", "--site", "pbs", "--walltime", "5m", "--", "true")
    assert done.returncode == 0, done.stderr
    assert [*(pbs.home / "elsewhere/runs").iterdir()]
    shown = hpcprof("submit", "--site", "pbs", "--dry-run", "--", "true").stdout
    assert "run_dir=/HOME/elsewhere/runs/RUN_ID" in shown


@pytest.fixture
def slurm(
    running_slurm: Cluster,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[SshServer]:
    """A host ``cluster`` with a real Slurm, whose commands are not on the PATH here."""
    folder = tmp_path_factory.mktemp("ssh")
    environment = {
        "SLURM_CONF": str(running_slurm.configuration),
        "SQUEUE_FORMAT": "%i",
        "SACCT_FORMAT": "jobid",
    }
    for server in start(folder, environment):
        for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol"):
            (folder / "bin" / name).write_text("#!/bin/sh\nexit 99\n")
            (folder / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        write_site(tmp_path, "slurm")
        yield server


def test_a_real_slurm_is_used_by_ssh(slurm: SshServer, hpcprof: Hpcprof) -> None:
    words = ("--host", "cluster", "--site", "slurm", "--walltime", "5m", "--ranks-per-node", "2")
    done = hpcprof("submit", *words, "--wait", "--", "sh", "-c", "echo rank $SLURM_PROCID of $SLURM_NTASKS")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 2" in done.stdout and "completed" in done.stdout
    assert "rank 1 of 2" in hpcprof("logs", "--rank", "1").stdout
    first = hpcprof("submit", *words, "--", "sleep", "300").stdout.split()[-1]
    until(lambda: state(hpcprof) == "running")
    second = hpcprof("submit", *words, "--after", first, "--", "true")
    assert second.returncode == 0, second.stderr
    assert hpcprof("cancel", "last", first).returncode == 0
    assert hpcprof("resubmit", first).returncode == 0
    assert hpcprof("cancel", "last").returncode == 0


def test_a_site_file_of_the_user_names_host_account_and_folder(hpcprof: Hpcprof, tmp_path: Path) -> None:
    sites = tmp_path / "no-config/hpcprof/sites"  # where the tests have the user's settings
    sites.mkdir(parents=True)
    keys = "host: cluster\nuser: jane\nruns_dir: /scratch/jane\n"
    (sites / "mine.yaml").write_text(f"extends: generic-slurm\n{keys}")
    shown = hpcprof("submit", "--site", "mine", "--dry-run", "--", "true")
    assert (shown.returncode, "run_dir=/scratch/jane/RUN_ID\n" in shown.stdout) == (0, True), shown.stderr
    (sites / "mine.yaml").write_text(f"extends: generic-slurm\n{keys.replace('jane', '-oProxyCommand=x', 1)}")
    refused = hpcprof("submit", "--site", "mine", "--dry-run", "--", "true")
    assert (refused.returncode, "write a host as ssh takes it" in refused.stderr) == (2, True)
    (sites / "mine.yaml").write_text("extends: generic-slurm\nuser: jane\n")
    alone = hpcprof("submit", "--site", "mine", "--dry-run", "--", "true")
    assert (alone.returncode, "user belongs to host, which is missing" in alone.stderr) == (2, True)
