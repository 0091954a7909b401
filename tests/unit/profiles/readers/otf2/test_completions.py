"""Completions of requests that no event records."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.profiles.readers.otf2.events import MpiKind
from hpcprof.profiles.readers.otf2.mpi import completion_kind, completions, lacks_completions

KINDS = {
    "send": MpiKind.BEGIN_SEND,
    "recv": MpiKind.BEGIN_RECEIVE,
    "sent": MpiKind.END_SEND,
    "received": MpiKind.END_RECEIVE,
    "waitall": MpiKind.WAIT_ALL,
    "wait": MpiKind.WAIT,
    "waitany": MpiKind.WAIT_SOME,
    "test": MpiKind.TEST,
    "call": MpiKind.CALL_COLLECTIVE,
}


def events(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the kinds and requests of events such as ``recv:1 send:2 wait``."""
    parts = [part.partition(":") for part in text.split()]
    return (
        np.array([KINDS[kind] for kind, _, _ in parts], np.int64),
        np.array([int(request or 0) for _, _, request in parts], np.int64),
    )


@pytest.mark.parametrize(
    ("text", "completed_by"),
    [
        ("recv:1 send:2 waitall", [2, 2]),
        ("recv:1 send:2 wait wait", [2, 3]),
        # The second is used again before the next wait.
        ("recv:1 recv:2 wait recv:2 wait wait", [4, 2, 5]),
        # Sends need no other rank.
        ("recv:1 send:2 waitany waitany", [3, 2]),
        ("recv:1 test test test call recv:1 test", [3, 6]),
        ("recv:1 test test wait", [3]),
        ("recv:1 send:2 waitall recv:3 call", [2, 2, -1]),
    ],
)
def test_a_request_is_completed_by_the_call_that_mpi_lets_complete_it(
    text: str, completed_by: list[int]
) -> None:
    kind, request = events(text)
    begins = np.isin(kind, (MpiKind.BEGIN_SEND, MpiKind.BEGIN_RECEIVE))
    assert completions(kind, request, [])[begins].tolist() == completed_by


def test_an_operation_whose_completion_is_recorded_takes_no_wait_of_others() -> None:
    kind, request = events("recv:1 recv:2 received:1 wait")
    assert completions(kind, request, [0]).tolist() == [-1, 3, -1, -1]


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        ("send:1 waitall", True),
        ("send:1 sent:1 recv:2 waitall", False),
        ("recv:1 waitall recv:1 waitall", True),
        ("recv:1 received:1 recv:1 received:1", False),
        ("recv:1 recv:2", False),
    ],
)
def test_a_writer_without_completions_shows_in_requests_that_are_used_again(text: str, lacking: bool) -> None:
    assert lacks_completions(*events(text)) == lacking


def test_functions_that_wait_and_test_complete_requests() -> None:
    kinds = [completion_kind(f"MPI_{name}") for name in ("Waitall", "Wait", "Waitsome", "Testany", "Recv")]
    assert kinds == [MpiKind.WAIT_ALL, MpiKind.WAIT, MpiKind.WAIT_SOME, MpiKind.TEST, None]
