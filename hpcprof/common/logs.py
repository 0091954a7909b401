"""Log the commands that hpcprof runs, through Python's `logging`.

Nothing is logged unless the environment asks for it: ``HPCPROF_VERBOSE=1`` (or ``hpcprof -v``) shows on
standard error each command with its exit code and time, ``HPCPROF_VERBOSE=2`` (``-vv``) its output too, and
``HPCPROF_LOG=FILE`` appends all of it with timestamps to a file. The settings are in the environment because
the worker processes of a collect run commands too. A program that uses hpcprof's Python API can also
configure the logger ``hpcprof`` itself. Secrets are masked.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcprof.common.errors import HpcprofError, UsageError

if TYPE_CHECKING:
    import logging

VERBOSE = "HPCPROF_VERBOSE"
LOG_FILE = "HPCPROF_LOG"

_LOGGER = "hpcprof"
_MAX_LOGGED_CHARACTERS = 20_000
"""Maximum logged characters of an output: a table of Nsight Compute may have a hundred million."""


def log_invocation(version: str, arguments: Sequence[str]) -> None:
    """Log hpcprof's own command line, so that a log file shows which commands belong together."""
    logger = configure()
    if logger is not None:
        from hpcprof.common.masking import masked_command

        logger.debug("hpcprof %s: %s", version, masked_command(["hpcprof", *arguments]))


def configure() -> logging.Logger | None:
    """Return the logger with the handlers that the environment asks for; None if nothing is logged."""
    verbose, path = os.environ.get(VERBOSE, "").strip("0 "), os.environ.get(LOG_FILE)
    # Importing logging takes 4 ms; if nobody has imported it, nobody has configured the logger either.
    if not verbose and not path and "logging" not in sys.modules:
        return None
    import logging

    logger = logging.getLogger(_LOGGER)
    present = {handler.get_name(): handler for handler in logger.handlers}
    if verbose:
        terminal = present.get(VERBOSE) or _add_handler(logger, VERBOSE, logging.StreamHandler(sys.stderr))
        terminal.setLevel(logging.INFO if verbose == "1" else logging.DEBUG)
    if path and LOG_FILE not in present:
        try:
            file = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"{LOG_FILE}={path} cannot be written: {error.strerror}.") from None
        file.setFormatter(
            logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
        )
        _add_handler(logger, LOG_FILE, file)
    return logger


def _add_handler(logger: logging.Logger, name: str, handler: logging.Handler) -> logging.Handler:
    handler.set_name(name)
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    logger.propagate = False
    return handler


def log_command(command: Sequence[str], outcome: str, stdout: str = "", stderr: str = "") -> None:
    """Log a command with its outcome, as in ``"exit code 0, 0.12 s"``; at the debug level its output too."""
    logger = configure()
    if logger is None:
        return
    from hpcprof.common.masking import masked_command

    logger.info("$ %s  [%s]", masked_command(command), outcome)
    for stream, text in (("stdout", stdout), ("stderr", stderr)):
        if text.strip():
            logger.debug("%s of %s:\n%s", stream, command[0], shown_output(text))


def log_traceback(sentence: str, trace: str) -> None:
    """Log the traceback of an exception that became a sentence, at the debug level."""
    logger = configure() if trace else None
    if logger is not None:
        logger.debug("%s\n%s", sentence, shown_output(trace))


@contextmanager
def left_out_if_damaged(name: str, skipped: list[str]) -> Iterator[None]:
    """Add an unexpected error about one run to ``skipped``, so that the other runs do not fail with it."""
    try:
        yield
    except HpcprofError:
        raise
    except Exception as error:
        skipped.append(f"{name} is left out: an internal error of hpcprof, {type(error).__name__}: {error}")
        log_traceback(skipped[-1], traceback.format_exc())


def shown_output(text: str) -> str:
    """Return an output as it is logged: indented, shortened, without secrets and control characters."""
    from hpcprof.common.masking import masked
    from hpcprof.common.units import visible

    lines = masked(text[:_MAX_LOGGED_CHARACTERS]).expandtabs().splitlines()
    if len(text) > _MAX_LOGGED_CHARACTERS:
        lines.append(f"… and {len(text) - _MAX_LOGGED_CHARACTERS:,} more characters")
    return "\n".join(f"    {visible(line)}" for line in lines)
