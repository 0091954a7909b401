"""Format and parse numbers with units; inside hpcprof, times are int64 nanoseconds."""

import re
from collections.abc import Sequence

from hpcprof.common.errors import ESCAPED_CONTROLS, UsageError

_TIME_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_RATE_UNITS = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1.0, "FLOP/s"))
_ON_ONE_LINE = ESCAPED_CONTROLS | {ord("\t"): "\\t", ord("\n"): "\\n"}
_MEMORY = re.compile(r"(?P<number>0|[1-9]\d{0,8})(?P<unit>[KMGT])(I?B|I)?", re.IGNORECASE)
_SIZE_UNITS = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))


def capitalized(text: str) -> str:
    """Return a text that begins with a capital letter; the others stay as they are."""
    return text[:1].upper() + text[1:]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural: ``"1 rank"``, ``"1,024 ranks"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(values: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first ``most`` values and the number of the others: ``"a, b and 3 more"``."""
    omitted = len(values) - most
    return f"{between.join(values[:most])}{f' and {omitted:,} more' if omitted > 0 else ''}"


def named_ranks(ranks: Sequence[int], most: int = 16) -> str:
    """Return ranks in words: ``"rank 3"``, ``"ranks 0, 1, 5"``.

    More than ``most`` ranks are written as at most that many spans, ``"ranks 0-4095"``; omitted ranks are
    counted, ``"ranks 0-6, 9 and 7 more"``.
    """
    if len(ranks) <= most:
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    texts = [f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans[:most]]
    omitted = sum(map(len, spans[most:]))
    return f"ranks {', '.join(texts)}{f' and {omitted:,} more' if omitted else ''}"


def parse_ns(text: str) -> int | None:
    """Return the nanoseconds of a time such as ``24.5ms``; None for any other text."""
    units = {unit: size for size, unit in _TIME_UNITS} | {"us": 1_000, "ns": 1}
    fields = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs|ns)", text.strip())
    return None if fields is None else round(float(fields[1]) * units[fields[2]])


def format_ns(nanoseconds: float) -> str:
    """Return a time with four significant digits and its unit, ``"3.649 ms"``."""
    return _scale_unit(nanoseconds, _TIME_UNITS, "ns")


def signed_ns(nanoseconds: float) -> str:
    """Return a difference of times with its sign, ``"+3.649 ms"``."""
    return f"{'+' if nanoseconds > 0 else ''}{format_ns(nanoseconds)}"


def time_unit(largest_ns: float) -> tuple[int, str]:
    """Return the unit for times up to ``largest_ns``: its nanoseconds and its name, ``(1000000, "ms")``."""
    return next((unit for unit in _TIME_UNITS if abs(largest_ns) >= unit[0]), (1, "ns"))


def format_bytes(size: float) -> str:
    """Return a size with four significant digits and its decimal unit, ``"134.2 MB"``."""
    if size < 0:
        return f"-{format_bytes(-size)}"
    return f"{size:.0f} B" if size < 1000 else _scale_unit(size, _SIZE_UNITS, "B")


def format_duration(seconds: float) -> str:
    """Return a duration of a job or command: ``"0.4 s"``, ``"45 s"``, ``"3 min 10 s"``, ``"2 h 5 min"``."""
    if 1e-4 <= seconds <= 0.5:
        return f"{seconds:.1g} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


def _scale_unit(value: float, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    factor, unit = next(((f, u) for f, u in units if abs(value) >= f), (1, smallest))
    return f"{_digits(value / factor)} {unit}"


def visible(text: str) -> str:
    """Return a text on one line, with its control characters escaped: no name may steer a terminal."""
    return text.translate(_ON_ONE_LINE)


def shortened(text: str, most: int = 120) -> str:
    """Return a text without its middle if it has more than ``most`` characters."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def format_flops(per_second: float) -> str:
    """Return a rate of floating-point operations with four significant digits, ``"45.36 TFLOP/s"``."""
    size, unit = next((u for u in _RATE_UNITS if abs(per_second) >= u[0]), _RATE_UNITS[-1])
    return f"{_digits(per_second / size)} {unit}"


def format_gbps(gigabytes_per_second: float) -> str:
    """Return a bandwidth with four significant digits, ``"285.8 GB/s"``."""
    return f"{_digits(gigabytes_per_second)} GB/s"


def _digits(value: float) -> str:
    """Return a number with four significant digits, or with three below 1."""
    if value == 0:
        return "0"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, 4 - whole)}f}" if abs(value) >= 1 else f"{value:.3g}"


def parse_memory(text: str, option: str = "--mem") -> str:
    """Return memory with its unit K, M, G or T (of 1024): schedulers differ in the unit of bare numbers."""
    match = _MEMORY.fullmatch("0M" if text == "0" else text)
    if match is None:
        raise UsageError(f"{option} {text}: write a whole number with K, M, G or T, as in 64G.")
    return match["number"] + match["unit"].upper()


def mebibytes(memory: str) -> float:
    """Convert memory as `parse_memory` returns it to MiB."""
    return int(memory[:-1]) * 1024.0 ** ("KMGT".index(memory[-1]) - 1)
