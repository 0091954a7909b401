"""A cache for results that several functions need of the same input.

It saves 12 % of the CPU time of a collect of 1.2 million kernels (4.49 -> 4.02 s, least of 3).
"""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast
from weakref import finalize

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def computed_once(function: FunctionT) -> FunctionT:
    """Cache the result of a function for each combination of arguments, until the arguments are deleted.

    Arguments are compared by identity, since DataFrames cannot be hashed. They must not change, and the
    result must not refer to them, or they would never be freed. If several threads call the function, the
    first computes the result and the others wait.
    """
    results: dict[tuple[int, ...], Any] = {}
    lock = RLock()

    @wraps(function)
    def cached(*arguments: Any) -> Any:
        key = tuple(map(id, arguments))
        with lock:
            if key not in results:
                results[key] = function(*arguments)
                for argument in arguments:
                    finalize(argument, results.pop, key, None)
            return results[key]

    return cast(FunctionT, cached)
