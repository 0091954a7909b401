"""Reader of what Nsight Compute measured: its reports, and the tables that ``ncu --csv`` prints.

Only ncu's own code can read a report. Its Python module is tried first, because it gives exact values and
the full names of kernels; it is in ncu's installations and in the package ``ncu-report``. Otherwise ncu's
command prints the raw page, which shortens names (``at::native::`` to ``at::``).
"""

import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcprof.common.errors import DamagedInput
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, Completed, run_command
from hpcprof.profiles.kernel_report import Advice, KernelReport, MeasuredKernel
from hpcprof.profiles.losses import LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.ncu import NCU, TABLES, csv_table, dump_script
from hpcprof.profiles.readers.ncu.csv_table import DEVICE_NAME, Printed, factor, parse, plain_text
from hpcprof.profiles.timeline import Origin
from hpcprof.submit.profilers.ncu import complaint

_PACKAGES = Path("/opt/nvidia/nsight-compute")
# Reports of thousands of kernels with every metric take ncu minutes.
_READ_SECONDS = 3600.0


def read(path: Path) -> KernelReport:
    """Read a report (``.ncu-rep``, ``.ncu-repz``) or a CSV file of the raw or the details page."""
    is_csv = path.name.lower().endswith(TABLES)
    printed = csv_table.read_file(path) if is_csv else _read_report(path)
    origin = Origin(
        path=path,
        kind=NCU.name,
        rank=rank_from_name(path),
        device_names=(printed.device,) if printed.device else (),
        losses=tuple(losses(LossKind.ROW, Subject.METRIC, {"form": printed.cut})),
    )
    return KernelReport(origin, tuple(printed.kernels))


def report_or_table(path: Path) -> Path:
    """Return the file to read for a report: itself or, without ncu, the table beside it.

    Raises DamagedInput if the table is older than the report: it may be of another report.
    """
    if next(_modules(), None) is not None or shutil.which("ncu") is not None:
        return path
    table = next((t for t in map(path.with_suffix, TABLES) if t.is_file()), None)
    if table is None:
        return path
    if table.stat().st_mtime_ns < path.stat().st_mtime_ns:
        raise DamagedInput(
            f"{path} cannot be read: {table.name} beside it is older, and ncu is not on the PATH."
        )
    return table


def _read_report(path: Path) -> Printed:
    """Read a report.

    Raises DamagedInput if there is no ncu, or it cannot read the report or finds no kernels in it.
    """
    if not path.is_file():
        raise DamagedInput(f"{path} does not exist.")
    modules, command = [*_modules()], shutil.which("ncu")
    if not modules and command is None:
        raise DamagedInput(
            f"{path} can be read by Nsight Compute only: put ncu on the PATH, or pip install "
            f"'hpcprof[ncu]', or, where ncu is, run ncu --import {path.name} --csv --page raw > "
            f"{path.stem}.csv and collect that."
        )
    # An older module cannot read the reports of a newer ncu.
    printed = next((output for module in modules if (output := _by_module(module, path))), None)
    if printed is None and command is not None:
        printed = _by_command(command, path)
    if printed is None or not printed.kernels:
        raise DamagedInput(
            f"{path} is damaged, was written by a newer ncu than the one here, or holds no kernels."
        )
    return printed


def _modules() -> Iterator[Path]:
    """Yield the folders of ncu's Python module: that of the ncu on the PATH, the package, then the newest."""
    for folder in _candidates():
        if (folder / "ncu_report.py").is_file() or (folder / "ncu_report/__init__.py").is_file():
            yield folder


def _candidates() -> Iterator[Path]:
    command = shutil.which("ncu")
    if command is not None:
        # The command belongs to the package, or to a CUDA toolkit that has the package beside its bin.
        for parent in Path(command).resolve().parents[:3]:
            yield parent / "extras/python"
            yield from sorted(parent.glob("nsight-compute-*/extras/python"), reverse=True)
    package = importlib.util.find_spec("ncu_report")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parents[1]
    yield from sorted(_PACKAGES.glob("*/extras/python"), reverse=True)


def _by_module(folder: Path, path: Path) -> Printed | None:
    """Read by ncu's Python module; None if it cannot."""
    result = _run(path, sys.executable, dump_script.__file__, str(folder), str(path))
    if result.exit_code != 0:
        return None
    launches = json.loads(result.stdout)
    kernels = [_kernel(number, kernel) for number, kernel in enumerate(launches)]
    device = next(
        (kernel["metrics"][DEVICE_NAME][0] for kernel in launches if DEVICE_NAME in kernel["metrics"]), None
    )
    return Printed(kernels, device)


_ADVISING, _OF_KERNEL = (2, 3), 2
"""Types of messages that suggest or warn, and the type of estimates for the whole kernel, in ncu's module."""


def _kernel(number: int, launch: dict[str, Any]) -> MeasuredKernel:
    values = {
        metric: float(value) * factor(unit)
        for metric, (value, unit) in launch["metrics"].items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    advice = tuple(
        Advice(rule, plain_text(text), speedup if scope == _OF_KERNEL else None)
        for rule, kind, text, scope, speedup in launch.get("rules", ())
        if kind in _ADVISING
    )
    grid, block = _dimensions("grid", values), _dimensions("block", values)
    return MeasuredKernel(number, launch["name"], grid, block, values, advice)


def _dimensions(kind: str, values: dict[str, float]) -> str:
    names = [f"launch__{kind}_dim_{axis}" for axis in "xyz"]
    return " ".join(str(int(values[name])) for name in names if name in values)


def _by_command(command: str, path: Path) -> Printed:
    result = _run(path, command, "--import", str(path), "--csv", "--page", "raw")
    if result.exit_code != 0:
        raise DamagedInput(f"ncu cannot read {path}{complaint(result.stdout + result.stderr)}.")
    return parse(result.stdout, path)


def _run(report: Path, *command: str) -> Completed:
    """Run a command that reads a report; if it cannot start or hangs, only this report fails."""
    try:
        return run_command(command, timeout=_READ_SECONDS)
    except (CommandNotStarted, CommandTimedOut) as error:
        raise DamagedInput(f"ncu cannot read {report}: {error}") from None
