"""Column headers and values as people read them.

The header names a unit that is the same in every row: percent, and the microseconds of HTA. Nanoseconds,
bytes and rates are scaled to a readable unit, and each value carries its own.
"""

import re
from collections.abc import Iterable
from enum import Enum

from hpcprof.common.units import capitalized, format_bytes, format_flops, format_gbps, format_ns, visible

_UNIT_IN_HEADER = {"pct": "%", "pctg": "%", "us": "µs"}
_THREAD_NUMBER_LIMIT = 1 << 24
"""Numbers of threads are below it: in nsys they have 24 bits, and Linux allows 22 (``pid_max`` in proc(5)).
Profilers make up larger ones, for work without a thread or for hashes of 64 bits."""

_UNIT_IN_CELL = {"ns": format_ns, "bytes": format_bytes, "flops": format_flops, "gbps": format_gbps}

_HEADER_WORDS = {
    "algbw": "effective bandwidth",
    "api": "API",
    "avg": "mean",
    "busbw": "bus bandwidth",
    "ci": "CI",
    "comm": "comm.",
    "cpu": "CPU",
    "dram": "DRAM",
    "flops": "operations",
    "fp16": "FP16",
    "fp32": "FP32",
    "fp64": "FP64",
    "gpu": "GPU",
    "io": "I/O",
    "l1": "L1",
    "l2": "L2",
    "med": "median",
    "mem": "memory",
    "ops": "operations",
    "pid": "PID",
    "proj": "projected",
    "requested": "available",
    "stddev": "std. dev.",
    "tid": "TID",
}

_HEADERS = {
    "a": "A",
    "ai_flop_per_byte": "FLOP/byte",
    "alone_n": "n alone",
    "api_name": "API call",
    "avg_num_child": "Mean children",
    "avg_range_lvl": "Mean level",
    "b": "B",
    "bytes": "Size",
    "comm_id": "Communicator",
    "comm_ranks": "Communicator size",
    "communication_efficiency_pct": "Communication eff. (%)",
    "dram_bytes": "DRAM traffic",
    "id": "ID",
    "idle_ns_per_step": "Idle per step",
    "kernels_ns": "Kernel time",
    "kernels_per_launch_ns": "Kernel time per launch",
    "kernels_per_step_ns": "Kernel time per step",
    "l1_hit_pct": "L1 hits (%)",
    "l2_hit_pct": "L2 hits (%)",
    "n_a": "n (A)",
    "n_b": "n (B)",
    "non_compute_time_pctg": "Non-compute time (%)",
    "non_compute_time_us": "Non-compute time (µs)",
    "ns": "Time",
    "ns_per_step": "Per step",
    "num_calls": "Calls",
    "op": "Operation",
    "overlapped_n": "n overlapped",
    "parallel_efficiency_pct": "Parallel eff. (%)",
    "pct": "Share (%)",
    "pct_last": "Last (%)",
    "pct_of_bound": "Of bound (%)",
    "peak_per_s": "Peak per second",
    "seq": "Sequence number",
    "serialization_efficiency_pct": "Serialization eff. (%)",
    "sm_count": "SMs",
    "total_bytes": "Total size",
    "transfer_efficiency_pct": "Transfer eff. (%)",
    "waves_per_sm": "Waves per SM",
    "blocks_per_sm": "Blocks per SM",
    "world_ranks": "World size",
}
"""Headers that the words of the key do not give."""

_GRADED_SUFFIXES = ("_efficiency_pct", "load_balance_pct", "_scaling_pct")
_RATIO_COLUMNS = ("ratio", "slowdown", "slowdown_within", "speedup", "efficiency", "ci_low", "ci_high")
_ANY_UNIT_COLUMNS = ("usual", "then")
"""Columns whose unit is in another one, so that values may be small."""

_GOOD_PCT, _FAIR_PCT = 80, 60

MIN_P_VALUE = 0.001
"""Minimum p-value that is shown as a number."""


def header(key: str) -> str:
    """Return the header of a column: ``"Last (%)"`` of ``pct_last``, ``"In situ"`` of ``in_situ_ns``."""
    if key in _HEADERS:
        return _HEADERS[key]
    *words, last = key.split("_")
    unit = _UNIT_IN_HEADER.get(last)
    if not words or not (unit or last in _UNIT_IN_CELL):
        words.append(last)
    text = " ".join(_HEADER_WORDS.get(word, word) for word in words)
    # A percentile is written p50.
    is_percentile = words[0][:1] == "p" and words[0][1:].isdigit()
    text = text if is_percentile else capitalized(text)
    return f"{text} ({unit})" if unit else text


def metric_label(metric: str) -> str:
    """Return the label of a metric, whose unit stands beside it: ``"step p50"`` of ``step_p50_ns``."""
    if " " in metric:  # it has the name of a phase
        return metric.removesuffix("_ns").removesuffix("_pct")
    name = metric.removeprefix("own_")
    text = header(re.sub("_[cs]$", "", name))
    noted = ", noted by the program" * metric.startswith("own_")
    return f"{text if text[:2].isupper() else text[:1].lower() + text[1:]}{noted}"


def cell(key: str, value: object) -> str:
    """Return a value of a column for a person, without the unit where the column's header names it."""
    return format_value(key, value).removesuffix(f" {_UNIT_IN_HEADER.get(_suffix(key))}")


class Grade(Enum):
    """A grade of an efficiency, as the POP Centre of Excellence judges it: from 80 % on it is good."""

    GOOD = "good"
    FAIR = "fair"
    POOR = "poor"


def grade(key: str, value: object) -> Grade | None:
    """Return the grade of a value; None if its column holds no efficiency in percent."""
    if not isinstance(value, (int, float)) or not key.endswith(_GRADED_SUFFIXES):
        return None
    if value >= _GOOD_PCT:
        return Grade.GOOD
    return Grade.FAIR if value >= _FAIR_PCT else Grade.POOR


def format_value(key: str, value: object) -> str:
    """Return a value for a person, with its unit; the unit is the suffix of the key."""
    if value is None:
        return "–"
    if not isinstance(value, (int, float)):
        return visible(str(value))
    if (scaled := _UNIT_IN_CELL.get(_suffix(key))) is not None:
        return scaled(value)
    if key == "rank":
        return str(value)
    if key == "p_value":
        return f"{value:.2g}" if value >= MIN_P_VALUE else f"< {MIN_P_VALUE}"
    precise = key in _RATIO_COLUMNS or (_suffix(key) == "s" and abs(value) < 10)
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{3 if precise else 1}f}"
    if key in _ANY_UNIT_COLUMNS and abs(value) < 0.1:
        text = f"{value:.2g}"
    unit = _UNIT_IN_HEADER.get(_suffix(key))
    return f"{text} {unit}" if unit else text


def _suffix(key: str) -> str:
    return key.removesuffix("_per_step").rpartition("_")[2]


def thread_names(threads: Iterable[int]) -> dict[int, str]:
    """Return a name for each thread by its number; numbers that no system gives a thread are not shown."""
    names: dict[int, str] = {}
    unnumbered = 0
    for thread in sorted({*threads}):
        if 0 <= thread < _THREAD_NUMBER_LIMIT:
            names[thread] = f"thread {thread}"
        else:
            unnumbered += 1
            names[thread] = f"unnamed thread {unnumbered}" if unnumbered > 1 else "unnamed thread"
    return names
