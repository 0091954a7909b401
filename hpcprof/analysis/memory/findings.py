"""Findings about memory, from the tables of a run: out of memory, unequal ranks, growth on the host.

Nothing here imports numpy or pandas: runs without findings of memory are shown quickly.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcprof.analysis.explain.cause import Cause
from hpcprof.analysis.explain.explanation import Evidence, Finding, unpriced_finding
from hpcprof.common.units import counted, format_bytes, format_duration

TABLES = ("memory_use", "memory_snapshots", "memory", "host_memory")
"""The analyses that findings are made of."""

Row = Mapping[str, Any]

_MIN_RATIO, _MIN_BYTES = 1.1, 256e6
"""Minimum ratio to the median of the others, and minimum difference in bytes, for a finding about a rank."""

_STATE = ("parameters", "gradients", "optimizer")
_TRANSIENT_KINDS = ("activations", "backward")
"""Kinds that come and go in each step, and differ between moments of it."""

_UNHELD = ("fragmentation", "outside")
"""Kinds of memory that no tensor holds."""

_MAX_NAMED_RANKS = 5
MIN_GROWTH_BYTES, MIN_GROWTH_SAMPLES = 16 << 20, 12
"""Minimum growth in bytes, and minimum samples after the first third of the time, for memory that grows."""

_MIN_SURE_SAMPLES = 60
"""Minimum samples for high confidence: memory that varies may only seem to grow in fewer."""


def memory_findings(tables: Mapping[str, Sequence[Row]], ranks: int) -> list[Finding]:
    """Return the findings about the memory of a run of ``ranks`` ranks."""
    return [*_out_of_memory(tables, ranks), *_imbalance(tables), *_host(tables["host_memory"])]


def _out_of_memory(tables: Mapping[str, Sequence[Row]], ranks: int) -> Iterator[Finding]:
    for failed in tables["memory_snapshots"]:
        if failed["event"] != "out_of_memory" or failed["asked_bytes"] is None:
            continue
        rank = failed["rank"]
        keys = ("rank", "event", "step", "device")
        memory_rows = [row for row in tables["memory"] if all(row[key] == failed[key] for key in keys)]
        kinds: dict[str, int] = defaultdict(int)
        for row in memory_rows:
            kinds[row["kind"]] += row["bytes"]
        lines = _by_line(row for row in memory_rows if row["kind"] not in _UNHELD)
        # Memory that every step frees depends on the moment of the failure, and is not its cause.
        lasting = [line for line in lines if line["kind"] not in _TRANSIENT_KINDS]
        excess = [line for line in lasting if line["difference"] >= failed["asked_bytes"]]
        excess.sort(key=lambda line: -line["difference"])
        chosen = excess[0] if excess else lines[0] if lines else None
        where = (chosen["line"] or chosen["kind"]) if chosen else failed["line"] or ""
        yield unpriced_finding(
            Cause.OUT_OF_MEMORY,
            (rank,),
            where,
            [*_failed_evidence(failed, kinds), *_line_evidence(rank, chosen)],
            _what_fits(failed["asked_bytes"], kinds, excess[0] if excess else None, ranks),
            "high"
            if excess or not any(row["difference_bytes"] is not None for row in memory_rows)
            else "medium",
        )


def _by_line(rows: Iterator[Row]) -> list[dict[str, Any]]:
    """Return the memory by kind and line, over all modules, largest first; ``first`` is the largest row."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        kind, line = row["kind"], row["line"]
        new = {"kind": kind, "line": line, "bytes": 0, "blocks": 0, "difference": 0, "first": row}
        group = groups.setdefault((kind, line), new)
        group["bytes"] += row["bytes"]
        group["blocks"] += row["blocks"]
        group["difference"] += row["difference_bytes"] or 0
    return sorted(groups.values(), key=lambda group: -group["bytes"])


def _failed_evidence(failed: Row, kinds: Mapping[str, int]) -> Iterator[tuple[Evidence, str]]:
    rank, requested = failed["rank"], failed["asked_bytes"]
    line, module = failed["line"], failed["module"]
    place = f" at {line}" if line else ""
    place += f", in {module}" if module else ""
    free = ""
    if failed["free_bytes"] is not None and failed["capacity_bytes"]:
        free_bytes, capacity = failed["free_bytes"], failed["capacity_bytes"]
        free = f"; {format_bytes(free_bytes)} of {format_bytes(capacity)} free on the GPU"
        # The program allows itself less than the GPU has.
        free += ", beyond what the process may use" if free_bytes > requested else ""
    yield (
        Evidence("memory_snapshots", rank, "asked_bytes", requested),
        f"rank {rank}: {format_bytes(requested)} asked{place}{free}",
    )
    parts = sorted(((size, kind) for kind, size in kinds.items() if size), reverse=True)
    sizes = ", ".join(f"{kind} {format_bytes(size)}" for size, kind in parts)
    yield (
        Evidence("memory_snapshots", rank, "peak_bytes", failed["peak_bytes"]),
        f"rank {rank}: {format_bytes(failed['peak_bytes'])} allocated and "
        f"{format_bytes(failed['reserved_bytes'])} reserved: {sizes}",
    )


def _line_evidence(rank: int, line: dict[str, Any] | None) -> Iterator[tuple[Evidence, str]]:
    if line is None:
        return
    first = line["first"]
    place = f" of {line['line']}" if line["line"] else ""
    yield (
        Evidence("memory", rank, "bytes", first["bytes"]),
        f"rank {rank}: {format_bytes(line['bytes'])} in {counted(line['blocks'], 'block')}{place} "
        f"({line['kind']})",
    )
    if line["difference"] > 0:
        yield (
            Evidence("memory", rank, "difference_bytes", first["difference_bytes"]),
            f"rank {rank}: {format_bytes(line['difference'])} more of it than the median of the other ranks",
        )


def _what_fits(size: int, kinds: Mapping[str, int], excess: dict[str, Any] | None, ranks: int) -> str:
    """Return the remedy for an allocation of ``size`` bytes that failed, from the memory of each kind."""
    options = []
    if excess is not None:
        options.append(
            f"not to keep what {excess['line'] or excess['kind']} allocates on this rank only "
            f"({format_bytes(excess['difference'])})"
        )
    passing = sum(kinds.get(kind, 0) for kind in _TRANSIENT_KINDS)
    activations = kinds.get("activations", 0)
    if activations >= size:
        options.append(
            "activation checkpointing (torch.utils.checkpoint; the activations take "
            f"{format_bytes(activations)})"
        )
    if passing >= size:
        options.append(f"a batch of {100 * (1 - size / passing):.0f} % of its size at most")
    state = sum(kinds.get(kind, 0) for kind in _STATE)
    shared = state * (1 - 1 / ranks) if ranks else 0
    if shared >= size:
        options.append(
            f"sharding over {ranks} ranks (fully_shard, ZeRO; that frees up to {format_bytes(shared)} of "
            "parameters, gradients and optimizer state)"
        )
    if kinds.get("fragmentation", 0) >= size:
        options.append(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
            f"({format_bytes(kinds['fragmentation'])} are reserved in pieces that are too small)"
        )
    if not options:
        return "Nothing that one kind holds would have made room: use more ranks or GPUs with more memory."
    return f"Each of these would have made room for {format_bytes(size)}: {'; '.join(options)}."


def _imbalance(tables: Mapping[str, Sequence[Row]]) -> Iterator[Finding]:
    """Yield a finding if the largest peak of a rank is far above the median of the others."""
    source, peaks = _peaks(tables)
    if len(peaks) < 2:
        return
    rank = max(peaks, key=lambda number: peaks[number])
    median_of_others = statistics.median(peak for other, peak in peaks.items() if other != rank)
    more = peaks[rank] - median_of_others
    if peaks[rank] < _MIN_RATIO * median_of_others or more < _MIN_BYTES:
        return
    rows = [row for row in tables["memory"] if row["rank"] == rank and row["difference_bytes"] is not None]
    lines = sorted(_by_line(iter(rows)), key=lambda line: -line["difference"])
    lines = [line for line in lines if line["difference"] > 0 and line["kind"] not in _UNHELD]
    key = "allocated_bytes" if source == "memory_use" else "peak_bytes"
    evidence = [
        (
            Evidence(source, rank, key, peaks[rank]),
            f"rank {rank}: {format_bytes(peaks[rank])} at the peak; median of the other ranks: "
            f"{format_bytes(median_of_others)}",
        ),
        *_line_evidence(rank, lines[0] if lines else None),
    ]
    remedy = (
        f"See what rank {rank} keeps and the others do not, in the analysis memory: results gathered on one "
        "rank, unequal shards, stages or batches. The rank with the most decides which batch fits."
        if lines
        else "Submit with --memory-history STEP to see which kind, module and line differ. The rank with the "
        "most decides which batch fits."
    )
    where = (lines[0]["line"] or lines[0]["kind"]) if lines else ""
    yield unpriced_finding(
        Cause.MEMORY_IMBALANCE, (rank,), where, evidence, remedy, "high" if lines else "medium"
    )


def _peaks(tables: Mapping[str, Sequence[Row]]) -> tuple[str, dict[int, int]]:
    """Return the highest peak of each rank, by the lines of its steps or, without any, its snapshots."""
    for name, key in (("memory_use", "allocated_bytes"), ("memory_snapshots", "peak_bytes")):
        largest: dict[int, int] = {}
        # Snapshots that another rank's failure requested were taken at any moment of a step.
        rows = [row for row in tables[name] if row.get("event") not in ("asked", "out_of_memory")]
        for row in rows:
            largest[row["rank"]] = max(largest.get(row["rank"], 0), row[key])
        if largest:
            return name, largest
    return "", {}


def growing_ranks(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of ``host_memory`` of the ranks whose memory grows with each step."""
    return [row for row in rows if row["grows"] and row["growth_bytes_per_step"] is not None]


def growth_in_words(row: Row) -> str:
    """Return a sentence on the growth of a rank's memory, and on the step at which its node is full."""
    low, high = (format_bytes(row[f"growth_{end}_bytes_per_step"]) for end in ("low", "high"))
    full = ""
    if row["full_in_s"] is not None:
        full = f"; the node is full at step {row['full_at_step']:,}, in {format_duration(row['full_in_s'])}"
    return (
        f"rank {row['rank']}: {format_bytes(row['growth_bytes_per_step'])} more in each step (between {low} "
        f"and {high}), now {format_bytes(row['resident_bytes'])}{full}"
    )


def _host(rows: Sequence[Row]) -> Iterator[Finding]:
    grown = growing_ranks(rows)
    if not grown:
        return
    key, listed = "growth_bytes_per_step", grown[:_MAX_NAMED_RANKS]
    evidence = [(Evidence("host_memory", row["rank"], key, row[key]), growth_in_words(row)) for row in listed]
    yield unpriced_finding(
        Cause.HOST_MEMORY,
        tuple(row["rank"] for row in grown),
        "",
        evidence,
        "Look for lists that grow: losses kept with their graph (use .item() or .detach()), caches without a "
        "limit, copies in each worker of a DataLoader. tracemalloc names the lines of Python.",
        "high" if min(row["samples"] for row in grown) >= _MIN_SURE_SAMPLES else "medium",
    )
