"""Fixtures for programs that record themselves."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _callbacks() -> Iterator[None]:
    """Take away the callbacks of the garbage collector that a program of a test leaves."""
    callbacks = gc.callbacks  # a test may have another list in its place
    before = [*callbacks]
    yield
    callbacks[:] = before
