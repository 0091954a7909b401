"""The note of the exception that ended a rank."""

from __future__ import annotations

import pytest

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


def test_code_that_a_library_makes_is_not_what_a_user_typed() -> None:
    made = compile("def make(): check()", "<string>", "exec")  # as the methods of a dataclass
    library = "def check(): raise ValueError\nexec(made)\ndef main(): make()\n"
    scope: dict[str, object] = {"made": made}
    exec(compile(library, "/usr/lib/python3/library.py", "exec"), scope)
    for first, place in (("/usr/lib/python3/runpy.py", "/usr/lib/python3/library.py"), ("<string>",) * 2):
        with pytest.raises(ValueError) as caught:
            exec(compile("main()", first, "exec"), scope)
        error = caught.value
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        assert describe(error)["where"]["file"] == place
