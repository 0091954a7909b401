"""The elapsed time of a step, as parts that add up to it."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from hpcprof.analysis.account.declarations import OUTSIDE_STEPS
from hpcprof.analysis.account.places import in_words
from hpcprof.analysis.framework.outcome import Row
from hpcprof.analysis.steps.step_set import StepSet, step_set
from hpcprof.common.units import counted, format_ns, visible
from hpcprof.report.contents import Contents

_PARTS = (
    ("compute", "compute", "compute_ns"),
    ("exposed-comm", "exposed communication", "exposed_comm_ns"),
    ("wait", "waiting for peers", "wait_for_peer_ns"),
    ("copy", "copies", "exposed_mem_ns"),
    ("idle", "idle", "idle_ns"),
)
"""The colour of each part in page.css, its name, and its column in ``step_kinds``."""

IDLE_CAUSES = {
    "host": "idle: host is busy",
    "sync": "idle: synchronization",
    "allocation": "idle: allocation",
    "copy": "idle: blocking copy",
    "launch": "idle: launch",
    "dependency": "idle: dependency",
    "unknown": "idle: unknown cause",
}
"""Names of idle time, by its cause."""

_OUTSIDE_PART = ("uneven", OUTSIDE_STEPS)
_MAX_RANGES = 2
_MIN_NOTED_SHARE = 0.01
"""Time outside steps is explained if they take more than this share of the step."""

_MIN_NAME_WIDTH, _FIGURES_WIDTH, _COLUMN_GAP = 4, 19, 2
_MIN_SHOWN_PCT = 0.1
_MAX_BAR, _MIN_BAR = 20, 8
_MIN_WIDTH_FOR_BARS = 64
"""From this width in characters on, a terminal shows bars, which are shorter to leave room for ranges."""


_SELDOM_TOGETHER = "Some ranks meet too seldom to tell who came last: their waiting counts as communication."
_IN_MPI = "Waiting in MPI counts as communication; --analysis mpi_waits shows for whom."


_IdleTime = tuple[str, str | None, int]
"""Idle time: its cause, its range, and its length in ns."""


class AccountPart(msgspec.Struct, frozen=True):
    """A part of the account."""

    colour: str
    """Its colour in page.css, without the hyphens in front."""
    name: str
    ns: int
    where: str = ""
    """For idle time, the ranges in which most of it is; else empty."""


class Account(msgspec.Struct, frozen=True):
    """The time that a run takes for each step and its parts, the sum of which it is exactly."""

    kind: int
    kinds: int
    """The number of the kind of these steps, 0 for all steps, and how many kinds there are."""
    elapsed_ns: int
    p50_ns: int
    """The elapsed time per step, and the median over the steps of the wall time on the slowest rank."""
    parts: tuple[AccountPart, ...]
    """Those above 0."""
    steps: StepSet
    median_steps: int
    ranks: int
    """The steps behind it, the number of those behind the median, and that of the ranks."""
    share_pct: float
    """The share of the steps of the run."""
    notes: tuple[str, ...]
    """Sentences that a reader has to know about it."""


def accounts_of_steps(contents: Contents) -> list[Account]:
    """Return the account of all steps and, if they are of several kinds, of each kind; empty without steps.

    These are the rows of ``step_kinds``. The idle time of all steps is divided as in ``idle_causes``, that of
    each kind as in ``step_idle_causes``.
    """
    table = contents.table("step_kinds")
    rows = table.rows
    waits = contents.table("step_account").columns if rows else {}
    ranks = len(set(waits.get("rank", ())))
    causes = {0: _columns(contents, "idle_causes", "cause", "range", "idle_ns_per_step")}
    if len(rows) > 1:
        causes |= _causes_by_kind(contents)
    undivided = None in waits.get("wait_for_peer_ns", ()) and ranks > 1
    waiting = (_IN_MPI if contents.table("mpi_calls").rows else _SELDOM_TOGETHER) if undivided else ""
    return [
        _account(row, steps, len(rows) - 1, ranks, waiting, causes.get(row["kind"], ()))
        for row in rows
        for steps in [(not row["kind"] and table.steps) or step_set(row)]
        if row["elapsed_ns"]
    ]


def _causes_by_kind(contents: Contents) -> dict[int, list[_IdleTime]]:
    steps = _columns(contents, "step_account", "rank", "step", "kind")
    kinds = {(rank, step): kind for rank, step, kind in steps}
    causes_by_kind: dict[int, list[_IdleTime]] = defaultdict(list)
    times = _columns(contents, "step_idle_causes", "rank", "step", "cause", "range", "idle_ns")
    for rank, step, cause, name, ns in times:
        if kind := kinds.get((rank, step)):
            causes_by_kind[kind].append((cause, name, ns))
    return causes_by_kind


def _columns(contents: Contents, analysis: str, *names: str) -> list[Any]:
    columns = contents.table(analysis).columns
    return [*zip(*(columns.get(name, ()) for name in names), strict=True)]


def _account(
    row: Row, steps: StepSet, kinds: int, ranks: int, waiting: str, causes: Sequence[_IdleTime]
) -> Account:
    named = [(colour, name, row[column] or 0, "") for colour, name, column in _PARTS if column != "idle_ns"]
    named += [("idle", name, ns, where) for name, ns, where in _idle_parts(causes, row["idle_ns"])]
    whole = _round_parts([*named, (*_OUTSIDE_PART, row["uneven_ns"], "")], row["elapsed_ns"])
    parts = tuple(part for part in whole if part.ns > 0)
    notes = _notes(steps, ranks, waiting, row["uneven_ns"] > _MIN_NOTED_SHARE * row["elapsed_ns"])
    figures = (row["elapsed_ns"], row["wall_p50_ns"], parts, steps, row["steps"], ranks, row["share_pct"])
    return Account(row["kind"], kinds, *figures, () if row["kind"] else notes)


def _idle_parts(causes: Sequence[_IdleTime], idle_ns: float) -> list[tuple[str, float, str]]:
    """Divide idle time by cause; as (name, ns, ranges)."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for cause, name, ns in causes:
        sums[cause][name or ""] += ns
    total = sum(sum(ranges.values()) for ranges in sums.values())
    if not total:
        return [("idle", idle_ns, "")]
    idle = []
    for cause, ranges in sums.items():
        time = sum(ranges.values())
        most = [name for name in sorted(ranges, key=lambda name: -ranges[name]) if name][:_MAX_RANGES]
        words = [in_words(name) for name in most]
        idle.append((IDLE_CAUSES.get(cause, f"idle, {cause}"), idle_ns * time / total, " and ".join(words)))
    return sorted(idle, key=lambda part: -part[1])


def _round_parts(parts: Sequence[tuple[str, str, float, str]], elapsed: int) -> list[AccountPart]:
    """Round the parts so that their sum is the elapsed time; the largest takes what rounding leaves."""
    rounded = [round(ns) for _, _, ns, _ in parts]
    largest = max(range(len(parts)), key=lambda number: rounded[number])
    rounded[largest] += elapsed - sum(rounded)
    return [
        AccountPart(colour, name, ns, visible(where))
        for (colour, name, _, where), ns in zip(parts, rounded, strict=True)
    ]


def _notes(steps: StepSet, ranks: int, waiting: str, uneven: bool) -> tuple[str, ...]:
    notes = [f"The parts are means over {steps}{' and over ranks' if ranks > 1 else ''}."]
    notes += [waiting] if waiting else []
    if uneven:
        subject = "the ranks on average do" if ranks > 1 else "the rank does"
        notes.append(f"Outside steps: elapsed time that {subject} not spend in steps.")
    return tuple(notes)


def account_title(account: Account) -> str:
    """Return the heading of an account: the elapsed time per step, of which steps, and their median."""
    start, where = "A step takes", f" on {counted(account.ranks, 'rank')}" if account.ranks > 1 else ""
    if account.kind:
        start, where = f"Kind {account.kind} of {account.kinds}, {account.share_pct:.0f} % of the steps:", ""
    steps = time_of_steps(account.steps.count, account.median_steps, where, format_ns(account.p50_ns))
    return f"{start} {format_ns(account.elapsed_ns)} ({steps})"


def time_of_steps(counted_steps: int | None, steps: int, where: str, median: str) -> str:
    """Return the steps that an elapsed time counts, in words, and the ``median`` beside it.

    The median is of ``steps`` that all ranks have (``where``); None counts them all.
    """
    all_counted = counted_steps in (None, steps)
    subset, all_steps = ("", "") if all_counted else (f"{counted_steps:,} of ", f" of all {steps:,}:")
    counted_words = f"{subset}{counted(steps, 'step')}{where}"
    return f"elapsed time per step of {counted_words}; median{all_steps} {median}"


def share(part: AccountPart, account: Account) -> str:
    """Return a part's share of the step in percent."""
    percent = 100 * part.ns / account.elapsed_ns
    return f"{percent:.1f} %" if percent >= _MIN_SHOWN_PCT else f"< {_MIN_SHOWN_PCT} %"


def account_lines(account: Account, width: int) -> list[str]:
    """Return the account for a terminal: a line for each part with its time, its share, and a bar if wide."""
    names = min(max(len(part.name) for part in account.parts), max(_MIN_NAME_WIDTH, width - _FIGURES_WIDTH))
    lines = []
    room = width - names - _FIGURES_WIDTH - _COLUMN_GAP
    places = [f"  in {part.where}" if part.where else "" for part in account.parts]
    fitting = [len(place) for place in places if len(place) + _MIN_BAR <= room]
    bar = min(_MAX_BAR, room - max(fitting, default=0))
    for part, place in zip(account.parts, places, strict=True):
        name = part.name if len(part.name) <= names else f"{part.name[: names - 1]}…"
        line = f"{name:{names}}  {format_ns(part.ns):>8}  {share(part, account):>7}"
        if width >= _MIN_WIDTH_FOR_BARS:
            line = f"{line}  {'█' * round(bar * part.ns / account.elapsed_ns):{bar}}"
            line += place if len(line) + len(place) <= width else ""
        lines.append(line.rstrip())
    return lines
