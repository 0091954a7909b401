"""The tables about the logs of Darshan of a run: its files, by rank, and by step where DXT traced them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, outcome_of_rows
from hpcprof.analysis.telemetry.declarations import NO_LOGS
from hpcprof.analysis.telemetry.tables import blocks_of
from hpcprof.common.grouping import grouped
from hpcprof.common.units import counted, format_bytes, format_duration
from hpcprof.profiles.readers.darshan.logs import DarshanLog, FileRecord
from hpcprof.profiles.timeline import Floats
from hpcprof.runs.live_steps import StepMark

_MAX_FILES, _MAX_BLOCKS = 500, 60
"""Maximum number of files with a row of their own, and of blocks of steps."""

SUMS = (
    *("opens", "reads", "writes", "read_bytes", "written_bytes", "read_s", "write_s", "meta_s"),
    *("unaligned", "independent"),
)
"""The columns of `darshan_files` that are sums over ranks."""

_MIN_FILE_BYTES, _MIN_SLOW_RATIO, _MAX_SLOW_SHARE = 1 << 20, 5, 0.25
"""Minimum size of a file whose speed counts, minimum ratio of the median speed to that of a slow file, and
maximum share of slow files: more are the usual ones."""

_SHARED_RANK = -1
_NO_TRACE = "no log traces single reads and writes (DXT_ENABLE_IO_TRACE=1 in the job has Darshan trace them)"


class NamedLog(NamedTuple):
    """A log and its file's name."""

    name: str
    log: DarshanLog


class RunLogs(msgspec.Struct, frozen=True):
    """The logs of Darshan of a run."""

    logs: Sequence[NamedLog]
    steps: Mapping[int, Sequence[StepMark]] = msgspec.field(default_factory=dict)
    """By rank, in the order of time; may be empty."""
    damaged: Sequence[str] = ()
    """A sentence for each log that cannot be read."""


def darshan_tables(run: RunLogs) -> dict[str, Outcome]:
    """Compute the tables about files, by their names."""
    reason = "; ".join([*(damage.rstrip(".") for damage in run.damaged), *_losses(run.logs)])
    rounded = any(entry.log.whole_seconds and entry.log.segments for entry in run.logs) and bool(run.steps)
    late = "the log has its begin in whole seconds: its times may be up to 1 s early" if rounded else ""
    count = sum(len(entry.log.segments) for entry in run.logs)
    traced = (
        f"what DXT traced ({counted(count, 'operation')}) is in --analysis darshan_steps" if count else ""
    )
    return {
        "darshan_files": outcome_of_rows(
            [*_file_rows(run.logs)],
            NO_LOGS,
            "; ".join(filter(None, (*_totals(run.logs), *_slow_files(run.logs), reason, traced))),
        ),
        "darshan_ranks": outcome_of_rows([*_rank_rows(run.logs)], NO_LOGS, reason),
        "darshan_steps": outcome_of_rows(
            [*_step_rows(run)],
            _NO_TRACE if run.logs and not count else NO_LOGS,
            "; ".join(filter(None, (reason, late))),
        ),
    }


def _losses(logs: Sequence[NamedLog]) -> Iterator[str]:
    """Yield the losses of the logs, each sentence once."""
    logs_by_loss: dict[str, list[str]] = {}
    for name, log in logs:
        for names, loss in (
            (log.partial, "Darshan had no memory for all files of {} (DARSHAN_MODMEM)"),
            (log.unread, "{} cannot be read"),
            (log.not_read, "hpcprof does not read {}"),
            (log.impossible, "{} of a record, below 0, counts as 0"),
            ([counted(log.left_out, "record")] * bool(log.left_out), "{} are left out"),
        ):
            if names:
                logs_by_loss.setdefault(loss.format(", ".join(names)), []).append(name)
    for loss, names in logs_by_loss.items():
        yield f"{loss} in {names[0] if len(names) == 1 else counted(len(names), 'log')}"


def _totals(logs: Sequence[NamedLog]) -> Iterator[str]:
    """Yield sentences on the bytes of all files by module, and on the modules that count the same ones."""
    records = [record for _, log in logs for record in log.records]
    modules = {record.module: [0, 0] for record in records}
    for record in records:
        for at, size in enumerate((record.read_bytes, record.written_bytes)):
            modules[record.module][at] += size
    if modules:
        sums = (
            f"{name} {format_bytes(read)} read, {format_bytes(wrote)} written"
            for name, (read, wrote) in modules.items()
        )
        processes = counted(sum(log.ranks for _, log in logs), "rank")
        longest = format_duration(max(log.run_time_s for _, log in logs))
        jobs = len({log.job_id for _, log in logs})
        many = f"{jobs} jobs with {processes} in all, each up to" if jobs > 1 else f"{processes} in"
        yield f"{many} {longest}: {'; '.join(sums)}"
    whole = sum(log.ranks * log.run_time_s for _, log in logs)
    taken = sum(record.read_s + record.write_s + record.meta_s for record in records)
    if taken > len(modules) * whole > 0:
        yield f"calls run beside each other: they take {taken / whole:.1f} times the time of all ranks"
    for outer, inner in (("MPI-IO", "POSIX"), ("DFS", "DAOS")):
        if {outer, inner} <= modules.keys():
            yield f"{outer} calls {inner}, so that bytes and times are in both"


def _slow_files(logs: Sequence[NamedLog]) -> Iterator[str]:
    """Yield sentences on large files that are far slower than others of their module, and their target."""
    for name, log in logs:
        speeds: dict[str, dict[int, float]] = defaultdict(dict)
        for record in log.records:
            size, seconds = record.read_bytes + record.written_bytes, record.read_s + record.write_s
            # Many ranks that each read a small file move as much as one that reads a large file.
            if size >= _MIN_FILE_BYTES * (log.ranks if record.rank < 0 else 1) and seconds > 0:
                speeds[record.module][record.file] = size / seconds
        for module, speed in speeds.items():
            usual = float(np.median([*speed.values()]))
            slow = [file for file, rate in speed.items() if _MIN_SLOW_RATIO * rate < usual]
            if not 0 < len(slow) <= len(speed) * _MAX_SLOW_SHARE:
                continue
            common = set.intersection(*({*log.targets.get(file, ())} for file in slow))
            where = f", all on OST {min(common)} of Lustre" if len(common) == 1 else ""
            files = f"{len(slow):,} of {counted(len(speed), 'large file')} of {module}"
            files += f" in {name}" if len(logs) > 1 else ""
            files += " is" if len(slow) == 1 else " are"
            median = f"the median ({format_bytes(usual)} each second)"
            yield f"{files} over {_MIN_SLOW_RATIO} times as slow as {median}{where}"


def _rank_of(rank: int, log: DarshanLog, logs: Sequence[NamedLog]) -> int | None:
    """Return the rank of a record; None for files that all ranks share, and where the rank is not recorded.

    Programs without MPI have a log for each process, all of rank 0.
    """
    return None if rank == _SHARED_RANK or (log.ranks == 1 and len(logs) > 1) else rank


def _file_rows(logs: Sequence[NamedLog]) -> Iterator[dict[str, Any]]:
    """Yield the files that took most time, and the others of each module as one row."""
    table: list[dict[str, Any]] = []
    for entry in logs:
        by_file = grouped(((record.file, record.module), record) for record in entry.log.records)
        for (file, module), records in by_file.items():
            below = by_file.get((file, "POSIX"), [])
            table.append(_file_row(entry, file, module, records, below))
    table.sort(key=lambda row: (-_seconds(row), -row["read_bytes"] - row["written_bytes"]))
    yield from table[:_MAX_FILES]
    smaller_files = grouped((row["module"], row) for row in table[_MAX_FILES:])
    for module, rows in smaller_files.items():
        yield {
            "log": "",
            "file": f"({counted(len(rows), 'other file')})",
            "file_system": "",
            "module": module,
            "ranks": None,
            **{key: sum(row[key] for row in rows) for key in (*SUMS, "share_pct")},
            **dict.fromkeys(("slowest_rank", "slowest_s", "late_rank", "wait_s")),
        }


def _file_row(
    entry: NamedLog, file: int, module: str, records: Sequence[FileRecord], below: Sequence[FileRecord]
) -> dict[str, Any]:
    (name, log), sums = entry, _sums(records)
    shared = next((record for record in records if record.rank == _SHARED_RANK), None)
    each = {record.rank: record.read_s + record.write_s + record.meta_s for record in records}
    slowest = max(each, key=lambda rank: each[rank])
    rank, slowest_s = (shared.slowest_rank, shared.slowest_s) if shared else (slowest, each[slowest])
    is_known = slowest_s > 0 and rank >= 0
    wait_s = 0.0
    if shared and shared.late_rank >= 0:
        # The time of the file in POSIX (``below``) is no waiting, whichever rank has least of it.
        wait_s = _seconds(sums) - max(log.ranks * shared.late_s, _seconds(_sums(below)))
    return {
        "log": name,
        "file": log.files[file] or "(unnamed)",
        "file_system": log.file_system(file),
        "module": module,
        "ranks": log.ranks if shared else len(each),
        **sums,
        "share_pct": _share(_seconds(sums), log.ranks * log.run_time_s),
        "slowest_rank": rank if is_known else None,
        "slowest_s": slowest_s if is_known else None,
        "late_rank": shared.late_rank if shared and wait_s > 0 else None,
        "wait_s": wait_s if wait_s > 0 else None,
    }


def _rank_rows(logs: Sequence[NamedLog]) -> Iterator[dict[str, Any]]:
    """Yield the calls of each rank in each module; a row without a rank is of files that all ranks share."""
    groups: dict[tuple[int | None, str], list[tuple[NamedLog, FileRecord]]] = defaultdict(list)
    for entry in logs:
        for record in entry.log.records:
            rank = _rank_of(record.rank, entry.log, logs)
            groups[rank, record.module].append((entry, record))
    for rank, module in sorted(groups, key=lambda key: (key[0] is None, key)):
        group = groups[rank, module]
        sums = _sums([record for _, record in group])
        used_logs = {entry.name: entry.log for entry, _ in group}.values()
        time = sum(log.run_time_s * (log.ranks if rank is None else 1) for log in used_logs)
        yield {
            "rank": rank,
            "module": module,
            "files": len({(entry.name, record.file) for entry, record in group}),
            **sums,
            "share_pct": _share(_seconds(sums), time),
        }


def _sums(records: Sequence[FileRecord]) -> dict[str, Any]:
    return {key: sum(getattr(record, key) for record in records) for key in SUMS}


def _seconds(sums: Mapping[str, Any]) -> float:
    return float(sums["read_s"] + sums["write_s"] + sums["meta_s"])


def _share(part: float, whole: float) -> float | None:
    return 100.0 * part / whole if whole > 0 else None


def _step_rows(run: RunLogs) -> Iterator[dict[str, Any]]:
    """Yield the reads and writes that DXT traced, by rank and step."""
    for _, log in run.logs:
        if not log.segments:
            continue
        ranks, writes, sizes = (np.array([piece[at] for piece in log.segments], np.int64) for at in (2, 3, 4))
        begins, ends = (log.begin + np.array([piece[at] for piece in log.segments]) for at in (5, 6))
        names = np.array([piece.module for piece in log.segments])
        for rank in np.unique(ranks).tolist():
            program_rank = _rank_of(rank, log, run.logs)
            # Ranks wait for each other: another one's steps are nearly the same.
            marks = run.steps.get(program_rank if program_rank is not None else min(run.steps, default=0), ())
            blocks = blocks_of(marks, log.begin, log.begin + log.run_time_s, _MAX_BLOCKS)
            for module in np.unique(names[ranks == rank]).tolist():
                in_module = (ranks == rank) & (names == module)
                at = blocks.of((begins[in_module] + ends[in_module]) / 2)
                for block in range(len(blocks)):
                    in_block = np.flatnonzero(in_module)[at == block]
                    if not len(in_block):
                        continue
                    length = float(blocks.edges[block + 1] - blocks.edges[block])
                    waits = _union_time(begins[in_block], ends[in_block])
                    yield {
                        "rank": program_rank,
                        **blocks.columns(block),
                        "module": module,
                        "reads": int(np.count_nonzero(writes[in_block] == 0)),
                        "writes": int(np.count_nonzero(writes[in_block])),
                        "read_bytes": int(sizes[in_block][writes[in_block] == 0].sum()),
                        "written_bytes": int(sizes[in_block][writes[in_block] == 1].sum()),
                        "wait_s": waits,
                        "share_pct": _share(waits, length),
                    }


def _union_time(begins: Floats, ends: Floats) -> float:
    """Return the time that intervals cover together: threads may read at once."""
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    before = np.append(-np.inf, ends[:-1])
    return float(np.maximum(0.0, ends - np.maximum(begins, before)).sum())
