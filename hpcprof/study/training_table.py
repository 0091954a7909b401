"""Merges the metrics of kernels with their slowdown into one table, to train models with."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.analysis.slowdown.against_baseline import CONTROL
from hpcprof.analysis.slowdown.within_run import TOTAL
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.units import counted
from hpcprof.profiles.kernel_classification import family
from hpcprof.profiles.kernel_names import KernelLookup, short_name
from hpcprof.runs.directory import find_run, open_run
from hpcprof.study.kernel_choice import function_name, name_pattern

_KERNEL_KEY = ("name", "grid", "block")
_SLOWDOWN_COLUMNS = ACROSS_RUNS["slowdown_pairs"].columns
_METRIC_COLUMNS = tuple(
    c for c in ANALYSES["ncu_kernels"].columns if c.name not in ("rank", "id", *_KERNEL_KEY)
)
# Tables of older studies, and those of a single run, lack the share of the overlap.
_OPTIONAL_COLUMNS = ("overlap_pct",)

COLUMNS = (
    *("rank", *_KERNEL_KEY, "short_name", "family", "launches"),
    *(column.name for column in _METRIC_COLUMNS),
    *(column.name for column in _SLOWDOWN_COLUMNS if column.name not in ("rank", *_KERNEL_KEY)),
)
"""The columns of the table, after the parameters of a sweep."""


def training_table(slowdown: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Put the metrics of each kernel beside its slowdown.

    ``slowdown`` are rows of ``slowdown_pairs``, and further columns for the parameters of a sweep;
    ``metrics`` are rows of ``ncu_kernels``. The launches of a kernel are merged into their median;
    ``launches`` is their number. Each row of ``slowdown`` except the total and the control has a row, with
    the metrics of the same name, grid and block; then one row follows for each kernel that only ``metrics``
    has. Values that a table does not have are missing.
    """
    keys = [name for name in slowdown if name not in COLUMNS]
    compared = slowdown[~slowdown["name"].isin([TOTAL, CONTROL])]
    groups = list(metrics.groupby(list(_KERNEL_KEY), sort=False))
    measured = [(str(name), str(grid), str(block), i) for i, ((name, grid, block), _) in enumerate(groups)]
    launches = [_median_metrics(group) for _, group in groups]
    kernel_lookup = KernelLookup(measured)
    used: set[int] = set()
    rows: list[dict[str, Any]] = []
    for row in compared.to_dict("records"):
        number = kernel_lookup.find(row["name"], row["grid"], row["block"])
        if number is not None:
            used.add(number)
        rows.append(
            {str(key): value for key, value in row.items()} | (launches[number] if number is not None else {})
        )
    rows += [
        dict(zip(_KERNEL_KEY, kernel, strict=True)) | launches[i] for *kernel, i in measured if i not in used
    ]
    for row in rows:
        row |= {"short_name": short_name(row["name"]), "family": family(row["name"])}
    table: pd.DataFrame = pd.DataFrame(rows, columns=[*keys, *COLUMNS], dtype=object)
    return table


def _median_metrics(launches: pd.DataFrame) -> dict[str, Any]:
    """Return the metrics of one kernel, medians of its launches, without those that a launch lacks."""
    typical: dict[str, Any] = {"launches": len(launches)}
    for column in _METRIC_COLUMNS:
        values = launches[column.name]
        if values.isna().any():
            continue
        if column.kind is Kind.TEXT:
            typical[column.name] = "+".join(dict.fromkeys(map(str, values)))
        else:
            median = float(values.median())
            typical[column.name] = round(median) if column.kind is Kind.INT else round(median, 2)
    return typical


def kernel_counts_sentence(table: pd.DataFrame) -> str:
    """Return a sentence that counts the kernels with both and those with either."""
    kernels = table.drop_duplicates(list(_KERNEL_KEY))
    metrics, slowdown = kernels["launches"].notna(), kernels["slowdown"].notna()
    return (
        f"{counted(int((metrics & slowdown).sum()), 'kernel')} with metrics and slowdown, "
        f"{int((~metrics).sum())} with slowdown only, {int((~slowdown).sum())} with metrics only"
    )


def kernels_to_measure(table: pd.DataFrame) -> str:
    """Return the filter by which ncu measures the kernels without metrics; empty if all have metrics."""
    return name_pattern(
        sorted({function_name(name) for name in table.loc[table["launches"].isna(), "name"]} - {""})
    )


def measuring_command(metrics: Path, kernels: str) -> str:
    """Return the command that measures other kernels as the study of ``metrics`` did.

    ``metrics`` is the table of the study, and ``kernels`` the filter of `kernels_to_measure`. It is empty if
    the table is not in the run of a study.
    """
    with suppress(HpcprofError, OSError):
        manifest = open_run(metrics.absolute().parent.parent).manifest
        words = list(manifest.command_line) if manifest else []
        if "kernel-metrics" in words:
            begin = words.index("kernel-metrics") + 1
            end = words.index("--") if "--" in words else len(words)
            options = _without_kernels(words[begin:end])
            return shlex.join(
                [*words[:begin], "--profiler-option", f"kernel={kernels}", *options, *words[end:]]
            )
    return ""


def _without_kernels(options: Sequence[str]) -> list[str]:
    """Leave out the option that names the kernels to measure."""
    words_kept: list[str] = []
    for word in options:
        if words_kept and words_kept[-1] == "--profiler-option" and word.startswith("kernel="):
            words_kept.pop()
        elif not word.startswith("--profiler-option=kernel="):
            words_kept.append(word)
    return words_kept


def find_table(reference: str, name: str, runs_dir: Path) -> Path:
    """Return the path of a study's table.

    ``reference`` is the path of the table, or the path or the name of the run or the folder that has it.
    ``name`` is the name of the table's file.
    """
    path = Path(reference)
    if path.is_file():
        return path
    folder = path if path.is_dir() else runs_dir / reference
    if not folder.is_dir():
        folder = find_run(reference, runs_dir).path
    for place in (folder / name, folder / "study" / name):
        if place.is_file():
            return place
    raise UsageError(f"{folder} has no {name}: it belongs to another study, or to one that has not finished.")


def read_slowdown(path: Path) -> pd.DataFrame:
    """Read a table of slowdowns that a study has written."""
    return _read(path, "slowdowns", _SLOWDOWN_COLUMNS)


def read_metrics(path: Path) -> pd.DataFrame:
    """Read a table of metrics that a study has written."""
    return _read(path, "metrics", ANALYSES["ncu_kernels"].columns)


def _read(path: Path, kind: str, columns: Sequence[Column]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except OSError as error:
        raise HpcprofError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not a table: {' '.join(str(error).split())}.") from None
    missing = [c.name for c in columns if c.name not in table and c.name not in _OPTIONAL_COLUMNS]
    if missing:
        more = f" and lacks {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(f"{path} is not a table of {kind}: it has no column {missing[0]}{more}.")
    for column in columns:
        if column.name in table and column.kind is not Kind.TEXT:
            table[column.name] = _numbers(table[column.name], column, path)
        elif column.name not in table:
            table[column.name] = None
        elif column.name not in _KERNEL_KEY:
            table[column.name] = table[column.name].replace("", None)
    return table


def _numbers(texts: "pd.Series[str]", column: Column, path: Path) -> "pd.Series[Any]":
    try:
        numbers: pd.Series[Any] = pd.to_numeric(texts.replace("", None))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path}, column {column.name}: {error}.") from None
    return numbers.astype("Int64") if column.kind is Kind.INT else numbers
