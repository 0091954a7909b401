"""The way of a scheduler's commands to a host, for the commands in a block."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcprof.common.paths import from_root
from hpcprof.common.processes import Completed

if TYPE_CHECKING:
    from hpcprof.submit.remote.host import Host


class Transport(msgspec.Struct, frozen=True):
    """Runs commands on a host that name paths of runs here; ``runs_dir`` has the copies of its runs."""

    host: "Host"
    runs_dir: Path

    def run(
        self,
        words: Sequence[str],
        directory: Path | None,
        environment: Mapping[str, str],
        prelude: str,
        seconds: float,
    ) -> Completed:
        """Run a command in a directory of the host as `Host.run` does; paths of runs are replaced."""
        local, remote = f"{from_root(self.runs_dir)}/", f"{self.host.folder('.')}/"
        # Slurm's options for logs double the per cent sign.
        pairs = [(local, remote), (local.replace("%", "%%"), remote.replace("%", "%%"))]
        words = [_replace_paths(word, pairs) for word in words]
        result = self.host.run(words, str(directory or ""), environment, prelude, seconds)
        back = [(remote, local)]
        return replace(
            result, stdout=_replace_paths(result.stdout, back), stderr=_replace_paths(result.stderr, back)
        )


def _replace_paths(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


_transport: ContextVar[Transport | None] = ContextVar("transport", default=None)


@contextmanager
def on_host(host: "Host | None", runs_dir: Path) -> Iterator[None]:
    """Run the schedulers' commands of the block on a host (None: here), whose runs are in ``runs_dir``."""
    token = _transport.set(Transport(host, runs_dir) if host else None)
    try:
        yield
    finally:
        _transport.reset(token)


def transport() -> Transport | None:
    """Return the way of a scheduler's commands, None to this machine."""
    return _transport.get()
