"""Predictions that are kept beside the results, and scored when the program later runs.

One JSON object per line in ``predictions.jsonl`` in the folder of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcprof.analysis.explain.changes import parse_changes
from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError, UsageError, errors_as_damage
from hpcprof.results.ask.explanation import explain, explain_inputs, operations_of
from hpcprof.results.ask.site_measurements import network_of_site
from hpcprof.results.ask.tables import RunTables
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run

if TYPE_CHECKING:
    import pandas as pd

    from hpcprof.analysis.predict.scale import ScalePrediction, Scaling

_FILE = "predictions.jsonl"


class KeptPrediction(msgspec.Struct, frozen=True):
    """A prediction, its baselines (the measured step; a + b log2 p) and the later measured step, in ns."""

    run: str
    measured_ranks: int
    ranks: int
    scaling: str
    value: int
    low: int
    high: int
    unchanged: int
    log2: int
    made_utc: str
    checked_by: str | None = None
    actual: int | None = None

    @property
    def error_pct(self) -> float | None:
        """Error of the prediction in percent of the measured step; None before it."""
        return None if self.actual is None else 100 * (self.value / self.actual - 1)

    @property
    def beats_both(self) -> bool | None:
        """True if both baselines are further off; None before the step was measured."""
        if self.actual is None:
            return None
        error = abs(self.value - self.actual)
        return error < min(abs(baseline - self.actual) for baseline in (self.unchanged, self.log2))


def kept_predictions(runs_dir: Path) -> list[KeptPrediction]:
    """Return the predictions in a folder of runs, the oldest first."""
    path = runs_dir / _FILE
    if not path.is_file():
        return []
    with errors_as_damage(path):
        try:
            return [from_json(line, KeptPrediction) for line in path.read_bytes().splitlines() if line]
        except msgspec.MsgspecError as error:
            raise HpcprofError(f"{path} cannot be read: {error}.") from None


def keep_predictions(runs_dir: Path, run: Run, predictions: Sequence[ScalePrediction]) -> None:
    """Keep predictions of a run, before the predicted steps are measured."""
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    new = [
        KeptPrediction(
            run=run.id,
            measured_ranks=prediction.measured_ranks,
            ranks=prediction.ranks,
            scaling=prediction.scaling,
            value=prediction.step.value,
            low=prediction.step.low,
            high=prediction.step.high,
            unchanged=prediction.baselines["unchanged"],
            log2=prediction.baselines["log2"],
            made_utc=made,
        )
        for prediction in predictions
    ]
    _write(runs_dir, [*kept_predictions(runs_dir), *new])


def _write(runs_dir: Path, predictions: Sequence[KeptPrediction]) -> None:
    lines = (msgspec.json.encode(prediction).decode() + "\n" for prediction in predictions)
    write_atomically(runs_dir / _FILE, "".join(lines))


def score_predictions(
    runs_dir: Path, run: Run, store: Store, run_id: str | None = None, scaling: Scaling | None = None
) -> list[KeptPrediction]:
    """Score the kept predictions for a run's number of ranks with its measured step, and keep the scores.

    ``run_id`` and ``scaling`` choose predictions from one run and with one scaling, by default from all.
    Raises UsageError if no such prediction is for this number of ranks and the program of the run.
    """
    actual, ranks = measured_step(run, store)
    programs = {row.id: row.program for row in store.runs() if row.program}
    unrelated = {name for name in programs if programs[name] != programs.get(run.id, programs[name])}
    all_predictions = kept_predictions(runs_dir)
    scored = [
        msgspec.structs.replace(entry, actual=actual, checked_by=run.id)
        if (entry.ranks, run_id or entry.run, scaling or entry.scaling) == (ranks, entry.run, entry.scaling)
        and entry.run not in {run.id, *unrelated}
        else entry
        for entry in all_predictions
    ]
    checks = [entry for entry in scored if entry.checked_by == run.id and entry.run not in unrelated]
    if not checks:
        counts = {entry.ranks for entry in all_predictions if entry.run not in unrelated}
        predicted = ", ".join(map(str, sorted(counts))) or "none"
        raise UsageError(
            f"no prediction is for the {ranks} ranks of {run.id} and its program; predicted: {predicted}."
        )
    _write(runs_dir, scored)
    return checks


def measured_step(run: Run, store: Store) -> tuple[int, int]:
    """Return the mean step of a run in ns, without the profiler where that is known, and its ranks."""
    table = operations_of(run, store)
    if table is not None:
        from hpcprof.analysis.predict import units

        mean, ranks = units.measured_step(table)
        return round(mean), ranks
    step = explain(run, store).step
    if step.priced_ns is None:
        raise HpcprofError(f"{run.id} has no steps that a prediction could be compared with.")
    return step.priced_ns, max(step.ranks, explain_inputs(run, store).world_size)


def calibrated(prediction: ScalePrediction, checks: Sequence[KeptPrediction]) -> ScalePrediction:
    """Return a prediction corrected by checks of earlier ones of the same run and scaling.

    The correction is the mean error per doubling of ranks, shrunk as if one more check had been exact.
    """
    from hpcprof.analysis.predict.scale import Interval

    errors = [
        math.log(item.actual / item.value) / math.log2(item.ranks / item.measured_ranks)
        for item in checks
        if item.scaling == prediction.scaling and item.actual and item.ranks != item.measured_ranks
    ]
    if not errors or prediction.ranks == prediction.measured_ranks:
        return prediction
    doublings = math.log2(prediction.ranks / prediction.measured_ranks)
    factor = math.exp(doublings * sum(errors) / (len(errors) + 1))
    step = prediction.step
    return replace(
        prediction, step=Interval(*(round(factor * time) for time in (step.value, step.low, step.high)))
    )


def predict_runs(
    runs: Sequence[Run],
    store: Store,
    ranks: Sequence[int],
    scaling: Scaling = "weak",
    nodes: int | None = None,
    keep_size: int = 1,
    ranks_per_node: int | None = None,
    changes: Sequence[str] = (),
    site: str | None = None,
) -> list[ScalePrediction]:
    """Predict the step of the first run on other numbers of ranks.

    The other runs are of the same program on few ranks too, as further samples of the network. A measured
    network of ``site``, by default the site of the first run, replaces them. Raises HpcprofError if a run has
    not been collected or has no steps, or if its table lacks the partners of its only rank or has steps that
    overlap, and UsageError if its mesh is ambiguous or does not allow a number of ranks.
    """
    from hpcprof.analysis.predict.operation_causes import refuse_overlap
    from hpcprof.analysis.predict.scale import Predictor
    from hpcprof.profiles.readers.operations.table import lacks_partners

    tables = [run_operations(run, store) for run in runs]
    for run, table in zip(runs, tables, strict=True):
        if operations_of(run, store) is not None:
            refuse_overlap(table)
            if lacks_partners(table):
                raise HpcprofError(f"a prediction needs all ranks that communicate; {run.id} has one.")
    manifest = runs[0].manifest
    job = manifest.job if manifest else None
    per_node = ranks_per_node or (max(job.ranks // job.nodes, 1) if job else None)
    site = site or (manifest.site.name if manifest else None)
    network = network_of_site(site) if site else None
    computing = _computing_factor(runs[0], store) if scaling == "strong" else float
    steps_ns = [measured_step(run, store)[0] for run in runs]
    predictor = Predictor(
        tables[0], tables[1:], keep_size, per_node, parse_changes(changes), network, computing, steps_ns
    )
    return [predictor.predict(number, scaling, nodes) for number in ranks]


def _computing_factor(run: Run, store: Store) -> Callable[[float], float]:
    """Return the factor of the computing of a rank for a factor of its size.

    Kernels become shorter, but the host takes as long as before to launch them. Without kernels, or with
    a table of operations, the factor is that of the size.
    """
    if not len(RunTables(run, store).frames["kernels"]):
        return float

    import numpy as np

    from hpcprof.analysis.explain.whatif import predict_each

    sizes = np.linspace(0, 1, 5)
    changes = [parse_changes(["comm*0", f"kernel:.*{size}"]) for size in sizes]
    steps = [made.elapsed_ns for made in predict_each(explain_inputs(run, store), changes)]
    return lambda size: float(np.interp(size, sizes, steps)) / steps[-1]


def run_operations(run: Run, store: Store) -> pd.DataFrame:
    """Return the operations of a run, from its table of operations or from its timelines.

    Raises HpcprofError if the run has not been collected, or has no steps on a common clock.
    """
    table = operations_of(run, store)
    if table is not None:
        return table
    from hpcprof.analysis.predict.reduction import operations_of_timelines

    return operations_of_timelines(explain_inputs(run, store))
