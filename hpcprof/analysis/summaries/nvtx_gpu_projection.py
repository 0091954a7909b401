"""Ranges by name and style, on the host and projected to the GPU."""

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.framework.outcome import Outcome, no_rows, none_in
from hpcprof.analysis.statistics.grouped import round_half_up, summarize, sums
from hpcprof.analysis.steps.gpu_projection import launches, on_thread
from hpcprof.analysis.steps.range_tree import NO_PARENT, levels, parents, tree
from hpcprof.analysis.steps.step_ranges import shown_name
from hpcprof.common.units import counted
from hpcprof.profiles.columns.unique import number_texts, numbered, object_array
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.timeline import (
    NO_NAME,
    OWN_END,
    Floats,
    Ints,
    Operations,
    Ranges,
    Style,
    Timeline,
    concatenate,
)


def range_gpu(timeline: Timeline) -> Outcome:
    """Summarize the projections of ranges to the GPU, as nvtx_gpu_proj_sum of ``nsys stats`` does.

    An operation belongs to every range of its launching thread that contains its API call. The projection
    runs from the start of the first operation to the end of the last one, idle time included. ``gpu_ops``
    counts launches: operations of the same call count once. Ranges without operations, without a name or
    with an end that names its thread have no row. ``avg_range_lvl`` is the depth in the tree of all ranges of
    the thread, ``avg_num_child`` the number of direct children that have operations.
    """
    file = timeline.origin.path.name
    recorded, all_ranges = timeline, recorded_ranges(timeline)
    if len(timeline.graphs):
        # nsys does not project graphs that were traced as a whole.
        recorded = replace(timeline, graphs=Operations.empty())
    for count, events in (
        (len(all_ranges), "ranges"),
        (len(timeline.kernels) + len(timeline.memops), "CUDA kernels or memory operations"),
        (len(timeline.calls), "CUDA or HIP API calls"),
    ):
        if not count:
            return none_in(timeline, events)
    whole, own_end = until_last_range(all_ranges), all_ranges.one_thread == OWN_END
    if own_end.any():
        all_ranges, whole = all_ranges.take(~own_end), whole.take(~own_end)
    nested, parent = tree(timeline if all_ranges is timeline.ranges else replace(timeline, ranges=all_ranges))
    ranges = whole.take(nested)
    if not ranges.closed.all():
        parent = parents(ranges)
    projection = on_thread(ranges, launches(recorded))
    children = np.bincount(parent[(projection.launches > 0) & (parent != NO_PARENT)], minlength=len(ranges))
    named_rows = np.flatnonzero((projection.launches > 0) & (ranges.name != NO_NAME))
    ended_by_handle = len(own_end) - len(ranges)
    not_projected = (
        f"{counted(ended_by_handle, 'range')} of {file} not projected, as in nsys: a handle ends them"
    )
    if not len(named_rows):
        return no_rows(
            not_projected if ended_by_handle else f"no GPU operation of {file} was launched inside a range"
        )
    names, styles, group = number_names_and_styles(
        timeline, ranges.name[named_rows], ranges.style[named_rows]
    )
    projected = summarize(group, (projection.end - projection.start)[named_rows])
    operations = sums(group, projection.launches[named_rows], len(names))
    on_host = sums(group, (ranges.end - ranges.start)[named_rows], len(names))
    rows = {
        "range": object_array(names),
        "style": object_array(styles),
        "proj_total_ns": projected.total,
        "range_total_ns": on_host,
        "instances": projected.count,
        **projected.columns("proj_"),
        "gpu_ops": operations,
        "avg_gpu_ops": round_half_up(operations / projected.count),
        "avg_range_lvl": _mean_level(group, levels(parent)[named_rows], len(names)),
        "avg_num_child": round_half_up(
            np.bincount(group, weights=children[named_rows], minlength=len(names)) / projected.count
        ),
    }
    return Outcome(rows, not_projected if ended_by_handle and timeline.origin.kind == NSYS.name else "")


def until_last_range(ranges: Ranges) -> Ranges:
    """End unclosed ranges at the last time stamp of any range, as nvtx_gpu_proj_sum does.

    The timeline ends them at the last time stamp of any range or mark.
    """
    last = max(ranges.start.max(initial=0), ranges.end[ranges.closed == 1].max(initial=0))
    return replace(ranges, end=np.where(ranges.closed == 1, ranges.end, last))


def _mean_level(group: Ints, level: Floats, groups: int) -> list[float | None]:
    """Return the mean of the known depths of each group; None if a group has none."""
    has_level = ~np.isnan(level)
    count = np.bincount(group[has_level], minlength=groups)
    total = np.bincount(group[has_level], weights=level[has_level], minlength=groups)
    means = round_half_up(total / np.maximum(count, 1))
    return [mean if n else None for mean, n in zip(means.tolist(), count, strict=True)]


_STYLES = {Style.PUSH_POP: "PushPop", Style.START_END: "StartEnd"}


def ranges(timeline: Timeline) -> Outcome:
    """Summarize the durations of ranges on the host, as nvtx_sum of ``nsys stats`` does.

    In an export, the operators that PyTorch marked with NVTX are ranges too. Ranges without a name share a
    row in which ``range`` is None.
    """
    table = recorded_ranges(timeline)
    if not len(table):
        return none_in(timeline, "ranges")
    names, styles, group = number_names_and_styles(timeline, table.name, table.style)
    summary = summarize(group, table.end - table.start)
    columns = {"range": object_array(names), "style": object_array(styles)}
    return Outcome(columns | summary.table("instances"))


def recorded_ranges(timeline: Timeline) -> Ranges:
    """Return all ranges of a profile by start: in an nsys export also the operators, which NVTX recorded."""
    ranges, marked = timeline.ranges, timeline.operators
    if timeline.origin.kind != NSYS.name or not len(marked):
        return ranges
    operators = Ranges(marked.start, marked.end, marked.process, marked.thread, marked.name)
    all_ranges = concatenate(Ranges, (ranges, operators))
    return all_ranges.take(np.argsort(all_ranges.start, kind="stable"))


def number_names_and_styles(
    timeline: Timeline, name: Ints, style: Ints
) -> tuple[NDArray[np.object_], NDArray[np.object_], Ints]:
    """Return the pairs of name and style that occur, and each row's number.

    Names that differ only in a counter of steps are one.
    """
    names, text = number_texts(timeline, name, partial(shown_name, timeline))
    pairs, group = numbered(text * len(_STYLES) + style)
    return names[pairs // len(_STYLES)], object_array(_STYLES[Style(p % len(_STYLES))] for p in pairs), group
