"""The note of the exception that ended a rank."""

from __future__ import annotations

from hpcprof.node.uncaught import describe


class _Group(Exception):
    """A group of exceptions, as Python has them since 3.11."""

    def __init__(self, message: str, exceptions: list[BaseException]) -> None:
        super().__init__(message)
        self.exceptions = tuple(exceptions)


def test_a_group_is_described_by_its_first_exception() -> None:
    group = _Group("unhandled errors (1 sub-exception)", [ValueError("no such batch"), KeyError("x")])
    note = describe(_Group("outer", [group]))
    assert (note["type"], note["message"]) == ("ValueError", "no such batch")
    assert describe(_Group("empty", []))["message"] == "empty"


def test_both_ends_of_a_long_message_are_kept() -> None:
    message = describe(ValueError(f"begin{' ' * 9000}KeyError: 'x'"))["message"]
    assert len(message) < 4100
    assert message.startswith("begin") and message.endswith("\nKeyError: 'x'".strip())
