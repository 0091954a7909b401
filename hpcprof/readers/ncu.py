"""Reader of what Nsight Compute measured: its reports, and the tables that ``ncu --csv`` prints."""

from __future__ import annotations

from pathlib import Path

from hpcprof.kernel_report import KernelReport
from hpcprof.readers import ncu_csv, ncu_file
from hpcprof.readers.names import rank_from_name
from hpcprof.timeline import Origin


def read(path: Path) -> KernelReport:
    """Read a report (``.ncu-rep``, ``.ncu-repz``) or a CSV file of the raw or the details page.

    Raises
    ------
    DamagedInput
        In one sentence that names the file and what is wrong with it.
    """
    is_csv = path.name.lower().endswith((".csv", ".csv.gz"))
    printed = ncu_csv.read_file(path) if is_csv else ncu_file.read_file(path)
    origin = Origin(
        path=path,
        kind="ncu",
        rank=rank_from_name(path),
        device_names=(printed.device,) if printed.device else (),
        notes=tuple(printed.notes),
    )
    return KernelReport(origin, tuple(printed.kernels))
