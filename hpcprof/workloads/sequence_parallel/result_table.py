"""The table that rank 0 prints."""

from hpcprof.common.units import counted
from hpcprof.workloads.schema import Correctness, Figures, RankResult, Summary, summarize
from hpcprof.workloads.sequence_parallel.cost_model import is_matmul
from hpcprof.workloads.sequence_parallel.parameters import PointParameters, Sweep

_LEGEND = "of bound: bound / step, %; hidden: (serial - step) / (serial - bound), %"


class ResultFormatter:
    """Formats the results of points: a full table for a single point, a few lines for each of a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._head = True
        self._notes: set[str] = set()

    def text(
        self, result: RankResult, parameters: PointParameters, nodes: int, worst: dict[str, float]
    ) -> str:
        """Return the lines of the next point; the other arguments are as in `result_table`."""
        if not self._sweep.swept:
            return result_table(result, parameters, nodes, worst)
        check, modes = _check(result), _figures(result)
        lines = []
        if self._head:
            self._head = False
            points = counted(len(self._sweep.points), "point")
            lines = [f"{_ranks(result, nodes)}; {points}", _LEGEND, _columns(result)]
        # A note that holds at every point is printed once; a warning belongs to its point.
        notes = [note for note in result.notes if note not in self._notes or note.startswith("WARNING")]
        self._notes |= set(notes)
        lines += ["", f"{result.point}: {_shape(parameters)}, {parameters.dtype}, {parameters.direction}"]
        lines += [*(_mode(name, figures) for name, figures in modes.items()), _fastest(modes)]
        lines += _bounds(result, modes)[:1] if result.bound_ns is not None else []
        lines += [_correct(name, error, check) for name, error in worst.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def result_table(
    result: RankResult, parameters: PointParameters, nodes: int, worst_errors: dict[str, float]
) -> str:
    """Return the table of a point from rank 0's result; ``worst_errors`` are by mode, NaN if not finite."""
    check = _check(result)
    return "\n".join(
        [
            f"{_ranks(result, nodes)}, {parameters.dtype}, {parameters.direction}",
            _shape(parameters),
            "",
            *(_of_modes(result) if result.modes else _of_one(result, parameters)),
            *(_correct(name, worst, check) for name, worst in worst_errors.items()),
            f"n = {check.rows} rows per rank; reference: {check.reference}",
            *(f"note: {note}" for note in result.notes),
        ]
    )


def _of_one(result: RankResult, parameters: PointParameters) -> list[str]:
    latency = summarize(result.latency_ns or result.step_ns)
    phases = {name: result.summary[name] for name in result.phase_ns}
    lines = [
        f"{'':<32}{'p50 ms':>10}{'p95 ms':>10}{'p99 ms':>10}{'n':>6}",
        _row("step, maximum over ranks", latency),
        *(_row(f"{name}, rank {result.rank}", summary) for name, summary in phases.items()),
        "",
    ]
    if result.figures is not None:
        work = f"{2 * (2 * parameters.forward + 4 * parameters.backward)} R h f / N"
        rate = f"{result.figures.tflops:.3f} TFLOP/s per {_unit(result)}"
        lines.append(f"{rate}: {work} over the p50 of a step, n = {latency.n}")
        lines += _conditions(result, {result.mode: result.figures})
    return lines


def _of_modes(result: RankResult) -> list[str]:
    """Return a line per mode: its step time, and how close it is to perfect overlap."""
    modes = _figures(result)
    lines = [_columns(result), *(_mode(name, figures) for name, figures in modes.items())]
    lines += ["", _fastest(modes)]
    if result.bound_ns is not None:
        lines += [*_bounds(result, modes), f"phases of serial, ms, slowest rank: {_times(result.parts_ns)}"]
    parts = []
    for name, rate in result.rates.items():
        digits = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
        parts.append(f"{name} {digits} {'TFLOP/s' if is_matmul(name) else 'GB/s'}")
    if parts:
        lines.append(f"rates of the phases: {', '.join(parts)}")
    return lines + _conditions(result, modes)


def _bounds(result: RankResult, modes: dict[str, Figures]) -> list[str]:
    """Define the bounds and the percentages."""
    assert result.bound_ns is not None
    bound = f"bound {result.bound_ns / 1e6:.3f} ms: the larger of the"
    legend = [_LEGEND, "GB/s: bytes of all collectives over the step, per rank"]
    if not result.bound_parts_ns:
        return [f"{bound} serial mode's matmuls and collectives", *legend]
    parts = (
        f"fastest matmuls and of the bytes over the links, each alone, ms: {_times(result.bound_parts_ns)}"
    )
    intervals = [
        f"{name} {figures.of_bound_low_pct:.1f} to {figures.of_bound_high_pct:.1f}"
        for name, figures in modes.items()
        if figures.of_bound_low_pct is not None and figures.of_bound_high_pct is not None
    ]
    lines = [f"{bound} {parts}", *legend, f"of bound, 95 % interval: {', '.join(intervals)}"]
    if result.alone_bound_ns is not None:
        shares = {name: figures.of_alone_pct for name, figures in modes.items() if figures.of_alone_pct}
        lines.append(
            f"of {result.alone_bound_ns / 1e6:.3f} ms, the larger of the serial mode's matmuls and "
            f"collectives, %: {_list_text(shares, 1)}"
        )
    return lines


def _list_text(values: dict[str, float], digits: int) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())


def _times(parts: dict[str, int]) -> str:
    return _list_text({name: time / 1e6 for name, time in parts.items()}, 3)


def _ranks(result: RankResult, nodes: int) -> str:
    names = ", ".join(result.modes) or result.mode
    return (
        f"{result.workload} ({names}): {counted(result.world_size, 'rank')} on {counted(nodes, 'node')}, "
        f"{result.device}, {result.backend}"
    )


def _shape(parameters: PointParameters) -> str:
    return f"R = {parameters.rows} rows, h = {parameters.hidden_size}, f = {parameters.inner_size}"


def _figures(result: RankResult) -> dict[str, Figures]:
    """Return the figures of each mode, also if there is only one."""
    by_mode = {name: mode.figures for name, mode in result.modes.items()} or {result.mode: result.figures}
    return {name: figures for name, figures in by_mode.items() if figures is not None}


def _columns(result: RankResult) -> str:
    times = f"{'p50':>8}{'p95':>8}{'p99':>8}"
    unit = f"TFLOP/s/{_unit(result)}"
    return f"{'ms, slowest rank':<17}{times}{unit:>13}{'GB/s':>6}{'of bound':>9}{'hidden':>8}"


def _mode(name: str, figures: Figures) -> str:
    step = figures.step
    times = "".join(f"{time / 1e6:>8.3f}" for time in (step.p50_ns, step.p95_ns, step.p99_ns))
    return (
        f"{name:<17}{times}{figures.tflops:>13.1f}{_number(figures.bus_gbps, 6, 0)}"
        f"{_number(figures.of_bound_pct, 9, 1)}{_number(figures.hidden_pct, 8, 1)}"
    )


def _check(result: RankResult) -> Correctness:
    """Return the check of the first mode; rows, bound and reference are the same for all modes."""
    check = next(iter(result.modes.values())).correctness if result.modes else result.correctness
    assert check is not None
    return check


def _fastest(modes: dict[str, Figures]) -> str:
    steps = next(iter(modes.values())).step.n
    if len(modes) == 1:
        return f"n = {steps} steps"
    fastest = min(modes, key=lambda name: modes[name].step.p50_ns)
    return f"fastest: {fastest}; n = {steps} steps per mode, in turns"


def _conditions(result: RankResult, modes: dict[str, Figures]) -> list[str]:
    lines = [
        f"{name}: p50 {figures.marked.p50_ns / 1e6:.3f} ms with marked phases, "
        f"{figures.step.p50_ns / 1e6:.3f} without"
        for name, figures in modes.items()
        if figures.marked is not None
    ]
    spread = {name: figures.spread_pct for name, figures in modes.items()}
    skew = {name: figures.skew_p50_ns / 1e3 for name, figures in modes.items()}
    marks = {name: figures.marks_pct for name, figures in modes.items()}
    lines += [
        f"spread (standard deviation), % of the mean: {_list_text(spread, 1)}",
        f"skew (slowest minus fastest rank), us, p50: {_list_text(skew, 0)}",
        f"cost of the time marks, % of a step: {_list_text(marks, 2)}",
    ]
    peaks = {name: figures.of_peak_pct for name, figures in modes.items() if figures.of_peak_pct is not None}
    if peaks:
        lines.append(f"of the peak in the data sheet, %: {_list_text(peaks, 1)}")
    counts = {name: mode.peak_bytes for name, mode in result.modes.items()}
    memory = {name: count / 2**30 for name, count in counts.items() if count is not None}
    if memory:
        each = _list_text(memory, 2)
        lines.append(f"peak memory, GiB, rank {result.rank}, without symmetric memory: {each}")
    for when, state in (("before", result.gpu_before), ("after", result.gpu_after)):
        if state is not None:
            lines.append(
                f"GPU {when}: SM {state.sm_mhz} MHz, memory {state.memory_mhz} MHz, {state.power_w:.0f} W, "
                f"{state.temperature_c} °C, throttled by {', '.join(state.throttled_by) or 'nothing'}"
            )
    return lines


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}':>{width}}"


def _correct(name: str, worst: float, check: Correctness) -> str:
    sign = "<" if worst < check.bound else "NOT below"
    return f"{name}: relative error {worst:.1e} {sign} {check.bound:.0e}, worst rank"


def _row(label: str, summary: Summary) -> str:
    times = (summary.p50_ns, summary.p95_ns, summary.p99_ns)
    return f"{label:<32}{''.join(f'{time / 1e6:>10.3f}' for time in times)}{summary.n:>6}"


def _unit(result: RankResult) -> str:
    return "rank" if result.device == "cpu" else "GPU"
