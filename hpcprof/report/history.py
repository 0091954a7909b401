"""The history of a metric for a terminal: a line of bars, and a table with the changes of the level."""

from collections.abc import Iterator, Sequence

from hpcprof.common.units import capitalized, counted, visible
from hpcprof.report.formatting import format_value, metric_label
from hpcprof.results.across.history import History, HistoryPoint

_BARS = "▁▂▃▄▅▆▇█"
_COMMIT_LENGTH = 12
_MAX_VALUES = 4

_CHANCE_NOTE = (
    "If you look after each of 100 runs, about 2 % of histories without a change get a mark where runs vary "
    "normally, 10 % with heavy tails, and half with skewed times."
)
"""By `benchmarks/history.py`."""

MAX_PROBABILITY = 0.999
"""The highest probability that is shown."""

COLUMNS = (
    *("setup", "run", "time", "metric", "value"),
    *("change_probability", "change_pct", "commit", "tags", "clocks", "source"),
)
"""The columns of `plain_rows`."""


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a series as one line of bars, at most ``width``; of a longer one, the last values."""
    visible_values = list(values)[-width:]
    low, high = min(visible_values), max(visible_values)
    steps = len(_BARS) - 1
    return "".join(
        _BARS[round((value - low) / (high - low) * steps) if high > low else 0] for value in visible_values
    )


def told_apart(series: Sequence[History]) -> str:
    """Return a sentence on the differences between the histories; empty for a single one."""
    names = dict.fromkeys(name for history in series for name in history.apart)
    values = [_values([history.apart[name] for history in series if name in history.apart]) for name in names]
    differ = "; ".join(f"{visible(name)} ({texts})" for name, texts in zip(names, values, strict=True))
    return f"{len(series)} series, because runs differ in {differ}." if differ else ""


def left_out(without: Sequence[str], metric: str) -> str:
    """Return a sentence on the runs that do not have a metric; empty without any."""
    if not without:
        return ""
    runs = counted(len(without), "run")
    return f"Left out: {runs} without {metric_label(metric)}, failed or not collected ({_values(without)})."


def _values(values: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(values))
    more = len(distinct) - _MAX_VALUES
    return ", ".join(map(visible, distinct[:_MAX_VALUES])) + (f" and {more} more" if more > 0 else "")


def in_words(history: History) -> Iterator[str]:
    """Yield a sentence on a history, and one for each change of its level."""
    values = [point.value for point in history.points]
    last = format_value(history.metric, values[-1])
    lowest, highest = (format_value(history.metric, end) for end in (min(values), max(values)))
    course = f"{len(values):,} runs, from {lowest} to {highest}, now {last}"
    if len(values) == 1:
        course = f"one run, {last}"
    source = f" ({history.points[-1].source})" if history.points[-1].source else ""
    yield visible(f"{history.setup}: {metric_label(history.metric)} of {course}{source}.")
    for point in history.points:
        if point.change_probability is not None:
            commit = f", commit {visible(point.commit)}" if point.commit else ""
            change = f"{_change(point)} from {visible(point.run)} on{commit}."
            yield f"{_clock_note(point.clocks)}{change}"
    if any(point.change_probability is not None for point in history.points):
        yield _CHANCE_NOTE


def regression_sentence(series: Sequence[History]) -> str:
    """Return a sentence on the metrics that became worse; with other clocks, these come first."""
    last = [[point for point in history.points if point.change_pct is not None][-1] for history in series]
    clocks = "".join(dict.fromkeys(_clock_note(point.clocks) for point in last))
    names = [
        f"{metric_label(item.metric)} from {point.run} on" for item, point in zip(series, last, strict=True)
    ]
    return f"{clocks}Regression: {visible('; '.join(names))}."


def _clock_note(clocks: str) -> str:
    return f"{capitalized(clocks)}. " if clocks else ""


def _change(point: HistoryPoint) -> str:
    assert point.change_pct is not None and point.change_probability is not None
    return f"{point.change_pct:+.1f} % (probability {in_percent(point.change_probability)})"


def in_percent(probability: float) -> str:
    """Return the probability of a change as text, at most that of `MAX_PROBABILITY`."""
    return f"{100 * min(probability, MAX_PROBABILITY):.1f} %"


def table(history: History) -> dict[str, list[str]]:
    """Return the columns of a history as texts by their headings."""
    points = history.points
    return {
        "run": [visible(point.run) for point in points],
        "time": [f"{point.time.astimezone():%Y-%m-%d %H:%M}" if point.time else "–" for point in points],
        "value": [format_value(history.metric, point.value) for point in points],
        "change": ["" if point.change_pct is None else _change(point) for point in points],
        "commit": [visible(point.commit[:_COMMIT_LENGTH]) if point.commit else "–" for point in points],
        "tags": [" ".join(map(visible, point.tags)) or "–" for point in points],
    }


def plain_rows(histories: Sequence[History]) -> list[tuple[object, ...]]:
    """Return a row for each run, with the columns `COLUMNS`; times are in UTC."""
    return [
        (
            *(history.setup, point.run, point.time.isoformat(timespec="seconds") if point.time else None),
            *(history.metric, point.value, point.change_probability, point.change_pct),
            *(point.commit, " ".join(point.tags), point.clocks or None, point.source or None),
        )
        for history in histories
        for point in history.points
    ]
