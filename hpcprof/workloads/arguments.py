"""Parsing of a workload's arguments, for the submit side and the ranks alike: a mistake is one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from hpcprof.errors import UsageError


class WorkloadParser(argparse.ArgumentParser):
    """A parser that raises instead of exiting: the caller prints the sentence, and decides on which rank."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with the workload's name before the sentence."""
        raise UsageError(f"{self.prog}: {message}.")


def whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return a converter of whole numbers from ``minimum`` to ``maximum``, for argparse's ``type``."""
    limits = f"from {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}")
        return value

    return convert
