"""A whole Slurm on this machine, for the tests: four emulated nodes on the loopback interface.

Every daemon runs in the foreground as a child of the tests, with its files in one folder, so that
nothing outside that folder is written, and ending it means ending these children.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_DAEMONS = ("munged", "slurmctld", "slurmd")
_NODES = 4
_SECONDS = 120.0

_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
# All that listens does so on the address of its host above, never on all interfaces.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
# A machine on which all nodes share two busy cores is slow, and not lost.
MessageTimeout=60
BatchStartTimeout=120
# Any request is taken, as on many clusters, so that some stay in the queue for ever.
EnforcePartLimits=NO
# Ended jobs leave squeue soon, as on a busy cluster.
MinJobAge={min_job_age}
MaxArraySize=20
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
GresTypes=gpu
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
{accounting}
JobCompType=jobcomp/none
# The nodes claim more cores than this machine has.
SlurmdParameters=config_overrides
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=1000 \\
    Gres=gpu:2
PartitionName=debug Nodes=ALL Default=YES MaxTime=01:00:00 DefaultTime=00:10:00 State=UP
"""

_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
CommunicationParameters=NoInAddrAny
"""

Start = Callable[..., None]


class Unavailable(Exception):
    """Slurm cannot be started here; the message says what is missing."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster; a command finds it by ``SLURM_CONF``."""

    configuration: Path
    start_controller: Callable[[], None]
    end_controller: Callable[[], None]
    nodes: int = _NODES

    def command(self, *arguments: str) -> str:
        """Run one of Slurm's commands and return what it printed."""
        environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """End the controller for a while; jobs go on."""
        self.end_controller()
        try:
            yield
        finally:
            self.start_controller()
            _until(lambda: _answers(self), self.configuration.parent)

    def idle_nodes(self) -> int:
        """Return how many nodes wait for work."""
        return len(self.command("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").split())


@contextmanager
def cluster(folder: Path, *programs: str, min_job_age: int = 60) -> Iterator[Cluster]:
    """Start the daemons, yield when every node is idle, and end the daemons.

    Parameters
    ----------
    folder : Path
        Where all their files go.
    programs : str
        ``"slurmdbd"`` for a cluster with accounting, which also needs a MariaDB server.
    min_job_age : int
        For how many seconds squeue shows a job that has ended.

    Raises
    ------
    Unavailable
        If a daemon is not installed.
    """
    accounting = "slurmdbd" in programs
    needed = (*_DAEMONS, "slurmdbd", "mariadbd", "mariadb-install-db") if accounting else _DAEMONS
    missing = [name for name in needed if not _find(name)]
    if missing:
        more = " slurmdbd mariadb-server" if accounting else ""
        raise Unavailable(f"no {', '.join(missing)} here: apt-get install slurm-wlm munge{more}")
    ports = free_ports(_NODES + 3)
    configuration = _configure(folder, ports, accounting, min_job_age)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    with ExitStack() as daemons:
        controller = daemons.enter_context(ExitStack())

        def start(*command: str, until: ExitStack = daemons) -> None:
            log = until.enter_context((folder / f"{command[0]}.stderr").open("ab"))
            program = [_find(command[0]) or command[0], *command[1:]]
            process = subprocess.Popen(program, env=environment, stdout=log, stderr=log)
            until.callback(_end, process)

        start(
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munged.seed",
        )
        _until(lambda: (folder / "munge.socket").exists(), folder)
        if accounting:
            _account(folder, ports[-2:], start, environment)
        start("slurmctld", "-D", until=controller)
        for number in range(1, _NODES + 1):
            start("slurmd", "-D", "-N", f"n{number}")
        running = Cluster(configuration, lambda: start("slurmctld", "-D", until=controller), controller.close)
        _until(lambda: _answers(running) and running.idle_nodes() == _NODES, folder)
        try:
            yield running
        finally:
            running.command("scancel", "--partition=debug")
            _until(lambda: not running.command("squeue", "--noheader").strip(), folder)


@contextmanager
def cluster_or_skip(folder: Path, *programs: str) -> Iterator[Cluster]:
    """Start a cluster; where Slurm is not installed the tests are skipped, but never in CI."""
    with ExitStack() as running:
        try:
            started = running.enter_context(cluster(folder, *programs, min_job_age=2 if programs else 60))
        except Unavailable as reason:
            assert not os.environ.get("CI"), reason
            pytest.skip(str(reason))
        yield started


def _configure(folder: Path, ports: list[int], accounting: bool, min_job_age: int) -> Path:
    for name in ("state", *(f"spool/n{number}" for number in range(1, _NODES + 1))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    database = (
        "AccountingStorageType=accounting_storage/slurmdbd\n"
        f"AccountingStoragePort={ports[-1]}\n"
        # To munge, this is the name of its socket (slurm.conf's manual).
        f"AccountingStoragePass={folder}/munge.socket"
    )
    path = folder / "slurm.conf"
    path.write_text(
        _CONFIGURATION.format(
            user=_user(),
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            port=ports[0],
            first=ports[1],
            last=ports[_NODES],
            nodes=_NODES,
            accounting=database if accounting else "AccountingStorageType=accounting_storage/none",
            min_job_age=min_job_age,
        )
    )
    # Slurm counts only GPUs with a device file: any will do.
    (folder / "gres.conf").write_text("AutoDetect=off\nName=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    # slurmd looks for control groups even where nothing uses them.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    return path


def _account(folder: Path, ports: list[int], start: Start, environment: dict[str, str]) -> None:
    """Start a database server and Slurm's accounting, and make this cluster known to it."""
    storage, port = ports
    data, password = folder / "database", secrets.token_hex(16)
    install = [_find("mariadb-install-db") or "", "--no-defaults", f"--datadir={data}", "--skip-test-db"]
    subprocess.run([*install, f"--user={_user()}"], check=True, capture_output=True)
    setup = folder / "setup.sql"
    setup.write_text(
        "CREATE DATABASE slurm;\n"
        f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm.* TO slurm@'127.0.0.1';\n"
    )
    start(
        "mariadbd",
        "--no-defaults",
        f"--user={_user()}",
        f"--datadir={data}",
        f"--socket={folder}/mysql.socket",
        f"--pid-file={folder}/mariadbd.pid",
        f"--init-file={setup}",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        f"--port={storage}",
        # What slurmdbd asks for, and no waiting for the disk: nothing here outlives the tests.
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=0",
    )
    _until(lambda: _listens(storage), folder)
    configuration = folder / "slurmdbd.conf"
    configuration.touch(mode=0o600)  # slurmdbd insists, as it holds a password
    configuration.write_text(
        _DATABASE.format(folder=folder, port=port, storage=storage, user=_user(), password=password)
    )
    start("slurmdbd", "-D")
    _until(lambda: _listens(port), folder)
    add = ["sacctmgr", "--immediate", "add", "cluster", "tests"]
    done = subprocess.run(add, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _user() -> str:
    return getpass.getuser()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> list[int]:
    """Return ports that follow each other and that nothing listens on."""
    for first in range(20000 + secrets.randbelow(8000), 32000, count):
        ports = list(range(first, first + count))
        with ExitStack() as sockets:
            try:
                for port in ports:
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return ports
    raise Unavailable("no free ports")


def _find(name: str) -> str | None:
    # The daemons stand in sbin, which is not on the PATH of users.
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _answers(running: Cluster) -> bool:
    environment = {**os.environ, "SLURM_CONF": str(running.configuration)}
    return subprocess.run(["scontrol", "ping"], env=environment, capture_output=True).returncode == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _until(condition: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            logs = {path.name: path.read_text()[-2000:] for path in folder.glob("*.log")}
            raise AssertionError(f"Slurm did not come up or did not become empty: {logs}")
        time.sleep(0.1)
