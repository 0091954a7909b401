"""An OpenSSH server on the loopback interface, a process of the tests with keys and a port of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.slurm_cluster import free_ports

_SECONDS = 20.0

_SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
ForceCommand {folder}/greet
"""

# The start-up files of many accounts print something, also where nobody reads it.
_GREETING = """\
#!/bin/sh
printf 'Welcome\\nJob 123.pbs\\n* no end of the line'
exec /bin/sh -c "${SSH_ORIGINAL_COMMAND-true}"
"""

# The folder of a control socket must have a short path.
_CLIENT = """\
Host inner
  ProxyJump cluster
Host cluster inner
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
  ControlMaster auto
  ControlPath {folder}/%C
  ControlPersist 60
"""


class Unavailable(Exception):
    """The server cannot be started here; the message says what is missing."""


@dataclass
class SshServer:
    """A server that is reached as host ``cluster``, and by it as ``inner``.

    Attributes
    ----------
    folder : Path
        Its files; ``bin`` there has the ``ssh`` that knows it, and ``home`` is the home folder on it.
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def home(self) -> Path:
        """The home folder of commands on the server."""
        return self.folder / "home"

    def disconnect(self) -> None:
        """End the shared connections, if there are any."""
        ssh = self.folder / "bin/ssh"
        for host in ("inner", "cluster"):
            subprocess.run([ssh, "-O", "exit", host], capture_output=True, check=False)


@contextmanager
def ssh_server(folder: Path, environment: Mapping[str, str]) -> Iterator[SshServer]:
    """Start a server whose commands have these variables, and end it with its connections.

    Raises
    ------
    Unavailable
        If OpenSSH's server is not installed.
    """
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise Unavailable("no sshd here: apt-get install openssh-server")
    port = free_ports(1)[0]
    for name in ("host_key", "key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    (folder / "home").mkdir()
    (folder / "bin").mkdir()
    values = " ".join(f'"{name}={value}"' for name, value in environment.items())
    (folder / "sshd_config").write_text(_SERVER.format(port=port, folder=folder) + f"SetEnv {values}\n")
    (folder / "greet").write_text(_GREETING)
    (folder / "greet").chmod(0o755)
    (folder / "config").write_text(_CLIENT.format(port=port, folder=folder))
    shim = folder / "bin/ssh"
    shim.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    shim.chmod(0o755)
    # As root, the server wants a folder of the system's.
    if getpass.getuser() == "root":
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    log = folder / "sshd.log"
    server = subprocess.Popen([program, "-D", "-f", str(folder / "sshd_config"), "-E", str(log)])
    running = SshServer(folder, port, server)
    try:
        deadline = time.monotonic() + _SECONDS
        while not _listens(port):
            assert time.monotonic() < deadline and server.poll() is None, log.read_text()
            time.sleep(0.05)
        yield running
    finally:
        running.disconnect()
        server.terminate()
        server.wait(timeout=_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
