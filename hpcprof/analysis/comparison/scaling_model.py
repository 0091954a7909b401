"""Models of how a time depends on the number of ranks, in the normal form of Extra-P.

A model is ``c0 + c1 * p**i * log2(p)**j``, or has a second such term (Calotoiu, Hoefler, Poke and Wolf,
"Using automated performance modeling to find scalability bugs in complex codes", SC 2013). The exponents are
those whose model predicts a left-out size best. No coefficient is negative, and errors count relative to the
time, because noise grows with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hpcprof.common.units import format_ns

Floats = NDArray[np.float64]

FEWEST_SIZES = 4
"""With fewer numbers of ranks there is no model."""

_FEWEST_FOR_TWO_TERMS = 6
_POWERS = (
    -1.0,
    -2 / 3,
    -1 / 2,
    -1 / 3,
    0.0,
    1 / 4,
    1 / 3,
    1 / 2,
    2 / 3,
    3 / 4,
    1.0,
    4 / 3,
    3 / 2,
    2.0,
    5 / 2,
    3.0,
)
_LOGS = (0, 1, 2)
_EXPONENTS = tuple((i, j) for i in _POWERS for j in _LOGS if (i, j) != (0.0, 0) and not (i < 0 and j))
_BETTER = 0.6
"""Another term has to bring the error of prediction below this share of that without it."""

_DRAWS, _LOW, _HIGH = 100, 5, 95
MOST_RANKS = 1 << 20
"""Beyond this number of ranks nothing is extrapolated."""


@dataclass(frozen=True)
class Term:
    """A term ``coefficient_ns * p**power * log2(p)**log``."""

    coefficient_ns: float
    power: float
    log: int

    def __str__(self) -> str:
        """Return it as people write it: ``12.00 ms * p^0.5 * log2(p)``."""
        power = f"p^{self.power:.3g}" if self.power not in (0, 1) else "p" * int(self.power)
        log = {0: "", 1: "log2(p)"}.get(self.log, f"log2(p)^{self.log}")
        return " * ".join(filter(None, [format_ns(self.coefficient_ns), power, log]))


@dataclass(frozen=True)
class Model:
    """A constant in ns and up to two terms; ``error`` is the relative error of predicting left-out sizes."""

    constant_ns: float
    terms: tuple[Term, ...]
    error: float

    def __str__(self) -> str:
        """Return the model as people write it."""
        parts = [format_ns(self.constant_ns)] if self.constant_ns > 0 or not self.terms else []
        return " + ".join([*parts, *map(str, self.terms)])

    def at(self, ranks: Floats) -> Floats:
        """Return the time at numbers of ranks, in ns."""
        result = np.full(len(ranks), self.constant_ns)
        for term in self.terms:
            result += term.coefficient_ns * _term(ranks, term.power, term.log)
        return result


def fit(ranks: Sequence[int], times_ns: Sequence[float]) -> Model | None:
    """Return the model of the times at some numbers of ranks; None with fewer than four of them.

    Parameters
    ----------
    ranks : sequence of int
        Different ones, ascending.
    times_ns : sequence of float
        Above 0.
    """
    if len(ranks) < FEWEST_SIZES or min(times_ns) <= 0:
        return None
    columns = _columns(tuple(ranks))
    times = np.asarray(times_ns, float)
    best = _best(columns, times, [()])
    single = _best(columns, times, [(one,) for one in range(len(_EXPONENTS))])
    best = _preferred(best, single)
    if len(ranks) >= _FEWEST_FOR_TWO_TERMS and best is single:
        best = _preferred(best, _best(columns, times, list(combinations(range(len(_EXPONENTS)), 2))))
    assert best is not None
    return best


def _preferred(simple: Model | None, other: Model | None) -> Model | None:
    if simple is None or other is None:
        return other if simple is None else simple
    return other if other.error < _BETTER * simple.error else simple


def _term(ranks: Floats, power: float, log: int) -> Floats:
    result: Floats = ranks**power * np.log2(ranks) ** log
    return result


@lru_cache(maxsize=64)
def _columns(ranks: tuple[int, ...]) -> Floats:
    """Return the value of each term at each number of ranks, the constant last, shape (sizes, terms + 1)."""
    sizes = np.array(ranks, float)
    return np.column_stack([*(_term(sizes, *one) for one in _EXPONENTS), np.ones(len(sizes))])


def _best(columns: Floats, times: Floats, chosen: Sequence[tuple[int, ...]]) -> Model | None:
    """Return the model of the terms that predict left-out sizes best; None if all have negative parts."""
    constant = columns.shape[1] - 1
    found = [_best_of(columns, times, [(*one, constant) for one in chosen])]
    # A constant that is 0 would be below it half of the time.
    found += [_best_of(columns, times, chosen)] if chosen[0] else []
    return min((one for one in found if one is not None), key=lambda one: one.error, default=None)


def _best_of(columns: Floats, times: Floats, chosen: Sequence[tuple[int, ...]]) -> Model | None:
    # Relative errors: rows are divided by their time.
    design = np.moveaxis(columns[:, np.array(chosen)], 1, 0) / times[None, :, None]
    scale = np.abs(design).max(axis=1, keepdims=True)
    scaled = design / scale
    normal = np.einsum("hni,hnj->hij", scaled, scaled)
    inverse = np.linalg.pinv(normal, hermitian=True)
    coefficients = np.einsum("hij,hnj->hi", inverse, scaled)
    hat = np.einsum("hni,hij,hnj->hn", scaled, inverse, scaled)
    residual = 1 - np.einsum("hni,hi->hn", scaled, coefficients)
    left_out = residual / np.maximum(1 - hat, 1e-6)
    error = np.sqrt((left_out**2).mean(axis=1))
    usable = (coefficients > 0).all(axis=1)
    if not usable.any():
        return None
    number = int(np.where(usable, error, np.inf).argmin())
    values = dict(zip(chosen[number], (coefficients[number] / scale[number, 0]).tolist(), strict=True))
    alone = values.pop(columns.shape[1] - 1, 0.0)
    terms = tuple(Term(value, *_EXPONENTS[place]) for place, value in values.items())
    return Model(alone, terms, float(error[number]))


@dataclass(frozen=True)
class Dominance:
    """The number of ranks from which a part takes longer than all others together, with its 90 % interval.

    None stands for more than `MOST_RANKS`.
    """

    ranks: int | None
    low: int | None
    high: int | None


def dominant_from(ranks: Sequence[int], parts: Sequence[Sequence[float]], part: int) -> Dominance | None:
    """Return from how many ranks a part dominates the others; None if it never does.

    The interval comes from drawing the times anew around the models, with the error of each, and fitting
    them again.

    Parameters
    ----------
    part : int
        The position of the part in question.
    """
    models = [fit(ranks, times) for times in parts]
    known = [model for model in models if model is not None]
    if len(known) < len(models):
        return None
    found = _dominates(known, part, ranks[0])
    if found is None:
        return None
    random = np.random.default_rng(0)
    sizes = np.array(ranks, float)
    drawn = []
    for _ in range(_DRAWS):
        again = [
            fit(ranks, (model.at(sizes) * np.exp(model.error * random.standard_normal(len(sizes)))).tolist())
            for model in known
        ]
        one = _dominates([model for model in again if model is not None], part, ranks[0])
        drawn.append(one or 2 * MOST_RANKS)
    low, high = np.percentile(drawn, [_LOW, _HIGH], method="nearest").tolist()
    return Dominance(found, _within(min(low, found)), _within(max(high, found)))


def _within(ranks: int) -> int | None:
    return ranks if ranks <= MOST_RANKS else None


def _dominates(models: Sequence[Model], part: int, fewest: int) -> int | None:
    """Return the smallest number of ranks from which a part takes longer than the others together."""
    steps = np.arange(0, 1 + 16 * np.log2(MOST_RANKS / fewest))
    ranks = fewest * 2 ** (steps / 16)
    times = np.array([model.at(ranks) for model in models])
    most = 2 * times[part] > times.sum(axis=0)
    if not most[-1]:
        return None
    last = np.flatnonzero(~most)
    return round(float(ranks[last[-1] + 1])) if len(last) else fewest
