"""Scaling: the step time by the number of ranks, over runs of the same program, and models of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.comparison.scaling_series import (
    ScalingKind,
    ScalingSeries,
    ScalingSetup,
    find_series,
    relevant_parameters,
)
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, RATIO_DIGITS, welch_interval
from hpcprof.common.grouping import grouped
from hpcprof.common.units import format_ns, listed
from hpcprof.profiles.timeline import Floats
from hpcprof.workloads.catalogue import WORKLOADS

_COMMON_FACTS = ("site", "GPU", "profiler")
"""The facts that the runs of a series have in common, beside the program."""
_CALLS_OUTSIDE_STEPS = ("MPI_Init", "MPI_Init_thread", "MPI_Finalize")
"""Calls outside of all steps."""
_MAX_NAMED_RUNS = 3
"""Maximum number of runs of unknown programs in a sentence."""


class _Timed(msgspec.Struct, frozen=True):
    """A run with its median step in ns; ``where`` holds the facts named `_COMMON_FACTS` that are known."""

    program: str
    workload: str | None
    where: Mapping[str, str]
    setup: ScalingSetup
    step_ns: float
    run: RunData

    def pop(self, factor: str) -> float | None:
        """Return an efficiency of the step, else of the run, as a ratio; None if it is unknown."""
        values = _step_rows(self.run.tables["pop"])[f"{factor}_pct"].dropna().to_numpy(float)
        return float(values[0]) / 100 if len(values) else None

    @property
    def rates(self) -> Floats | None:
        """The instructions and the cycles per ns of useful time in the steps; None without both."""
        rows = _step_rows(self.run.tables["useful_counters"])
        counts = rows[["useful_ns", "instructions", "cycles"]].to_numpy(float)
        totals = counts.sum(axis=0) if len(counts) else np.zeros(3)
        return totals[1:] / totals[0] if np.all(totals > 0) else None


def _step_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the step or, without any, all rows."""
    rows: pd.DataFrame = table[table["scope"] == "step"]
    return rows if len(rows) else table


def scaling(runs: Sequence[RunData]) -> Outcome:
    """Return the median step for each number of ranks, with speedup and efficiency.

    A series consists of runs of one program at one site, on the same GPUs, with the same profiler and the
    same parameters but for those that scale with the ranks
    (`hpcprof.analysis.comparison.scaling_series.find_series`). The parameters are those that the workload
    recorded, else the options on the command line. ``kind`` is ``strong`` if the size of the whole problem
    stays the same, ``weak`` if the size per rank does, and ``unknown`` if the parameters do not tell: then
    speedup is that of a step, and there is no efficiency. Runs of unknown programs are left out.

    ``step_p50_ns`` is the geometric mean over the runs of the median step, by the workload's own clock or, if
    there is none, in the profiles. The reference is the smallest number of ranks. ``speedup`` is the work per
    time over that of the reference. ``efficiency`` is the speedup over the ratio of ranks, with a 95 %
    interval (Welch's t on logarithms) if both have two or more runs.

    MPI programs have POP's factors too: the efficiencies of the step, ``computation_scaling``, the useful
    time of the reference over the useful time of these ranks (of all ranks together in strong scaling, of one
    in weak scaling), and ``global_efficiency``, parallel efficiency times computation scaling. Where
    instructions and cycles were counted, computation scaling is the product of ``instruction_scaling``,
    ``ipc_scaling`` and ``frequency_scaling``.
    """
    measured = [(run, step) for run in runs if (step := _step_ns(run)) is not None and run.ranks is not None]
    timed = [entry for run, step in measured if (entry := _timed_run(run, step)) is not None]
    rows = [row for series, timed_runs in _all_series(timed) for row in _rows(series, timed_runs)]
    notes = unknown_program_notes(runs)
    if not rows:
        reason = (
            "scaling needs runs of one program at two or more rank counts; "
            f"runs with step times: {len(measured)} of {len(runs)}"
        )
        return no_rows("; ".join([reason, *notes]))
    if any(row["efficiency"] is None for row in rows):
        notes.append("no efficiency where the parameters do not tell strong from weak scaling")
    if any(row["runs"] < 2 for row in rows):
        notes.append("no interval where a rank count, or the reference, has only one run")
    return Outcome(pd.DataFrame(rows, dtype=object), "; ".join(notes))


def unknown_program_notes(runs: Sequence[RunData]) -> list[str]:
    """Return a sentence about the runs with steps whose program is unknown; none if all are known."""
    nameless = [run for run in runs if run.facts["program"] is None and _step_ns(run) is not None]
    if not nameless:
        return []
    return [
        f"left out, because the program is unknown: {listed([run.id for run in nameless], _MAX_NAMED_RUNS)}; "
        f"{nameless[0].collect_command} --program NAME names it"
    ]


def _timed_run(run: RunData, step_ns: float) -> _Timed | None:
    """Return a run as series need it; None if its program is unknown."""
    program, workload, nodes = run.facts["program"], run.facts["workload"], run.facts["nodes"]
    if program is None or run.ranks is None:
        return None
    return _Timed(
        program=str(program),
        workload=None if workload is None else str(workload),
        where={fact: str(run.facts[fact]) for fact in _COMMON_FACTS if run.facts[fact] is not None},
        setup=ScalingSetup(
            run.ranks,
            nodes if isinstance(nodes, int) else None,
            relevant_parameters(run.parameters or run.options),
        ),
        step_ns=step_ns,
        run=run,
    )


def _step_ns(run: RunData) -> float | None:
    if run.own_p50_ns is not None:
        return run.own_p50_ns
    summary = run.tables["steps_summary"]
    return float(summary["p50_ns"].iloc[0]) if len(summary) else None


def _pop_columns(kind: ScalingKind, runs: Sequence[_Timed], reference: Sequence[_Timed]) -> dict[str, Any]:
    """Return POP's factors of some runs in percent, the geometric mean where there are several."""
    names = ("parallel_efficiency", "load_balance", "communication_efficiency")
    mean = {f"{name}_pct": _mean([run.pop(name) for run in runs]) for name in names}
    useful, reference_useful = (
        _mean([None if (share := run.pop(names[0])) is None else share * run.step_ns for run in side])
        for side in (runs, reference)
    )
    scaled = None
    if useful and reference_useful and kind is not ScalingKind.UNKNOWN:
        strong = kind is ScalingKind.STRONG
        before, now = (side[0].setup.ranks if strong else 1 for side in (reference, runs))
        scaled = reference_useful * before / (useful * now)
    parallel = mean["parallel_efficiency_pct"]
    global_efficiency = scaled * parallel if scaled is not None and parallel is not None else None
    efficiencies = {**mean, "computation_scaling_pct": scaled, "global_efficiency_pct": global_efficiency}
    efficiencies |= _parts_of_computation(scaled, *(_rates(side) for side in (runs, reference)))
    return {name: None if value is None else round(100 * value, 2) for name, value in efficiencies.items()}


def _parts_of_computation(
    scaled: float | None, rates: Floats | None, reference_rates: Floats | None
) -> dict[str, float | None]:
    """Return the factors of computation scaling, from instructions and cycles per useful time."""
    names = ("instruction_scaling_pct", "ipc_scaling_pct", "frequency_scaling_pct")
    if scaled is None or rates is None or reference_rates is None:
        return dict.fromkeys(names)
    instructions, cycles = (rates / reference_rates).tolist()
    return dict(zip(names, (scaled / instructions, instructions / cycles, cycles), strict=True))


def _rates(runs: Sequence[_Timed]) -> Floats | None:
    """Return the instructions and the cycles per ns of useful time; None if a run did not count them."""
    rates = [run.rates for run in runs]
    measured = [rate for rate in rates if rate is not None]
    return np.mean(measured, axis=0) if measured and len(measured) == len(rates) else None


def _mean(values: Sequence[float | None]) -> float | None:
    terms = [value for value in values if value]
    return math.exp(sum(map(math.log, terms)) / len(terms)) if terms and len(terms) == len(values) else None


def _groups(timed: Sequence[_Timed]) -> list[list[_Timed]]:
    """Return the runs of each program at each place, by their names."""
    groups = grouped(((run.program, tuple(run.where.items())), run) for run in timed)
    return [groups[key] for key in sorted(groups)]


def _all_series(timed: Sequence[_Timed]) -> Iterator[tuple[ScalingSeries, list[_Timed]]]:
    """Yield the series of all programs, each with its runs."""
    for group in _groups(timed):
        workload = WORKLOADS.get(group[0].program)
        for series in find_series([run.setup for run in group], workload.size if workload else None):
            yield series, [group[i] for i in series.runs]


def _keys(series: ScalingSeries, first: _Timed) -> dict[str, Any]:
    """Return the columns that identify a series; ``first`` is one of its runs."""
    parameters = " ".join(filter(None, [series.size, _text(series.others), _text(first.where)]))
    return {"program": first.program, "kind": series.kind.value, "parameters": parameters}


def _text(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(values.items()) if value is not None)


def _rows(series: ScalingSeries, runs: Sequence[_Timed]) -> list[dict[str, Any]]:
    runs_by_size = grouped(((run.setup.ranks, run.setup.nodes or 0), run) for run in runs)
    reference = runs_by_size[min(runs_by_size)]
    return [_row(series, runs_by_size[where], reference) for where in sorted(runs_by_size)]


def _row(series: ScalingSeries, runs: Sequence[_Timed], reference: Sequence[_Timed]) -> dict[str, Any]:
    first = runs[0]
    logs, reference_logs = (np.log([run.step_ns for run in side]) for side in (runs, reference))
    faster = math.exp(reference_logs.mean() - logs.mean())
    more = first.setup.ranks / reference[0].setup.ranks
    work = more if series.kind is ScalingKind.WEAK else 1.0
    names = dict.fromkeys(run.workload for run in runs if run.workload is not None)
    row: dict[str, Any] = {
        **_keys(series, first),
        "workload": ", ".join(names) or None,
        "ranks": first.setup.ranks,
        "nodes": first.setup.nodes,
        "runs": len(runs),
        "step_p50_ns": round(math.exp(logs.mean())),
        "speedup": round(faster * work, RATIO_DIGITS),
        "efficiency": None,
        "ci_low": None,
        "ci_high": None,
        **_pop_columns(series.kind, runs, reference),
    }
    if series.kind is not ScalingKind.UNKNOWN:
        row["efficiency"] = round(faster * work / more, RATIO_DIGITS)
        if runs is not reference and min(len(logs), len(reference_logs)) > 1:
            low, high = map(math.exp, welch_interval(reference_logs, logs, CONFIDENCE))
            row["ci_low"], row["ci_high"] = (round(end * work / more, RATIO_DIGITS) for end in (low, high))
    return row


def scaling_models(runs: Sequence[RunData]) -> Outcome:
    """Return models of the step time and its parts by the number of ranks, for series of four sizes or more.

    The parts of an MPI program are its computation (the useful time) and each call; other programs have
    phases. Each value is the mean over the ranks in a step, for a phase the longest. A part dominates where
    it takes longer than all others together.
    """
    timed = [
        entry for run in runs if (step := _step_ns(run)) is not None and (entry := _timed_run(run, step))
    ]
    rows, sizes = [], 0
    for series, timed_runs in _all_series(timed):
        by_ranks = grouped((run.setup.ranks, run) for run in timed_runs)
        sizes = max(sizes, len(by_ranks))
        rows += _models(series, by_ranks)
    if not rows:
        return no_rows(f"a model needs runs at {MIN_SIZES} or more rank counts; found {sizes}")
    table = pd.DataFrame(rows, dtype=object)
    few = table["sizes"].min() < SIZES_FOR_TWO_TERMS
    return Outcome(
        table, f"fewer than {SIZES_FOR_TWO_TERMS} rank counts cannot show where scaling ends" if few else ""
    )


def _models(series: ScalingSeries, by_ranks: Mapping[int, Sequence[_Timed]]) -> list[dict[str, Any]]:
    ranks = sorted(by_ranks)
    if len(ranks) < MIN_SIZES:
        return []
    steps = [_mean([run.step_ns for run in by_ranks[number]]) or 0.0 for number in ranks]
    parts_by_ranks = [_parts(by_ranks[number]) for number in ranks]
    # A part that some size lacks has no model.
    names = [
        name
        for name in parts_by_ranks[0]
        if all(parts_of_run.get(name, 0) > 0 for parts_of_run in parts_by_ranks)
    ]
    parts = [[parts_of_run[name] for parts_of_run in parts_by_ranks] for name in names]
    common = {
        **_keys(series, by_ranks[ranks[0]][0]),
        "sizes": len(ranks),
        "largest_ranks": ranks[-1],
    }
    rows = [common | _model_row("step", ranks, steps, None, steps[-1])]
    step_ns = sum(times[-1] for times in parts)
    for name, times, dominance in zip(names, parts, dominance_thresholds(ranks, parts), strict=True):
        rows.append(common | _model_row(name, ranks, times, dominance, step_ns))
    modelled = [row for row in rows if row["model"] is not None]
    return modelled[:1] + sorted(modelled[1:], key=lambda row: -int(row["time_ns"]))


def _model_row(
    part: str, ranks: Sequence[int], times: Sequence[float], dominance: "Dominance | None", step_ns: float
) -> dict[str, Any]:
    model = fit(ranks, times)
    return {
        "part": part,
        "model": None if model is None else str(model),
        "error_pct": None if model is None else round(100 * model.error, 2),
        "time_ns": round(times[-1]),
        "share_pct": round(100 * times[-1] / step_ns, 2) if step_ns else None,
        "dominates_from": dominance.ranks if dominance else None,
        "dominates_low": dominance.low if dominance else None,
        "dominates_high": dominance.high if dominance else None,
    }


def _parts(runs: Sequence[_Timed]) -> dict[str, float]:
    """Return the parts of a step of some runs with the same ranks in ns, by name; the mean over the runs."""
    parts = [_parts_of_run(run) for run in runs]
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: sum(part[name] for part in parts) / len(parts) for name in names}


def _parts_of_run(run: _Timed) -> dict[str, float]:
    calls, useful = run.run.tables["mpi_calls"], run.pop("parallel_efficiency")
    if not len(calls) or useful is None:
        phases = run.run.tables["phases"]
        longest = dict(phases.groupby("phase")["p50_ns"].max()) if len(phases) else {}
        return {str(name): float(value) for name, value in longest.items()}
    summary = run.run.tables["steps_summary"]
    steps = float(summary["steps"].iloc[0]) if len(summary) else 1.0
    inside = calls[~calls["call"].isin(_CALLS_OUTSIDE_STEPS)]
    by_call = inside.groupby("call")["total_ns"].sum() / (calls["rank"].nunique() * steps)
    return {"computation": useful * run.step_ns, **{str(k): float(v) for k, v in by_call.items()}}


MIN_SIZES = 4
"""Minimum number of rank counts for a model."""

SIZES_FOR_TWO_TERMS = 6
"""Minimum number of rank counts for two terms, whose sum can have a minimum: the end of scaling."""

_POWERS = (
    *(-1.0, -2 / 3, -1 / 2, -1 / 3, 0.0, 1 / 4, 1 / 3, 1 / 2),
    *(2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 2.0, 5 / 2, 3.0),
)
"""Possible exponents of the number of ranks in a term."""
_LOGS = (0, 1, 2)
_EXPONENTS = tuple((i, j) for i in _POWERS for j in _LOGS if (i, j) != (0.0, 0) and not (i < 0 and j))
_USUAL_TERMS = {*((i, 0) for i in (-1.0, -1 / 2, 1 / 2, 1.0, 2.0)), (0.0, 1), (1.0, 1)}
_SURFACES = {(i, 0) for i in (-2 / 3, -1 / 3, 1 / 3, 2 / 3)}
"""Terms of divided work, of grids, trees, sorting and all pairs; and of the surfaces of cubes."""

_HANDICAP = tuple(1.0 if term in _USUAL_TERMS else 1.4 if term in _SURFACES else 2.0 for term in _EXPONENTS)
"""Factor on the error of a model that uses a term: a rarer term has to predict better by this factor.

Within the noise of measured times many terms predict alike, but they part beyond the largest size.
"""
_PAIRS = tuple(combinations([i for i, factor in enumerate(_HANDICAP) if factor < max(_HANDICAP)], 2))
_MAX_ERROR_RATIO = 0.6
"""Maximum ratio of the errors with and without another term for which the term is kept."""

_BOOTSTRAP_DRAWS, _LOW_PERCENTILE, _HIGH_PERCENTILE = 100, 5, 95
MAX_RANKS = 1 << 20
"""Maximum number of ranks to which models are extrapolated."""


class Term(msgspec.Struct, frozen=True):
    """A term ``coefficient_ns * p**power * log2(p)**log``."""

    coefficient_ns: float
    power: float
    log: int

    def __str__(self) -> str:
        """Return it as people write it: ``12.00 ms * p^0.5 * log2(p)``."""
        power = f"p^{self.power:.3g}" if self.power not in (0, 1) else "p" * int(self.power)
        log = {0: "", 1: "log2(p)"}.get(self.log, f"log2(p)^{self.log}")
        return " * ".join(filter(None, [format_ns(self.coefficient_ns), power, log]))


class Model(msgspec.Struct, frozen=True):
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

    The ranks are different ones, ascending; the times are above 0.
    """
    if len(ranks) < MIN_SIZES or min(times_ns) <= 0:
        return None
    columns, times = _columns(tuple(ranks)), np.asarray(times_ns, float)
    sets: list[Sequence[tuple[int, ...]]] = [[()], [(term,) for term in range(len(_EXPONENTS))]]
    # Two terms may each be worse alone than none: divided work beside growing communication.
    sets += [_PAIRS] if len(ranks) >= SIZES_FOR_TWO_TERMS else []
    best: tuple[float, Model] | None = None
    for chosen in sets:
        candidate = _best_model(columns, times, chosen)
        if candidate and (best is None or candidate[0] < _MAX_ERROR_RATIO * best[0]):
            best = candidate
    assert best is not None
    return best[1]


def _term(ranks: Floats, power: float, log: int) -> Floats:
    result: Floats = ranks**power * np.log2(ranks) ** log
    return result


@lru_cache(maxsize=64)
def _columns(ranks: tuple[int, ...]) -> Floats:
    """Return the value of each term at each number of ranks, the constant last, shape (sizes, terms + 1)."""
    sizes = np.array(ranks, float)
    return np.column_stack([*(_term(sizes, *term) for term in _EXPONENTS), np.ones(len(sizes))])


def _best_model(
    columns: Floats, times: Floats, chosen: Sequence[tuple[int, ...]]
) -> tuple[float, Model] | None:
    """Return the model with the least weighted error, and that error; None if all have negative terms.

    The error is the leave-one-out error: each size is predicted from the other sizes. Each set of terms is
    tried with and without a constant, because a fitted constant that is really 0 is negative half of the
    time.
    """
    constant = columns.shape[1] - 1
    models = [_best_of_models(columns, times, [(*terms, constant) for terms in chosen])]
    models += [_best_of_models(columns, times, chosen)] if chosen[0] else []
    return min((model for model in models if model), key=lambda model: model[0], default=None)


def _best_of_models(
    columns: Floats, times: Floats, chosen: Sequence[tuple[int, ...]]
) -> tuple[float, Model] | None:
    """Fit each set of terms by least squares of relative errors, and return the best as `_best_model` does.

    The leave-one-out residual is the residual over 1 minus the leverage (the diagonal of the hat matrix).
    """
    places = np.array(chosen)
    # Relative errors: rows are divided by their time.
    design = np.moveaxis(columns[:, places], 1, 0) / times[None, :, None]
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
    score = error * np.array([*_HANDICAP, 1.0])[places].prod(axis=1)
    number = int(np.where(usable, score, np.inf).argmin())
    values = dict(zip(chosen[number], (coefficients[number] / scale[number, 0]).tolist(), strict=True))
    alone = values.pop(columns.shape[1] - 1, 0.0)
    terms = tuple(Term(value, *_EXPONENTS[place]) for place, value in values.items())
    return float(score[number]), Model(alone, terms, float(error[number]))


class Dominance(msgspec.Struct, frozen=True):
    """The smallest number of ranks at which a part takes longer than the others together; 90 % interval.

    None stands for more than `MAX_RANKS`.
    """

    ranks: int | None
    low: int | None
    high: int | None


def dominance_thresholds(ranks: Sequence[int], parts: Sequence[Sequence[float]]) -> list[Dominance | None]:
    """Return the number of ranks from which each part dominates the others; None for a part that never does.

    The intervals come from drawing the times anew around the models, with the error of each, and fitting them
    again (a parametric bootstrap; Efron and Tibshirani, 1993).
    """
    models = [fit(ranks, times) for times in parts]
    fitted = [model for model in models if model is not None]
    if len(fitted) < max(2, len(models)):
        return [None] * len(parts)
    starts = _dominates(fitted, ranks[0])
    if not any(starts):
        return [None] * len(parts)
    sizes, random = np.array(ranks, float), np.random.default_rng(0)
    drawn = np.full((_BOOTSTRAP_DRAWS, len(parts)), 2 * MAX_RANKS)
    for draw in range(_BOOTSTRAP_DRAWS):
        again = [
            fit(ranks, (model.at(sizes) * np.exp(model.error * random.standard_normal(len(sizes)))).tolist())
            for model in fitted
        ]
        drawn[draw] = [
            start or 2 * MAX_RANKS for start in _dominates([model for model in again if model], ranks[0])
        ]
    low, high = (
        np.percentile(drawn, [_LOW_PERCENTILE, _HIGH_PERCENTILE], axis=0, method="nearest")
        .astype(int)
        .tolist()
    )
    return [
        Dominance(start, _find_within(min(start, below)), _find_within(max(start, above))) if start else None
        for start, below, above in zip(starts, low, high, strict=True)
    ]


def _find_within(ranks: int) -> int | None:
    return ranks if ranks <= MAX_RANKS else None


def _dominates(models: Sequence[Model], fewest: int) -> list[int | None]:
    """Return the smallest number of ranks at which each part takes longer than the others together."""
    steps = np.arange(0, 1 + 16 * np.log2(MAX_RANKS / fewest))
    ranks = fewest * 2 ** (steps / 16)
    times = np.array([model.at(ranks) for model in models])
    starts: list[int | None] = []
    for is_dominant in 2 * times > times.sum(axis=0):
        last = np.flatnonzero(~is_dominant)
        if not is_dominant[-1]:
            starts.append(None)
        else:
            starts.append(round(float(ranks[last[-1] + 1])) if len(last) else fewest)
    return starts
