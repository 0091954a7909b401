"""A host that is reached by the system's OpenSSH, with the user's configuration, agent and jump hosts.

One connection is shared by all commands (ControlMaster), so that a one-time password is asked for once. ssh
asks for it in the terminal; hpcprof handles no password.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath

from hpcprof.common.masking import masked
from hpcprof.common.processes import CommandNotStarted, Completed, Piped, piped, run_command
from hpcprof.submit.remote.request import HOME, NAME, HostUnreachable
from hpcprof.submit.sites.model import Site

RUNS_DIR = "hpcprof-runs"
"""The folder of runs on a host whose site names none, in the user's home folder."""

_MAX_CONNECT_SECONDS = 300.0
"""For one connection: somebody may have to type a password, or to confirm on a telephone."""

_SECONDS = 120.0
_LOCAL_SECONDS = 10.0
_MAX_OUTPUT_BYTES = 32 << 20
"""Maximum output of a command, in bytes."""

_NO_CONNECTION = 255
_NOT_FOUND_CODES = (126, 127)
_OPTIONS = ("-T", "-o", "RemoteCommand=none", "-o", "ServerAliveInterval=15")
_SHARED_CONNECTION = ("-oControlMaster=auto", "-oControlPath=~/.ssh/hpcprof-%C", "-oControlPersist=10m")
_BEGIN_LINE = "hpcprof-begins"
"""The line after what the start-up files of the user's shell print, such as a greeting."""

_MAX_LINE_BYTES = 1 << 16

_UNANSWERED_PROMPTS = ("Permission denied (", "Host key verification failed")
"""Words of ssh where it would have to ask for a password, or to confirm a host that is new."""

_ADVICE = "; run hpcprof in a terminal first, where ssh can ask you"


@dataclass(frozen=True)
class Host:
    """A host, and where runs are on it."""

    name: str
    """A name of ssh's configuration, or one of the network."""
    user: str = ""
    """The account there; empty leaves it to ssh."""
    runs_dir: str = RUNS_DIR
    """The folder of runs there; below the home folder unless it is absolute."""
    home: str = ""
    """The home folder there; empty until `account` has asked for it."""

    @staticmethod
    def of(site: Site) -> "Host | None":
        """Return the host of a site, None for this machine."""
        return Host(site.host, site.user, site.runs_dir or RUNS_DIR) if site.host else None

    def folder(self, run_id: str) -> PurePosixPath:
        """Return the folder of a run there, below `HOME` as long as the home folder is unknown."""
        return PurePosixPath(self.home or HOME, self.runs_dir, run_id)

    def connect(self) -> None:
        """Open the shared connection unless it is open; ssh may ask for a password in the terminal."""
        is_open = run_command([*_ssh(self.name, self.user), "-O", "check", "--", self.name], timeout=_SECONDS)
        if is_open.exit_code != 0:
            asking = _can_ask()
            with self.reached(["true"], _MAX_CONNECT_SECONDS, asking=asking) as running:
                running.stdout.read(_MAX_OUTPUT_BYTES)
            self.check(running)

    def account(self) -> "Host":
        """Return this host with the account, and the absolute folders, that it has."""
        lines = self.run(["sh", "-c", 'printf "%s\\n" "$(id -un)" "$HOME"']).stdout.splitlines()
        user, home = lines if len(lines) == 2 else ("", "")
        if not home.startswith("/") or not home.isprintable() or not NAME.fullmatch(user):
            raise HostUnreachable(f"{self.name} does not report the user's name and home folder.")
        return replace(self, user=user, home=home, runs_dir=str(PurePosixPath(home, self.runs_dir)))

    def run(
        self,
        words: Sequence[str],
        directory: str = "",
        environment: Mapping[str, str] | None = None,
        prelude: str = "",
        seconds: float = _SECONDS,
    ) -> Completed:
        """Run a command on the host, by default in the home folder; return its exit code and output.

        ``prelude`` is a line of shell that is run first. Raises `HostUnreachable` if the connection cannot be
        made or broke, or the command printed too much.
        """
        script = _script(words, directory, environment or {}, prelude)
        with self.reached(["/bin/sh", "-c", script], seconds) as running:
            output = running.stdout.read(_MAX_OUTPUT_BYTES + 1)
            if len(output) > _MAX_OUTPUT_BYTES:
                most = f"{_MAX_OUTPUT_BYTES >> 20} MiB"
                raise HostUnreachable(f"{words[0]} on {self.name} printed more than {most}.")
        if running.exit_code in _NOT_FOUND_CODES:
            raise CommandNotStarted(words[0], f"{self.name} has none on the PATH of commands that ssh runs")
        self.check(running)
        text = output.decode("utf-8", "replace")
        return Completed(tuple(words), running.exit_code, text, running.stderr, 0.0)

    @contextmanager
    def reached(self, words: Sequence[str], seconds: float, asking: bool = False) -> Iterator[Piped]:
        """Run a command there, as `piped` does; unless ``asking``, ssh asks for no password."""
        silent = [] if asking else ["-o", "BatchMode=yes"]
        # A single word: the user's shell on the host splits it again. csh takes a quoted ! for its history.
        remote = f"echo {_BEGIN_LINE}; exec {shlex.join(words)}".replace("!", r"'\!'")
        command = [*_ssh(self.name, self.user), *silent, "--", self.name, remote]
        with piped(command, timeout=seconds, in_terminal=asking) as running:
            mark = f"{_BEGIN_LINE}\n".encode()
            while (line := running.stdout.readline(_MAX_LINE_BYTES)) and not line.endswith(mark):
                pass
            yield running

    def check(self, ended: Piped) -> None:
        """Raise `HostUnreachable` if ssh ended without the command's own exit code."""
        if ended.exit_code == _NO_CONNECTION or ended.exit_code < 0:
            # Messages of ssh in a terminal can be read there.
            complaint = complaint_of(ended.stderr)
            unanswered = any(text in complaint for text in _UNANSWERED_PROMPTS) and not _can_ask()
            advice = _ADVICE if unanswered else ""
            raise HostUnreachable(f"{self.name} cannot be reached{complaint and ': '}{complaint}{advice}.")


def complaint_of(errors: str) -> str:
    """Return the errors of a command on one line without secrets, as the end of a sentence."""
    return masked(" ".join(errors.split())).rstrip(".")


def _can_ask() -> bool:
    """Return whether somebody at a terminal that this process may read can answer ssh's questions."""
    try:
        return sys.stderr.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # no standard input, or one that is no terminal
        return False


@cache
def _ssh(name: str, user: str) -> tuple[str, ...]:
    """Return ssh with options that share one connection, unless the user's configuration does that."""
    words = ("ssh", *_OPTIONS, *(("-l", user) if user else ()))
    settings = run_command([*words, "-G", "--", name], timeout=_LOCAL_SECONDS).stdout.splitlines()
    path = next((line.partition(" ")[2] for line in settings if line.startswith("controlpath ")), "none")
    return words if path != "none" else (*words, *_SHARED_CONNECTION)


def _script(words: Sequence[str], directory: str, environment: Mapping[str, str], prelude: str) -> str:
    """Return a script of one line: csh, which may be the user's shell there, quotes no others."""
    lines = [prelude] if prelude else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    if directory:
        lines.append(f"cd {shlex.quote(directory)} || exit 1")
    return "; ".join([*lines, f"exec {shlex.join(words)}"])
