"""Running and last runs as OpenMetrics, for Prometheus and what reads its format.

There is one series for each program and site, of its newest running run, else of the newest one. An id of a
run is in the info metric only, so that series do not multiply. Savings of findings are those of the newest
run that has them, and so is energy, unless the running run has some.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, StateSetMetricFamily
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from hpcprof.common.errors import HpcprofError
from hpcprof.common.units import visible
from hpcprof.profiles.readers.telemetry import EnergySoFar
from hpcprof.results.across.listing import STATES
from hpcprof.results.ask.explanation import kept_explanation
from hpcprof.results.store.store import Store
from hpcprof.serve.catalogue import Catalogue, KnownRun
from hpcprof.serve.context import served
from hpcprof.submit.schedulers.base import JobState

_LABELS = ("program", "site")
_MAX_SEARCHED_RUNS = 5
"""The newest runs of a program at a site in which findings and energy are looked for."""

_NS = 1e-9
_RUNNING_STATE = JobState.RUNNING.value


def metrics(request: Request) -> Response:
    """Return the metrics of running and last runs."""
    families = _Families(served(request).catalogue, request.app.state.running_energy)
    text: bytes = generate_latest(families)  # type: ignore[no-untyped-call]
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class RunningEnergy:
    """The energy of running runs so far, which is read on from where the last request was."""

    def __init__(self) -> None:
        self._known: dict[str, EnergySoFar] = {}
        self._lock = Lock()

    def joules(self, runs: Iterable[KnownRun]) -> dict[str, float | None]:
        """Return the energy of the running runs among ``runs``, by id, in joules."""
        running = {run.listed.run: run.listed.path for run in runs if run.listed.state == _RUNNING_STATE}
        with self._lock:
            self._known = {
                name: self._known.get(name) or EnergySoFar(Path(running[name])) for name in running
            }
            return {name: meter.joules() for name, meter in self._known.items()}


class _Families:
    """The metrics as ``generate_latest`` wants them: an object that collects them."""

    def __init__(self, catalogue: Catalogue, energy: RunningEnergy) -> None:
        self._catalogue, self._energy = catalogue, energy

    def collect(self) -> Iterable[Metric]:
        """Return the families of metrics with a sample for each program and site."""
        info = InfoMetricFamily("hpcprof_run", "The run that the other metrics are of.", labels=_LABELS)
        state = StateSetMetricFamily("hpcprof_run_state", "State of the run.", labels=_LABELS)
        ranks = GaugeMetricFamily("hpcprof_run_ranks", "Ranks of the run.", labels=_LABELS)
        step = GaugeMetricFamily(
            "hpcprof_step_seconds", "Elapsed time per step of the run.", labels=_LABELS, unit="seconds"
        )
        rate = GaugeMetricFamily("hpcprof_steps_per_second", "Steps per second of the run.", labels=_LABELS)
        saving = GaugeMetricFamily(
            "hpcprof_finding_saving_seconds",
            "Gain of a step without a cause, in the newest run that was explained.",
            labels=(*_LABELS, "cause"),
            unit="seconds",
        )
        energy = GaugeMetricFamily(
            "hpcprof_run_energy_joules",
            "Energy of the GPUs in the running run so far, else in the newest run in which it was sampled.",
            labels=_LABELS,
            unit="joules",
        )
        store = self._catalogue.store
        listed = self._catalogue.listing().runs
        so_far = self._energy.joules(listed)
        for labels, runs in _groups(listed):
            newest = next((run for run in runs if run.listed.state == _RUNNING_STATE), runs[0]).listed
            info.add_metric(labels, {"run": visible(newest.run), "profiler": newest.profiler or ""})
            state.add_metric(labels, {state_name: state_name == newest.state for state_name in STATES})
            if newest.ranks is not None:
                ranks.add_metric(labels, newest.ranks)
            seconds = (newest.step_ns or 0) * _NS
            if seconds > 0:  # a run that was pushed may have any number
                step.add_metric(labels, seconds)
                rate.add_metric(labels, 1 / seconds)
            names = [run.listed.run for run in runs[:_MAX_SEARCHED_RUNS]]
            with suppress(HpcprofError):  # a database that cannot be read says so on the pages
                for cause, seconds in _savings(self._catalogue, names):
                    saving.add_metric((*labels, cause), seconds)
                if (joules := so_far.get(newest.run) or _energy(store, names)) is not None:
                    energy.add_metric(labels, joules)
        return (info, state, ranks, step, rate, saving, energy)


def _groups(runs: Iterable[KnownRun]) -> Iterator[tuple[tuple[str, str], list[KnownRun]]]:
    groups: dict[tuple[str, str], list[KnownRun]] = {}
    for run in runs:
        if run.program:  # profiles of another tool have none, and nothing else in common
            groups.setdefault((visible(run.program), visible(run.listed.site or "")), []).append(run)
    yield from groups.items()


def _savings(catalogue: Catalogue, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    for name in names:
        explanation = kept_explanation(catalogue.find(name), catalogue.store)
        if explanation is not None:
            largest: dict[str, float] = {}
            for finding in explanation.findings:
                seconds = (finding.saving_ns or 0) * _NS
                largest[finding.cause] = max(seconds, largest.get(finding.cause, 0.0))
            yield from largest.items()
            return


def _energy(store: Store, names: Sequence[str]) -> float | None:
    for name in names if store.exists() else ():
        joules = [
            value for value in store.table(name, "energy").columns.get("energy_j", ()) if value is not None
        ]
        if joules:
            return float(sum(joules))
    return None
