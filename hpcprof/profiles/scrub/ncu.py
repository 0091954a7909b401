"""Copies a table that ``ncu --csv`` printed, with only its numbers and the names of kernels and metrics."""

import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hpcprof.profiles.readers.ncu.csv_table import DEVICE_NAME, open_table, read_text
from hpcprof.profiles.scrub.names import Names, hosts_and_users

_HOST, _KERNEL = "Host Name", "Kernel Name"
# Numbers in any notation, lists of them, and the compute capability.
_NUMBERS = re.compile(r"[-+\d.,()eE% \u202f\u00a0]{0,80}|nan|inf|-inf")
# Names of ncu for sections, metrics, units and GPUs.
_LABEL = re.compile(r"[\w .:,#/()\[\]%&*+-]{0,120}", re.ASCII)
_LABELS = ("Section Name", "Metric Name", "Metric Unit", DEVICE_NAME)


def scrub(path: Path, target: Path, names: Names) -> list[str]:
    """Copy a table to ``target`` and return what was left out, with counts.

    Numbers are copied as they are written. Processes, hosts, ncu's advice, other texts, and whatever the file
    has before the table, are not copied.
    """
    header, rows = open_table(read_text(path), path)
    # A row of advice has more cells than one of a metric.
    table = [row for row in rows if len(row) <= len(header)]
    if _HOST in header:
        place = header.index(_HOST)
        names.know(hosts_and_users({row[place] for row in table if len(row) > place}, ()))
    left_out: Counter[str] = Counter()
    safe_names = [*map(_label, header)]
    copied = [_cleaner(name, names) for name in safe_names]
    written = io.StringIO()
    writer = csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(safe_names)
    for number, row in enumerate(table):
        # On the raw page the first row has the units.
        units = number == 0 and row[:1] == [""]
        cells = [_label(cell) if units else clean(cell) for clean, cell in zip(copied, row, strict=False)]
        left_out["texts"] += sum(bool(cell) and not copy for cell, copy in zip(row, cells, strict=True))
        writer.writerow(cells)
    data = written.getvalue().encode()
    target.write_bytes(gzip.compress(data, mtime=0) if path.suffix.lower() == ".gz" else data)
    if rows.cut:
        left_out["damaged rows"] = 1
    return [f"{count} {kind}" for kind, count in sorted(left_out.items()) if count]


def _cleaner(column: str, names: Names) -> Callable[[str], str]:
    if column == _KERNEL:
        return names.cleaned
    if column in _LABELS:
        return _label
    if not column or column == _HOST:
        return lambda cell: ""
    return lambda cell: cell if _NUMBERS.fullmatch(cell) else ""


def _label(cell: str) -> str:
    return cell if _LABEL.fullmatch(cell) else ""
