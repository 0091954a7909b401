"""The runs of a sweep: the step time by the values of its parameters."""

from collections.abc import Sequence

import msgspec

from hpcprof.analysis.comparison.compare import ELAPSED, OWN_ELAPSED, step_metrics
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run


class SweepPoint(msgspec.Struct, frozen=True):
    """A run of a sweep.

    ``parameters`` has the words of its command that differ between the runs, ``elapsed_ns`` the elapsed time
    per step in ns and ``ratio`` that to the shortest of the sweep, both None if it is unknown.
    """

    run: str
    parameters: str
    elapsed_ns: float | None
    ratio: float | None

    @property
    def is_best(self) -> bool:
        """True for the shortest step of the sweep."""
        return self.ratio == 1.0


def sweep_points(runs: Sequence[Run], store: Store) -> list[SweepPoint]:
    """Return the points of a sweep, in the order of its runs."""
    times = []
    for run in runs:
        metrics = step_metrics(run_data(run, store))
        times.append(metrics.get(ELAPSED, metrics.get(OWN_ELAPSED)))
    shortest = min((time for time in times if time is not None), default=None)
    words = differing_words([run.submission.job.words for run in runs])
    return [
        SweepPoint(run.id, text, time, time / shortest if time and shortest else None)
        for run, text, time in zip(runs, words, times, strict=True)
    ]


def differing_words(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the words of each command that the others do not have, a value with the option before it.

    Commands of different lengths are returned whole.
    """
    if len({len(words) for words in commands}) > 1:
        return [" ".join(words) for words in commands]
    places = [place for place, values in enumerate(zip(*commands, strict=True)) if len({*values}) > 1]
    return [" ".join(_named(words, place) for place in places) for words in commands]


def _named(words: Sequence[str], place: int) -> str:
    option = words[place - 1] if place else ""
    value = words[place]
    if value.startswith("-") or not option.startswith("-") or "=" in option:
        return value.lstrip("-")
    return f"{option.lstrip('-')}={value}"
