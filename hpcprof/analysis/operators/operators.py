"""Operators by name and by the shapes of their inputs, the kernels that they launch, and modules."""

from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.framework.outcome import Outcome, no_rows, none_in
from hpcprof.analysis.operators.matrix_multiplications import costs, counts_flops, flops, peak_tflops
from hpcprof.analysis.statistics.grouped import round_half_up, summarize, sums, sums_by
from hpcprof.analysis.steps.lost_launches import captured_launches
from hpcprof.common.memoize import computed_once
from hpcprof.common.units import counted
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.unique import distinct, number_texts, numbered_rows, object_array, rows_by_key
from hpcprof.profiles.readers.kineto import TORCH
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.timeline import NO_LINK, Floats, Ints, Operators, Ranges, Timeline

NO_OPERATOR = -1

_MIN_UNLAUNCHED_PCT = 10.0
"""Minimum share of the work on the GPU that no operator launched, for a sentence about it."""

_SHAPE_OPTIONS = {NSYS.name: "nsys --pytorch=autograd-shapes-nvtx", TORCH.name: "record_shapes=True"}
"""The options of the profilers that can record the shapes of operators."""


class Nesting(msgspec.Struct, frozen=True):
    """The operators of a timeline, or its modules, as trees; all arrays of shape (operators,)."""

    order: Ints
    """The rows of the table by thread, each operator before those inside it. The positions below are
    positions in this order.
    """
    parent: Ints
    """The position of the innermost operator around each one, or `NO_OPERATOR`."""
    after: Ints
    """The position after the last operator inside each one."""

    def inside(self, value: Ints) -> Ints:
        """Return the sum of ``value``, given by position, over each operator and all those inside it."""
        until = np.concatenate(([0], np.cumsum(value)))
        return until[self.after] - until[:-1]

    def own(self, value: Ints) -> Ints:
        """Return ``value``, given by position, without that of the operators directly inside."""
        nested = np.flatnonzero(self.parent != NO_OPERATOR)
        remainder: Ints = value.copy()
        np.subtract.at(remainder, self.parent[nested], value[nested])
        return remainder


@computed_once
def nesting(timeline: Timeline) -> Nesting:
    """Find the operator around each operator, as PyTorch's ``key_averages()`` does."""
    return nest(timeline.operators)


def nest(table: Operators | Ranges) -> Nesting:
    """Find the row around each row: a is inside b if it begins before b ends, and ends no later."""
    order = np.lexsort((-table.end, table.start, table.thread, table.process))
    _, number = numbered_rows(table.process, table.thread)
    threads, starts, ends = (column[order].tolist() for column in (number, table.start, table.end))
    parent: list[int] = []
    after = [len(order)] * len(order)
    enclosing: list[int] = []
    for at, (thread, start, end) in enumerate(zip(threads, starts, ends, strict=True)):
        while enclosing:
            outer = enclosing[-1]
            if start < ends[outer] and end <= ends[outer] and threads[outer] == thread:
                break
            after[enclosing.pop()] = at
        parent.append(enclosing[-1] if enclosing else NO_OPERATOR)
        enclosing.append(at)
    return Nesting(order, np.array(parent, np.int64), np.array(after, np.int64))


@computed_once
def launching_operators(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the operations on the GPU that an operator launched.

    The first are rows of ``timeline.operations()``, each once; the second the positions in `Nesting.order` of
    the innermost operators that were open on the thread of the launch call when the call began.
    """
    operation, call = first_launches(timeline)
    calls = timeline.calls
    call_start = (calls.process[call], calls.thread[call], calls.start[call])
    carrier = innermost_row(nesting(timeline), timeline.operators, *call_start)
    launched = carrier != NO_OPERATOR
    return operation[launched], carrier[launched]


def first_launches(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of the operations whose launch was recorded, each once, and the row of its call."""
    operation, call = launch_pairs(timeline)
    # Calls inside a call share its correlation id.
    first = np.flatnonzero(np.diff(operation, prepend=-1))
    return operation[first], call[first]


def innermost_row(
    tree: Nesting, table: Operators | Ranges, process: Ints, thread: Ints, moment: Ints
) -> Ints:
    """Return the position of the innermost row that is open on a thread at each moment, or `NO_OPERATOR`."""
    start, end = table.start[tree.order], table.end[tree.order]
    carrier = np.full(len(moment), NO_OPERATOR, np.int64)
    threads = dict(rows_by_key(table.process[tree.order], table.thread[tree.order]))
    for key, rows in rows_by_key(process, thread):
        if (thread_rows := threads.get(key)) is None:
            continue
        when = moment[rows]
        before = np.searchsorted(start[thread_rows], when, side="right") - 1
        at = np.where(before < 0, NO_OPERATOR, thread_rows[before])
        # The last operator that began may have ended; one around it may be open.
        while len(ended := np.flatnonzero((at != NO_OPERATOR) & (end[at] < when))):
            at[ended] = tree.parent[at[ended]]
        carrier[rows] = at
    return carrier


class _OperatorCalls(msgspec.Struct, frozen=True):
    """The calls of operators by position in `Nesting.order`, all arrays of shape (operators,).

    ``shape`` is the number of the name, shapes and types of a call among ``shapes``. ``flops`` and
    ``peak`` (in FLOP/s) are NaN if unknown, as is ``moved``, the bytes that a call reads and writes. ``busy``
    is the sum of the times of all operations on the GPU.
    """

    shape: Ints
    shapes: Ints
    host: Ints
    own_host: Ints
    launched: Ints
    gpu: Ints
    own_gpu: Ints
    flops: Floats
    peak: Floats
    moved: Floats
    busy: int


def operators(timeline: Timeline) -> Outcome:
    """Summarize the calls of each operator: time on the host and the GPU, with nested ones and without."""
    if not len(timeline.operators):
        return none_in(timeline, "operators")
    calls = _operator_calls(timeline)
    names, name = number_texts(timeline, calls.shapes[:, 0])
    rows = {"name": names, **_summary(timeline, name[calls.shape], len(names))}
    return Outcome(rows, _reason(timeline))


def operators_by_shape(timeline: Timeline) -> Outcome:
    """Summarize the calls of each operator by the shapes and types of its inputs."""
    if not len(timeline.operators):
        return none_in(timeline, "operators")
    calls = _operator_calls(timeline)
    texts = [object_array(timeline.names(column)) for column in np.ascontiguousarray(calls.shapes.T)]
    rows: dict[str, Any] = dict(zip(("name", "input_dims", "input_types"), texts, strict=True))
    rows |= _summary(timeline, calls.shape, len(calls.shapes))
    return Outcome(rows, _reason(timeline, shapes=True))


def operator_kernels(timeline: Timeline) -> Outcome:
    """Summarize the operations on the GPU by name and by the innermost operator that launched them."""
    if not len(timeline.operators):
        return none_in(timeline, "operators")
    operation, operator = launching_operators(timeline)
    if not len(operation):
        return no_rows(f"no GPU operation of {timeline.origin.path.name} was launched inside an operator")
    start, end, ran = timeline.of_operations("start", "end", "name")
    text = timeline.operators.name[nesting(timeline).order[operator]]
    names, name = number_texts(timeline, text)
    kernels, kernel = number_texts(timeline, ran[operation])
    keys, group = numbered_rows(name, kernel)
    summary = summarize(group, (end - start)[operation])
    columns = {"operator": names[keys[:, 0]], "kernel": kernels[keys[:, 1]]}
    return Outcome(columns | summary.table("instances"))


@computed_once
def _operator_calls(timeline: Timeline) -> _OperatorCalls:
    tree, table = nesting(timeline), timeline.operators
    shapes, shape = numbered_rows(table.name, table.dims, table.types)
    shape, host = shape[tree.order], (table.end - table.start)[tree.order]
    operation, operator = launching_operators(timeline)
    start, end, ran = timeline.of_operations("start", "end", "name")
    time = end - start
    launched = np.bincount(operator, minlength=len(host))
    own_gpu = sums(operator, time[operation], len(host))
    texts = [timeline.names(column) for column in np.ascontiguousarray(shapes.T)]
    calls, call = numbered_rows(table.name, table.dims, table.values)
    inputs = list(zip(*map(timeline.names, np.ascontiguousarray(calls.T)), strict=True))
    work = np.array([flops(*sizes) for sizes in inputs], float)
    moved = np.array([costs(values).get("bytes") for _, _, values in inputs], float)
    return _OperatorCalls(
        shape=shape,
        shapes=shapes,
        host=host,
        own_host=tree.own(host),
        launched=launched,
        gpu=tree.inside(own_gpu),
        own_gpu=own_gpu,
        flops=work[call[tree.order]],
        peak=_peak_flops(timeline, texts, shape[operator], ran[operation])[shape],
        moved=moved[call[tree.order]],
        busy=int(time.sum()),
    )


def _peak_flops(timeline: Timeline, texts: list[list[str | None]], shape: Ints, kernel: Ints) -> Floats:
    """Return the GPU's peak for each shape in FLOP/s, given the shapes and names of all launches."""
    gpus = {*timeline.origin.device_names}
    peaks = np.full(len(texts[0]), np.nan)
    # With GPUs of several kinds the peak depends on the call.
    gpu = gpus.pop() if len(gpus) == 1 else ""
    wanted = {row for row, name in enumerate(texts[0]) if counts_flops(name)}
    kernels: dict[int, set[str]] = {row: set() for row in wanted}
    pairs, _ = numbered_rows(shape, kernel)
    for row, name in zip(pairs[:, 0].tolist(), timeline.names(pairs[:, 1]), strict=True):
        if row in wanted:
            kernels[row].add(name or "")
    for row, names in kernels.items():
        peak = peak_tflops(gpu, texts[0][row], texts[2][row], names)
        peaks[row] = np.nan if peak is None else peak * 1e12
    return peaks


def _summary(timeline: Timeline, group: Ints, groups: int) -> dict[str, Any]:
    calls, total = _operator_calls(timeline), partial(sums, group, count=groups)
    own_host, own_gpu = total(calls.own_host), total(calls.own_gpu)
    return {
        "calls": np.bincount(group, minlength=groups),
        "host_ns": total(calls.host),
        "self_host_ns": own_host,
        "host_pct": percent(own_host, int(own_host.sum())),
        "gpu_ops": total(calls.launched),
        "gpu_ns": total(calls.gpu),
        "self_gpu_ns": own_gpu,
        "gpu_pct": percent(own_gpu, calls.busy),
        **_rates(timeline, calls, group, groups),
    }


def percent(part: Ints, whole: int) -> NDArray[np.object_]:
    """Return parts in percent with one decimal, None if the whole is 0."""
    return _nullable(round_half_up(100.0 * part / whole) if whole else np.full(len(part), np.nan))


def _rates(timeline: Timeline, calls: _OperatorCalls, group: Ints, groups: int) -> dict[str, Any]:
    """Return the operations of each group, and their rate over the calls whose time is known."""
    total = partial(sums_by, (groups,), (group,))
    # Calls of the GPU return before their work is done, which the profile may lack.
    time = calls.gpu if timeline.operation_count or len(timeline.calls) else calls.host
    timed = np.isfinite(calls.flops) & (time > 0)
    time_ns = total(np.where(timed, time, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = total(np.where(timed, calls.flops, 0.0)) / time_ns * 1e-3
        time_at_peak_ns = total(np.where(timed, calls.flops / calls.peak * 1e9, 0.0))
        share = 100.0 * time_at_peak_ns / time_ns if timeline.operation_count else np.full(groups, np.nan)
    return {
        "flops": _nullable(total(calls.flops)),
        "bytes": _nullable(total(calls.moved)),
        "tflops": _nullable(np.round(rate, 3)),
        "peak_pct": _nullable(np.round(share, 1)),
    }


def _nullable(values: Floats) -> NDArray[np.object_]:
    """Return a column in which None marks what is unknown."""
    is_finite = np.isfinite(values).tolist()
    return object_array(value if ok else None for value, ok in zip(values.tolist(), is_finite, strict=True))


def _reason(timeline: Timeline, *, shapes: bool = False) -> str:
    """Return the reason for values that are unexpectedly null or 0."""
    if captured := captured_launches(timeline):
        return (
            f"{counted(captured, 'launch call')} captured into graphs: the work counts where the graphs run"
        )
    calls = _operator_calls(timeline)
    start, end = timeline.of_operations("start", "end")
    operation, _ = launch_pairs(timeline)
    unknown = 100 * (1 - int((end - start)[distinct(operation)].sum()) / max(1, calls.busy))
    if calls.busy and unknown >= _MIN_UNLAUNCHED_PCT:
        return f"the launches of {unknown:.0f} % of the work on the GPU are not in the profile"
    outside = 100 * (1 - int(calls.own_gpu.sum()) / max(1, calls.busy)) - unknown
    if calls.busy and outside >= _MIN_UNLAUNCHED_PCT:
        return (
            f"no operator launched {outside:.0f} % of the work on the GPU: graphs did, or calls outside them"
        )
    option = _SHAPE_OPTIONS.get(timeline.origin.kind)
    if option is None or (timeline.operators.dims >= 0).any():
        return ""
    missing = "shapes and types and no FLOPs" if shapes else "FLOPs"
    return f"{timeline.origin.path.name} has no {missing}: record it with {option}"


def modules(timeline: Timeline) -> Outcome:
    """Summarize the calls of each module: time on the host and the GPU, inner modules included.

    ``gpu_ns`` is the time of the operations that its thread launched during the calls, and
    ``backward_gpu_ns`` the time of the operators that compute the calls' gradients.
    ``gpu_pct`` is the sum of both in percent of all work on the GPU.
    """
    table = timeline.modules
    if not len(table):
        file = timeline.origin.path.name
        return no_rows(f"no modules in {file}: PyTorch records them with with_stack=True")
    tree = nest(table)
    host = (table.end - table.start)[tree.order]
    names, name = number_texts(timeline, table.name[tree.order])
    total = partial(sums, name, count=len(names))
    start, end = timeline.of_operations("start", "end")
    launched, forward = _forward_work(timeline, tree, end - start)
    gpu, backward = total(tree.inside(forward)), total(tree.inside(_backward_time(timeline, tree)))
    self_time = total(tree.own(host))
    rows: dict[str, Any] = {
        "name": names,
        "calls": np.bincount(name, minlength=len(names)),
        "host_ns": total(host),
        "self_host_ns": self_time,
        "host_pct": percent(self_time, int(self_time.sum())),
        "gpu_ops": total(tree.inside(launched)),
        "gpu_ns": gpu,
        "backward_gpu_ns": backward,
        "gpu_pct": percent(gpu + backward, int((end - start).sum())),
    }
    return Outcome(rows)


def _forward_work(timeline: Timeline, tree: Nesting, time: Ints) -> tuple[Ints, Ints]:
    """Return the number and the time of the operations that each call launched itself, by position."""
    operation, call = first_launches(timeline)
    calls = timeline.calls
    place = innermost_row(tree, timeline.modules, calls.process[call], calls.thread[call], calls.start[call])
    inside = place != NO_OPERATOR
    spent = sums(place[inside], time[operation[inside]], len(tree.order))
    return np.bincount(place[inside], minlength=len(spent)), spent


def _backward_time(timeline: Timeline, tree: Nesting) -> Ints:
    """Return the time on the GPU of the gradients of the operators that each call executed itself."""
    table, operator_tree = timeline.operators, nesting(timeline)
    begun, ended = timeline.of_operations("start", "end")
    operation, operator = launching_operators(timeline)
    spent = operator_tree.inside(sums(operator, (ended - begun)[operation], len(table)))
    start, link = (column[operator_tree.order] for column in (table.start, table.link))
    linked = np.flatnonzero(link != NO_LINK)
    linked = linked[np.lexsort((start[linked], link[linked]))]
    # The forward operator of a link begins first.
    first = np.flatnonzero(link[linked][1:] == link[linked][:-1])
    forward, backward = linked[first], linked[first + 1]
    rows = operator_tree.order[forward]
    place = innermost_row(tree, timeline.modules, table.process[rows], table.thread[rows], table.start[rows])
    inside = place != NO_OPERATOR
    return sums(place[inside], spent[backward[inside]], len(tree.order))
