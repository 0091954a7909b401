"""Identifies a process beyond its pid, which another process may get later.

The supervisor of a local job imports it, so it needs nothing that takes time to import.
"""

from pathlib import Path
from typing import NamedTuple


class ProcessIdentity(NamedTuple):
    """A process, identified by its pid, its start time in ticks and the boot."""

    pid: int
    start_ticks: str
    boot_id: str

    @staticmethod
    def of(pid: int) -> "ProcessIdentity | None":
        """Return the identity of a process, None if it does not exist or is a zombie."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        except OSError:
            return None
        # proc(5): after the name, field 3 is the state and field 22 the start time.
        return None if fields[0] == "Z" else ProcessIdentity(pid, fields[19], boot_id)

    @staticmethod
    def parse(text: str | None) -> "ProcessIdentity | None":
        """Read what `str` wrote."""
        parts = (text or "").split()
        return ProcessIdentity(int(parts[0]), parts[1], parts[2]) if len(parts) == 3 else None

    def __str__(self) -> str:
        return f"{self.pid} {self.start_ticks} {self.boot_id}"

    def alive(self) -> bool:
        """Return whether the process is still running."""
        return ProcessIdentity.of(self.pid) == self
