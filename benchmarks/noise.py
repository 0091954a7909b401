"""Noise of several kinds, and the intervals of shares that are counted in simulations with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Shape = tuple[int, ...]

OUTLIER = 10.0
DRIFT = 0.2


def _normal(shape: Shape, draw: np.random.Generator) -> Values:
    return draw.standard_normal(shape)


def _lognormal(shape: Shape, draw: np.random.Generator) -> Values:
    # Of a lognormal variable with these parameters the mean is exp(1/2), and the variance e (e - 1).
    values: Values = (draw.lognormal(0, 1, shape) - np.exp(0.5)) / np.sqrt(np.e * (np.e - 1))
    return values


def _heavy_tails(shape: Shape, draw: np.random.Generator) -> Values:
    values: Values = draw.standard_t(3, shape) / np.sqrt(3)
    return values


def _outliers(shape: Shape, draw: np.random.Generator) -> Values:
    return draw.standard_normal(shape) + OUTLIER * (draw.random(shape) < 0.05)


def autoregressive(correlation: float) -> Callable[[Shape, np.random.Generator], Values]:
    """Return a generator of normal series of first order."""

    def series(shape: Shape, draw: np.random.Generator) -> Values:
        values = draw.standard_normal(shape)
        for i in range(1, shape[-1]):
            values[..., i] *= np.sqrt(1 - correlation**2)
            values[..., i] += correlation * values[..., i - 1]
        return values

    return series


def _slow_and_fast(shape: Shape, draw: np.random.Generator) -> Values:
    values: Values = (autoregressive(0.8)(shape, draw) + draw.standard_normal(shape)) / np.sqrt(2)
    return values


def _drift(shape: Shape, draw: np.random.Generator) -> Values:
    return draw.standard_normal(shape) + DRIFT * np.arange(shape[-1])


KINDS: dict[str, Callable[[Shape, np.random.Generator], Values]] = {
    "normal": _normal,
    "lognormal": _lognormal,
    "heavy tails": _heavy_tails,
    "outliers": _outliers,
    "AR(0.5)": autoregressive(0.5),
    "AR(0.8)": autoregressive(0.8),
    "slow and fast": _slow_and_fast,
    "drift": _drift,
}
"""Series along the last axis, with a standard deviation of 1 but for what follows.

Heavy tails are Student's t with 3 degrees of freedom. Of the outliers' values one in 20 is `OUTLIER` higher.
AR is an autoregressive series with this correlation of neighbours; "slow and fast" is half AR(0.8) and half
independent. With a drift each value is `DRIFT` higher than the one before.
"""


def share(hits: int, trials: int) -> str:
    """Return a share in percent with its 95 % interval (Wilson's)."""
    if not trials:
        return "–"
    z = 1.96
    middle = (hits + z * z / 2) / (trials + z * z)
    half = z / (trials + z * z) * np.sqrt(hits * (trials - hits) / trials + z * z / 4)
    low, high = 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)
    digits = 1 if high > 1.5 else 2
    return f"{100 * hits / trials:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"
