"""Dumps of PyTorch's flight recorder: the last collectives of a rank, with their state.

Programs write them after a timeout (``TORCH_FR_DUMP_TEMP_FILE``) as pickles, the hook of a run as JSON.
Versions 2.4 to 2.10 hold the same (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp). A pickle is data of
somebody else: only plain values are unpickled, up to a maximum number.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hpcprof.common.decode import open_regular, parse_count
from hpcprof.common.errors import DamagedInput, reading
from hpcprof.profiles.readers.plain_pickle import load_plain

_MAX_DUMP_BYTES = 64 << 20
_MAX_VALUES = 4_000_000
_MAX_DEPTH = 12
"""Dumps nest seven deep."""

_RANK = re.compile(r"(\d+)(?:\.(?:json|pickle|pkl))?$", re.ASCII)
_DUMP = re.compile(
    r"(?:.*dump.*_|.*(?:fr|nccl|flight)\w*_(?:trace|rank)_?)\d{1,9}$|rank\d{5,9}\.flight\.(?:json|pickle)$",
    re.ASCII,
)
"""Names of dumps: PyTorch adds the rank to the name that the user gave, by default nccl_trace_rank_."""


_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Shape = Annotated[list[_Number], msgspec.Meta(max_length=64)]


class CodeLine(msgspec.Struct, frozen=True):
    """A line of Python code in a stack, the innermost first."""

    function: str = msgspec.field(name="name", default="")
    file: str = msgspec.field(name="filename", default="")
    line: int = 0


class Entered(msgspec.Struct, frozen=True):
    """A collective or a message that a rank has entered."""

    process_group: tuple[str, str]
    """The name and the description of its group."""
    profiling_name: str
    """Backend and name, such as ``nccl:all_reduce`` or ``gloo:recv 0<-1``."""
    collective_seq_id: _Number
    """Its number in the group, counted from 1."""
    p2p_seq_id: _Number = 0
    """The number of a message in the group, which differs between ranks."""
    pg_id: int = -1
    record_id: int = 0
    is_p2p: bool = False
    input_sizes: list[_Shape] = []
    """The shapes of its tensors."""
    input_dtypes: list[str] = []
    state: str = "scheduled"
    """``scheduled``, ``started`` or ``completed`` as far as the GPU was seen; gloo leaves it at the first."""
    retired: bool = False
    """True if it has ended."""
    time_created_ns: int = 0
    frames: list[CodeLine] = []

    @property
    def group(self) -> str:
        """The name of the group, the same on all of its ranks."""
        return self.process_group[0]

    @property
    def name(self) -> str:
        """The name without the backend."""
        return self.profiling_name.partition(":")[2] or self.profiling_name

    @property
    def ended(self) -> bool:
        """True if all that it does is done."""
        return self.retired or self.state == "completed"


class FlightRecord(msgspec.Struct, frozen=True):
    """The dump of one rank."""

    version: str
    groups: dict[str, tuple[int, ...]]
    """The ranks of each group by its name; groups whose ranks are not recorded are missing."""
    descriptions: dict[str, str]
    """The purpose of each group, as far as the program said, by its name."""
    operations: tuple[Entered, ...]
    """In the order in which the rank entered them."""
    entered: dict[str, int]
    """The number of the last collective that the rank has entered in each group, by the group's name."""
    damaged: int = 0
    """The number of entries that could not be read."""

    @property
    def unfinished(self) -> tuple[Entered, ...]:
        """The operations that the rank has entered and that have not ended."""
        return tuple(operation for operation in self.operations if not operation.ended)


def rank_of_dump(path: Path) -> int | None:
    """Return the rank at the end of a dump's name; None if the file has no such name."""
    match = _RANK.search(path.name.replace(".flight", "")) if _DUMP.fullmatch(path.name.lower()) else None
    return int(match[1]) if match else None


def find_dumps(folder: Path) -> dict[int, Path]:
    """Return the entries of a folder that are named as dumps, by rank; none if all of them are folders."""
    with reading(folder):
        dumps = {rank: path for path in sorted(folder.iterdir()) if (rank := rank_of_dump(path)) is not None}
        return {} if all(path.is_dir() for path in dumps.values()) else dumps


def read_flight_record(path: Path) -> FlightRecord:
    """Read a dump, a pickle or JSON.

    Raises DamagedInput if it is no dump, or holds anything but plain values, or too much.
    """
    with reading(path), open_regular(path) as file:
        data = file.read(_MAX_DUMP_BYTES + 1)
    try:
        return parse_flight_record(data)
    except ValueError as error:
        raise DamagedInput(f"{path} is not a dump of PyTorch's flight recorder: {error}.") from None


def plain_values(data: bytes) -> Any:
    """Return the values in the bytes of a dump, a pickle or JSON.

    Raises ValueError if the bytes are neither, or hold anything but plain values, or too much.
    """
    if len(data) > _MAX_DUMP_BYTES:
        raise ValueError(f"it has more than {_MAX_DUMP_BYTES >> 20} MB")
    if not data:
        raise ValueError("it is empty")
    if data[:1] == b"{":
        # Each value of a list or an object follows one of these characters, or begins with it.
        if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise ValueError("it has too many values")
        try:
            values = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"it is damaged JSON: {error}") from None
    else:
        values = load_plain(data, _MAX_VALUES)
    _check_size(values)
    return values


def parse_flight_record(data: bytes) -> FlightRecord:
    """Return the flight record in the bytes of a dump; an entry that cannot be read is counted.

    Raises ValueError if the bytes are no dump, or hold anything but plain values, or too much.
    """
    values = plain_values(data)
    if not isinstance(values, dict) or not isinstance(values.get("entries", []), (list, tuple)):
        raise ValueError("it has no list of entries")
    if not values.keys() & {"version", "entries"}:
        raise ValueError("it has neither a version nor entries")
    groups, descriptions = _groups(values.get("pg_config"))
    operations, damaged = [], 0
    for entry in values.get("entries", []):
        try:
            # Fields that are None have their defaults.
            fields = {k: v for k, v in entry.items() if v is not None} if isinstance(entry, dict) else entry
            operation = msgspec.convert(fields, Entered)
        except msgspec.ValidationError:
            damaged += 1
            continue
        descriptions.setdefault(operation.group, operation.process_group[1])
        operations.append(operation)
    operations.sort(key=lambda operation: operation.record_id)
    entered = _last_numbers(operations, values.get("pg_status"))
    version = str(values.get("version", ""))
    return FlightRecord(version, groups, descriptions, tuple(operations), entered, damaged)


def _check_size(values: Any) -> None:
    """Refuse values that nest too deeply or, since a pickle can repeat parts of itself, become too many."""
    level, count, depth = [values], 0, 0
    while level:
        count, depth = count + len(level), depth + 1
        if depth > _MAX_DEPTH:
            raise ValueError("it nests too deeply")
        following: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                following.extend(value)
                following.extend(value.values())
            elif isinstance(value, (list, tuple)):
                following.extend(value)
            if count + len(following) > _MAX_VALUES:
                raise ValueError("it has too many values")
        level = following


def _groups(config: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the ranks and the description of each group; they are recorded as ``"[0, 1]"``."""
    groups, descriptions = {}, {}
    for key, value in config.items() if isinstance(config, dict) else ():
        if not isinstance(value, dict):
            continue
        name = str(value.get("name", key))
        ranks = value.get("ranks", [])
        texts = re.findall(r"\d{1,9}", ranks) if isinstance(ranks, str) else ranks
        if isinstance(texts, list) and texts and all(isinstance(text, (int, str)) for text in texts):
            numbers = (parse_count(str(rank)) for rank in texts)
            groups[name] = tuple(sorted({number for number in numbers if number is not None}))
        if description := str(value.get("desc", "")):
            descriptions[name] = description
    return groups, descriptions


def _last_numbers(operations: list[Entered], status: Any) -> dict[str, int]:
    """Return the last number in each group, by its operations and, where it is known, by the group's status.

    The status has its own numbers of groups, which the operations translate.
    """
    last: dict[str, int] = {}
    for operation in operations:
        if operation.is_p2p:
            continue
        group_status = status.get(str(operation.pg_id)) if isinstance(status, dict) else None
        count = group_status.get("last_enqueued_collective") if isinstance(group_status, dict) else None
        numbers = [operation.collective_seq_id, last.get(operation.group, 0)]
        last[operation.group] = max(
            [*numbers, count] if isinstance(count, int) and count < 1 << 62 else numbers
        )
    return last
