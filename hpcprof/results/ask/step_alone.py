"""The step time without the profiler: given by a user, noted by the ranks, or of a reference run."""

from __future__ import annotations

from contextlib import suppress
from statistics import fmean, median
from typing import TYPE_CHECKING

import msgspec

from hpcprof.analysis.explain.explanation import GIVEN, MEASURED, REFERENCE, StepAlone
from hpcprof.analysis.steps.step_detection import HOOK, TORCH_STEPS
from hpcprof.common.decode import from_json, read_file, read_text
from hpcprof.runs.directory import Run
from hpcprof.runs.live_steps import noted_steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcprof.results.store.store import Store

_WARM_UP_STEPS = 10
"""Number of first steps of a reference run that do not count."""

_MAX_NOTED_RATIO = 1.5
"""Maximum ratio of a noted step to a step of the PyTorch profiler, which else marks parts of steps."""

_PROFILER_START_NS = (200e6, 1_000e6, 2_800e6)
"""Minimum, usual and maximum time of nsys' start and end in a program: 0.3 to 2.8 s in five programs of 12 to
30 s on an H200."""

_MAX_UNCERTAIN_SHARE = 0.15
"""Maximum width of the interval that this leaves, as a share of the step."""


def step_alone(run: Run, store: Store) -> StepAlone | None:
    """Return the step of a run without its profiler; None if it is unknown."""
    return _earlier_given_step(run, store) or _noted_step(run) or _reference_step(run, store)


def _reference_step(run: Run, store: Store) -> StepAlone | None:
    """Return the step of the reference run, which is the program without the profiler.

    If the start-up hook recognizes the steps, the ranks have noted them; so do those of the PyTorch profiler
    unless it marks parts of them. Otherwise both runs have as many steps as the profile of the whole program,
    and the difference of their times is divided among these.
    """
    path = run.path / "reference"
    if not path.is_dir():
        return None
    kinds = store.table(run.id, "step_kinds").rows[:1]
    sources = {row["source"] for row in store.table(run.id, "step_ranges").rows if row["chosen"]}
    profiled_walls = noted_steps(run) if kinds and TORCH_STEPS.source in sources else []
    if HOOK.source in sources or (
        profiled_walls and median(profiled_walls) < _MAX_NOTED_RATIO * kinds[0]["elapsed_ns"]
    ):
        walls = noted_steps(Run(run.id, path))[_WARM_UP_STEPS:]
        halves = [half for half in (walls[: len(walls) // 2], walls[len(walls) // 2 :]) if half]
        if len(halves) < 2:
            return None
        means = [*map(fmean, halves)]
        return StepAlone(round(fmean(walls)), round(min(means)), round(max(means)), REFERENCE)
    times = _elapsed_alone(path), _elapsed_alone(run.path)
    if not kinds or None in times or (run.path / "state" / "window").exists():
        return None
    recorded, steps = kinds[0]["elapsed_ns"], kinds[0]["steps"]
    more = (times[1] or 0) - (times[0] or 0)
    low, value, high = (recorded - (more - once) / steps for once in _PROFILER_START_NS)
    if low <= 0 or high - low > _MAX_UNCERTAIN_SHARE * recorded:
        return None
    return StepAlone(round(value), round(low), round(high), REFERENCE)


def _elapsed_alone(path: Path) -> float | None:
    """Return the time in ns that the program took on its slowest rank; None if it was not noted."""
    times = []
    for note in (path / "state").glob("rank*.times"):
        with suppress(OSError, ValueError):
            began, ended = map(float, read_text(note).split())
            times.append((ended - began) * 1e9)
    return max(times, default=None)


def _noted_step(run: Run) -> StepAlone | None:
    """Return the step alone that the ranks of a run noted while no profiler recorded, on the slowest rank.

    Its interval reaches from the quickest to the slowest span of these steps.
    """
    ranks = []
    for spans in _notes_of_ranks(run):
        times = [span.elapsed_ns / span.steps for span in spans]
        whole = sum(span.elapsed_ns for span in spans) / sum(span.steps for span in spans)
        ranks.append((whole, min(times), max(times)))
    if not ranks:
        return None
    value, low, high = map(round, max(ranks))
    return StepAlone(value, low, high, MEASURED)


def noted_capture(run: Run) -> int:
    """Return the number of steps that a rank recorded, by its note of the steps alone; 0 if unknown."""
    return max((span.recorded for spans in _notes_of_ranks(run) for span in spans), default=0)


def _notes_of_ranks(run: Run) -> Iterator[list[_TimedSteps]]:
    """Yield the spans of steps alone that each rank noted."""
    for path in sorted((run.path / "state" / "alone").glob("rank*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            spans = from_json(read_file(path), list[_TimedSteps])
            if spans and all(span.steps > 0 for span in spans):
                yield spans


class _TimedSteps(msgspec.Struct):
    """Steps that were timed together."""

    steps: int
    elapsed_ns: int
    recorded: int = 0


def _earlier_given_step(run: Run, store: Store) -> StepAlone | None:
    """Return the step alone that a user has given with an earlier explanation, also of another version."""
    row = store.explanation(run.id) if store.exists() else None
    if row is None:
        return None
    alone = None
    with suppress(msgspec.MsgspecError, KeyError):
        alone = msgspec.convert(from_json(row.explanation)["step"]["alone_ns"], StepAlone)
    return alone if alone is not None and alone.source == GIVEN else None
