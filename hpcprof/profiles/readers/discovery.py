"""Discovery of profiles and of their readers."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hpcprof.common.errors import DamagedInput, UsageError, errors_as_damage, reading
from hpcprof.common.paths import is_folder
from hpcprof.common.plugins import READERS, load_plugin, plugin_names
from hpcprof.profiles.input_bounds import MAX_THREADS, bounded, memory_bound
from hpcprof.profiles.readers.declaration import (
    ProfileContent,
    ProfilePart,
    Reader,
    SeveralRanks,
    load,
)
from hpcprof.profiles.readers.foreign_files import substitute_kind
from hpcprof.profiles.readers.inspector import INSPECTOR
from hpcprof.profiles.readers.kineto import ASCEND, TORCH
from hpcprof.profiles.readers.ncu import NCU
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.readers.operations import OPERATIONS
from hpcprof.profiles.readers.otf2 import OTF2
from hpcprof.profiles.readers.rocprof import ROCPD, ROCPROFV3
from hpcprof.profiles.readers.unitrace import UNITRACE
from hpcprof.profiles.readers.xplane import XPLANE

if TYPE_CHECKING:  # numpy is not needed to find profiles
    from hpcprof.profiles.kernel_report import KernelReport
    from hpcprof.profiles.timeline import Timeline

BUILT_IN = (NSYS, ROCPD, ROCPROFV3, UNITRACE, ASCEND, TORCH, XPLANE, OTF2, INSPECTOR, NCU, OPERATIONS)
"""Readers by priority. Tables of Nsight Compute and of operations may have any name: their readers look into
the file."""
ALL_FORMATS = "hpcprof open --help lists the formats"

# Incomplete files of editors, downloads and atomic writers.
_TEMPORARY = (".tmp", ".part", ".partial", "~")


def reader_of(path: Path) -> Reader | None:
    """Return the reader that takes files of this name; other packages are asked after the built-in ones."""
    candidates = [reader for reader in BUILT_IN if reader.takes(path)]
    built_in = candidates[0] if candidates else None
    if len(candidates) > 1 and candidates[0].is_unclear(path.name):
        clear = (candidate for candidate in candidates if not candidate.is_unclear(path.name))
        recognized = (
            candidate for candidate in candidates if path.is_file() and load(candidate.recognize)(path)
        )
        built_in = next(clear, None) or next(recognized, built_in)
    return built_in or next((reader for reader in _added_readers() if reader.takes(path)), None)


def named_by_host(files: Iterable[Path]) -> bool:
    """Return whether the profiler names all of these files by the hosts that it recorded."""
    return all(reader is not None and reader.named_by_host for reader in map(reader_of, files))


def formats_like(path: Path) -> str:
    """Return the formats whose files end as this one does, and where all are listed, as a sentence."""
    ending = re.compile(rf"{re.escape(path.suffix)}(?!\w)", re.IGNORECASE)
    like = [reader.files for reader in BUILT_IN if path.suffix and ending.search(reader.files)]
    return f"{path.suffix} may be {', '.join(like)}; {ALL_FORMATS}." if like else f"{ALL_FORMATS}."


def content_of(kind: str) -> ProfileContent:
    """Return the content of profiles of a kind: a timeline if their reader is no longer installed."""
    readers = {reader.name: reader for reader in BUILT_IN}
    if kind not in readers:
        readers |= {reader.name: reader for reader in _added_readers()}
    return readers[kind].content if kind in readers else ProfileContent.TIMELINE


def _added_readers() -> list[Reader]:
    readers = []
    for name in plugin_names(READERS):
        reader = load_plugin(READERS, name)
        if not isinstance(reader, Reader):
            raise UsageError(f"the plug-in {name!r} is not an hpcprof.plugins.readers.Reader: {reader!r}.")
        readers.append(reader)
    return readers


def read_profile(
    path: Path, part: ProfilePart | None = None, threads: int = 2, captured: tuple[tuple[int, int], ...] = ()
) -> "Timeline | KernelReport":
    """Read a profile, or the part of one rank in it, with the reader of its kind, imported only then.

    ``threads`` is how many threads read the tables of a profile, where its reader uses several; ``captured``
    are the steps that the job captured, as in `Origin`. Raises DamagedInput if no reader takes files of this
    name, or the file cannot be read.
    """
    with _known_reader(path) as reader:
        options: dict[str, object] = {"threads": threads} if reader.threaded else {}
        reads_part = part is not None and reader.reads_parts and not part.merged
        if reads_part:
            options["part"] = part
        profile = cast("Timeline | KernelReport", load(reader.read)(path, **options))
        if captured:
            profile = replace(profile, origin=replace(profile.origin, captured=captured))
        if reader.content is not ProfileContent.TIMELINE:
            return profile
        from hpcprof.profiles.parts import take_part
        from hpcprof.profiles.possible_times import with_possible_times

        timeline = with_possible_times(cast("Timeline", profile))
        return _with_used_gpus(timeline if part is None or reads_part else take_part(timeline, part))


_UNNAMED_GPU = "unnamed GPU"


def _with_used_gpus(timeline: "Timeline") -> "Timeline":
    """Name only the GPUs that a rank used; profilers also list others of its node, or lack its own."""
    from hpcprof.profiles.columns.unique import distinct

    (device,) = timeline.of_operations("device")
    names = {gpu.device: gpu.name for gpu in timeline.origin.gpus}
    busy = distinct(device).tolist()
    if names and busy and names.keys().isdisjoint(busy):  # numbered otherwise than operations
        return timeline
    used = tuple(names.get(number) or _UNNAMED_GPU for number in busy)
    return replace(timeline, origin=replace(timeline.origin, device_names=used))


def identify_rank(path: Path) -> int | None:
    """Return the rank in a profile, else in its name, without reading all of it; None if neither has one."""
    with _known_reader(path) as reader:
        return cast("int | None", load(reader.identify_rank)(path))


def several_ranks(path: Path) -> SeveralRanks | None:
    """Return the ranks in a profile of several ranks, each with its processes; None for a single rank."""
    with _known_reader(path) as reader:
        return cast("SeveralRanks | None", load(reader.several_ranks)(path) if reader.several_ranks else None)


def files_of(path: Path, part: ProfilePart | None = None) -> list[Path]:
    """Return the files that a profile consists of: of one rank, or of all without ``part``.

    The profile itself is the first, unless it is a folder.
    """
    reader = reader_of(path)
    if reader is None or not reader.other_files:
        return [path]
    alone = None if part is None or part.merged else part
    itself = [] if is_folder(path) else [path]
    with errors_as_damage(path):
        return [*itself, *load(reader.other_files)(path, alone)]


@contextmanager
def _known_reader(path: Path) -> Iterator[Reader]:
    """Give the block the reader of a file, and name the file if the block finds damage."""
    reader = reader_of(path)
    if reader is None:
        raise DamagedInput(f"{path} is not a profile that hpcprof reads: {formats_like(path)}")
    with reading_profile(path):
        yield reader


@contextmanager
def reading_profile(path: Path) -> Iterator[None]:
    """Turn any exception of the block into DamagedInput for a profile, and bound the memory of the block."""
    # Outside of the bound: its OpenBLAS reserves memory for each core, and ends the process if it gets none.
    import numpy as np  # noqa: F401
    import pyarrow as pa

    threads = pa.cpu_count()
    pa.set_cpu_count(min(threads, MAX_THREADS))
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    try:
        with bounded(path, _memory_limit(path, changed)), errors_as_damage(path):
            yield
    except DamagedInput:
        if kind := substitute_kind(path):
            raise DamagedInput(f"{path} is {kind}.") from None
        raise
    finally:
        pa.set_cpu_count(threads)


@lru_cache(1024)
def _memory_limit(path: Path, changed: int) -> int:
    """Return the memory for reading a profile; ``changed``, its time of change, is part of the cache key."""
    with suppress(DamagedInput):
        return memory_bound(files_of(path))
    return memory_bound([path])


def file_to_read(path: Path) -> Path:
    """Return the file to read for a profile: itself, or what takes the place of a report.

    That is the export of a report of Nsight Systems, and without ncu the table of a report of Nsight Compute.
    Raises DamagedInput if the file has to be made and cannot be, or is older than the report.
    """
    reader = reader_of(path)
    if reader is None or path.suffix.lower() not in reader.reports:
        return path
    with errors_as_damage(path):
        return cast("Path", load(reader.convert)(path))


def find_profiles(folder: Path) -> list[Path]:
    """Return the profiles in a run directory (its ``profiles`` folder) or in any other folder, sorted.

    Hidden and temporary files are left out, and folders inside are not searched, except in a run for those
    that profilers make there (`Reader.place_in_run`). An export beside its
    ``.nsys-rep`` and a table beside its ``.ncu-rep`` are not listed: the report stands for both. A folder
    that does not exist has none.
    """
    inside = folder / "profiles"
    place = inside if is_folder(inside) else folder
    if not is_folder(place):
        return []
    with reading(place):
        files = list(place.iterdir())
    if place == inside:
        files += [
            path for reader in BUILT_IN if reader.place_in_run for path in place.glob(reader.place_in_run)
        ]
    readers = {path: reader for path in files if (reader := _reader_of_profile(path))}
    derived = {made_from for path, reader in readers.items() for made_from in reader.made_from(path)}
    return sorted(readers.keys() - derived)


def is_profile_folder(path: Path) -> bool:
    """Return whether a folder is a profile itself, by its name."""
    endings = tuple(reader.folder_suffix for reader in BUILT_IN if reader.folder_suffix)
    return path.name.lower().endswith(endings) and is_folder(path)


def _reader_of_profile(path: Path) -> Reader | None:
    """Return the reader of a file if the file is a profile, by its name and where needed its first bytes."""
    name = path.name
    hidden = name.startswith((".", "~", "#")) or name.lower().startswith("tmp.") or name.endswith(_TEMPORARY)
    present = path.is_file() or is_profile_folder(path)
    reader = reader_of(path) if present and not hidden else None
    if reader and reader.is_unclear(name):
        return reader if load(reader.recognize)(path) else None
    return reader
