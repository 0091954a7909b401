"""Packages: the results and the kept events of one run in one file, for another store.

A package is a tar archive with ``run.json``, ``results.json`` and the files of the events. A hub trusts
nothing in it: each name, type, column and value is checked before the package is kept.
"""

import gzip
import io
import json
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from traceback import clear_frames
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hpcprof.common import __version__
from hpcprof.common.decode import from_json, is_plausible_time
from hpcprof.common.errors import DamagedInput, HpcprofError, UsageError
from hpcprof.common.freed_memory import return_freed_memory, use_one_heap
from hpcprof.profiles.event_folders import (
    COMMUNICATION,
    communication_folder,
    origin_path,
    pushed_events,
    remove_run_events,
    remove_shared_events,
    run_key,
    table_path,
)
from hpcprof.profiles.input_bounds import first_repeated_name
from hpcprof.results.across.listing import STATES, ListedRun
from hpcprof.results.collect.kept_events import MATCHES, event_schemas
from hpcprof.results.collect.last_collected import note_collected
from hpcprof.results.store.mpi_links import FILE as MPI_FILE
from hpcprof.results.store.package_rows import DAMAGES, MAX_RESULTS_BYTES, PackedRows, check_rows, memory_for
from hpcprof.results.store.run_communication import CLOCKS, DESCRIPTION
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import TABLES_OF_RUNS, PushedRow, RunRow
from hpcprof.runs.directory import Run
from hpcprof.runs.tags import check_tags

FORMAT = 1
_MAX_RUN_BYTES = 1 << 20
"""Maximum size of the description of a run, which every list reads."""

_MAX_TEXT_BYTES = 16 << 20
"""Maximum size of a file that describes events."""

MAX_EVENT_BYTES = 64 << 30
"""Maximum size of a package when it is unpacked, and of its events in memory."""

_MAX_EXPANSION = 250
_MIN_EXPANDED_BYTES = 64 << 20
"""Minimum size in memory of a file of events that `_MAX_EXPANSION`, memory over size on disk, limits."""

_MAX_PARTS = 1024
"""Maximum number of files of matches, beside one for each rank."""

_COPY_BYTES = 1 << 20
_BLOCK_BYTES = 4096
"""Minimum space that a file takes on disk."""

_RUN_FILES, _RESULTS = "run.json", "results.json"
_EVENTS = re.compile(r"events/(?P<table>[a-z_]{1,40})/(?P<rank>0|[1-9]\d{0,6})\.parquet")
_ORIGINS = re.compile(r"origins/(?P<rank>0|[1-9]\d{0,6})\.jsonl")
_PART = re.compile(r"communication/part-(?P<number>0|[1-9]\d{0,6})\.parquet")
_SHARED_FILES = tuple(f"communication/{name}" for name in (DESCRIPTION, CLOCKS, MPI_FILE))
_RUN_ID = re.compile(r"[\w][\w.+@=-]{0,199}")
_MAX_NAME_LENGTH = 255
_MAX_SECONDS = 1e10
_MAX_RANKS, _MAX_TAGS = 10_000_000, 100


class PackageDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``run.json`` in a package: the run as a list shows it, and its program."""

    listed: ListedRun
    program: str | None = None
    format: int = FORMAT
    made_by: str = __version__


class Package(msgspec.Struct, frozen=True):
    """A package that was checked: its description, its rows by table, and its events in a folder.

    ``bytes`` is its size when it is unpacked.
    """

    described: PackageDescription
    rows: PackedRows
    folder: Path
    bytes: int

    @property
    def run_id(self) -> str:
        """The id of its run."""
        return self.described.listed.run


def write_package(path: Path, run_id: str, described: PackageDescription, store: Store) -> None:
    """Write the package of a collected run, under the id in its description.

    Equal results give equal bytes. Raises HpcprofError if the store has nothing of the run, or
    cannot be read.
    """
    if store.run(run_id) is None:
        raise HpcprofError(f"{run_id}: nothing of it has been collected: hpcprof collect {run_id}.")
    rows, name = store.all_rows(run_id), described.listed.run
    for table, columns in rows.items():
        key = TABLES_OF_RUNS[table].run
        columns[key] = [name] * len(columns[key])
    with (
        path.open("xb") as file,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        _add_text(archive, _RUN_FILES, msgspec.json.encode(described))
        _add_text(archive, _RESULTS, msgspec.json.encode(rows))
        folders = set()
        for rank, events in store.rank_events(run_id).items():
            if events.written():
                folders.add(events.folder)
                origin = origin_path(events.folder, run_id, rank).read_bytes()
                _add_text(archive, f"origins/{rank}.jsonl", _without_folder(origin))
                for table, count in sorted(events.written_rows().items()):
                    if count:
                        archive.add(
                            events.path(table), f"events/{table}/{rank}.parquet", filter=_plain_member
                        )
        for folder in folders:
            shared = communication_folder(folder, run_id)
            for member in sorted(shared.iterdir()) if shared.is_dir() else ():
                archive.add(member, f"communication/{member.name}", filter=_plain_member)


def _add_text(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _without_folder(origin: bytes) -> bytes:
    first, _, second = origin.partition(b"\n")
    content = msgspec.json.decode(second)
    content["origin"]["path"] = Path(content["origin"]["path"]).name
    return first + b"\n" + msgspec.json.encode(content) + b"\n"


def _plain_member(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


@contextmanager
def unpacked(path: Path, beside: Path, most_bytes: int = MAX_EVENT_BYTES) -> Iterator[Package]:
    """Unpack and check a package in a private folder, which is removed afterwards.

    The folder is made in ``beside``, on the file system on which the events will stay. The content of the
    package may take ``most_bytes``, as files and in memory. Raises DamagedInput unless the package is as
    `write_package` writes it, and HpcprofError if a file cannot be written here.
    """
    # Threads that unpack packages at the same time would each keep a heap.
    use_one_heap()
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=beside) as folder, ExitStack() as held:
        held.callback(return_freed_memory)
        try:
            package = _read_package(path, Path(folder), min(most_bytes, MAX_EVENT_BYTES), held)
        except HpcprofError as error:
            # The frames of the error would keep the results in memory.
            clear_frames(error.__traceback__)
            raise
        try:
            yield package
        finally:
            package.rows.forget()


def _read_package(path: Path, place: Path, most_bytes: int, held: ExitStack) -> Package:
    try:
        with tarfile.open(path, "r|gz", tarinfo=_PlainFile) as archive:
            members = _Members(archive, most_bytes)
            described = _describe_run(members.read(_RUN_FILES, _MAX_RUN_BYTES))
            rows = PackedRows(members.read(_RESULTS, MAX_RESULTS_BYTES, held), described.made_by)
            check_rows(described.listed.run, rows)
            members.extract(place, frozenset(rows["profiles"]["rank"] if "profiles" in rows else ()))
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise HpcprofError(f"the package cannot be unpacked: {error.strerror}.") from None
        raise DamagedInput(f"the package is damaged: {error}") from None
    _check_events(place, most_bytes)
    return Package(described, rows, place, members.total)


def _describe_run(text: bytes) -> PackageDescription:
    try:
        described = from_json(text, PackageDescription)
        json.loads(text, object_pairs_hook=_unique_names)
    except DAMAGES as error:
        raise DamagedInput(f"the package is damaged: {error}") from None
    listed = described.listed
    if described.format != FORMAT:
        raise DamagedInput(f"the package has format {described.format}; this hpcprof reads {FORMAT}")
    if (
        not _RUN_ID.fullmatch(listed.run)
        or listed.run == "last"
        or len(run_key(listed.run)) > _MAX_NAME_LENGTH
    ):
        raise DamagedInput("the id of the run has invalid characters")
    if listed.state not in STATES:
        raise DamagedInput("the run has an unknown state")
    counts = (listed.nodes, listed.ranks_per_node, listed.ranks)
    if not all(0 <= (count or 0) <= _MAX_RANKS for count in counts):
        raise DamagedInput("the run has an impossible number of ranks")
    try:
        check_tags(listed.tags)
    except UsageError as error:
        raise DamagedInput(str(error).rstrip(".")) from None
    if len(listed.tags) > _MAX_TAGS:
        raise DamagedInput(f"the run has more than {_MAX_TAGS} tags")
    _check_times(listed)
    return described


def _unique_names(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in fields}) < len(fields):
        raise DamagedInput(f"{_RUN_FILES} has a name twice")
    return dict(fields)


def keep_package(package: Package, store: Store, project: Path, pushed: PushedRow) -> None:
    """Keep a package in a store and in the folder of a project, in place of earlier data of the run.

    One transaction writes the rows and switches to the new events; the old events stay until then. Events
    without rows are never visible, and the next package of the run removes them. Raises HpcprofError if a
    file or a row cannot be written; the earlier rows then remain.
    """
    run_id = package.run_id
    events = pushed_events(project, pushed.sha256)
    try:
        remove_run_events(events, run_id)
        for file in sorted(package.folder.rglob("*")):
            if file.is_file():
                target = _event_path(events, run_id, file.relative_to(package.folder).as_posix())
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
    except OSError as error:
        raise HpcprofError(f"the events of {run_id} cannot be written: {error.strerror}.") from None
    run_row = RunRow(**{name: values[0] for name, values in package.rows["runs"].items()})
    # A pushed run has no folder on this machine, and no existing folder may be taken for it.
    row = msgspec.structs.replace(run_row, path=str(project / "pushed" / run_id), events=str(events))
    store.replace_run(row, package.rows, pushed)
    try:
        # An earlier push may have been without --scrub.
        remove_shared_events(project, run_id, excluded=events)
    except OSError as error:
        raise HpcprofError(f"{error.filename} cannot be removed: {error.strerror}.") from None
    note_collected(Run(run_id, Path(row.path)), project)


class _PlainFile(tarfile.TarInfo):
    """The header of a plain file. tarfile reads other members, such as long names, into memory as a whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_PlainFile":
        """Return a header of an archive."""
        member = super().frombuf(buf, encoding, errors)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise DamagedInput("the package holds something that is not a plain file")
        if member.size < 0:
            raise DamagedInput("the package holds a file of negative size")
        return member


class _Members:
    """The files of an archive in their order; ``total`` is the space that they take.

    Raises DamagedInput if they take more than ``most_bytes``, or are not the files of a package.
    """

    def __init__(self, archive: tarfile.TarFile, most_bytes: int) -> None:
        self._archive, self._most_bytes = archive, most_bytes
        self.total = 0

    def read(self, name: str, most_bytes: int, held: ExitStack | None = None) -> bytes:
        """Return the content of the next file; ``held`` reserves the memory for decoding it."""
        member = self._next_member()
        if member is None or member.name != name:
            raise DamagedInput(f"the package lacks {name}, or has another file before it")
        if member.size > most_bytes:
            raise DamagedInput(f"{name} exceeds {most_bytes:,} bytes")
        if held is not None:
            held.enter_context(memory_for(member.size))
        # In pieces, because tarfile.read keeps a second copy.
        text = io.BytesIO()
        shutil.copyfileobj(self._content(member), text, _COPY_BYTES)
        return text.getvalue()

    def extract(self, place: Path, ranks: frozenset[int]) -> None:
        """Write the remaining files into a folder; all must be of these ranks, and none may be repeated."""
        written = set()
        while member := self._next_member():
            if not _is_expected(member.name, ranks):
                raise DamagedInput("the package holds an unexpected file")
            if member.name in written:
                raise DamagedInput(f"the package holds {member.name} twice")
            if member.size == 0:
                raise DamagedInput(f"{member.name} is empty")
            if not member.name.endswith(".parquet") and member.size > _MAX_TEXT_BYTES:
                raise DamagedInput(f"{member.name} exceeds {_MAX_TEXT_BYTES:,} bytes")
            written.add(member.name)
            target = place / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                shutil.copyfileobj(self._content(member), file)

    def _next_member(self) -> tarfile.TarInfo | None:
        self._archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all of them
        member = self._archive.next()
        if member is not None:
            self.total += max(member.size, _BLOCK_BYTES)
            if self.total > self._most_bytes:
                raise DamagedInput(f"the package exceeds {self._most_bytes:,} bytes when it is unpacked")
        return member

    def _content(self, member: tarfile.TarInfo) -> IO[bytes]:
        content = self._archive.extractfile(member)
        assert content is not None
        return content


def _is_expected(name: str, ranks: frozenset[int]) -> bool:
    if match := _EVENTS.fullmatch(name):
        return match["table"] in event_schemas() and int(match["rank"]) in ranks
    if match := _ORIGINS.fullmatch(name):
        return int(match["rank"]) in ranks
    if match := _PART.fullmatch(name):
        return int(match["number"]) < _MAX_PARTS + len(ranks)
    return name in _SHARED_FILES


def _event_path(events: Path, run_id: str, name: str) -> Path:
    if match := _EVENTS.fullmatch(name):
        return table_path(events, match["table"], run_id, int(match["rank"]))
    if match := _ORIGINS.fullmatch(name):
        return origin_path(events, run_id, int(match["rank"]))
    return communication_folder(events, run_id) / name.partition("/")[2]


def _check_times(listed: ListedRun) -> None:
    times = [when for when in (listed.submitted, listed.started) if when is not None]
    if not all(map(is_plausible_time, times)):
        raise DamagedInput("the run has an impossible time")
    steps_s = [(step_ns or 0) / 1e9 for step_ns in (listed.step_ns, listed.step_p50_ns)]
    if not all(0 <= seconds < _MAX_SECONDS for seconds in (listed.duration_s or 0.0, *steps_s)):
        raise DamagedInput("the run has an impossible duration")


def _check_events(place: Path, most_bytes: int) -> None:
    schemas = event_schemas()
    total = 0
    for file in sorted(place.rglob("*.parquet")):
        table = MATCHES if file.name.startswith("part-") else file.parent.name
        try:
            metadata = pq.read_metadata(file)
            columns = metadata.schema.to_arrow_schema()
        except (pa.ArrowException, OSError) as error:
            raise DamagedInput(f"the events {table} are damaged: {error}") from None
        expected = {field.name: field.type for field in schemas.get(table, ())}
        shared = file.parent == place / COMMUNICATION
        numbers = shared and table != MATCHES and all(pa.types.is_primitive(field.type) for field in columns)
        if not numbers and (not expected or any(field.type != expected.get(field.name) for field in columns)):
            raise DamagedInput(f"the events {table} have other columns than hpcprof {__version__}")
        if name := first_repeated_name(columns.names):
            raise DamagedInput(f"the events {table} have {name} twice")
        # Equal values take no space in the file, and 8 bytes each in memory.
        encoded = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        expanded = max(encoded, 8 * metadata.num_rows * metadata.num_columns)
        if expanded > max(_MIN_EXPANDED_BYTES, _MAX_EXPANSION * file.stat().st_size):
            raise DamagedInput(f"the events {table} take {expanded:,} bytes of memory in a small file")
        total += expanded
        if total > most_bytes:
            raise DamagedInput(f"the events exceed {most_bytes:,} bytes")


def describe(listed: ListedRun, program: str | None) -> PackageDescription:
    """Return the description of a run for its package, without its path on this machine."""
    return PackageDescription(msgspec.structs.replace(listed, path=""), program)
