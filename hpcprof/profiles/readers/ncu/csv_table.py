"""The tables that ``ncu --csv`` prints.

The raw page has one row per kernel and a row of units, the details page one row per metric.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from hpcprof.common.errors import DamagedInput
from hpcprof.common.units import listed
from hpcprof.profiles.gzip_file import content_of
from hpcprof.profiles.input_bounds import first_repeated_name
from hpcprof.profiles.kernel_report import Advice, MeasuredKernel
from hpcprof.profiles.readers.foreign_files import foreign_kind
from hpcprof.profiles.readers.operations import REQUIRED
from hpcprof.submit.profilers.ncu import complaint

# The program's own output and ncu's messages come before the table.
# Other programs that save the table leave out the quotes.
_HEADER = re.compile(r'^("?)ID\1,\1Process ID\1,.*\1Kernel Name\1', re.MULTILINE)
_HEAD_BYTES = 1 << 20
_FIXED_COLUMNS = ("ID", "Process ID", "Kernel Name")
_UNIT_ROW = ("Process ID", "Kernel Name")
_METRIC = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")

_RULE = ("Rule Name", "Rule Type", "Rule Description")
_ADVISING = ("OPT", "WRN")
"""Types of rules that suggest or warn; others inform."""
_ESTIMATE = ("Estimated Speedup Type", "Estimated Speedup")

_SPEED = "GPU Speed Of Light Throughput"
_MEMORY = "Memory Workload Analysis"
# The metrics that hpcprof reads, by their names on the details page. Names on the raw page never change.
_DETAILS = {
    (_SPEED, "Compute (SM) Throughput"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    (_SPEED, "Memory Throughput"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    (_SPEED, "DRAM Throughput"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    (_SPEED, "Duration"): "gpu__time_duration.sum",
    ("Launch Statistics", "# SMs"): "launch__sm_count",
    ("Launch Statistics", "Waves Per SM"): "launch__waves_per_multiprocessor",
    ("Occupancy", "Block Limit SM"): "launch__occupancy_limit_blocks",
    ("Occupancy", "Block Limit Registers"): "launch__occupancy_limit_registers",
    ("Occupancy", "Block Limit Shared Mem"): "launch__occupancy_limit_shared_mem",
    ("Occupancy", "Block Limit Warps"): "launch__occupancy_limit_warps",
    ("Occupancy", "Block Limit Barriers"): "launch__occupancy_limit_barriers",
    ("Occupancy", "Theoretical Occupancy"): "sm__maximum_warps_per_active_cycle_pct",
    ("Occupancy", "Achieved Occupancy"): "sm__warps_active.avg.pct_of_peak_sustained_active",
    (_MEMORY, "L1/TEX Hit Rate"): "l1tex__t_sector_hit_rate.pct",
    (_MEMORY, "L2 Hit Rate"): "lts__t_sector_hit_rate.pct",
    (_MEMORY, "Memory Throughput"): "dram__bytes.sum.per_second",
}
# The same in versions before 2022, whose sections have other names.
_OLDER_DETAILS = {
    **{label: metric for (section, label), metric in _DETAILS.items() if section != _MEMORY},
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L1 Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory [%]": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL Memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL FB": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
_RAW_NAME = re.compile(r"[a-z0-9]+__[\w.:\[\]-]+")


def _metric_name(section: str, label: str) -> str | None:
    """Return the name of a metric that the details page shows by its raw name, or by a label of a section."""
    if _RAW_NAME.fullmatch(label):
        return label
    return _DETAILS.get((section, label)) or (None if section == _MEMORY else _OLDER_DETAILS.get(label))


DEVICE_NAME = "device__attribute_display_name"


class Printed(msgspec.Struct):
    """A table: kernels, the name of the device, and the number of rows that are cut off or damaged."""

    kernels: list[MeasuredKernel]
    device: str | None = None
    cut: int = 0


def is_table(path: Path) -> bool:
    """Return whether a CSV file holds a table of Nsight Compute near its beginning."""
    try:
        head = content_of(path, _HEAD_BYTES)
    except DamagedInput:
        return False
    return _HEADER.search(head.decode("utf-8-sig", "replace").replace("\r\n", "\n")) is not None


def read_file(path: Path) -> Printed:
    """Read a CSV file, plain or gzip."""
    return parse(read_text(path), path)


def read_text(path: Path) -> str:
    """Return the text of a CSV file, plain or gzip."""
    return content_of(path).decode("utf-8-sig", "replace")


def parse(text: str, path: Path) -> Printed:
    """Read a table of the raw or the details page; ``path`` names it in errors.

    A row that is cut off or damaged is left out and counted. Values are converted to base units. Raises
    DamagedInput if there is no table, or the raw page has no row of units.
    """
    header, rows = open_table(text, path)
    has_details = set(_METRIC) <= set(header)
    printed = _read_details_page(header, rows) if has_details else _read_raw_page(header, rows, path)
    printed.cut = rows.cut
    return printed


def open_table(text: str, path: Path) -> "tuple[list[str], Rows]":
    """Return the header of the table in a text, and its other rows; ``path`` names it in errors.

    Raises DamagedInput if there is no table, or a column is there twice.
    """
    text = text.replace("\r\n", "\n")
    match = _HEADER.search(text)
    if match is None:
        if foreign := foreign_kind(path):
            raise DamagedInput(f"{path} is {foreign}.")
        reason = complaint(text) or f", and no operations: these need {listed(REQUIRED, len(REQUIRED))}"
        raise DamagedInput(f"{path} holds no table of Nsight Compute{reason}.")
    rows = Rows(text[match.start() :])
    header = next(rows, [])
    if twice := first_repeated_name(header):
        raise DamagedInput(f"{path}: the table of Nsight Compute has the column {twice} twice.")
    return header, rows


class Rows(Iterator[list[str]]):
    """The rows of CSV text; ``cut`` counts those that are cut off or damaged."""

    def __init__(self, text: str) -> None:
        self._reader = csv.reader(text.splitlines(keepends=True), strict=True)
        self.cut = 0

    def __next__(self) -> list[str]:
        while True:
            try:
                return next(self._reader)
            except csv.Error:
                self.cut += 1


def _read_raw_page(header: list[str], rows: Rows, path: Path) -> Printed:
    """Read the raw page: a row of units, then one row per kernel."""
    units = next(rows, None)
    at = {name: i for i, name in enumerate(header)}
    if units is None or len(units) != len(header) or any(units[at[name]] for name in _UNIT_ROW):
        raise DamagedInput(f"{path}: the table of Nsight Compute has no row of units, or ends with it.")
    factors = [factor(unit) for unit in units]
    kernel_rows = [row for row in rows if _is_kernel(row)]
    kernels = [row for row in kernel_rows if len(row) == len(header)]
    rows.cut += len(kernel_rows) - len(kernels)
    decimal_comma = uses_decimal_comma(row[i] for row in kernels for i, unit in enumerate(units) if unit)
    metrics = [(name, i) for name, i in at.items() if "__" in name]
    measured = []
    for row in kernels:
        values = {name: _convert_unit(row[i], factors[i], decimal_comma) for name, i in metrics}
        measured.append(_kernel(row, at, {name: v for name, v in values.items() if v is not None}))
    device = kernels[0][at[DEVICE_NAME]] if kernels and DEVICE_NAME in at else None
    return Printed(measured, device)


def _read_details_page(header: list[str], rows: Rows) -> Printed:
    """Read the details page: one row per metric of a kernel, and rows of advice."""
    at = {name: i for i, name in enumerate(header)}
    last = max(at[name] for name in (*_FIXED_COLUMNS, *_METRIC))
    kernel_rows = [row for row in rows if _is_kernel(row)]
    whole_rows = [row for row in kernel_rows if len(row) > last]
    rows.cut += len(kernel_rows) - len(whole_rows)
    decimal_comma = uses_decimal_comma(
        row[at["Metric Value"]] for row in whole_rows if row[at["Metric Unit"]]
    )
    kernels: dict[tuple[str, str], tuple[list[str], dict[str, float], list[Advice]]] = {}
    for row in whole_rows:
        section, metric, unit, text = (row[at[name]] for name in _METRIC)
        _, metrics, advice = kernels.setdefault((row[at["Process ID"]], row[at["ID"]]), (row, {}, []))
        advice.extend(_advice(row, at))
        name = _metric_name(section, metric)
        value = _convert_unit(text, factor(unit), decimal_comma)
        if name is not None and value is not None:
            metrics[name] = value
    return Printed([_kernel(row, at, metrics, advice) for row, metrics, advice in kernels.values()])


def _advice(row: list[str], at: dict[str, int]) -> Iterator[Advice]:
    """Yield the advice in a row of a rule; rows of metrics have none."""
    rule, kind, text, scope, speedup = (
        row[at[name]] if at.get(name, len(row)) < len(row) else "" for name in (*_RULE, *_ESTIMATE)
    )
    if kind in _ADVISING:
        # A percentage has no groups of digits.
        percent = number(speedup.replace(",", ".")) if scope == "global" else None
        yield Advice(rule, plain_text(text), percent)


_LINK = re.compile(r"@(?:url|section|source|sass|table):([^:@]*):[^@]*@")


def plain_text(message: str) -> str:
    """Return the message of a rule with the texts of its links alone."""
    return " ".join(_LINK.sub(r"\1", message).split())


def _is_kernel(row: list[str]) -> bool:
    return bool(row) and row[0].isascii() and row[0].isdigit()


def _kernel(
    row: list[str], at: dict[str, int], metrics: dict[str, float], advice: Iterable[Advice] = ()
) -> MeasuredKernel:
    # Tables of ncu before 2021 have no sizes. Others have ``(2, 66, 1)``.
    grid, block = (
        " ".join(re.findall(r"\d+", row[at[name]])) if name in at else ""
        for name in ("Grid Size", "Block Size")
    )
    return MeasuredKernel(int(row[at["ID"]]), row[at["Kernel Name"]], grid, block, metrics, tuple(advice))


def _convert_unit(text: str, scale: float, decimal_comma: bool) -> float | None:
    value = number(text, decimal_comma)
    return None if value is None else value * scale


# The base units of ``ncu --print-units base``. Prefixes are powers of 1000: 233,472 byte is printed as
# 233.472 Kbyte. The long names are those of ncu before 2022.
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_LONG_UNITS = {"nsecond": "ns", "usecond": "us", "msecond": "ms", "second": "s"}
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXED_UNIT = re.compile(r"([KkMGTP]?)(byte|hz)", re.IGNORECASE)

# Thin and no-break spaces and apostrophes: some languages group digits with them.
_GROUPING_CHARACTERS = str.maketrans("", "", " \u00a0\u202f'\u2019")
_WITH_DECIMAL_COMMA = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d+),(\d{1,2}|\d{4,})")


def uses_decimal_comma(texts: Iterable[str]) -> bool:
    """Return whether the numbers of a file have a decimal comma, as in some locales.

    ``1,234`` may be either. A number that can be nothing else decides, such as ``0,030556``.
    """
    return any(_WITH_DECIMAL_COMMA.fullmatch(text.translate(_GROUPING_CHARACTERS)) for text in texts)


def number(text: str, decimal_comma: bool = False) -> float | None:
    """Return a value as a float; None for an empty cell, ``nan``, ``n/a``, ``no data`` and any text."""
    plain = text.translate(_GROUPING_CHARACTERS)
    group, decimal = (".", ",") if decimal_comma else (",", ".")
    plain = plain.replace(group, "").replace(decimal, ".")
    if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", plain, re.IGNORECASE):
        return None
    value = float(plain)
    return value if math.isfinite(value) else None


def factor(unit: str) -> float:
    """Return the factor that converts a value to base units.

    A time becomes ns, a rate a number per second: ``us`` gives 1e3, ``Gbyte/s`` and ``sector/ns`` 1e9,
    ``%/Kbyte`` 1e-3. Units without a scale (``%``, ``cycle``, ``inst``) give 1.
    """
    above, _, below = unit.partition("/")
    time = _TIMES.get(_LONG_UNITS.get(below, below))
    return _scale(above) / (time / 1e9 if time else _scale(below) if below else 1.0)


def _scale(unit: str) -> float:
    if match := _PREFIXED_UNIT.fullmatch(unit):
        return _PREFIXES[match[1]]
    return _TIMES.get(_LONG_UNITS.get(unit, unit), 1.0)
