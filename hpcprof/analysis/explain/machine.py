"""Adds to findings what the machine did meanwhile: clocks, neighbours, page faults, reads and writes.

The figures are rows of the analysis ``coincidences``. A metric beyond chance there is a reason; the others
are shown as possible chance, unless chance is the likelier reason. A difference between ranks also has to be
large enough: a clock that is lower by 2 % does not make a rank 20 % late.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pandas as pd

from hpcprof.analysis.explain.cause import (
    Cause,
    MachineWait,
    Trait,
    cause_names,
    cause_of,
    find_cause,
    has_trait,
)
from hpcprof.analysis.explain.evidence import Tables
from hpcprof.analysis.explain.explanation import Evidence, Finding, unpriced_finding
from hpcprof.analysis.explain.findings import estimated_finding
from hpcprof.analysis.statistics.confidence_intervals import NORMAL_90
from hpcprof.analysis.telemetry.darshan import SUMS
from hpcprof.common.grouping import grouped
from hpcprof.common.units import counted, format_bytes

TABLE, FILES = "coincidences", "darshan_files"
_MAX_FILES, _MIN_FILE_PCT = 2, 0.5
"""Maximum number of files in a finding, and minimum share of the run for reads and writes of one, in
percent."""

_MIN_TIME_PCT = 10.0
"""Minimum share of the ranks' time in files for a finding without a profile, in percent."""

_SMALL_BYTES = 64 << 10
"""Maximum mean size of small reads and writes, in bytes."""

_MIN_SIEVED_SHARE = 0.1
"""Minimum bytes that MPI-IO reads to write parts of blocks, as a share of the bytes that it writes."""

_TIMES_SLOWER = 2
"""Minimum ratio of a slow rank's time in a file to the mean of all ranks."""

_DIGITS = re.compile(r"\d+")

_MAX_REASONS, _MAX_DOUBTFUL = 3, 1
"""Maximum number of figures beyond chance, and of others, that a finding shows."""

_MAX_CHANCE = 0.5
"""Maximum p-value of a figure that is shown as possible chance: above it, chance is the likelier reason."""

_SAMPLES_A_SECOND = 5.0
"""Independent samples a second: ten are taken, and two in a row count as one."""

_MIN_EXPLAINED_SHARE = 0.5
"""Minimum share of a finding that a difference of machines has to explain."""


def with_machine(findings: Iterable[Finding], tables: Tables) -> list[Finding]:
    """Return findings with what the machine did meanwhile; waits for memory or files are causes too."""
    findings = list(findings)
    # Without a finding, the table need not be read.
    rows = [] if not findings else _rows(tables[TABLE])
    return with_files([_with_reasons(finding, rows) for finding in findings] if rows else findings, tables)


def _machine_waits() -> list[tuple[str, MachineWait]]:
    declared = map(find_cause, cause_names())
    return [(cause.name, cause.wait) for cause in declared if cause.wait is not None]


def slow_files(files: pd.DataFrame) -> Finding | str:
    """Return the finding about a run without profiles that waits for files, or why there is none.

    ``files`` are the rows of `darshan_files`.

    1. The time of a file is that of its module with the longest: MPI-IO's contains POSIX's.
    2. Waits for the last rank in collective calls count for the file that this rank alone used meanwhile.
    3. If the files take more than the time of all ranks, calls overlap, and their share is unknown.
    4. Files whose names differ in numbers count together, and those that take most are the finding.
    """
    rows = [row for row in _rows(files) if row["log"]]
    by_file = grouped(((row["log"], row["file"]), row) for row in rows)
    for same_file in by_file.values():
        same_file.sort(key=_seconds, reverse=True)
    logs = len({row["log"] for row in rows})
    blamed = {key: _own_seconds(same_file[0]) for key, same_file in by_file.items()}
    waits: dict[tuple[str, str], Mapping[str, Any]] = {}
    for shared in [same_file[0] for same_file in by_file.values() if same_file[0]["wait_s"]]:
        late = shared["log"], 1, shared["late_rank"]
        alone = [row for row in rows if (row["log"], row["ranks"], row["slowest_rank"]) == late]
        longest = max(alone, key=_seconds, default=shared)
        if alone and _seconds(longest) >= _MIN_EXPLAINED_SHARE * shared["wait_s"] / (shared["ranks"] - 1):
            key = longest["log"], longest["file"]
            waits[key], blamed[key] = shared, blamed[key] + shared["wait_s"]
    parts = {key: blamed[key] / (_seconds(first) or 1.0) for key, (first, *_) in by_file.items()}
    shares = (part * (by_file[key][0]["share_pct"] or 0.0) for key, part in parts.items())
    share = sum(shares) / max(logs, 1)
    if share > 100.0:
        return "calls on files run beside each other, so that their share of the time is unknown"
    if share < _MIN_TIME_PCT:
        return f"files take {share:.1f} % of the time of all ranks"
    # Such files are one of each rank, or of each step.
    alike: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for key in sorted(by_file, key=lambda key: -blamed[key]):
        log, file = key
        alike.setdefault((log, by_file[key][0]["module"], _DIGITS.sub("#", file)), []).append(key)
    most_blamed = max(alike.values(), key=lambda keys: sum(blamed[key] for key in keys))
    worst, *inner = map(_sum_of_files, zip_longest(*(by_file[key] for key in most_blamed)))
    first = ("share_pct", f"files take {share:.1f} % of the time of all ranks", "")
    patterns = [(worst, *words) for words in (first, *_file_patterns(worst, *inner))]
    for wait in (waits[key] for key in most_blamed if key in waits):
        last, calls = f"rank {wait['late_rank']:.0f}", f"collective calls on {wait['file']}"
        text = f"the other ranks wait {wait['wait_s']:.3g} s in all for {last} in {calls}"
        patterns.append((wait, "wait_s", text, "Divide what is read and written among all ranks."))
    patterns += _read_before_writes(by_file.values())
    evidence = [(Evidence(FILES, None, column, row[column]), text) for row, column, text, _ in patterns]
    remedy = " ".join(filter(None, (advice for *_, advice in patterns))) or cause_of(Cause.SLOW_IO).remedy
    count = f"{len(most_blamed)} files such as " if len(most_blamed) > 1 else ""
    where = f"{worst['module']} of {count}{worst['file']}"
    return unpriced_finding(Cause.SLOW_IO, (), where, evidence, remedy, "high")


def _seconds(row: Mapping[str, Any]) -> float:
    return float(row["read_s"] + row["write_s"] + row["meta_s"])


def _sum_of_files(rows: Iterable[Mapping[str, Any] | None]) -> Mapping[str, Any]:
    """Return the first row with the sums of all, and without a slowest rank if there are several.

    ``files`` is the number of files, and ``users`` the sum of the numbers of ranks that use each file.
    """
    files = [row for row in rows if row is not None]
    sums = {name: sum(row[name] or 0 for row in files) for name in (*SUMS, "wait_s")}
    slowest = files[0]["slowest_s"] if len(files) == 1 else None
    users = sum(row["ranks"] for row in files)
    return {**files[0], **sums, "slowest_s": slowest, "users": users, "files": len(files)}


def _own_seconds(row: Mapping[str, Any]) -> float:
    """Return the time of all ranks in a file without their waits for the last one in collective calls."""
    return _seconds(row) - (row["wait_s"] or 0.0)


def _file_patterns(row: Mapping[str, Any], *inner: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield a column of `darshan_files`, a sentence about the access to files, and the advice.

    ``row`` is the sum of files that are used alike, ``inner`` that of the same files in each module below,
    such as POSIX below MPI-IO.
    """
    whose = "the file's" if row["files"] == 1 else "these files'"
    calls, seconds = row["reads"] + row["writes"], _own_seconds(row)
    size = row["read_bytes"] + row["written_bytes"]
    meta = row["meta_s"] - (row["wait_s"] or 0.0)
    act = "read" if row["read_bytes"] > row["written_bytes"] else "write"
    is_collective = row["module"] == "MPI-IO" and row["independent"] <= calls / 2
    if meta > seconds / 2:
        is_opened = row["opens"] >= row["users"] / 2
        yield (
            "meta_s",
            f"{100 * meta / seconds:.0f} % of {whose} time is to open, close, seek and stat"
            + ("" if is_opened else f": {row['users']:,} uses by ranks, {row['opens']:,} of which open"),
            "Open files once, and fewer of them."
            if is_opened
            else "Ranks look files up that they do not open: let one rank do that for all (stat, access).",
        )
    if calls and size / calls < _SMALL_BYTES:
        yield (
            "reads" if row["reads"] > row["writes"] else "writes",
            f"{counted(calls, 'call')} move {format_bytes(size / calls)} each on average",
            "Read and write more at once: larger buffers"
            + ("." if is_collective else ", or collective calls of MPI-IO."),
        )
    unaligned = max(module["unaligned"] for module in (row, *inner))
    if unaligned > max(module["reads"] + module["writes"] for module in inner or (row,)) / 2:
        yield (
            "unaligned",
            f"{counted(unaligned, 'call')} of POSIX begin within a block of the file system",
            f"Align what ranks {act} with the stripes of the file (striping_unit, H5Pset_alignment).",
        )
    if row["independent"] > calls / 2 and row["ranks"] > 1:
        yield (
            "independent",
            f"{counted(row['independent'], 'call')} of MPI-IO are independent",
            f"Call the collective functions (MPI_File_{act}_at_all), which join the requests of ranks, with "
            f"enough ranks that {act} for the others (cb_nodes).",
        )
    if inner and 2 * _seconds(inner[0]) < seconds:
        below = f"{inner[0]['module']} takes {100 * _seconds(inner[0]) / seconds:.0f} % of {whose} time"
        yield (
            "read_s" if row["read_s"] > row["write_s"] else "write_s",
            f"{below}: in the rest, ranks exchange data and wait for each other",
            "Let more ranks read and write for the others (cb_nodes, cb_buffer_size of MPI-IO).",
        )
    mean = seconds / row["ranks"]
    if row["slowest_s"] is not None and row["slowest_s"] > _TIMES_SLOWER * mean > 0:
        yield (
            "slowest_s",
            f"rank {row['slowest_rank']:.0f} takes {row['slowest_s']:.3g} s, the mean is {mean:.3g} s",
            f"Look at what rank {row['slowest_rank']:.0f} reads and writes for others.",
        )


def _read_before_writes(
    files: Iterable[Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[Mapping[str, Any], str, str, str]]:
    """Yield the row, column, sentence and advice on blocks that MPI-IO reads to write a part of them.

    ``files`` has the rows of each file by module.
    """
    modules = [{row["module"]: row for row in rows} for rows in files]
    pairs = [(file["MPI-IO"], file["POSIX"]) for file in modules if {"MPI-IO", "POSIX"} <= {*file}]
    extra = [(below["read_bytes"] - row["read_bytes"], below) for row, below in pairs if row["written_bytes"]]
    read = sum(max(size, 0) for size, _ in extra)
    if read > _MIN_SIEVED_SHARE * sum(row["written_bytes"] for row, _ in pairs):
        _, most = max(extra, key=lambda item: item[0])
        yield (
            most,
            "read_bytes",
            f"MPI-IO reads {format_bytes(read)} that the program does not ask for, most of {most['file']}: "
            "blocks of which it writes a part (data sieving)",
            "Let some ranks write whole blocks for all (romio_cb_write=enable), and write without reading "
            "(romio_ds_write=disable).",
        )


def with_files(findings: Sequence[Finding], tables: Tables) -> list[Finding]:
    """Add the files that took most time, by Darshan, to the findings about slow reads and writes."""
    if all(finding.cause != Cause.SLOW_IO for finding in findings):
        return [*findings]
    rows = [row for row in _rows(tables[FILES]) if row["module"] != "MPI-IO" and row["log"]]
    rows = [row for row in rows if (row["share_pct"] or 0.0) >= _MIN_FILE_PCT]
    rows.sort(key=lambda row: -max(row["read_s"], row["write_s"]))
    figures = []
    for row in rows[:_MAX_FILES]:
        key = "write_s" if row["write_s"] >= row["read_s"] else "read_s"
        figures.append(Evidence(FILES, None, key, row[key]))
    return [
        replace(item, evidence=(*item.evidence, *figures)) if item.cause == Cause.SLOW_IO else item
        for item in findings
    ]


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    cells = table.astype(object).where(table.notna(), None)
    rows: list[dict[str, Any]] = cells.to_dict("records")
    return rows


def _with_reasons(finding: Finding, rows: Sequence[Mapping[str, Any]]) -> Finding:
    for cause, wait in _machine_waits():
        waiting_finding = _waiting_finding(finding, rows, cause, wait) if wait.metrics else None
        if waiting_finding is not None:
            return waiting_finding
    rows_about = _rows_about(finding, rows)
    minimum = _MIN_EXPLAINED_SHARE * (finding.share_pct or 0.0)
    reasons = (row for row in rows_about if row["beyond_chance"])
    explained = ((row, _explained_pct(row)) for row in reasons)
    reported = [row for row, share in explained if share is None or share >= minimum][:_MAX_REASONS]
    reported += [row for row in rows_about if row not in reported][: _MAX_DOUBTFUL if not reported else 0]
    return replace(finding, evidence=(*finding.evidence, *map(_evidence, reported)))


def _rows_about(finding: Finding, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    subject = cause_of(finding.cause).meanwhile
    matching = [row for row in rows if row["subject"] == subject and row["p_value"] <= _MAX_CHANCE]
    if subject == "rank":
        on_gpu = finding.cause == Cause.LATE_RANK_GPU
        matching = [row for row in matching if row["rank"] in finding.ranks]
        matching = [row for row in matching if str(row["device"]).startswith("gpu") == on_gpu]
    return sorted(matching, key=lambda row: (row["p_value"], -_change(row)))


def _change(row: Mapping[str, Any]) -> float:
    return float(abs(row["then"] - row["usual"]) / max(abs(row["then"]), abs(row["usual"])))


def _explained_pct(row: Mapping[str, Any]) -> float | None:
    """Return the growth of a step in percent that a difference between ranks explains; None if unknown."""
    if row["subject"] != "rank":
        return None
    if row["metric"] == "sm_mhz":
        return 100 * float(row["usual"] / row["then"] - 1) if row["then"] else None
    more = float(row["then"] - row["usual"])
    if row["metric"] == "blocked_pct":
        return more
    # Seconds in each second, and cores of which the rank has at least one.
    return 100 * more if row["unit"] in ("s/s", "cores") else None


def _waiting_finding(
    finding: Finding, rows: Sequence[Mapping[str, Any]], cause: str, wait: MachineWait
) -> Finding | None:
    """Return a finding about the host as one about a wait for the machine; None if that explains too little.

    The ranks wait in the long steps, or in all steps for at least half of the finding's time.
    """
    if not has_trait(finding.cause, Trait.MAY_BE_WAITING):
        return None
    is_long = finding.cause == Cause.STEP_SPIKES or any(
        item.cause == Cause.STEP_SPIKES for item in finding.alternatives
    )
    spike_rows = [row for row in rows if is_long and row["subject"] == "spikes" and row["beyond_chance"]]
    wait_rows = [row for row in spike_rows if row["metric"] in wait.metrics]
    if cause == Cause.MEMORY_PRESSURE:
        wait_rows = [row for row in wait_rows if _is_most_of_waiting(row, rows)]
    rank_rows = [
        row
        for row in rows
        if row["subject"] == wait.subject
        and finding.cause != Cause.STEP_SPIKES
        and row["rank"] in finding.ranks
        and row["then"] >= _MIN_EXPLAINED_SHARE * (finding.share_pct or 100.0)
    ]
    rows_shown = wait_rows or rank_rows
    if not rows_shown:
        return None
    related_rows = [row for row in spike_rows if wait_rows and row["metric"] in (*wait.metrics, *wait.beside)]
    waiting_ranks = {int(row["rank"]) for row in rows_shown if row["rank"] is not None}
    ranks = tuple(sorted(waiting_ranks)) or finding.ranks
    evidence_rows = [*rows_shown, *(row for row in related_rows if row not in rows_shown)][:_MAX_REASONS]
    where = "" if finding.cause == Cause.STEP_SPIKES else finding.where
    return replace(
        finding,
        cause=cause,
        ranks=ranks,
        where=where,
        evidence=(*map(_evidence, evidence_rows), *finding.evidence),
        remedy=cause_of(cause).advise(where, ranks),
    )


def _is_most_of_waiting(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a rank waits mostly for memory in long steps."""
    same_rank = [item for item in rows if item["rank"] == row["rank"]]
    shares = (
        item["then"] for item in same_rank if (item["subject"], item["metric"]) == ("spikes", "blocked_pct")
    )
    wait = row["then"] * (100 if row["unit"] == "s/s" else 1)
    return any(item["subject"] == "memory" for item in same_rank) and wait >= _MIN_EXPLAINED_SHARE * max(
        shares, default=0.0
    )


def wait_findings(table: pd.DataFrame, cause: str, wall: float) -> Iterator[Finding]:
    """Yield the finding of a cause about ranks that wait for the machine, in steps of ``wall`` ns."""
    wait = find_cause(cause).wait
    rows = [row for row in _rows(table) if wait and row["subject"] == wait.subject]
    if not rows:
        return
    # The price is that of the rank that waits longest: ranks wait for each other.
    longest = max(rows, key=lambda row: float(row["then"]))
    share = longest["then"] / 100
    samples = max(1.0, (longest["last_step"] - longest["first_step"]) * wall / 1e9 * _SAMPLES_A_SECOND)
    half = NORMAL_90 * math.sqrt(share * (1 - share) / samples)
    ranks = tuple(sorted(int(row["rank"]) for row in rows))
    evidence = tuple(map(_evidence, sorted(rows, key=lambda row: -row["then"])[:_MAX_REASONS]))
    yield estimated_finding(cause, ranks, "", share * wall, half * wall, wall, evidence)


def with_waiting(findings: Sequence[Finding], table: pd.DataFrame, wall: float) -> list[Finding]:
    """Add the findings about ranks that wait for the machine, one for each cause, in steps of ``wall`` ns.

    If the ranks wait for memory or files mostly in the long steps, the wait is an alternative to the finding
    about these steps.
    """
    result, rows = [*findings], _rows(table)
    for cause, wait in _machine_waits():
        if any(item.cause == cause for item in findings):
            continue
        waits = [*wait_findings(table, cause, wall)]
        spikes = next((item for item in result if item.cause == Cause.STEP_SPIKES), None)
        if spikes is None or not waits or not wait.metrics or not _mostly_in_long_steps(rows, wait):
            result += waits
        else:
            nested = replace(spikes, alternatives=(*spikes.alternatives, *waits))
            result = [nested if item is spikes else item for item in result]
    return result


def _mostly_in_long_steps(rows: Sequence[Mapping[str, Any]], wait: MachineWait) -> bool:
    ranks = {row["rank"] for row in rows if row["subject"] == wait.subject}
    spike_rows = [row for row in rows if row["subject"] == "spikes" and row["metric"] in wait.metrics]
    return ranks <= {row["rank"] for row in spike_rows if row["usual"] <= _MIN_EXPLAINED_SHARE * row["then"]}


def _evidence(row: Mapping[str, Any]) -> Evidence:
    rank = row["rank"]
    return Evidence(TABLE, None if rank is None else int(rank), "then", row["then"])
