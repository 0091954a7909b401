"""Packages: the results and the kept events of one run in one file, for another store.

A package is a tar archive with ``run.json``, ``results.json`` and the files of the events. Whoever unpacks it
trusts nothing in it: each name, type, column and value is checked before anything is kept.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common import __version__
from hpcprof.common.errors import DamagedInput, HpcprofError
from hpcprof.profiles.event_folders import (
    COMMUNICATION,
    communication_folder,
    origin_path,
    pushed_events,
    remove_events_among,
    remove_run_events,
    run_key,
    table_path,
)
from hpcprof.profiles.losses import LossKind, Subject
from hpcprof.results.kept_events import MATCHES, event_schemas
from hpcprof.results.last_collected import note_collected
from hpcprof.results.listing import ListedRun
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import OF_RUN, Kept, PushedRow, RunRow
from hpcprof.runs.directory import Run

FORMAT = 1
MOST_RESULTS_BYTES = 512 << 20
_MOST_RUN_BYTES = 1 << 20
"""The most bytes of what every list shows of the run."""

MOST_EVENT_BYTES = 64 << 30
"""The most bytes of the results, and of the events when they are unpacked."""

_RUN, _RESULTS = "run.json", "results.json"
_EVENTS = re.compile(r"events/(?P<table>[a-z_]{1,40})/(?P<rank>\d{1,7})\.parquet")
_ORIGINS = re.compile(r"origins/(?P<rank>\d{1,7})\.jsonl")
_SHARED = re.compile(r"communication/(?P<name>(?:part-\d{1,6}|[a-z_]{1,20})\.(?:parquet|json))")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RUN_ID = re.compile(r"[\w][\w.+@=-]{0,199}")
_LONGEST_NAME = 255
_EARLIEST, _LATEST = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (1970, 2200))
_MOST_SECONDS = 1e10
_DAMAGES = (msgspec.MsgspecError, RecursionError)


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``run.json`` in a package: the run as a list shows it, and its program."""

    listed: ListedRun
    program: str | None = None
    format: int = FORMAT
    made_by: str = __version__


@dataclass(frozen=True)
class Package:
    """A package that was checked: what it describes, its rows by table, and its events in a folder.

    ``bytes`` is its size when it is unpacked.
    """

    described: Described
    rows: Mapping[str, Mapping[str, list[Any]]]
    folder: Path
    bytes: int

    @property
    def run_id(self) -> str:
        """The id of its run."""
        return self.described.listed.run


def write_package(path: Path, run_id: str, described: Described, store: Store) -> None:
    """Write the package of a collected run, under the id that it is described by.

    The same results give the same bytes. Raises HpcprofError if the store has nothing of the run, or it
    cannot be read.
    """
    if store.run(run_id) is None:
        raise HpcprofError(f"{run_id}: nothing of it has been collected: hpcprof collect {run_id}.")
    rows, name = store.rows_of(run_id), described.listed.run
    for table, columns in rows.items():
        key = OF_RUN[table].run
        columns[key] = [name] * len(columns[key])
    with (
        path.open("xb") as file,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        _add(archive, _RUN, msgspec.json.encode(described))
        _add(archive, _RESULTS, msgspec.json.encode(rows))
        folders = set()
        for rank, events in store.rank_events(run_id).items():
            if events.written():
                folders.add(events.folder)
                origin = origin_path(events.folder, run_id, rank).read_bytes()
                _add(archive, f"origins/{rank}.jsonl", _without_folder(origin))
                for table, count in sorted(events.written_rows().items()):
                    if count:
                        archive.add(events.path(table), f"events/{table}/{rank}.parquet", filter=_plain)
        for folder in folders:
            shared = communication_folder(folder, run_id)
            for one in sorted(shared.iterdir()) if shared.is_dir() else ():
                archive.add(one, f"communication/{one.name}", filter=_plain)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _without_folder(origin: bytes) -> bytes:
    """Return the description of a rank's events with the name of the profile, and not its folder."""
    first, _, second = origin.partition(b"\n")
    content = msgspec.json.decode(second)
    content["origin"]["path"] = Path(content["origin"]["path"]).name
    return first + b"\n" + msgspec.json.encode(content) + b"\n"


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who owns a file, and when it was written."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


@contextmanager
def unpacked(path: Path, beside: Path, most_bytes: int = MOST_EVENT_BYTES) -> Iterator[Package]:
    """Unpack and check a package in a private folder, which is removed afterwards.

    The folder is made in ``beside``, on the file system on which the events are to stay, and all that is in
    the package may take ``most_bytes``. Raises DamagedInput if anything in it is not as `write_package`
    writes it, and HpcprofError if a file cannot be written here.
    """
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=beside) as folder:
        place = Path(folder)
        try:
            texts = dict(_unpack(path, place, min(most_bytes, MOST_EVENT_BYTES)))
            described = msgspec.json.decode(texts[_RUN], type=Described)
            rows = msgspec.json.decode(texts[_RESULTS], type=dict[str, dict[str, list[Any]]])
        except KeyError as error:
            raise DamagedInput(f"the package lacks {error.args[0]}") from None
        except (*_DAMAGES, tarfile.TarError, OSError, EOFError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise HpcprofError(f"the package cannot be unpacked: {error.strerror}.") from None
            raise DamagedInput(f"the package is damaged: {error}") from None
        if described.format != FORMAT:
            raise DamagedInput(f"the package has format {described.format}; this hpcprof reads {FORMAT}")
        if not _RUN_ID.fullmatch(described.listed.run) or len(run_key(described.listed.run)) > _LONGEST_NAME:
            raise DamagedInput("the id of the run has invalid characters")
        _check_times(described.listed)
        check_rows(described.listed.run, rows, described.made_by)
        _check_events(place)
        size = sum(len(text) for text in texts.values())
        size += sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        yield Package(described, rows, place, size)


def keep_package(package: Package, store: Store, project: Path, pushed: PushedRow) -> None:
    """Keep a package in a store and in the folder of a project, in place of what these have of the run.

    The rows are one transaction, which also leads to the new events: those of before are there until then.
    Events without rows are never seen, and removed with the next package of the run. Raises HpcprofError if a
    file or a row cannot be written; the rows that the store had remain.
    """
    run_id = package.run_id
    events = pushed_events(project, pushed.sha256)
    try:
        remove_run_events(events, run_id)
        for file in sorted(package.folder.rglob("*")):
            if file.is_file():
                target = _place(events, run_id, file.relative_to(package.folder).as_posix())
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
    except OSError as error:
        raise HpcprofError(f"the events of {run_id} cannot be written: {error.strerror}.") from None
    known = RunRow(**{name: values[0] for name, values in package.rows["runs"].items()})
    # The folder of a pushed run is elsewhere: nothing here may take one of this machine for it.
    row = msgspec.structs.replace(known, path=str(project / "pushed" / run_id), events=str(events))
    store.replace_run(row, package.rows, pushed)
    try:
        # Of a run that was pushed before without --scrub, nothing may stay.
        remove_events_among(project, run_id, but=events)
    except OSError as error:
        raise HpcprofError(f"{error.filename} cannot be removed: {error.strerror}.") from None
    note_collected(Run(run_id, Path(row.path)), project)


class _PlainFile(tarfile.TarInfo):
    """The header of a plain file. tarfile holds others in memory as a whole, such as long names."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _PlainFile:
        """Return a header of an archive."""
        member = super().frombuf(buf, encoding, errors)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise DamagedInput("the package holds something that is not a plain file")
        return member


def _unpack(path: Path, place: Path, most_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Write the events of a package into a folder, and yield the names and contents of its other files."""
    total = 0
    with tarfile.open(path, "r|gz", tarinfo=_PlainFile) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            total += member.size
            if total > most_bytes:
                raise DamagedInput(f"the package exceeds {most_bytes:,} bytes when it is unpacked")
            if member.name in (_RUN, _RESULTS):
                most = MOST_RESULTS_BYTES if member.name == _RESULTS else _MOST_RUN_BYTES
                if member.size > most:
                    raise DamagedInput(f"{member.name} exceeds {most:,} bytes")
                yield member.name, content.read()
                continue
            known = any(pattern.fullmatch(member.name) for pattern in (_EVENTS, _ORIGINS, _SHARED))
            if not known:
                raise DamagedInput("the package holds an unexpected file")
            target = place / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                shutil.copyfileobj(content, file)


def _place(events: Path, run_id: str, name: str) -> Path:
    """Return where a file of a package belongs in the dataset of a project."""
    if found := _EVENTS.fullmatch(name):
        return table_path(events, found["table"], run_id, int(found["rank"]))
    if found := _ORIGINS.fullmatch(name):
        return origin_path(events, run_id, int(found["rank"]))
    return communication_folder(events, run_id) / name.partition("/")[2]


def check_rows(run_id: str, rows: Mapping[str, Mapping[str, list[Any]]], made_by: str) -> None:
    """Check rows that come from elsewhere: they are those of one run, and as the tables have them.

    ``rows`` are as `hpcprof.results.store.store.Store.rows_of` returns them, and ``made_by`` is the version
    of hpcprof that wrote them. Raises DamagedInput for the first table that is not as it has to be.
    """
    for name, columns in rows.items():
        table = OF_RUN.get(name)
        if table is None or not columns.keys() <= {column.name for column in table.table.columns}:
            others = f"a package by hpcprof {made_by[:20]}; here is hpcprof {__version__}"
            raise DamagedInput(f"the table {name[:60]!r} has unknown columns, in {others}")
        if len({len(values) for values in columns.values()}) > 1:
            raise DamagedInput(f"the columns of {name} are of different lengths")
        if set(columns.get(table.run, [run_id])) != {run_id}:
            raise DamagedInput(f"{name} has rows of another run")
        _check_values(name, table, columns)
    if len(rows.get("runs", {}).get("id", ())) != 1:
        raise DamagedInput("the results are not of one run")
    if not all(_SHA256.fullmatch(text) for text in rows.get("profiles", {}).get("sha256", ())):
        raise DamagedInput("profiles has an invalid checksum")
    allowed = {
        ("losses", "kind"): {kind.value for kind in LossKind},
        ("losses", "subject"): {subject.value for subject in Subject},
        ("reasons", "analysis"): set(ANALYSES),
    }
    for (name, column), values in allowed.items():
        if not set(rows.get(name, {}).get(column, ())) <= values:
            raise DamagedInput(f"{name} has a {column} that hpcprof {__version__} does not know")
    for text in rows.get("explanations", {}).get("explanation", ()):
        try:
            Explanation.from_json(msgspec.json.decode(text))
        except _DAMAGES as error:
            raise DamagedInput(f"the explanation is damaged: {error}") from None


def _check_times(listed: ListedRun) -> None:
    times = [when for when in (listed.submitted, listed.started) if when is not None]
    if not all(when.tzinfo and _EARLIEST < when < _LATEST for when in times):
        raise DamagedInput("the run has an impossible time")
    if not 0 <= (listed.duration_s or 0.0) < _MOST_SECONDS:
        raise DamagedInput("the run has an impossible duration")


def _check_values(name: str, table: Kept, columns: Mapping[str, list[Any]]) -> None:
    for column, values in columns.items():
        kind, may_be_null = table.types[column]
        if not all(type(value) in kind or (value is None and may_be_null) for value in values):
            raise DamagedInput(f"{name}.{column} has a value of another type")
        if int in kind and any(not -(1 << 63) <= value < 1 << 63 for value in values if type(value) is int):
            raise DamagedInput(f"{name}.{column} has a number of more than 64 bits")
    if missing := {column for column, (_, null) in table.types.items() if not null} - columns.keys():
        raise DamagedInput(f"{name} lacks {', '.join(sorted(missing))}")


def _check_events(place: Path) -> None:
    """Check the columns of Parquet files, and how large they are in memory."""
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
        numbers = shared and table != MATCHES and all(pa.types.is_primitive(one.type) for one in columns)
        if not numbers and (not expected or any(one.type != expected.get(one.name) for one in columns)):
            raise DamagedInput(f"the events {table} have other columns than hpcprof {__version__}")
        # Equal values take no place in the file, and 8 bytes each in memory.
        encoded = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        total += max(encoded, 8 * metadata.num_rows * metadata.num_columns)
        if total > MOST_EVENT_BYTES:
            raise DamagedInput(f"the events exceed {MOST_EVENT_BYTES:,} bytes")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a package."""
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def described(listed: ListedRun, program: str | None) -> Described:
    """Return what a package says of a run, without its place on this machine."""
    return Described(msgspec.structs.replace(listed, path=""), program)
