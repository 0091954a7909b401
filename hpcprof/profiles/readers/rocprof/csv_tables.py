"""The CSV tables of rocprofv3 (``--output-format csv``), one file per kind of record.

Their names begin with a common prefix, which may be empty.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from hpcprof.common.errors import DamagedInput, first_line
from hpcprof.profiles.columns.unique import distinct, numbered_rows
from hpcprof.profiles.gzip_file import content_of
from hpcprof.profiles.input_bounds import check_memory_for_cells, first_repeated_name
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.rocprof import COUNTER_TABLE, KERNEL_TABLE, ROCPROFV3
from hpcprof.profiles.readers.rocprof.json_results import KEY, read_results
from hpcprof.profiles.readers.rocprof.records import (
    CALL,
    GRID,
    NOT_RECORDED,
    WORKGROUP,
    Agent,
    Details,
    Records,
    call_category,
    copy_directions,
    gpu_of_copies,
    gpus_of,
    timeline,
)
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import Columns, Floats, IntColumns, Ints, Mask, Origin, Timeline, empty_columns

_CALLS = ("hip_api_trace.csv", "hsa_api_trace.csv", "rccl_api_trace.csv", "marker_api_trace.csv")
_COPIES, _AGENTS = "memory_copy_trace.csv", "agent_info.csv"
_NUMBER = r"^[0-9]{1,18}$"
_REAL_NUMBER = r"^[0-9]{1,30}(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?$"
_AGENT = re.compile(r"(?:(Agent|GPU|CPU)[ _-]?)?(\d{1,9})", re.IGNORECASE)
_TIMES = ("Start_Timestamp", "End_Timestamp")


def read_tables(path: Path) -> Timeline:
    """Build the timeline of the tables beside ``path``, the table of kernels or else of counters."""
    is_kernels = path.name.lower().endswith(KERNEL_TABLE)
    prefix = path.name[: -len(KERNEL_TABLE if is_kernels else COUNTER_TABLE)]
    table_set = _TableSet(path.parent, prefix)
    strings = StringTable()
    records = Records(lost=table_set.lost)
    calls = [_calls(table_set, suffix, strings) for suffix in _CALLS]
    records.calls = {key: np.concatenate([part[key] for part in calls]) for key in CALL}
    process = distinct(records.calls["process"])
    only_process = int(process[0]) if len(process) == 1 else 0
    kernels = table_set.table(path, Subject.KERNEL, ("Kernel_Name", *_TIMES))
    kernels = kernels if is_kernels else kernels.first_rows_of("Dispatch_Id")
    records.dispatches = _dispatches(table_set, kernels, strings, only_process)
    # Older versions write no times of counters, which then are left out and counted.
    counters = table_set.optional_table(
        COUNTER_TABLE, Subject.COUNTER, ("Kernel_Name", "Counter_Name", "Counter_Value")
    )
    if counters is not None:
        # Kernel replay repeats a dispatch for each group of counters, under the same number.
        records.counters = _counters(
            table_set, counters.first_rows_of("Dispatch_Id", "Counter_Name"), strings, only_process
        )
    copies = table_set.optional_table(_COPIES, Subject.COPY, ("Direction", *_TIMES))
    if copies is not None:
        records.copies = _copies(table_set, copies, strings, only_process)
    gpus = gpus_of(table_set.agents)
    origin = Origin(path=path, kind=ROCPROFV3.name, rank=rank_from_name(path), gpus=gpus)
    return timeline(origin, records, strings)


class _Table:
    def __init__(self, columns: pa.Table, subject: Subject, lost: list[Loss]) -> None:
        self._columns, self._subject, self._lost = columns, subject, lost

    def __len__(self) -> int:
        return int(self._columns.num_rows)

    def has(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return name in self._columns.column_names

    def first_rows_of(self, *names: str) -> "_Table":
        """Return the first row of each combination of values of columns, or all if a column is absent."""
        if not all(map(self.has, names)):
            return self
        _, number = numbered_rows(*(self.distinct(name)[1] for name in names))
        _, first = np.unique(number, return_index=True)
        return _Table(self._columns.take(pa.array(np.sort(first))), self._subject, self._lost)

    def numbers(self, name: str, otherwise: int, required: int | None = None) -> Ints:
        """Return a column of whole numbers; ``otherwise`` where the table has none, and for other values.

        Other values are counted as losses; with ``required`` they become this value, which drops their rows.
        """
        if not self.has(name):
            return np.full(len(self), otherwise)
        texts = self._columns[name]
        valid = pc.match_substring_regex(texts, _NUMBER)
        numbers = pc.if_else(valid, texts, None).cast(pa.int64())
        invalid = len(self) - int(pc.sum(valid).as_py() or 0)
        if invalid and required is None:
            self._lost += losses(LossKind.FIELD, self._subject, {name: invalid}, len(self))
        column: Ints = numbers.fill_null(otherwise if required is None else required).to_numpy()
        return column

    def reals(self, name: str) -> Floats:
        """Return a column of numbers; NaN for other values."""
        texts = self._columns[name]
        valid = pc.match_substring_regex(texts, _REAL_NUMBER)
        column: Floats = pc.if_else(valid, texts, None).cast(pa.float64()).fill_null(np.nan).to_numpy()
        return column

    def distinct(self, name: str) -> tuple[list[str], Ints]:
        """Return the distinct texts of a column, and each row's index into them; one empty text if absent."""
        if not self.has(name):
            return [""], np.zeros(len(self), np.int64)
        encoded = self._columns[name].combine_chunks().dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


class _TableSet:
    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self.lost: list[Loss] = []
        self._nodes: dict[str, dict[int, Agent]] = {"Logical_Node_Id": {}, "Node_Id": {}}
        self.agents = self._read_agents()

    def optional_table(self, suffix: str, subject: Subject, required: Sequence[str]) -> _Table | None:
        """Return another table of the set, None if its file does not exist."""
        path = self._folder / f"{self._prefix}{suffix}"
        return self.table(path, subject, required) if path.is_file() else None

    def table(self, path: Path, subject: Subject, required: Sequence[str]) -> _Table:
        """Read a table; rows with another number of values or without an end are left out and counted.

        The last line of a table that was cut may end inside a number.
        """
        damaged: list[str] = []

        def skip(row: csv.InvalidRow) -> str:
            damaged.append(row.text or "")
            return "skip"

        try:
            options = csv.ParseOptions(invalid_row_handler=skip)
            written = path.read_bytes()
            check_memory_for_cells(written)
            complete, _, incomplete = written.rpartition(b"\n")
            content = pa.py_buffer(
                (complete + b"\n" if incomplete and complete else written).decode("utf-8", "replace").encode()
            )
            with csv.open_csv(pa.BufferReader(content), parse_options=options) as stream:
                names = stream.schema.names
            if repeated := first_repeated_name(names):
                raise DamagedInput(f"{path} has the column {repeated} twice.")
            damaged.clear()
            as_text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
            columns = csv.read_csv(pa.BufferReader(content), parse_options=options, convert_options=as_text)
        except OSError as error:
            raise DamagedInput(f"{path} cannot be read: {error.strerror or 'it is not a table'}.") from None
        except pa.ArrowException as error:
            raise DamagedInput(f"{path} cannot be read as a table: {first_line(error)}.") from None
        damaged += [incomplete.decode("utf-8", "replace")] if incomplete and complete else []
        absent = [name for name in required if name not in columns.column_names]
        if absent:
            raise DamagedInput(f"{path} is not a table of rocprofv3: it has no column {' or '.join(absent)}.")
        self.lost += losses(
            LossKind.ROW, subject, {"number of values": len(damaged)}, columns.num_rows + len(damaged)
        )
        return _Table(columns, subject, self.lost)

    def devices(self, table: _Table, name: str) -> tuple[Ints, Mask]:
        """Return the device of each row, and a mask of the rows whose agent is a GPU, as far as is known."""
        texts, row = table.distinct(name)
        devices = [self._device(text) for text in texts]
        return (
            np.array([device for device, _ in devices], np.int64)[row],
            np.array([gpu for _, gpu in devices], bool)[row],
        )

    def _device(self, text: str) -> tuple[int, bool]:
        """Return the device of an agent, counted among all or among its type, and True for a GPU."""
        match = _AGENT.fullmatch(text.strip())
        if match is None:
            return 0, False
        label, number = (match[1] or "").lower(), int(match[2])
        if label in ("gpu", "cpu"):
            return number, label == "gpu"
        for nodes in self._nodes.values():
            if number in nodes and nodes[number].gpu:
                return nodes[number].device, True
        is_node = any(number in nodes for nodes in self._nodes.values())
        return number, not is_node

    def _read_agents(self) -> list[Agent]:
        table = self.optional_table(_AGENTS, Subject.EVENT, ("Agent_Type", "Node_Id"))
        if table is None:
            return []
        numbers = {
            key: table.numbers(key, 0).tolist()
            for key in ("Node_Id", "Logical_Node_Id", "Cu_Count", "Max_Engine_Clk_Fcompute")
        }
        columns = {key: table.distinct(key) for key in ("Agent_Type", "Name", "Product_Name")}
        texts = {key: [column[number] for number in row.tolist()] for key, (column, row) in columns.items()}
        agents: list[Agent] = []
        for row, node in enumerate(numbers["Node_Id"]):
            gpu = texts["Agent_Type"][row] == "GPU"
            agent = Agent(
                number=node,
                gpu=gpu,
                device=sum(other.gpu == gpu for other in agents),
                architecture=texts["Name"][row],
                name=texts["Product_Name"][row] or texts["Name"][row],
                details=Details(numbers["Cu_Count"][row], numbers["Max_Engine_Clk_Fcompute"][row]),
            )
            agents.append(agent)
            for key, nodes in self._nodes.items():
                nodes.setdefault(numbers[key][row], agent)
        return agents


def _placed_columns(table: _Table) -> IntColumns:
    impossible = int(np.iinfo(np.int64).min)
    start, end = (table.numbers(name, 0, required=impossible) for name in _TIMES)
    return {"start": start, "end": end, "stack": table.numbers("Correlation_Id", NOT_RECORDED)}


def _dispatches(table_set: _TableSet, table: _Table, strings: StringTable, process: int) -> IntColumns:
    names, row = table.distinct("Kernel_Name")
    shapes = {name: table.numbers(name.title(), 1) for name in (*WORKGROUP, *GRID)}
    if not table.has("Workgroup_Size_X"):
        # A table of counters has the products.
        for name in (WORKGROUP[0], GRID[0]):
            shapes[name] = table.numbers(name.title()[:-2], 1)
    return {
        **_placed_columns(table),
        "process": np.full(len(table), process),
        "device": table_set.devices(table, "Agent_Id")[0],
        "queue": table.numbers("Queue_Id", NOT_RECORDED),
        "stream": table.numbers("Stream_Id", NOT_RECORDED),
        "name": strings.add_all(name or None for name in names)[row],
        **shapes,
    }


def _counters(table_set: _TableSet, table: _Table, strings: StringTable, process: int) -> Columns:
    names, row = table.distinct("Kernel_Name")
    counters, number = table.distinct("Counter_Name")
    placed = _placed_columns(table)
    return {
        "start": placed["start"],
        "end": placed["end"],
        "process": np.full(len(table), process),
        "device": table_set.devices(table, "Agent_Id")[0],
        "name": strings.add_all(name or None for name in names)[row],
        "counter": strings.add_all(counters)[number],
        "value": table.reals("Counter_Value"),
    }


def _copies(table_set: _TableSet, table: _Table, strings: StringTable, process: int) -> IntColumns:
    destination, to_gpu = table_set.devices(table, "Destination_Agent_Id")
    origin, from_gpu = table_set.devices(table, "Source_Agent_Id")
    return {
        **_placed_columns(table),
        "process": np.full(len(table), process),
        "device": gpu_of_copies(destination, origin, to_gpu, from_gpu),
        "queue": np.full(len(table), NOT_RECORDED),
        "stream": table.numbers("Stream_Id", NOT_RECORDED),
        **copy_directions(*table.distinct("Direction"), strings),
        "bytes": np.full(len(table), -1),
    }


def _calls(table_set: _TableSet, suffix: str, strings: StringTable) -> IntColumns:
    table = table_set.optional_table(suffix, Subject.CALL, ("Domain", "Function", *_TIMES))
    if table is None:
        return empty_columns(CALL)
    domains, row = table.distinct("Domain")
    kind = np.array([int(call_category(domain or suffix)) for domain in domains], np.int64)[row]
    functions, number = table.distinct("Function")
    return {
        **_placed_columns(table),
        "process": table.numbers("Process_Id", 0),
        "thread": table.numbers("Thread_Id", 0),
        "name": strings.add_all(function or None for function in functions)[number],
        "kind": kind,
        "style": np.full(len(table), NOT_RECORDED),
    }


_HEAD_BYTES = 4096


def read(path: Path) -> Timeline:
    """Read the JSON results of rocprofv3, or the set of tables of a table of kernels or counters."""
    if path.name.lower().endswith(".csv"):
        return read_tables(path)
    return read_results(path, content_of(path))


def is_profile(path: Path) -> bool:
    """Return whether a file is one of rocprofv3, or a table of counters without one of kernels beside it."""
    name = path.name
    if name.lower().endswith(COUNTER_TABLE):
        return not path.with_name(name[: -len(COUNTER_TABLE)] + KERNEL_TABLE).exists()
    with suppress(DamagedInput):
        return KEY.encode() in content_of(path, _HEAD_BYTES)
    return False
