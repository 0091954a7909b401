"""The machine as the checks see it; tests give them another one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.submit.rendering.launchers import find_mpiexec
from hpcprof.submit.sites.model import Site

COMMAND_SECONDS = 30.0


@dataclass(frozen=True)
class Ran:
    """How a command ended; ``code`` is None where it was not to be found or did not start."""

    code: int | None
    out: str = ""
    error: str = ""
    hung: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.code == 0

    @property
    def why(self) -> str:
        """Why it did not end well, in its own last words."""
        if self.hung:
            return f"it gave no answer in {COMMAND_SECONDS:.0f} s and was ended"
        lines = [line.strip() for line in f"{self.out}\n{self.error}".splitlines() if line.strip()]
        return lines[-1].rstrip(".") if lines else f"exit code {self.code}"


def run_command(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Ran:
    """Run a command without input; one that hangs is ended with all its processes."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except OSError as error:
        return Ran(None, error=error.strerror or str(error))
    try:
        out, error_text = process.communicate(timeout=COMMAND_SECONDS)
        return Ran(process.returncode, out, error_text)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return Ran(-signal.SIGKILL, hung=True)


def read_text(path: Path) -> str | None:
    """Return a file's text, None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def free_bytes(path: Path) -> int:
    """Return the space that is left for this user where ``path`` is, or where it would be made."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


@dataclass(frozen=True)
class Machine:
    """Everything that the checks look at, so that each of them is a function of its input alone."""

    site: Site
    runs: Path
    python: str = sys.executable
    run: Callable[..., Ran] = run_command
    which: Callable[[str], str | None] = shutil.which
    read: Callable[[Path], str | None] = read_text
    free: Callable[[Path], int] = free_bytes
    mpiexec: Callable[[], str | None] = find_mpiexec
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    user: int = field(default_factory=os.getuid)

    @property
    def here(self) -> bool:
        """Whether the site's jobs run on this very machine."""
        return self.site.scheduler.value == "local"
