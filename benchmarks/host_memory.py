"""Rates at which steady host memory is taken for growth, and at which a leak is found.

``python benchmarks/host_memory.py [SERIES [SECONDS]]``: series of each kind, by default 2,000, of a sample a
second, by default for two minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from hpcprof.analysis.memory.tables import growth
from hpcprof.profiles.timeline import Floats

_LEVEL, _MB = 2e9, 1e6
_SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 else 120


def _noise(random: np.random.Generator, mb: float) -> Floats:
    return random.normal(0, mb * _MB, _SECONDS)


def _ar1(random: np.random.Generator) -> Floats:
    noise = _noise(random, 10)
    for at in range(1, _SECONDS):
        noise[at] += 0.95 * noise[at - 1]
    return noise


def _sawtooth(random: np.random.Generator) -> Floats:
    period = random.integers(7, 40)
    return 200 * _MB * ((np.arange(_SECONDS) + random.integers(period)) % period) / period


def _jumps(random: np.random.Generator) -> Floats:
    sizes = np.zeros(_SECONDS)
    sizes[random.integers(0, _SECONDS, random.integers(1, 4))] = 300 * _MB
    return sizes.cumsum()


def _settles(random: np.random.Generator) -> Floats:
    return 500 * _MB * (1 - np.exp(-np.arange(_SECONDS) / random.uniform(3, 40)))


CLEAN: dict[str, Callable[[np.random.Generator], Floats]] = {
    "level with noise": lambda random: _noise(random, 30),
    "noise that resembles its neighbours (0.95)": _ar1,
    "random walk": lambda random: _noise(random, 10).cumsum(),
    "sawtooth of 7 to 40 s": _sawtooth,
    "one to three jumps": _jumps,
    "level that settles in 3 to 40 s": _settles,
    "leak that stops at the half": lambda random: (
        15 * _MB * np.minimum(np.arange(_SECONDS), _SECONDS / 2) + _noise(random, 2)
    ),
}


def _leak(rate_mb: float, noise_mb: float) -> Callable[[np.random.Generator], Floats]:
    return lambda random: rate_mb * _MB * np.arange(_SECONDS) + _noise(random, noise_mb)


LEAKS = {
    f"leak of {rate} MB/s, noise of {noise} MB": _leak(rate, noise)
    for rate, noise in ((1, 5), (1, 30), (10, 100), (15, 5))
}


def main(count: int) -> None:
    """Print the share of series that are said to grow, and of leaks whose interval has the rate."""
    times = np.arange(_SECONDS, dtype=float)
    for name, make in {**CLEAN, **LEAKS}.items():
        random = np.random.default_rng(1)
        found = [growth(times, _LEVEL + make(random)) for _ in range(count)]
        grows = [one for one in found if one is not None and one.grows]
        said = f"{name:45} grows in {100 * len(grows) / count:6.2f} %"
        if name in LEAKS:
            rate = float(name.split()[2]) * _MB
            inside = sum(one is not None and one.low <= rate <= one.high for one in found)
            said += f", rate in the interval in {100 * inside / count:.1f} %"
        print(said)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
