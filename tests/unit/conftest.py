"""Unit tests are pure: they start no process, so that the whole tier stays quick."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system")
"""Audit events of Python's library, https://docs.python.org/3/library/audit_events.html."""
_forbidden = False


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _forbidden and event in STARTS:
        raise AssertionError(f"a unit test starts a process ({event}): it belongs in tests/integration")


# An audit hook cannot be removed: a flag switches it.
sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _no_process() -> Iterator[None]:
    """Fail a test that starts a process."""
    global _forbidden
    _forbidden = True
    yield
    _forbidden = False
