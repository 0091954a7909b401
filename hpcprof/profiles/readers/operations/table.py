"""The table of operations: one row per operation of a rank in a step, as Parquet or CSV.

Timers of a program write it (Megatron's, NeMo's, or its own). Columns, of which the first six are required:

====================== ====================================================================================
``rank, step``         who and when
``name, kind``         the kind is one of `KINDS`, a word of `_KIND_WORDS`, or a collective's operation
``start_ns``           since any moment that all ranks share, or since the beginning of the step
``duration_ns``        with the time that communication waits for its peers; or ``end_ns``
``stage``              the stage of the pipeline
``microbatch, chunk``  the chunk is that of the whole model
``group``              a name that the ranks of a collective share
``peer``               the rank at the other end of a send or a receive
``bytes``              what is sent
====================== ====================================================================================

Times may be in another unit, which ends the name of their column (`_UNITS`: ``start_us``). The columns that
ByteDance's StragglerAnalysis publishes are read too (`_ALIASES`): they are in seconds, and the kind follows
from the name.

CSV is UTF-8 with or without a byte order mark; commas, semicolons or tabs separate its columns. With the
latter two, a comma may be the decimal sign.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.common.units import listed
from hpcprof.profiles.collective_operations import POINT_TO_POINT, operation
from hpcprof.profiles.input_bounds import check_memory_for_cells, max_unpacked_bytes, unpacking_error
from hpcprof.profiles.readers.operations import REQUIRED, chakra
from hpcprof.profiles.timeline import LATEST, LONGEST

KINDS = ("compute", "collective", "send", "recv", "wait", "host")
OPTIONAL = ("stage", "microbatch", "chunk", "group", "peer", "bytes", "replica")
_WITHOUT_PARTNERS = ("compute", "wait", "host")
UNKNOWN = -1
"""The value of an optional column where a row has none."""

_KIND_WORDS = {
    **dict.fromkeys(("comp", "computation", "gpu", "kernel", "work"), "compute"),
    **dict.fromkeys(("forward", "fwd", "backward", "bwd", "optimizer", "optim", "update"), "compute"),
    **dict.fromkeys(("coll", "comm", "communication", "mpi", "nccl"), "collective"),
    **dict.fromkeys(("bubble", "idle", "stall", "sync", "synchronization", "waiting"), "wait"),
    **dict.fromkeys(("cpu", "data", "dataloader", "loader", "input", "output", "io", "i/o", "gc"), "host"),
    **dict.fromkeys(("checkpoint", "logging"), "host"),
    "receive": "recv",
}
"""Kinds that programs write, and the one of `KINDS` that each means."""

_UNITS = {"us": 1e3, "ms": 1e6, "s": 1e9}
"""Units of time that end the name of a column in place of ``ns``, in ns."""
_TIMES = {
    f"{time}_{unit}": (f"{time}_ns", ns)
    for time in ("start", "duration", "end")
    for unit, ns in _UNITS.items()
}
_TIMES |= {"start_ts": ("start_ns", 1e9), "end_ts": ("end_ns", 1e9), "duration": ("duration_ns", 1e9)}
"""Columns of times in other units: the column in ns that takes their place, and their unit in ns."""
_ALIASES = {"optype": "name", "mb_id": "microbatch", "gmc": "chunk", "dp_rank": "replica"}
_ALIASES |= {name: in_ns for name, (in_ns, _) in _TIMES.items()}
_END = "end_ns"
"""May take the place of ``duration_ns``."""
_TEXTS = ("name", "kind", "group")
_SEPARATORS = (",", ";", "\t")
_MAX_MISSING = 1
"""Maximum number of missing columns with which a table of operations is still recognized, to name them."""
_MAX_STEP_RATIO = 0.5
"""Maximum time from step to step, over the length of a step, where times count from the step's start."""


@dataclass(frozen=True)
class OperationTable:
    """The operations of a table, and the rows that are left out."""

    rows: pd.DataFrame
    """The columns of the module, without aliases. Unknown numbers are `UNKNOWN`, unknown groups empty."""
    damaged: Counter[tuple[int, str]]
    """Rows with an impossible value, by rank and what is wrong; a row without a rank has `UNKNOWN`."""
    repeated: Counter[int]
    """Rows that are the same as another one, and no messages, by rank."""


def lacks_partners(rows: pd.DataFrame) -> bool:
    """Return whether the operations are of one rank that communicates, without those of its partners."""
    return rows["rank"].nunique() == 1 and bool(communicates(rows).any())


def communicates(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return which operations are communication."""
    return ~rows["kind"].isin(_WITHOUT_PARTNERS)


def is_table(path: Path) -> bool:
    """Return whether a file has most columns of a table of operations, by its head.

    Reading it says which ones are missing.
    """
    try:
        return len(_missing_columns(_columns(path))) <= _MAX_MISSING
    except (OSError, pa.ArrowException):
        return False


def _columns(path: Path) -> list[str]:
    if path.suffix.lower() == ".parquet":
        return list(pq.read_schema(path).names)
    names, _ = _header(path)
    return names


def _header(path: Path) -> tuple[list[str], str]:
    """Return the names of the columns of a CSV file, and what separates them."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        line = file.readline(1 << 16)
    separator = max(_SEPARATORS, key=line.count)
    return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])], separator


def _missing_columns(columns: list[str]) -> list[str]:
    names = {_ALIASES.get(name, name) for name in columns}
    names |= {"kind"} if "optype" in columns else set()
    names |= {"duration_ns"} if _END in names else set()
    return [name for name in REQUIRED if name not in names]


def read_table(path: Path) -> OperationTable:
    """Return the operations of a table by rank, step and start.

    If ``start_ns`` counts from the beginning of each step, the steps are put one after another. Raises
    DamagedInput if columns or all rows are missing.
    """
    table = _valid_rows(path)
    return replace(table, rows=_sort_rows(table.rows))


def read_tables(paths: Sequence[Path]) -> pd.DataFrame:
    """Return the operations of several tables, such as of one per rank, as `read_table` does."""
    return _sort_rows(pd.concat([_valid_rows(path).rows for path in paths]))


def _valid_rows(path: Path) -> OperationTable:
    with reading(path):
        state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


def _sort_rows(rows: pd.DataFrame) -> pd.DataFrame:
    keys = ["rank", "step", "start_ns", "duration_ns", "name"]
    ordered: pd.DataFrame = rows.sort_values(keys, kind="stable", ignore_index=True)
    ordered["start_ns"] = _one_after_another(ordered)
    return ordered


@lru_cache(maxsize=1)
def _read(path: Path, _modified_ns: int, _size: int) -> OperationTable:
    unreadable = 0
    with reading(path):
        if path.suffix.lower() == chakra.SUFFIX:
            return _check_rows(path, chakra.read_rows(path))
        try:
            absent = _missing_columns(_columns(path))
            if absent:
                raise DamagedInput(
                    f"{path} is no table of operations: it has no column {listed(absent, len(absent))}."
                )
            table, unreadable = _arrow(path)
            for name in {*_TEXTS} & {*table.column_names}:
                texts = table[name].cast(pa.large_string())
                table = table.set_column(table.column_names.index(name), name, texts)
        except MemoryError:  # Arrow's is one of its own errors, too
            raise
        except (pa.ArrowException, KeyError) as error:
            raise DamagedInput(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    rows = pd.DataFrame({name: table[name].to_pandas() for name in table.column_names})
    for name in {*_TIMES} & {*rows.columns}:
        rows[name] = pd.to_numeric(rows[name], errors="coerce").astype(float) * _TIMES[name][1]
    rows = rows.rename(columns=_ALIASES)
    if "duration_ns" not in rows:
        start, end = (pd.to_numeric(rows[name], errors="coerce") for name in ("start_ns", _END))
        rows["duration_ns"] = end - start
    rows["name"] = rows["name"].astype(str)
    if "kind" not in rows:
        rows["kind"] = rows["name"].map({name: _kind(name) for name in rows["name"].unique()})
    return _check_rows(path, rows, unreadable)


def _arrow(path: Path) -> tuple[pa.Table, int]:
    """Return the columns of a file that have a meaning, and the number of rows that cannot be read."""
    wanted = {*REQUIRED, *OPTIONAL, *_ALIASES, _END}
    names = _columns(path)
    meanings = Counter(_ALIASES.get(name, name) for name in names if name in wanted)
    if twice := [name for name in names if meanings[_ALIASES.get(name, name)] > 1]:
        raise DamagedInput(f"{path} tells the same in several columns: {listed(twice, len(twice))}.")
    chosen = [name for name in names if name in wanted]
    if path.suffix.lower() != ".parquet":
        check_memory_for_cells(path.read_bytes())
        return _csv_columns(path, chosen)
    with pq.ParquetFile(path) as file:
        groups = range(file.metadata.num_row_groups)
        unpacked = sum(file.metadata.row_group(group).total_byte_size for group in groups)
        if unpacked > max_unpacked_bytes(path.stat().st_size):
            raise unpacking_error(path)
        return file.read(chosen), 0


def _csv_columns(path: Path, chosen: Sequence[str]) -> tuple[pa.Table, int]:
    """Return columns of a CSV file, and the number of rows with too few or too many values.

    The last row is one if the file is cut off. Where commas separate no columns, they are decimal.
    """
    names, separator = _header(path)
    decimal_point = "." if separator == "," else ","
    unreadable: list[pyarrow.csv.InvalidRow] = []

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        unreadable.append(row)
        return "skip"

    # Arrow takes the type of a column from its first rows, and an odd value after them for an error.
    for column_types in (None, dict.fromkeys(names, pa.string())):
        unreadable.clear()
        try:
            table = pyarrow.csv.read_csv(
                path,
                pyarrow.csv.ReadOptions(column_names=names, skip_rows=1),
                pyarrow.csv.ParseOptions(delimiter=separator, invalid_row_handler=skip),
                pyarrow.csv.ConvertOptions(
                    include_columns=chosen,
                    column_types=column_types,
                    decimal_point=decimal_point,
                ),
            )
            break
        except pa.ArrowInvalid:
            if column_types:
                raise
    for position, name in enumerate(table.column_names):
        is_number = _ALIASES.get(name, name) not in _TEXTS
        if decimal_point == "," and is_number and pa.types.is_string(table[name].type):
            plain = pc.replace_substring(table[name], decimal_point, ".")
            table = table.set_column(position, name, plain)
    return table, len(unreadable)


def _kind(name: str) -> str:
    """Return the kind of an operation that its table does not tell."""
    kind = operation(name)
    if kind in POINT_TO_POINT:
        return "recv" if kind == "Recv" else "send"
    if kind is not None:
        return "collective"
    return "host" if name == "gc" else "compute"


def _check_rows(path: Path, rows: pd.DataFrame, unreadable: int = 0) -> OperationTable:
    """Return the rows with possible numbers, each once and in their order; others are counted."""
    for name in OPTIONAL:
        if name not in rows:
            rows[name] = "" if name in _TEXTS else UNKNOWN
    numbers = [name for name in (*REQUIRED, *OPTIONAL) if name not in _TEXTS]
    for name in numbers:
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
        if rows[name].dtype == bool:
            rows[name] = rows[name].astype(np.int64)
        if name in OPTIONAL:
            rows[name] = rows[name].fillna(UNKNOWN)
    for name in _TEXTS:
        rows[name] = rows[name].astype(object).where(rows[name].notna(), "").astype(str)
    _name_kinds(rows)
    possible = rows[numbers].abs().lt(LATEST)
    possible["duration_ns"] &= (rows["duration_ns"] >= 0) & (rows["duration_ns"] < LONGEST)
    possible["rank"] &= rows["rank"] >= 0
    possible["kind"] = rows["kind"].isin(KINDS)
    valid = possible.all(axis=1)
    valid_rows = rows.loc[valid, [*REQUIRED, *OPTIONAL]]
    if not len(valid_rows):
        raise DamagedInput(
            f"{path} has no valid operation: a row needs numbers, a duration of at least 0, and a kind of "
            f"{listed(KINDS, len(KINDS))}."
        )
    if (valid_rows["duration_ns"] < 1).all():
        raise DamagedInput(
            f"{path} has no operation that takes 1 ns: times in another unit need columns such as start_s "
            "and duration_s."
        )
    valid_rows = valid_rows.astype(dict.fromkeys(numbers, np.int64))
    # Several messages, and nodes of Chakra in whole microseconds, may have the same times.
    may_repeat = ~valid_rows["kind"].isin(("send", "recv")) & (path.suffix.lower() != chakra.SUFFIX)
    is_repeated = valid_rows.duplicated() & may_repeat
    ranks_of_invalid = rows.loc[~valid, "rank"].where(possible["rank"], UNKNOWN).astype(np.int64)
    first_wrong = possible[~valid].idxmin(axis=1)
    kinds = rows.loc[~valid, "kind"]
    wrong = first_wrong.where(
        first_wrong != "kind", [f"kind ({kind!r})" if kind else "kind" for kind in kinds]
    )
    damaged = Counter(zip(ranks_of_invalid.tolist(), wrong, strict=True))
    damaged[UNKNOWN, "number of values"] += unreadable
    return OperationTable(
        valid_rows[~is_repeated], damaged, Counter(valid_rows.loc[is_repeated, "rank"].tolist())
    )


def _name_kinds(rows: pd.DataFrame) -> None:
    """Replace the kinds of rows by those of `KINDS`; operations that only the kind tells enter the name."""
    texts = rows["kind"].str.strip().str.lower()
    kinds = {}
    for text in texts.unique():
        op = operation(text)
        kinds[text] = text if text in KINDS else _KIND_WORDS.get(text) or (_kind(text) if op else text)
        if op is not None and kinds[text] == "collective":
            is_named = rows["name"].map({name: operation(name) is not None for name in rows["name"].unique()})
            rows["name"] = rows["name"].where((texts != text) | is_named, rows["name"] + f" ({text})")
    rows["kind"] = texts.map(kinds)


def _one_after_another(rows: pd.DataFrame) -> pd.Series:
    """Return the starts; where each step counts from its beginning, the steps follow each other.

    Steps of a pipeline overlap on one clock, too, but not those of its last stage.
    """
    end = rows["start_ns"] + rows["duration_ns"]
    by_rank = rows.assign(end_ns=end).groupby(["rank", "step"])
    first, last = by_rank["start_ns"].min(), by_rank["end_ns"].max()
    apart = first.groupby("rank").diff().groupby("rank").median()
    if (apart < _MAX_STEP_RATIO * (last - first).groupby("rank").median()).all():
        # The origin of each step is its beginning, not its first operation.
        last = end.groupby(rows["step"]).max()
        begin = (last.cumsum() - last).to_dict()
        return rows["start_ns"] + rows["step"].map(begin).astype(np.int64)
    return rows["start_ns"]
