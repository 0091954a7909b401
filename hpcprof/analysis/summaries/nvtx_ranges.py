"""Ranges on the host by name and style."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.text_columns import number_texts, object_array
from hpcprof.analysis.statistics.grouped import summarize
from hpcprof.analysis.steps.step_ranges import shown_name
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.timeline import NO_NAME, Ints, Ranges, Style, Timeline, concatenate

_STYLES = {Style.PUSH_POP: "PushPop", Style.START_END: "StartEnd"}


def ranges(timeline: Timeline) -> Outcome:
    """Summarize the durations of ranges on the host, as nvtx_sum of ``nsys stats`` does.

    In an export, the operators that PyTorch marked with NVTX are ranges too. Ranges without a name share a
    row in which ``range`` is None.
    """
    table = recorded_ranges(timeline)
    if not len(table):
        return no_rows(f"no ranges in {timeline.origin.path.name}")
    names, styles, group = number_names_and_styles(timeline, table.name, table.style)
    summary = summarize(group, table.end - table.start)
    rows = {
        "range": object_array(names),
        "style": object_array(styles),
        "instances": summary.count,
        "total_ns": summary.total,
        "time_pct": summary.shares(),
        **summary.columns(),
    }
    return Outcome(rows)


def recorded_ranges(timeline: Timeline) -> Ranges:
    """Return all ranges of a profile by start: in an nsys export also the operators, which NVTX recorded."""
    ranges, marked = timeline.ranges, timeline.operators
    if timeline.origin.kind != NSYS.name or not len(marked):
        return ranges
    one = np.ones(len(marked), np.int64)
    operators = Ranges(
        start=marked.start,
        end=marked.end,
        process=marked.process,
        thread=marked.thread,
        name=marked.name,
        domain=NO_NAME * one,
        style=int(Style.PUSH_POP) * one,
        closed=one,
        one_thread=one,
    )
    every = concatenate(Ranges, (ranges, operators))
    return every.take(np.argsort(every.start, kind="stable"))


def number_names_and_styles(
    timeline: Timeline, name: Ints, style: Ints
) -> tuple[NDArray[np.object_], NDArray[np.object_], Ints]:
    """Return the pairs of name and style that occur, and each row's number.

    Names that differ only in a counter of steps are one.
    """
    found, text = number_texts(timeline, name, partial(shown_name, timeline))
    pairs, group = numbered(text * len(_STYLES) + style)
    return found[pairs // len(_STYLES)], object_array(_STYLES[Style(p % len(_STYLES))] for p in pairs), group
