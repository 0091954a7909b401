"""What several analyses need is computed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast
from weakref import finalize

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def once(function: FunctionT) -> FunctionT:
    """Keep what a function returns for timelines or frames as long as they live; they may not change.

    The result may not refer to them, or they would never be freed. Analyses may run in threads: the
    first one computes, the others wait.
    """
    results: dict[tuple[int, ...], Any] = {}
    lock = RLock()

    @wraps(function)
    def kept(*of: Any) -> Any:
        key = tuple(map(id, of))
        with lock:
            if key not in results:
                results[key] = function(*of)
                for one in of:
                    finalize(one, results.pop, key, None)
            return results[key]

    return cast(FunctionT, kept)
