"""Keep the events of ranks as a Parquet dataset, during a collect or for a query."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast
from weakref import WeakValueDictionary

import msgspec
import pyarrow as pa

from hpcprof.analysis.framework.outcome import AnalysisTable, analyze_rank
from hpcprof.analysis.steps.step_ranges import step_numbers, steps_of
from hpcprof.analysis.steps.streams import launch_starts
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.errors import HpcprofError
from hpcprof.common.freed_memory import return_freed_memory
from hpcprof.profiles.event_columns import STEPPED, dataset_name, table_schema, timeline_tables
from hpcprof.profiles.readers.declaration import ProfilePart
from hpcprof.profiles.readers.discovery import read_profile, reading_profile
from hpcprof.profiles.timeline import StepRange, Timeline
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.store.rank_tables import (
    ANALYSES_WITH_EVENTS,
    analysis_schema,
    dataset_table,
)
from hpcprof.results.store.run_communication import MATCH_SCHEMA

MATCHES = "matches"
"""The table of matched operations, whose files belong to a run and not to a rank."""

_STEPS = "steps"
_STEP_COLUMNS = pa.schema([(name, pa.int64()) for name in ("step", "start_ns", "end_ns")])


_timelines_in_use: WeakValueDictionary[tuple[RankEvents, StepRange | None], Timeline] = WeakValueDictionary()


class KeepTask(msgspec.Struct, frozen=True):
    """The events of one rank that are to be kept."""

    path: Path | None
    """The profile; None if it is gone."""
    events: RankEvents
    part: ProfilePart | None
    """The part of the profile that is this rank, if it holds several."""
    step_range: StepRange | None
    """The range that is the step."""
    captured: tuple[tuple[int, int], ...] = ()
    """The steps that the job was told to capture, see `hpcprof.profiles.timeline.Origin`."""


def event_schemas() -> dict[str, pa.Schema]:
    """Return the columns of each table of events in SQL, those of the partition first."""
    schemas = {dataset_name(field): table_schema(kind) for field, kind in timeline_tables().items()}
    schemas[STEPPED] = schemas[STEPPED].append(pa.field("step", pa.int64()))
    schemas |= {
        dataset_table(name): analysis_schema(analysis) for name, analysis in ANALYSES_WITH_EVENTS.items()
    }
    schemas[_STEPS] = _STEP_COLUMNS
    schemas[MATCHES] = pa.schema([field for field in MATCH_SCHEMA if field.name != "rank"])
    place = [pa.field("run", pa.string()), pa.field("rank", pa.int64())]
    return {name: pa.schema([*place, *schemas[name]]) for name in sorted(schemas)}


def keep_timeline(events: RankEvents, timeline: Timeline) -> None:
    """Write the tables of a timeline; they become valid when `finish` has written the others."""
    events.write(timeline, step_numbers(timeline, launch_starts(timeline)[: len(timeline.kernels)]))


def kept_timeline(events: RankEvents, step_range: StepRange | None) -> Timeline | None:
    """Read the timeline of a rank with the range that is its step; None if it is not kept.

    A timeline that is still in use is not read again.
    """
    timeline = _timelines_in_use.get((events, step_range))
    if timeline is None and (stored := events.load()) is not None:
        timeline = _timelines_in_use[events, step_range] = replace(stored, step_range=step_range)
        pa.default_memory_pool().release_unused()
    return timeline


def finish(
    events: RankEvents, timeline: Timeline, tables: Mapping[str, AnalysisTable], *, with_timeline: bool = True
) -> None:
    """Write the steps and the analyses that are kept with the events.

    ``tables`` are by the name of the analysis; ``with_timeline`` is True if `keep_timeline` has written the
    timeline.
    """
    times = step_intervals(timeline)
    steps = pa.table([steps_of(timeline).number, times.start, times.end], schema=_STEP_COLUMNS)
    analyses = {dataset_table(name): tables[name].arrow().drop(["rank"]) for name in ANALYSES_WITH_EVENTS}
    events.finish(timeline, {_STEPS: steps, **analyses}, events=with_timeline)


def keep_events(tasks: Sequence[KeepTask]) -> list[str]:
    """Read the timelines of ranks and write their events; return the reason of each failure, or empty."""
    reasons = []
    for task in tasks:
        reasons.append(_keep_events(task))
        return_freed_memory()
    return reasons


def _keep_events(task: KeepTask) -> str:
    stored = task.events.load()
    if stored is None and task.path is None:
        return "its profile is gone"
    try:
        timeline = replace(stored or _profile(task), step_range=task.step_range)
        keep_timeline(task.events, timeline)
        rank = task.events.rank
        analyzed = {
            name: analyze_rank(analysis, timeline, rank) for name, analysis in ANALYSES_WITH_EVENTS.items()
        }
        finish(task.events, timeline, analyzed)
    except HpcprofError as error:
        return str(error).rstrip(".")
    except OSError as error:
        return f"{task.events.folder} cannot be written: {error.strerror}"
    return ""


def _profile(task: KeepTask) -> Timeline:
    assert task.path is not None
    with reading_profile(task.path):
        return cast("Timeline", read_profile(task.path, task.part, captured=task.captured))
