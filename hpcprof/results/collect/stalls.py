"""The verdict on a stalled run, from the evidence that the job kept or from dumps of other jobs.

The nodes of the job have no hpcprof: the job only notes that no rank made progress (``state/stalled``) and
keeps evidence (``stall/``). The first command that reads it writes the verdict to ``state/stall.json``.
"""

import os
import re
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcprof.analysis.stalls.evidence import ProcessState, RankEvidence, Stall, describe
from hpcprof.analysis.stalls.verdict import judge
from hpcprof.common.atomic import write_atomically
from hpcprof.common.decode import from_json, parse_count, read_file
from hpcprof.common.errors import DamagedInput
from hpcprof.common.paths import is_folder
from hpcprof.common.units import counted
from hpcprof.profiles.readers.flight_recorder import CodeLine, FlightRecord, find_dumps, read_flight_record
from hpcprof.profiles.readers.native_stacks import NativeStack, parse_native_stack
from hpcprof.results.collect.darshan_logs import logs_of
from hpcprof.results.collect.run_memory import snapshots_of
from hpcprof.results.collect.run_profiles import profiles_of
from hpcprof.runs.directory import MAX_RANKS, Run
from hpcprof.submit.runs.failures import describe_status
from hpcprof.submit.waiting import ended_by_stall

if TYPE_CHECKING:  # the state of a run is told without the database
    from hpcprof.results.store.store import Store
    from hpcprof.submit.schedulers.base import JobStatus

FOLDER = "stall"
"""The folder in a run that has the evidence."""

VERDICT = "stall.json"
_STALL_FILES, _WENT_ON = "stalled", "went_on"
"""Files in ``state/`` with the time of the last progress, of a stalled run and of one that has gone on."""

_RESUBMITTED_FILE = "resubmitted"
"""File in ``state/`` with the time at which a stalled job was queued again."""

_MAX_FILE_BYTES = 16 << 20
_MAX_PROFILE_BYTES = 256 << 20
"""Maximum size of a run's profiles that are read for its verdict, so that `status` answers soon."""
_MAX_LISTED_DUMPS = 8
_STACK_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)$')
_MAIN_THREAD = "Current thread"


class _Thread(msgspec.Struct):
    main: bool = False
    frames: list[CodeLine] = []


class _RankReport(msgspec.Struct):
    """The report that the hook in a rank's program wrote."""

    last_step: int | None = None
    steps: int = 0
    threads: list[_Thread] = []


def find_stall(run: Run) -> Stall | None:
    """Return the verdict on a run, or on a folder of dumps; None without a stall or without evidence.

    The verdict is kept with the run if its folder can be written.
    """
    if run.manifest is None:
        return judge_folder(run.path)
    since = run.state_file(_STALL_FILES) or run.state_file(_WENT_ON)
    # PyTorch ends a run whose collective exceeds its time limit, maybe before the stall was noted.
    if since is None and not any((run.path / FOLDER).glob("rank*.flight.pickle")):
        return None
    if since is not None and not is_stalled(run) and not _has_process_states(run.path / FOLDER):
        return None  # it went on before the evidence was kept
    stall = _stored_stall(run) or _judge_run(run, since or "")
    if stall is None or since is None or is_stalled(run) or _ran_again(run, since):
        return stall
    return msgspec.structs.replace(stall, went_on=True) if stall.waiting or stall.collective else None


def _judge_run(run: Run, since: str) -> Stall | None:
    """Return the verdict from the evidence of a run, which stalled at the Unix time ``since``."""
    assert run.manifest is not None
    folder = run.path / FOLDER
    numbers = (parse_count(path.name[4:].partition(".")[0]) for path in folder.glob("rank*.json"))
    stated_ranks = [number for number in numbers if number is not None and number < MAX_RANKS]
    # hpcprof may have started one process that started ranks of its own (torchrun).
    started, ranks = run.manifest.job.ranks, range(max([run.manifest.job.ranks - 1, *stated_ranks]) + 1)
    codes = run.rank_exit_codes() if started == len(ranks) else {}
    has_process_states = _has_process_states(folder)
    stems = {path.name.partition(".")[0] for path in folder.glob("rank*")}
    evidence = {
        rank: _rank_evidence(folder, rank, codes.get(rank), started == len(ranks))
        if f"rank{rank:05d}" in stems
        else RankEvidence(
            state=_state_without_report(has_process_states and started == len(ranks), codes.get(rank))
        )
        for rank in ranks
    }
    stall = judge(_with_profiles(run, evidence))
    if stall is None:
        return None
    node_files = sorted(path.name for kind in ("gpu.csv", "ras") for path in folder.glob(f"*.{kind}"))
    files = (*stall.evidence, *(f"{FOLDER}/{name}" for name in node_files))
    stall = msgspec.structs.replace(stall, evidence=files)
    with suppress(ValueError, OverflowError):
        moment = datetime.fromtimestamp(int(since), timezone.utc).isoformat(timespec="seconds")
        stall = msgspec.structs.replace(stall, since=moment)
    # While programs still write their evidence, or a profiler its profiles, a later look may say more.
    complete = not run.manifest.job.profiled_ranks and all(
        (folder / f"rank{rank:05d}.process").is_file() for rank in range(started)
    )
    if complete or run.state_file("finished") is not None:
        with suppress(OSError):
            write_atomically(run.path / "state" / VERDICT, msgspec.json.encode(stall).decode() + "\n")
    return stall


def _with_profiles(run: Run, evidence: dict[int, RankEvidence]) -> dict[int, RankEvidence]:
    """Add the MPI calls in the profiles of a finished run to its evidence, if it hung in such a call."""
    in_mpi = any(facts.native and facts.native.call.startswith("MPI_") for facts in evidence.values())
    files = profiles_of(run) if in_mpi and run.state_file("finished") is not None else []
    if not files or sum(path.stat().st_size for path in files if path.is_file()) > _MAX_PROFILE_BYTES:
        return evidence
    # Other runs do not need these imports, numpy among them.
    from hpcprof.analysis.stalls.mpi_calls import with_recorded_calls
    from hpcprof.results.collect.timelines import find_timelines

    timelines, profiles = find_timelines(run), {}
    for rank in evidence.keys() & timelines.paths.keys():
        with suppress(DamagedInput):
            profiles[rank] = timelines.read(rank)
    assert run.manifest is not None
    return with_recorded_calls(evidence, profiles, run.manifest.job.stall_timeout * 10**9)


def is_stalled(run: Run) -> bool:
    """Return whether a run has stalled, has not gone on, and has not ended well."""
    return run.state_file(_STALL_FILES) is not None and run.state_file("finished") != "0"


def stall_sentence(run: Run) -> str:
    """Return the cause of a stall of a run, in a sentence; empty if it is not stalled."""
    if not is_stalled(run):
        return ""
    stall = find_stall(run)
    return f"stalled: {describe(stall)}" if stall is not None else "stalled: no rank makes progress"


def describe_end(run: Run, status: "JobStatus") -> str:
    """Return the reason for the state of a run, with the cause of its stall if it has one."""
    reason = status.reason if ended_by_stall(run) else describe_status(run, status)
    return "; ".join(filter(None, (reason, stall_sentence(run))))


def is_unprofiled(run: Run, store: "Store") -> bool:
    """Return whether a run has results without a profile: without a profiler, stalled, or ended without one.

    A folder that hpcprof did not make needs none if it has dumps or snapshots of PyTorch, or logs of Darshan.
    """
    if store.exists() and store.profiles(run.id):
        return False
    if profiles_of(run):
        return is_stalled(run)
    if run.manifest is None:
        dumps = run.beside is None and is_folder(run.path) and find_dumps(run.path)
        return bool(dumps or snapshots_of(run) or logs_of(run))
    lacks_profile = bool(run.manifest.job.profiled_ranks) and run.state_file("finished") is not None
    return run.state_file("started") is not None and (lacks_profile or has_live_results(run))


def has_live_results(run: Run) -> bool:
    """Return whether a run has results while its job runs: it has stalled, or has no profiler."""
    return run.manifest is not None and (not run.manifest.job.profiled_ranks or is_stalled(run))


def judge_folder(folder: Path) -> Stall | None:
    """Return the verdict on a folder of dumps of PyTorch's flight recorder; None without any."""
    if not is_folder(folder):
        return None
    evidence = {}
    for rank, path in find_dumps(folder).items():
        record, loss = _read_record(path)
        evidence[rank] = RankEvidence(record=record, file=path.name, loss=loss)
    members = {
        rank
        for facts in evidence.values()
        if facts.record
        for ranks in facts.record.groups.values()
        for rank in ranks
    }
    return judge({rank: evidence.get(rank, RankEvidence()) for rank in sorted(members | evidence.keys())})


def unread_dumps(folder: Path) -> str:
    """Name the unreadable dumps in a folder in words; empty if the readable ones give a verdict."""
    if not is_folder(folder) or judge_folder(folder) is not None:
        return ""
    losses = [loss for path in find_dumps(folder).values() if (loss := _read_record(path)[1])]
    more = f"; and {len(losses) - _MAX_LISTED_DUMPS} more" if len(losses) > _MAX_LISTED_DUMPS else ""
    return "; ".join(losses[:_MAX_LISTED_DUMPS]) + more


def _ran_again(run: Run, since: str) -> bool:
    """Return whether the run was ended and queued again by Slurm after a stall at a second of Unix time."""
    with suppress(ValueError):
        again = datetime.strptime(run.state_file(_RESUBMITTED_FILE) or "", "%Y-%m-%dT%H:%M:%S%z")
        return again.timestamp() >= int(since)
    return False


def _stored_stall(run: Run) -> Stall | None:
    with suppress(OSError, msgspec.MsgspecError):
        return from_json(read_file(run.path / "state" / VERDICT), Stall)
    return None


def _rank_evidence(folder: Path, rank: int, exit_code: int | None, has_wrapper: bool) -> RankEvidence:
    """Read the evidence of a rank from its files; damaged files are ignored.

    The state of the process was recorded only for ranks with a wrapper of their own.
    """
    stem = f"rank{rank:05d}"
    statement = _RankReport()
    with suppress(OSError, msgspec.MsgspecError):
        statement = from_json(_read(folder / f"{stem}.json"), _RankReport)
    dumps = (folder / f"{stem}.flight.{kind}" for kind in ("json", "pickle"))
    dump = next((path for path in dumps if os.path.lexists(path)), None)
    record, loss = _read_record(dump) if dump is not None else (None, "")
    stack = next((tuple(thread.frames) for thread in statement.threads if thread.main), ())
    names = [f"{stem}.{kind}" for kind in ("flight.json", "flight.pickle", "json", "stack", "process")]
    files = [name for name in names if (folder / name).is_file()]
    files[-1:-1] = [path.name for path in _native_files(folder, stem)]
    return RankEvidence(
        record,
        stack or _stuck_stack(folder / f"{stem}.stack"),
        _process_state(folder / f"{stem}.process", exit_code) if has_wrapper else ProcessState.RUNNING,
        statement.last_step,
        statement.steps,
        f"{FOLDER}/{files[0]}" if files else "",
        _native_stack(folder, stem),
        loss,
    )


def _read_record(path: Path) -> tuple[FlightRecord | None, str]:
    """Return a flight record, and a sentence about its damage; None and the sentence if it cannot be read."""
    try:
        record = read_flight_record(path)
    except DamagedInput:
        return None, f"{path.name} is damaged"
    return record, f"{counted(record.damaged, 'damaged operation')} of {path.name}" if record.damaged else ""


def _native_files(folder: Path, stem: str) -> list[Path]:
    return sorted(folder.glob(f"{stem}.native*"))


def _native_stack(folder: Path, stem: str) -> NativeStack | None:
    """Return the native stack of a rank's program, preferably of a process in a call of MPI."""
    stacks = []
    for path in _native_files(folder, stem):
        with suppress(OSError):
            stacks.append(parse_native_stack(_read(path).decode(errors="replace")))
    readable = [stack for stack in stacks if stack is not None]
    return next((stack for stack in readable if stack.call), readable[-1] if readable else None)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_FILE_BYTES)


def _stuck_stack(path: Path) -> tuple[CodeLine, ...]:
    """Return the main thread's frames in the file that Python's ``faulthandler`` wrote.

    The thread that holds the interpreter is chosen if there is one, else the last, which is the main thread.
    """
    try:
        lines = _read(path).decode(errors="replace").splitlines()
    except OSError:
        return ()
    threads: list[tuple[str, list[CodeLine]]] = []
    for line in lines:
        match = _STACK_LINE.match(line)
        if match and threads:
            threads[-1][1].append(CodeLine(match["function"], match["file"], int(match["line"])))
        elif line.startswith(("Thread ", _MAIN_THREAD)):
            threads.append((line, []))
    chosen = next((frames for title, frames in threads if title.startswith(_MAIN_THREAD)), None)
    return tuple(chosen if chosen is not None else threads[-1][1] if threads else ())


def _process_state(path: Path, exit_code: int | None) -> ProcessState:
    """Return the state of a rank's program in the stall, by the kernel's states of its processes.

    A rank without processes had ended. Its exit code does not tell, since the job may have been ended later.
    """
    try:
        text = _read(path).decode(errors="replace")
    except OSError:
        return _state_without_report(_has_process_states(path.parent), exit_code)
    states = re.findall(r"^State:\s+(\S)", text, re.MULTILINE)
    alive = [state for state in states if state not in "ZX"]
    if not alive:
        return ProcessState.DEAD
    return ProcessState.STOPPED if any(state in "Tt" for state in alive) else ProcessState.RUNNING


def _state_without_report(has_process_states: bool, exit_code: int | None) -> ProcessState:
    """Return the state of a rank's program whose processes were not recorded."""
    if not has_process_states:
        return ProcessState.RUNNING
    state = ProcessState.UNREACHABLE if exit_code is None else ProcessState.DEAD
    return ProcessState.ENDED if exit_code == 0 else state


def _has_process_states(folder: Path) -> bool:
    """Return whether the processes of any rank were recorded."""
    return any(folder.glob("rank*.process"))
