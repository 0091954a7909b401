"""Ranges on the host by name and style."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.text_columns import number_texts, object_array, text_column
from hpcprof.analysis.statistics.grouped import summarize
from hpcprof.analysis.steps.step_ranges import shown_name
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import Ints, Style, Timeline

_STYLES = {Style.PUSH_POP: "PushPop", Style.START_END: "StartEnd"}


def ranges(timeline: Timeline) -> Outcome:
    """Summarize the durations of ranges on the host, as nvtx_sum of ``nsys stats`` does.

    Ranges without a name share a row in which ``range`` is None.
    """
    table = timeline.ranges
    if not len(table):
        return no_rows(f"no ranges in {timeline.origin.path.name}")
    names, styles, group = number_names_and_styles(timeline, table.name, table.style)
    summary = summarize(group, table.end - table.start)
    rows = pd.DataFrame(
        {
            "range": text_column(names),
            "style": text_column(styles),
            "instances": summary.count,
            "total_ns": summary.total,
            "time_pct": summary.shares(),
            **summary.columns(),
        }
    )
    return Outcome(rows)


def number_names_and_styles(
    timeline: Timeline, name: Ints, style: Ints
) -> tuple[NDArray[np.object_], NDArray[np.object_], Ints]:
    """Return the pairs of name and style that occur, and each row's number.

    Names that differ only in a counter of steps are one.
    """
    found, text = number_texts(timeline, name, partial(shown_name, timeline))
    pairs, group = numbered(text * len(_STYLES) + style)
    return found[pairs // len(_STYLES)], object_array(_STYLES[Style(p % len(_STYLES))] for p in pairs), group
