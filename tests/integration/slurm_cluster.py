"""A whole Slurm on this machine, for the tests: four emulated nodes on the loopback interface.

Every daemon runs in the foreground as a child of the tests, with its files in one folder, so that
nothing outside that folder is written, and ending it means ending these children.
"""

from __future__ import annotations

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

_DAEMONS = ("munged", "slurmctld", "slurmd")
_NODES = 4
_SECONDS = 40.0

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
# Any request is taken, as on many clusters, so that some stay in the queue for ever.
EnforcePartLimits=NO
# Ended jobs leave squeue soon, as on a busy cluster.
MinJobAge={min_job_age}
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
# The nodes claim more cores than this machine has.
SlurmdParameters=config_overrides
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=1000
PartitionName=debug Nodes=ALL Default=YES MaxTime=01:00:00 DefaultTime=00:10:00 State=UP
"""


class Unavailable(Exception):
    """Slurm cannot be started here; the message says what is missing."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster; a command finds it by ``SLURM_CONF``."""

    configuration: Path
    nodes: int = _NODES

    def command(self, *arguments: str) -> str:
        """Run one of Slurm's commands and return what it printed."""
        environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def idle_nodes(self) -> int:
        """Return how many nodes wait for work."""
        return len(self.command("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").split())


@contextmanager
def cluster(folder: Path, min_job_age: int = 60) -> Iterator[Cluster]:
    """Start the daemons, yield when every node is idle, and end the daemons.

    Raises
    ------
    Unavailable
        If a daemon is not installed.
    """
    missing = [name for name in _DAEMONS if not _find(name)]
    if missing:
        raise Unavailable(f"no {', '.join(missing)} here: apt-get install slurm-wlm munge")
    configuration = _configure(folder, min_job_age)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    with ExitStack() as daemons:

        def start(*command: str) -> None:
            log = daemons.enter_context((folder / f"{command[0]}.stderr").open("ab"))
            program = [_find(command[0]) or command[0], *command[1:]]
            process = subprocess.Popen(program, env=environment, stdout=log, stderr=log)
            daemons.callback(_end, process)

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
        start("slurmctld", "-D")
        for number in range(1, _NODES + 1):
            start("slurmd", "-D", "-N", f"n{number}")
        running = Cluster(configuration)
        _until(lambda: _answers(running) and running.idle_nodes() == _NODES, folder)
        try:
            yield running
        finally:
            running.command("scancel", "--partition=debug")
            _until(lambda: not running.command("squeue", "--noheader").strip(), folder)


def _configure(folder: Path, min_job_age: int) -> Path:
    for name in ("state", *(f"spool/n{number}" for number in range(1, _NODES + 1))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    ports = _free_ports(_NODES + 1)
    path = folder / "slurm.conf"
    path.write_text(
        _CONFIGURATION.format(
            user=subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip(),
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            port=ports[0],
            first=ports[1],
            last=ports[-1],
            nodes=_NODES,
            min_job_age=min_job_age,
        )
    )
    # slurmd looks for control groups even where nothing uses them.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    return path


def _free_ports(count: int) -> list[int]:
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
