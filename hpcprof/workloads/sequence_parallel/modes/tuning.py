"""Find the fastest of several variants of a step by trials on all ranks."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hpcprof.workloads.capture import synchronize
from hpcprof.workloads.distributed import World
from hpcprof.workloads.timing import clock_for

# Every variant runs a few times, the fastest third more often, and the fastest of these more often still.
# The first trials of each do not count.
_TRIALS = (3, 8, 24)
_WARM_UP_TRIALS = (1, 2, 4)
_REDUCTION = 3
# At the power cap, medians of trials that differ by less are in another order the next time.
_NOISE_SHARE = 0.01

Variant = TypeVar("Variant")


def fastest(world: World, run: Callable[[int, Variant], object], variants: Sequence[Variant]) -> Variant:
    """Return the variant with the shortest time on its slowest rank; a collective call.

    If several differ by less than the noise, it is the first of them. ``run(index, variant)`` runs step
    ``index``, or enqueues it. ``variants`` is not empty, equal on every rank, and in order of preference.
    """
    candidates = list(variants)
    times = [0.0] * len(candidates)
    for trials, warm_up in zip(_TRIALS, _WARM_UP_TRIALS, strict=True):
        if len(candidates) > 1:
            times = _slowest_medians(world, run, candidates, trials, warm_up)
            allowed = max(
                sorted(times)[math.ceil(len(candidates) / _REDUCTION) - 1], (1 + _NOISE_SHARE) * min(times)
            )
            close = [which for which, time in enumerate(times) if time <= allowed]
            candidates, times = [candidates[which] for which in close], [times[which] for which in close]
    limit = (1 + _NOISE_SHARE) * min(times)
    return next(candidate for candidate, time in zip(candidates, times, strict=True) if time <= limit)


def _slowest_medians(
    world: World, run: Callable[[int, Variant], object], variants: list[Variant], trials: int, warm_up: int
) -> list[float]:
    """Return the median time of each variant on its slowest rank."""
    clock = clock_for(world.device)
    times: list[list[tuple[Any, Any]]] = [[] for _ in variants]
    # In turns and without waiting in between, as in later steps: an idle GPU is cool and fast. Every second
    # turn is in reverse, so that no variant always follows the same one.
    turn = list(range(len(variants)))
    for which in itertools.chain.from_iterable(turn[:: -1 if odd % 2 else 1] for odd in range(trials)):
        start = clock.mark()
        run(sum(map(len, times)), variants[which])
        times[which].append((start, clock.mark()))
    synchronize()
    medians = [statistics.median(clock.elapsed_ns(a, b) for a, b in marks[warm_up:]) for marks in times]
    return [max(ranks) for ranks in zip(*world.comm.allgather(medians), strict=True)]
