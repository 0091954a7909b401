"""Reader of what Nsight Compute measured: its reports, and the tables that ``ncu --csv`` prints."""

from __future__ import annotations

from pathlib import Path

from hpcprof.profiles.kernel_report import KernelReport
from hpcprof.profiles.readers.file_names import rank_from_name
from hpcprof.profiles.readers.ncu import NCU, TABLES, csv_table, report
from hpcprof.profiles.timeline import Origin


def read(path: Path) -> KernelReport:
    """Read a report (``.ncu-rep``, ``.ncu-repz``) or a CSV file of the raw or the details page.

    Raises
    ------
    DamagedInput
        In one sentence that names the file and what is wrong with it.
    """
    is_csv = path.name.lower().endswith(TABLES)
    printed = csv_table.read_file(path) if is_csv else report.read_file(path)
    origin = Origin(
        path=path,
        kind=NCU.name,
        rank=rank_from_name(path),
        device_names=(printed.device,) if printed.device else (),
        notes=tuple(printed.notes),
    )
    return KernelReport(origin, tuple(printed.kernels))
