"""From profiles to the store: the profiles of a run, reading them, and the analyses of a collect."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return the class `Collected`, whose documented name has no further module in it."""
    if name != "Collected":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.collection").Collected
