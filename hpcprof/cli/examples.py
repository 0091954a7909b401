"""The examples under every ``--help``."""

import textwrap

_WIDTH = 78  # so that a terminal of 80 columns breaks none where a shell would not


def examples(*commands: str) -> str:
    """Return an epilogue with one command a line; click leaves lines after ``\\b`` as they are."""
    title = "Examples:" if len(commands) > 1 else "Example:"
    return "\n".join(("\b", title, *(f"  {_continued(command)}" for command in commands)))


def _continued(command: str) -> str:
    """Break a long command at spaces as a shell takes it: a backslash ends each line but the last."""
    lines = textwrap.wrap(command, _WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    return " \\\n      ".join(lines)
