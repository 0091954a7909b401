"""The profiles of a run, and the runs that folders and files of profiles are.

A folder that hpcprof did not make is one run, except that it is one run

1. for each profiler, if several profiled the same rank;
2. else for each recording, if its processes were recorded several times;
3. else for each file, if neither profiles nor names tell ranks apart;
4. for each job, if it has logs of Darshan and no profiles.

Files that a user names are a run of their own, unless they are all profiles of the folder.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.common.errors import DamagedInput, HpcprofError, UsageError
from hpcprof.common.grouping import grouped
from hpcprof.common.paths import absolute_path, is_folder
from hpcprof.common.units import counted
from hpcprof.profiles.compressed import Unpacked, reader_of_compressed, unpacking
from hpcprof.profiles.readers.darshan.logs import find_darshan_logs, is_darshan_log
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.discovery import (
    find_profiles,
    formats_like,
    identify_rank,
    is_profile_folder,
    named_by_host,
    reader_of,
)
from hpcprof.profiles.readers.foreign_files import foreign_kind
from hpcprof.profiles.readers.memory_snapshot import is_memory_snapshot
from hpcprof.profiles.readers.otf2 import EZTRACE_NAME
from hpcprof.results.collect.profile_ranks import ranks_by_name, recorded_apart
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.runs.directory import MANIFEST, Run, adopted_id, has_manifest, open_run, typed_name
from hpcprof.runs.job_name import profiler_advice
from hpcprof.submit.runs.failures import profiler_complaint

if TYPE_CHECKING:  # a job is submitted without what reads a database
    from hpcprof.results.store.tables import ProfileRow


@dataclass
class Search:
    """A search for runs below folders, which leaves out damaged runs."""

    on_folder: Callable[[Path, int], None] = lambda folder, runs: None
    """Called for each folder that is searched, with the number of runs found so far."""
    skipped: list[str] = field(default_factory=list)
    """A sentence for each run that cannot be read."""


def profiles_of(run: Run) -> list[Path]:
    """Return the profiles of a run, also compressed ones, sorted."""
    if run.files is not None:
        return [*run.files]
    folder = run.outputs(run.profiled_attempt())
    native = find_profiles(folder)
    return native if run.manifest is None else sorted([*native, *_compressed_profiles(folder, native)])


def is_unpacked(run: Run) -> bool:
    """Return whether profiles of a run were unpacked into a temporary folder."""
    places = (run.path, run.path / "profiles")
    return run.files is not None and any(file.parent not in places for file in run.files)


@contextmanager
def readable(run: Run) -> Iterator[tuple[Run, Unpacked]]:
    """Unpack the compressed profiles of a run for the block, which gets the run to read."""
    profiles = profiles_of(run)
    compressed = [file for file in profiles if reader_of_compressed(file)]
    if not compressed:
        yield run, Unpacked()
        return
    with unpacking(compressed) as unpacked:
        files = [unpacked.files.get(file, file) for file in profiles]
        plain = [file for file in files if not reader_of_compressed(file)]
        yield replace(run, files=tuple(plain)), unpacked


def runs_in(folder: Path) -> list[Run]:
    """Return the run or the runs in a folder; none if it has no profiles, nor logs of several jobs.

    Logs of jobs may be in folders below as well, as profiles below a folder without any.
    """
    folder = absolute_path(folder)
    return _profiled_runs(folder) or (runs_below(folder) if _runs_of_jobs(folder) else [])


def _profiled_runs(folder: Path) -> list[Run]:
    if has_manifest(folder):
        return [open_run(folder)]
    native = find_profiles(folder)
    return _runs_of(folder, [*native, *_compressed_profiles(folder, native)], native)


def foreign_files(run: Run) -> list[str]:
    """Return a sentence for each file of another tool beside the profiles of a whole folder.

    JSON files are left out: a trace for viewers may lie beside each profile. One sentence is about the
    folders below that have profiles too, unless they have many files, such as data of the program.
    """
    if run.manifest is not None or run.files is not None or not is_folder(run.path):
        return []
    profiles, entries = {*profiles_of(run)}, sorted(run.path.iterdir())
    files = (file for file in entries if ".json" not in file.suffixes and file not in profiles)
    kinds = ((file.name, foreign_kind(file)) for file in files)
    sentences = [f"{name} is left out: it is {kind}." for name, kind in kinds if kind]
    # Files inside a profile that is a folder belong to it.
    folders = [path for path in entries if is_folder(path) and not path.is_symlink()]
    folders = [path for path in folders if path.name != "profiles" and not is_profile_folder(path)]
    folders = [path for path in folders if not path.name.startswith(".")]
    files_below = accumulate(1 + len(names) for folder in folders for *_, names in os.walk(folder))
    if not profiles or any(count > _MAX_FILES_BELOW for count in files_below):
        return sentences
    # A damaged run among them is no reason to read no profiles here.
    below = [item.path for folder in folders for item in runs_below(folder, Search())]
    if below:
        also = f" and {counted(len(below) - 1, 'more run')}" if len(below) > 1 else ""
        place = below[0].relative_to(run.path)
        sentences.append(f"profiles below {run.path} are left out: open {place}{also} by name.")
    return sentences


def runs_of_files(files: Sequence[Path]) -> list[Run]:
    """Return the runs of some files: files of one folder and profiler are one run.

    Snapshots of memory and logs of Darshan belong to the runs of the profiles that are named with them;
    without any, they are a run of their own, or one for each job.
    """
    by_folder: dict[Path, list[Path]] = {}
    beside: dict[Path, list[Path]] = {}
    for file in dict.fromkeys(map(absolute_path, files)):
        if is_beside_profiles(file):
            beside.setdefault(file.parent, []).append(file)
        elif _reader_name(file) is None and (foreign := foreign_kind(file)):
            raise UsageError(f"{file} is {foreign}.")
        elif _reader_name(file) is None:
            raise UsageError(f"{file} is not a profile that hpcprof reads: {formats_like(file)}")
        else:
            by_folder.setdefault(file.parent, []).append(file)
    runs = []
    if len(by_folder) == 1:
        beside = {folder: [file for files in beside.values() for file in files] for folder in by_folder}
    for folder, alone in beside.items():
        if folder not in by_folder:
            runs += [_run_beside(folder, files) for files in _by_job(alone)]
    for folder, named in by_folder.items():
        whole = {run.files or tuple(find_profiles(folder)): run for run in runs_in(folder)}
        for kind in dict.fromkeys(map(_reader_name, named)):
            same_kind = tuple(sorted(file for file in named if _reader_name(file) == kind))
            parts = [(file,) for file in same_kind] if _are_unranked(same_kind) else [same_kind]
            for part in parts:
                run = whole.get(part) or _run_of_named(folder, part)
                if run.manifest is None or folder in beside:
                    run = replace(run, files=part, beside=tuple(sorted(beside.get(folder, []))))
                runs.append(run)
    return runs


def may_be_profile(file: Path) -> bool:
    """Return whether a reader takes a file, or it is a file of another tool that is known."""
    is_read = _reader_name(file) is not None or is_beside_profiles(file)
    return is_read or bool(foreign_kind(file))


def is_beside_profiles(file: Path) -> bool:
    """Return whether a file is a snapshot of memory or a log of Darshan."""
    return is_memory_snapshot(file) or is_darshan_log(file)


def runs_below(folder: Path, search: Search | None = None) -> list[Run]:
    """Return the runs and folders of profiles below a folder; without a search, a damaged run is an error.

    Hidden folders, links to folders, and the folders inside a run are not searched. A run without profiles
    is left out. Folders of single ranks, side by side, are one run, and so are the logs of Darshan of a job.
    """
    adopted_runs: list[Run] = []
    for place, folders, files in os.walk(folder):
        path = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        runs: list[Run] = []
        try:
            if search:
                search.on_folder(folder, len(adopted_runs))
            if MANIFEST in files or path.name != "profiles":
                runs = [run for run in _profiled_runs(path) if profiles_of(run)]
        except HpcprofError as error:
            if not search:
                raise
            search.skipped.append(str(error))
        if runs or MANIFEST in files:
            folders.clear()
        elif find_darshan_logs(path):
            runs = _runs_of_jobs(path) or [open_run(path)]
        adopted_runs += runs
    return _join_folders(folder, adopted_runs)


def _join_folders(folder: Path, runs: list[Run]) -> list[Run]:
    """Return one run for folders that differ only in numbers and have one profile of a rank each."""
    files = [profiles_of(run) for run in runs if run.manifest is None]
    differs_in_numbers = len({_DIGITS.sub("#", str(run.path)) for run in runs}) == 1
    if len(runs) < 2 or len(files) < len(runs) or not differs_in_numbers or {*map(len, files)} != {1}:
        return runs
    ranks = {_rank(file) for (file,) in files}
    if ranks == {None}:
        if not _started_together(files) or not ranks_by_name([file for (file,) in files]):
            return runs
    elif None in ranks or len(ranks) < len(runs):
        return runs
    places = [file.relative_to(folder).as_posix() for (file,) in files]
    return [Run(adopted_id(folder.name, folder, *places), folder, files=tuple(file for (file,) in files))]


def _started_together(files: Sequence[Sequence[Path]]) -> bool:
    """Return whether files are of distinct hosts, in folders that JAX named at nearly the same time."""
    names = {file.name for (file,) in files}
    moments = [_FOLDER_MOMENT.fullmatch(file.parent.name) for (file,) in files]
    seconds = [sum(int(n) * s for n, s in zip(m.groups(), _DATE_SECONDS, strict=True)) for m in moments if m]
    return len(names) == len(seconds) == len(files) and max(seconds) - min(seconds) <= _MAX_APART_S


def _run_beside(folder: Path, files: Sequence[Path]) -> Run:
    run = _run_of_named(folder, tuple(sorted(files)))
    return replace(run, files=(), beside=run.files)


def _runs_of_jobs(folder: Path) -> list[Run]:
    """Return a run for each job whose logs of Darshan a folder has; none if there is only one job."""
    jobs = _by_job(find_darshan_logs(folder))
    return [_run_beside(folder, files) for files in jobs] if len(jobs) > 1 else []


def _by_job(files: Sequence[Path]) -> list[list[Path]]:
    """Divide logs of Darshan by the job in their names; without one, each is of a job of its own.

    Snapshots of memory are of the only job, or of another one.
    """
    by_job: dict[str, list[Path]] = {}
    for file in sorted(filter(is_darshan_log, files)):
        job = _DARSHAN_JOB.search(file.name)
        by_job.setdefault(job[0] if job else file.name, []).append(file)
    if len(by_job) < 2:
        return [[*files]]
    snapshots = [file for file in files if not is_darshan_log(file)]
    return [*by_job.values(), *([snapshots] if snapshots else [])]


def runs_to_collect(run: Run, search: Search | None = None) -> list[Run]:
    """Return the runs in the folder of a run, else the runs below it, else the run itself."""
    if run.manifest is not None or run.files is not None or not is_folder(run.path):
        return [run]
    return runs_in(run.path) or runs_below(run.path, search) or [run]


def several_runs_sentence(runs: Sequence[Run]) -> str:
    """Return a sentence without a period that names the runs of a folder with several."""
    kinds = [f"{_reader_name(run.files[0])} profile" if run.files else "Darshan log" for run in runs]
    counts = [
        counted(len(run.files or run.beside or ()), kind) for run, kind in zip(runs, kinds, strict=True)
    ]
    each = [f"{run.id} ({count})" for run, count in zip(runs, counts, strict=True)]
    noun = "profiler" if len({*kinds}) > 1 else "recording" if runs[0].files else "job"
    unranked = _are_unranked([file for run in runs for file in run.files or ()])
    hint = "; if they are ranks of one run, name them rank0, rank1 and so on" if unranked else ""
    return f"{runs[0].path} is {len(runs)} runs, one for each {noun}: {' and '.join(each)}{hint}"


def several_runs_notes(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each folder that is several runs."""
    folders = grouped((run.path, run) for run in runs if run.files or run.beside)
    return [f"{several_runs_sentence(group)}." for group in folders.values() if len(group) > 1]


def restore_profiles(run: Run, names: Sequence[str]) -> Run:
    """Return a stored run with the profiles of these names, unless it has all profiles of its folder."""
    if run.manifest is not None or not is_folder(run.path):
        return run
    same_run = next((other for other in runs_in(run.path) if other.id == run.id), None)
    if same_run is not None or open_run(run.path).id == run.id:
        return same_run or run
    native = find_profiles(run.path)
    present = [file for file in native if not _names_of_profile(file).isdisjoint(names)]
    present += [file for file in _compressed_profiles(run.path, native) if file.stem in names]
    return replace(run, files=tuple(present))


def _runs_of(folder: Path, files: Sequence[Path], native: Sequence[Path]) -> list[Run]:
    by_kind = grouped((_reader_name(file) or "", file) for file in sorted(files))
    if not _share_ranks(by_kind.values()):
        recordings = _recordings(sorted(files))
        if len(recordings) > 1:
            stems = {group[0].name.partition(".")[0] for group in recordings if len(group) == 1}
            words = ["" if len(stems) == len(recordings) else str(at) for at in range(1, len(recordings) + 1)]
            return [
                _run_of_named(folder, (*group,), word) for word, group in zip(words, recordings, strict=True)
            ]
        if _are_unranked(files):
            return [_run_of_named(folder, (file,)) for file in sorted(files)]
        alone = tuple(sorted(files)) if len(files) > len(native) else None
        return [Run(open_run(folder).id, folder, files=alone)] if files else []
    return [
        Run(adopted_id(f"{folder.name}-{kind}", folder, kind), folder, files=tuple(files_of_kind))
        for kind, files_of_kind in sorted(by_kind.items())
    ]


_RECORDING_NUMBER = re.compile(
    r"\d{9,}(?:\.\d+)?|(?<=step|iter|ycle|poch|ndow)(?:eration)?s?[-_.]?\d+", re.IGNORECASE
)
"""Time stamps and counters in names of files, which distinguish recordings of one process."""

_FOLDER_MOMENT = re.compile("_".join([r"(\d{4})", *[r"(\d\d)"] * 5]))
"""The time in the name of a folder of JAX's profiler: ``2026_05_06_04_47_36``."""

_DATE_SECONDS = (31 * 12 * 86_400, 31 * 86_400, 86_400, 3_600, 60, 1)

_MAX_FILES_BELOW = 5_000
"""Maximum number of files below a folder of profiles for a search for more profiles there."""
_MAX_APART_S = 60
"""Maximum time between the folders of one job, in seconds."""

_DARSHAN_JOB = re.compile(r"_id\d+")
"""The job in the name of a log, as Darshan's library makes it: ``USER_PROGRAM_idJOB-PROCESS_…``."""

_ENGINE = re.compile(r"(?<![a-z])dp[-_]?\d+", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


def _run_of_named(folder: Path, files: tuple[Path, ...], word: str = "") -> Run:
    """Return the run of some files of a folder, named by a word, or by the file if it is alone."""
    word = word or (files[0].name.partition(".")[0] if len(files) == 1 else "")
    name = f"{folder.name}-{word}" if word else folder.name
    return Run(adopted_id(name, folder, *(file.name for file in files)), folder, files=files)


def _are_unranked(files: Sequence[Path]) -> bool:
    """Return whether neither profiles nor their names tell ranks apart, as with runs of one process each."""
    is_unclear = len(files) > 1 and (recorded_apart(files) or not ranks_by_name(files))
    return is_unclear and all(_rank(file) is None for file in files)


def _recordings(files: Sequence[Path]) -> list[list[Path]]:
    """Divide the profiles of a folder by recording, if its processes were recorded several times.

    Names of one process differ only in a time stamp or the counter of a step. A server may also record each
    rank once for each kind of its work, in files whose names differ in a word, unless that names a host. One
    with data parallelism may run engines with ranks of their own, which the names number (dp0, dp1).
    """
    by_rank: dict[tuple[str, int | None], list[Path]] = {}
    for name, recordings in _grouped(files, lambda name: _RECORDING_NUMBER.sub("#", name)).items():
        for file in sorted(recordings, key=lambda file: [*map(int, _DIGITS.findall(file.name))]):
            by_rank.setdefault((name, _rank(file) if len(recordings) > 1 else None), []).append(file)
    most = max(map(len, by_rank.values()), default=0)
    if most > 1:
        return [
            [recordings[at] for recordings in by_rank.values() if at < len(recordings)] for at in range(most)
        ]
    for key in (lambda name: _DIGITS.sub("#", name), lambda name: "".join(_ENGINE.findall(name))):
        groups = [*_grouped(files, key).values()]
        if len(groups) < 2 or named_by_host(files):
            continue
        ranked = [group for group in groups if _rank(group[0]) is not None] or groups
        if len({*map(len, ranked)}) == 1 and _share_ranks(ranked):
            helpers = [file for group in groups if group not in ranked for file in group]
            return [ranked[0] + helpers, *ranked[1:]]
    return [[*files]] if files else []


def _grouped(files: Sequence[Path], key: Callable[[str], str]) -> dict[str, list[Path]]:
    return grouped((key(file.name), file) for file in files)


def _share_ranks(groups: Iterable[Sequence[Path]]) -> bool:
    file_groups = [*groups]
    if len(file_groups) < 2:
        return False
    ranks = [rank for files in file_groups for rank in {_rank(file) for file in files}]
    return len(set(ranks)) < len(ranks)


def _rank(file: Path) -> int | None:
    """Return the rank of a profile; for one that cannot be read as it is, that in its name."""
    reader = reader_of(file)
    if reader is None:
        return rank_from_name(file.with_suffix(""))
    if file.suffix.lower() in reader.reports:
        return rank_from_name(file)
    try:
        return identify_rank(file)
    except DamagedInput:
        return rank_from_name(file)


def _compressed_profiles(folder: Path, native: Sequence[Path]) -> list[Path]:
    """Return the compressed profiles of a folder that are not there unpacked too."""
    place = folder / "profiles" if is_folder(folder / "profiles") else folder
    if not is_folder(place):
        return []
    names = {name for file in native for name in _names_of_profile(file)}
    compressed = []
    for path in sorted(place.iterdir()):
        reader = reader_of_compressed(path)
        # Whether a table is one of ncu is seen only in what it contains.
        if reader and not reader.is_unclear(path.stem) and path.stem not in names and path.is_file():
            compressed.append(path)
    return compressed


def _reader_name(file: Path) -> str | None:
    reader = reader_of(file) or reader_of_compressed(file)
    return reader.name if reader else None


def _names_of_profile(file: Path) -> set[str]:
    """Return the name of a profile, and of what a reader makes from it."""
    reader = reader_of(file)
    return {file.name, *(made_from.name for made_from in (reader.made_from(file) if reader else ()))}


def sampled_so_far(run: Run) -> str | None:
    """Return a text that changes as a run writes more beside its profiles; None if it has nothing there."""
    folders = (run.path / name for name in ("telemetry", "memory", "darshan", "state/steps", "results"))
    size = sum(file.stat().st_size for folder in folders if folder.is_dir() for file in folder.iterdir())
    return f"{ANALYSIS_VERSION} {size}" if size else None


def why_unprofiled(run: Run) -> str:
    """Return the reason for an ended run of hpcprof's without a profile, as a sentence without a full stop.

    Empty if it has not ended, or has profiles.
    """
    code = run.state_file("finished")
    if run.manifest is None or code is None or profiles_of(run):
        return ""
    if not run.manifest.job.profiled_ranks:
        return "it ran without a profiler"
    failed = f", since the job failed: hpcprof status {typed_name(run.path)} says why" if code != "0" else ""
    return f"no rank wrote a profile{profiler_complaint(run)}{failed}"


def unprofiled_sentence(run: Run) -> str:
    """Return why a run has no profile, or how to profile it if it had no profiler, without a full stop."""
    job = run.manifest.job if run.manifest is not None else None
    if job is not None and job.profiled_ranks and (missing := why_unprofiled(run)):
        return missing
    program, folder = ((), "") if job is None or job.workload else (job.arguments, job.directory)
    return f"the run was not profiled ({profiler_advice(program, folder)})"


_MISSING_FUNCTIONS = {
    "MPI_Send_c": "which mpi4py called in this MPI: use mpi4py 3, or Open MPI up to 5.0",
    "mpi_finalize_f08": "which Fortran's module mpi_f08 calls: use the module mpi, or mpif.h",
}
"""Functions whose like a program calls for all its messages and collectives, and what to do."""


def untraced_notes(run: Run) -> list[str]:
    """Return a sentence about functions of MPI that the program calls and its profiler did not trace, if any.

    The first rank of each node notes them.
    """
    notes = (run.state_file(path.name) or "" for path in (run.path / "state").glob("*.untraced"))
    names = sorted({line for note in notes for line in note.splitlines()})
    for function, advice in _MISSING_FUNCTIONS.items():
        if any(name.startswith(f"{function} ") for name in names):
            without = "messages and collectives are missing, and pop shows too much useful time"
            return [f"this profiler traces no {function} and its like, {advice}; {without}"]
    called = ", ".join(names)
    return [f"this profiler does not trace {called}, which the program calls: {_WAITS}"] if called else []


_WAITS = "the time that ranks wait in them counts as their own work, in pop and in explain"


def eztrace_notes(run: Run, profiles: "Iterable[ProfileRow]") -> list[str]:
    """Return a sentence about calls that may be missing, for archives of EZTrace from elsewhere."""
    by_eztrace = run.manifest is None and any(row.profiler_version == EZTRACE_NAME for row in profiles)
    functions = "windows, files and neighborhood collectives"
    return [f"EZTrace traces no {functions}: if the program calls them, {_WAITS}"] if by_eztrace else []
