"""The runs of a sweep: step time, or else job time, by the values of the parameters."""

import re
from collections.abc import Sequence

import msgspec

from hpcprof.analysis.comparison.compare import ELAPSED, OWN_ELAPSED, step_metrics
from hpcprof.common.units import format_ns
from hpcprof.results.across.listing import job_seconds
from hpcprof.results.ask.run_inputs import run_data
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run


class SweepPoint(msgspec.Struct, frozen=True):
    """A run of a sweep.

    ``parameters`` has the words of its command that differ between the runs. ``elapsed_ns`` is the elapsed
    time per step in ns, ``duration_s`` the time of the ended job, and ``ratio`` the step, or the job if no
    run of the sweep has steps, over the shortest. All are None if unknown.
    """

    run: str
    parameters: str
    elapsed_ns: float | None
    duration_s: float | None
    ratio: float | None

    @property
    def is_best(self) -> bool:
        """True for the shortest step, or job, of the sweep."""
        return self.ratio == 1.0

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The values under `HEADERS`."""
        step = format_ns(self.elapsed_ns) if self.elapsed_ns else "–"
        job = format_ns(1e9 * self.duration_s) if self.duration_s else "–"
        ratio = "shortest" if self.is_best else f"{self.ratio:.2f} x" if self.ratio else ""
        return self.parameters, step, job, ratio


HEADERS = ("parameters", "elapsed per step", "job", "of the shortest")


def sweep_points(runs: Sequence[Run], store: Store) -> list[SweepPoint]:
    """Return the points of a sweep, in the order of its runs."""
    steps = []
    for run in runs:
        metrics = step_metrics(run_data(run, store))
        steps.append(metrics.get(ELAPSED, metrics.get(OWN_ELAPSED)))
    jobs = [job_seconds(run) for run in runs]
    compared = steps if any(steps) else jobs
    shortest = min(filter(None, compared), default=1.0)
    line = runs[0].submission.command_line if runs else []
    template = line[line.index("--") + 1 :] if "--" in line else []
    words = differing_words([run.submission.job.words for run in runs], template)
    return [
        SweepPoint(run.id, text, step, job, time / shortest if time else None)
        for run, text, step, job, time in zip(runs, words, steps, jobs, compared, strict=True)
    ]


def sweep_sentence(points: Sequence[SweepPoint]) -> str:
    """Return the sentence under the table of points; empty if their steps are compared."""
    if any(point.elapsed_ns for point in points):
        return ""
    if any(point.ratio for point in points):
        return (
            "No run has step times, so whole jobs are compared, with their start. "
            "A profiler (--profiler) or marks in the program record steps."
        )
    return "No run has ended, so there is nothing to compare yet."


def differing_words(commands: Sequence[Sequence[str]], template: Sequence[str] = ()) -> list[str]:
    """Return the words in which commands differ, each value with the option before it.

    A value without an option gets its name from the placeholder ``{name}`` in the ``template`` of the sweep.
    Commands of different lengths are returned whole.
    """
    if len({len(words) for words in commands}) > 1:
        return [" ".join(words) for words in commands]
    places = [place for place, values in enumerate(zip(*commands, strict=True)) if len({*values}) > 1]
    names = template if commands and len(template) == len(commands[0]) else [""] * len(commands[0])
    return [" ".join(_parameter_text(words, place, names[place]) for place in places) for words in commands]


def _parameter_text(words: Sequence[str], place: int, placeholder: str) -> str:
    option = words[place - 1] if place else ""
    value = words[place]
    if value.startswith("-") or not option.startswith("-") or "=" in option:
        name = re.fullmatch(r"\{([^{}]+)\}", placeholder)
        return f"{name[1]}={value}" if name else value.lstrip("-")
    return f"{option.lstrip('-')}={value}"
