"""The data of the charts of a run's page: plain lists, with times in nanoseconds.

Each chart is a dict with ``kind``, the drawing function of the page's script, ``title``, the message of the
data, and ``note``, the quantity and the number of its samples. Texts are raw:
the script writes them as text and never as markup.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from statistics import fmean, median
from typing import Any, Literal

import numpy as np

from hpcprof.analysis.account.places import in_words
from hpcprof.analysis.collectives.verdicts import LATE
from hpcprof.analysis.framework.outcome import Row
from hpcprof.analysis.statistics.grouped import sums
from hpcprof.common.units import counted, format_bytes, format_ns, named_ranks, visible
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.report.account import IDLE_CAUSES
from hpcprof.report.contents import Contents
from hpcprof.report.many_ranks import MAX_DEVIATING, MAX_RANKS_IN_FULL
from hpcprof.report.mpi import messages
from hpcprof.report.page.kernel_charts import kernel_charts
from hpcprof.report.page.step_charts import Chart, bars, modes_chart, steps_chart

_MAX_CAUSES = 12
_MIN_DIFFERENCE = 0.02
"""Minimum share by which a rank must differ from the others to be named."""

_ACCOUNT_PARTS = (
    ("compute", "compute"),
    ("exposed_mem", "copies"),
    ("idle", "idle"),
    ("exposed_comm", "exposed communication"),
    ("wait_for_peer", "waiting for peers"),
)
_OWN_PARTS = ("compute", "exposed_mem", "idle")
"""The parts that a rank spends by itself; the rest it spends with or for other ranks."""


def chart_data(contents: Contents) -> list[Chart]:
    """Return each chart that the run has data for, in the order of the page."""
    points = contents.results[0].every_point() if contents.results else []
    charts = [modes_chart(point) for point in points if point.modes]
    makers: tuple[Callable[[Contents], Chart | None], ...] = (steps_chart, _account, _phases, _idle_chart)
    charts += [chart for make in makers if (chart := make(contents)) is not None]
    charts += kernel_charts(contents)
    memory = _memory(contents)
    return [*charts, *([memory] if memory else []), *memory_charts(contents)]


def _account(contents: Contents) -> Chart | None:
    """Return the account of a step by rank: what each rank does by itself comes before what it waits for."""
    account = _step_account(contents)
    if not account:
        return _breakdown(contents)
    steps, means = Counter(account["rank"]), _means(account)
    times = _own_times(means)
    waits = any(time is not None for time in account["wait_for_peer_ns"])
    shown_parts = [(part, name) for part, name in _ACCOUNT_PARTS if waits or part != "wait_for_peer"]
    shown_ranks, note = _shown_ranks(times)
    note = f"Mean of {counted(min(steps.values()), 'step')} of each rank. {note}"
    if len(times) > 1:
        # A program without a GPU neither copies nor idles.
        idles = any(mean[part] for mean in means.values() for part in _OWN_PARTS[1:])
        parts = "compute, copies and idle" if idles else "compute"
        note += " A late rank waits least, because the others wait for it. "
        note += f"So compare the ranks' own time: {parts}."
        if not waits:
            note += " Exposed communication includes the waiting for others."
    if other_steps := contents.counted_steps("step_account", "chart"):
        note += f" {other_steps}"
    rows = [
        _rank_bar(
            rank,
            [[name, round(means[rank][part])] for part, name in shown_parts],
            detail=f"{format_ns(times[rank])} of its own",
        )
        for rank in shown_ranks
    ]
    return bars("account", f"Time of a step by rank: {_own_time_sentence(times)}", note, rows, stacked=True)


def _rank_bar(rank: int, parts: Sequence[Sequence[Any]], *, detail: str = "", where: str = "") -> Row:
    return {"label": f"rank {rank}{where}", "rank": rank, "detail": detail, "parts": parts}


def _step_account(contents: Contents) -> Mapping[str, Sequence[Any]]:
    """Return the columns of the account of each step; nothing if there are no rows."""
    account = contents.table("step_account").columns
    return account if account.get("rank") else {}


def _means(account: Mapping[str, Sequence[Any]]) -> dict[int, dict[str, float]]:
    """Return the mean of each part of a step by rank."""
    steps = Counter(account["rank"])
    means = {rank: dict.fromkeys((part for part, _ in _ACCOUNT_PARTS), 0.0) for rank in steps}
    for part, _ in _ACCOUNT_PARTS:
        for rank, time in zip(account["rank"], account[f"{part}_ns"], strict=True):
            means[rank][part] += (time or 0) / steps[rank]
    return means


def _own_times(means: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Return by rank the time that it does not spend with or for others."""
    return {rank: sum(parts[part] for part in _OWN_PARTS) for rank, parts in means.items()}


def _busiest(times: Mapping[int, float]) -> tuple[int, float] | None:
    """Return the rank that works longest and how long the median of the others does; None if alike."""
    if len(times) < 2:
        return None
    most = max(times, key=lambda rank: times[rank])
    median_of_others = median(time for rank, time in times.items() if rank != most)
    return None if times[most] < median_of_others * (1 + _MIN_DIFFERENCE) else (most, median_of_others)


def _own_time_sentence(times: Mapping[int, float]) -> str:
    if len(times) == 1:
        return f"{format_ns(next(iter(times.values())))} without waiting for others"
    busiest = _busiest(times)
    if busiest is None:
        return "the ranks work equally long"
    most, median_of_others = busiest
    more = times[most] - median_of_others
    share = f" ({100 * more / median_of_others:.0f} %)" if median_of_others else ""
    return f"rank {most} works {format_ns(more)} longer than the median of the others{share}"


def _shown_ranks(values: Mapping[int, float]) -> tuple[list[int], str]:
    """Return the ranks to draw, and a sentence if they are not all.

    If there are many, these are the median rank and the ranks furthest from it.
    """
    ranks = sorted(values)
    if len(ranks) <= MAX_RANKS_IN_FULL:
        return ranks, f"n = {counted(len(ranks), 'rank')}."
    middle = median(values.values())
    by_distance = sorted(ranks, key=lambda rank: -abs(values[rank] - middle))
    chosen = [*by_distance[:MAX_DEVIATING], by_distance[-1]]
    return chosen, (
        f"The {MAX_DEVIATING} of {counted(len(ranks), 'rank')} that deviate most, the furthest first, "
        f"and the median rank ({chosen[-1]})."
    )


def _breakdown(contents: Contents) -> Chart | None:
    """Return the account of the whole profile, where there are no steps."""
    rows = {row["rank"]: row for row in contents.table("breakdown").rows}
    if not rows:
        return None
    names = dict(_ACCOUNT_PARTS)
    shown_ranks, note = _shown_ranks({rank: row["compute_ns"] for rank, row in rows.items()})
    parts = (*_OWN_PARTS, "exposed_comm")
    return bars(
        "account",
        "GPU time by rank",
        "The parts add up to the span from the first to the last GPU operation. "
        f"Communication includes waiting for peers, so a late rank has the least of it. {note}",
        [
            _rank_bar(rank, [[names[part], rows[rank][f"{part}_ns"]] for part in parts])
            for rank in shown_ranks
        ],
        stacked=True,
    )


def _phases(contents: Contents) -> Chart | None:
    rows = contents.table("phases").rows
    if not rows:
        return None
    by_phase: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        by_phase[row["phase"]][row["rank"]] = row
    ranks = len({row["rank"] for row in rows})
    account = _step_account(contents)
    busiest = _busiest(_own_times(_means(account))) if account else None
    late = {row["rank"] for row in contents.table("skew_summary").rows if row["verdict"] in LATE}
    drawn = []
    for phase, phase_rows in by_phase.items():
        values = {rank: row["p50_ns"] for rank, row in phase_rows.items()}
        shown_ranks, _ = _shown_ranks(values)
        drawn.append(
            {
                "label": visible(phase),
                "median_ns": round(median(values.values())),
                "low_ns": min(values.values()),
                "high_ns": max(values.values()),
                "points": [[rank, values[rank], phase_rows[rank]["p95_ns"]] for rank in sorted(shown_ranks)],
            }
        )
    culprits = late or ({busiest[0]} if busiest else set())
    longest = _longest_phase(by_phase, "p50_ns" if contents.counted_steps("phases") else "mean_ns")
    note = (
        "The bar is the median step of the median rank, the line reaches from the fastest to the slowest. "
        f"n = {counted(min(row['steps'] for row in rows), 'step')} on {counted(ranks, 'rank')}."
    )
    return {
        "kind": "phases",
        "id": "phases",
        "title": f"Phases: {_longer_phase(by_phase, culprits) or longest}",
        "note": note,
        "phases": drawn,
    }


def _longer_phase(by_phase: Mapping[str, Mapping[int, Row]], culprits: Set[int]) -> str:
    """Return a sentence about the rank that spends more in a phase than the others; empty if none does.

    The others wait for ``culprits``, ranks that are late or work longer, and so spend more in some phase too.
    If there are culprits, only they are named.
    """
    best: tuple[float, str, int, float] | None = None
    step_ns = sum(median(row["p50_ns"] for row in by_rank.values()) for by_rank in by_phase.values())
    for name, by_rank in by_phase.items():
        slowest = max(by_rank, key=lambda number: by_rank[number]["p50_ns"])
        for rank in (culprits or {slowest}) & by_rank.keys() if len(by_rank) > 1 else ():
            median_of_others = median(
                other["p50_ns"] for other_rank, other in by_rank.items() if other_rank != rank
            )
            excess = by_rank[rank]["p50_ns"] - median_of_others
            if excess > _MIN_DIFFERENCE * step_ns and (best is None or excess > best[0]):
                best = excess, name, rank, median_of_others
    if not best:
        return ""
    excess, name, rank, median_of_others = best
    # More than 100 % of a short time says little.
    share = f" ({100 * excess / median_of_others:.0f} %)" if excess < median_of_others else ""
    return (
        f"rank {rank} spends {format_ns(excess)} more in {visible(name)} than the median of the others{share}"
    )


def _longest_phase(by_phase: Mapping[str, Mapping[int, Row]], key: Literal["mean_ns", "p50_ns"]) -> str:
    """Return a sentence about the longest phase by ``key``. Means add up to the mean step; medians do not."""
    average = fmean if key == "mean_ns" else median
    times = {name: average(row[key] for row in by_rank.values()) for name, by_rank in by_phase.items()}
    longest, step = max(times, key=lambda name: times[name]), sum(times.values())
    sentence = f"{visible(longest)} takes {format_ns(times[longest])}"
    if key == "p50_ns":
        return f"{sentence} in its median"
    return f"{sentence}, {100 * times[longest] / step:.0f} % of the mean step" if step else sentence


def _idle_chart(contents: Contents) -> Chart | None:
    rows = contents.table("idle_causes").rows
    ranks = {row["rank"] for row in contents.table("step_times").rows} | {row["rank"] for row in rows}
    totals: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        totals[row["cause"], row["range"] or ""][row["rank"]] += row["idle_ns_per_step"]
    means = {key: sum(parts.values()) / len(ranks) for key, parts in totals.items()}
    top = sorted(means, key=lambda key: -means[key])[:_MAX_CAUSES]
    if not top or not means[top[0]]:
        return None
    whole = sum(means.values())
    cause, where = top[0]
    note = f"Idle time of a step, mean over {counted(len(ranks), 'rank')}."
    note += f" {contents.counted_steps('idle_causes', 'chart')}".rstrip()
    if len(ranks) > 1:
        note += " The tick is the rank with the most."
    if len(top) < len(means):
        note += f" The {len(top)} largest of {len(means)} causes."
    # The account uses the same names.
    names = {key: IDLE_CAUSES.get(key[0], key[0]).removeprefix("idle: ") for key in top}
    drawn = [
        {
            "label": " · ".join(filter(None, (names[key], visible(key[1])))),
            "parts": [["idle", round(means[key])]],
            "detail": _largest_text(totals[key]) if len(ranks) > 1 else "",
            "tick": max(totals[key].values()) if len(ranks) > 1 else None,
        }
        for key in top
    ]
    title = (
        f"Idle time: {100 * means[top[0]] / whole:.0f} % of {format_ns(whole)} a step is "
        f"{_IDLE_MEANINGS.get(cause, cause)}{f' in {visible(in_words(where))}' if where else ''}"
    )
    return bars("idle", title, note, drawn)


_IDLE_MEANINGS = {
    "host": "spent waiting for the host",
    "sync": "spent after synchronizations",
    "copy": "spent on copies that block",
    "allocation": "spent on memory allocation",
    "launch": "spent on late starts of launched work",
    "dependency": "spent on dependencies between streams",
    "unknown": "without a recorded launch",
}


def _largest_text(values: Mapping[int, int]) -> str:
    rank = max(values, key=lambda rank: values[rank])
    return f"most on rank {rank}: {format_ns(values[rank])}"


def _memory(contents: Contents) -> Chart | None:
    rows = contents.table("memory_usage").rows
    if not rows:
        return None
    has_several_devices = len({row["device"] for row in rows}) > len({row["rank"] for row in rows})
    largest = sorted(rows, key=lambda row: -row["reserved_max_bytes"])[:MAX_RANKS_IN_FULL]
    largest_row = largest[0]
    unused_bytes = largest_row["reserved_max_bytes"] - largest_row["allocated_max_bytes"]
    share = 100 * unused_bytes / largest_row["reserved_max_bytes"] if largest_row["reserved_max_bytes"] else 0
    note = "Peaks of PyTorch's allocator: what tensors occupied, and what it held beyond that."
    if len(largest) < len(rows):
        note += f" The {len(largest)} largest of {len(rows)}."
    title = f"Memory: {share:.0f} % of what {named_ranks([largest_row['rank']])} reserves at most is unused"
    drawn = []
    for row in sorted(largest, key=lambda row: (row["rank"], row["device"])):
        used, reserved = row["allocated_max_bytes"], row["reserved_max_bytes"]
        device = f", {visible(row['device'])}" if has_several_devices else ""
        parts = [["allocated", used], ["reserved beyond that", max(0, reserved - used)]]
        drawn.append(_rank_bar(row["rank"], parts, where=device))
    return bars("memory", title, note, drawn, unit="bytes", stacked=True)


_MAX_SNAPSHOTS = 4
"""Maximum number of snapshots that are drawn: those with the highest peaks."""

_SNAPSHOT_KEY = ("rank", "event", "step", "device")
_MEMORY_KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "backward": "backward pass",
    "communication": "communication",
    "other": "other",
    "fragmentation": "reserved, not allocated",
}
_SNAPSHOT_EVENTS = {
    "step": " after step {step}",
    "out_of_memory": " when it ran out of memory, in step {step}",
    "asked": " when another rank ran out of memory, in step {step}",
}


def memory_charts(contents: Contents) -> list[dict[str, Any]]:
    """Return a chart of the memory over the time of each snapshot, stacked by kind."""
    snapshots = sorted(contents.table("memory_snapshots").rows, key=lambda row: -row["peak_bytes"])
    if not snapshots:
        return []
    rows = contents.table("memory_over_step").rows
    charts = []
    for place, snapshot in enumerate(snapshots[:_MAX_SNAPSHOTS]):
        kinds = [row for row in rows if all(row[key] == snapshot[key] for key in _SNAPSHOT_KEY)]
        if len(kinds) > 1:
            charts.append(_snapshot_chart(contents, snapshot, kinds, f"gpu-memory-{place}"))
    return charts


def _snapshot_chart(contents: Contents, snapshot: Row, rows: list[Row], name: str) -> dict[str, Any]:
    begin, in_profile = _chart_begin(contents, snapshot, rows)
    when = _SNAPSHOT_EVENTS.get(snapshot["event"], "").format(step=snapshot["step"])
    peak = format_bytes(snapshot["peak_bytes"])
    series = {title: [row[f"{kind}_bytes"] for row in rows] for kind, title in _MEMORY_KINDS.items()}
    note = "Memory of PyTorch's allocator by kind, from its recorded events."
    note += f" The time begins with {'the step in the timeline' if in_profile else 'the first event'}."
    if not snapshot["complete"]:
        note += " Earlier events of the step are lost."
    return {
        "kind": "areas",
        "id": name,
        "title": f"GPU memory of rank {snapshot['rank']}{when}: {peak} at the peak",
        "note": note,
        "time_ns": [row["time_ns"] - begin for row in rows],
        "peak_ns": snapshot["time_ns"] - begin,
        # The place of a kind selects its colour.
        "parts": [
            [title, values, place] for place, (title, values) in enumerate(series.items()) if any(values)
        ],
    }


def _chart_begin(contents: Contents, snapshot: Row, rows: list[Row]) -> tuple[int, bool]:
    """Return the begin of a chart in ns UTC, and whether the profile has the step.

    The chart begins with the step, or with the first row if the profile does not have the step.
    """
    rank, step = snapshot["rank"], snapshot["step"]
    profile = contents.profiles.get(rank)
    if profile is not None and profile.start_utc_ns is not None:
        for part in contents.table("step_parts").rows:
            if (part["rank"], part["step"]) == (rank, step):
                return profile.start_utc_ns + part["start_ns"], True
    return rows[0]["time_ns"], False


MAX_MATRIX_LINES = 512
"""Maximum lines and columns of the matrix; 4,096 ranks are 8 to a cell."""

_MESSAGE_QUANTITIES = (
    ("bytes", "Bytes", "bytes"),
    ("messages", "Messages", "count"),
    ("transfer_ns", "Transfer", "ns"),
)


def message_matrix(contents: Contents) -> dict[str, Any] | None:
    """Return the data of the matrix of messages between ranks; None without messages.

    ``ranks`` is the number of ranks, and ``block`` the number of ranks in a line. ``row`` and ``column`` are
    the lines of the sender and the receiver of each cell with messages, and each of ``quantities`` has the
    ``values`` of these cells. ``nodes`` has the first rank on each node, and ``node_names`` the names of
    the nodes; both are empty if the node of some rank is unknown.
    """
    table = contents.table("mpi_matrix").columns
    if not table or not table["sender"]:
        return None
    sender, receiver = (np.asarray(table[name], np.int64) for name in ("sender", "receiver"))
    ranks = max(int(max(sender.max(), receiver.max())) + 1, *(rank + 1 for rank in contents.profiles))
    block = -(-ranks // MAX_MATRIX_LINES)
    keys, group = numbered_rows(sender // block, receiver // block)
    quantities = [
        {"id": name, "label": label, "unit": unit, "values": sums(group, values, len(keys)).tolist()}
        for name, label, unit in _MESSAGE_QUANTITIES
        if None not in table[name] and (values := np.asarray(table[name], np.int64)).any()
    ]
    nodes, names = _nodes(contents, ranks)
    note = f"{messages(contents.table('mpi_matrix').rows)}."
    if block > 1:
        note += f" {counted(block, 'rank')} in a row share a line and a column."
    return {
        "title": "Messages between ranks",
        "note": note,
        "ranks": ranks,
        "block": block,
        "row": keys[:, 0].tolist(),
        "column": keys[:, 1].tolist(),
        "quantities": quantities,
        "nodes": nodes,
        "node_names": names,
    }


def _nodes(contents: Contents, ranks: int) -> tuple[list[int], list[str]]:
    """Return the first rank on each node, and the names of the nodes; nothing if some are unknown."""
    hosts = [contents.profiles[rank].host if rank in contents.profiles else None for rank in range(ranks)]
    if None in hosts:
        return [], []
    first = [rank for rank in range(ranks) if rank == 0 or hosts[rank] != hosts[rank - 1]]
    return first, [str(hosts[rank]) for rank in first]
