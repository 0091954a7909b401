"""The evidence of a finding: cells of analyses that a reader can look up, and the sentence for each."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hpcprof.analysis.account import places
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait
from hpcprof.analysis.explain.explanation import Evidence, Finding
from hpcprof.common.units import counted, format_bytes, format_ns
from hpcprof.profiles.kernel_names import labels, short_name

if TYPE_CHECKING:  # a report of kept findings needs no pandas
    import pandas as pd


Tables: TypeAlias = "Mapping[str, pd.DataFrame]"
Row = Mapping[str, Any]

_MAX_EVIDENCE = 3
_MIN_SHOWN_P_VALUE = 1e-6
"""Minimum p-value that is shown as it is: a smaller one is "p < 1e-06"."""

_MIN_IDLE_SHARE = 0.05
"""Minimum idle time that is evidence of a cause, as a share of the cause's own time."""

_MAX_NAME_LENGTH = 60


def evidence_of(
    tables: Tables,
    candidate: Candidate,
    ranks: tuple[int, ...],
    steps: Collection[int] | None = None,
    *,
    with_mpi: bool,
) -> tuple[Evidence, ...]:
    """Return the largest figures that show a cause, each a cell of an analysis.

    ``ranks`` are the numbers of the ranks that have the cause. Figures of MPI calls count only ``with_mpi``:
    in programs whose GPUs communicate by themselves, such as those with a barrier, they show nothing. The
    account of a step counts if it is one of ``steps``, by default any.
    """
    # Several places are joined by commas.
    inner = ", ".join(place.rpartition("/")[2] for place in candidate.where.split(", "))
    evidence: list[Evidence] = []
    for figures in candidate.cause.figures:
        table = tables[figures.analysis]
        if not len(table) or (figures.analysis.startswith("mpi_") and not with_mpi):
            continue
        rows = table[figures.rows(table, inner)]
        rank_column = "delaying_rank" if "delaying_rank" in rows else "rank"
        rows_of_ranks = rows[rows[rank_column].isin(ranks)] if rank_column in rows else rows
        candidates = rows_of_ranks if len(rows_of_ranks) or candidate.has(Trait.LATE_RANK) else rows
        if figures.analysis == "step_account" and steps is not None:
            candidates = candidates[candidates["step"].isin(steps)]
        if figures.analysis == "idle_causes":
            candidates = candidates[candidates[figures.key] >= _MIN_IDLE_SHARE * candidate.own_ns]
        evidence += largest(figures.analysis, figures.key, candidates)
    return tuple(evidence[:_MAX_EVIDENCE])


def with_distinct_evidence(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings without the figures that an earlier one shows; the only figure of a finding stays."""
    repeated: set[Evidence] = set()
    result = []
    for finding in findings:
        further = tuple(item for item in finding.evidence if item not in repeated)
        repeated.update(further)
        result.append(replace(finding, evidence=further or finding.evidence[:1]))
    return tuple(result)


def step_evidence(tables: Tables, steps: tuple[int, ...]) -> tuple[Evidence, ...]:
    """Return the wall times of some steps on the rank where each took longest."""
    table = tables["step_times"]
    rows = table[table["step"].isin(steps)].sort_values("wall_ns", ascending=False)
    return tuple(largest("step_times", "wall_ns", rows.drop_duplicates("step")))


def largest(analysis: str, key: str, rows: "pd.DataFrame") -> list[Evidence]:
    """Return the two largest values of a column of an analysis, as cells that can be looked up."""
    filled = rows[rows[key].notna()]
    values = filled[key].astype(float)
    top = filled.loc[values.sort_values(ascending=False, kind="stable").index[:2]]
    return [
        Evidence(analysis, int(row["rank"]) if "rank" in row else None, key, _plain_value(row[key]))
        for _, row in top.iterrows()
        if float(row[key]) > 0
    ]


def _plain_value(value: Any) -> int | float | str:
    number = float(value)
    return int(number) if number.is_integer() else number


_IDLE_CLAUSES = {
    "host": "while the host is {place}",
    "sync": "after the host has waited for it {place}",
    "allocation": "while memory is allocated or freed {place}",
    "copy": "until a copy {place} has ended",
    "launch": "before work that was launched in time {place}",
    "dependency": "until work of another stream has ended {place}",
}
"""Clauses about idle time, by the cause of `idle_causes`."""


_METRICS = {
    "sm_mhz": "clock",
    "memory_mhz": "memory clock",
    "frequency_mhz": "clock of the cores",
    "temperature_c": "temperature",
    "others_on_cores": "cores of the rank used by others",
    "cpu_wait_s": "waiting for a core",
    "blocked_pct": "samples waiting for files",
    "io_wait_s": "waiting for disks",
    "io_pressure_s": "time in which some process waits for files",
    "cpu_pressure_s": "time in which some process waits for a core",
    "memory_pressure_s": "time in which some process waits for memory",
    "memory_stall_s": "time in which the whole job waits for memory",
    "paging_pct": "samples waiting for pages of memory",
    "refaults": "pages that were taken away and are needed again",
    "major_faults": "page faults from disk",
    "swapped_pages": "swapped pages",
    "cgroup_throttled_s": "held back by the CPU limit of the job",
    "read_bytes": "data read",
    "written_bytes": "data written",
    "io_calls": "calls that read or write",
    "errors": "errors",
    "other_processes": "other processes",
}
"""Words for the metrics of telemetry whose names are not words."""


def in_words(
    tables: Tables, evidence: Evidence, on_host: bool = False, cause: CauseDeclaration | None = None
) -> str:
    """Return a figure of an analysis as a sentence.

    ``on_host`` is true for programs without work on a GPU; ``cause`` may have a sentence of its own.
    """
    figure = (evidence.analysis, evidence.key)
    declared = cause.figures if cause else ()
    figures = [entry for entry in declared if (entry.analysis, entry.key) == figure]
    row = _row(tables[evidence.analysis], evidence, figures) if evidence.analysis in tables else None
    say = (
        next(filter(None, (entry.sentence for entry in figures)), None)
        or (on_host and _HOST_SENTENCES.get(figure))
        or _SENTENCES.get(figure)
    )
    if row is None or say is None:
        return plain_figure(evidence)
    cells = {key: _Cell(value) for key, value in row.items()}
    sentence = say.format_map(cells) if isinstance(say, str) else say(row)
    return sentence if evidence.rank is None else f"rank {evidence.rank}: {sentence}"


def _row(table: "pd.DataFrame", evidence: Evidence, figures: Sequence[Figures]) -> Row | None:
    """Return the row of a figure; of rows with one value, that which the declaration of the cause chooses."""
    is_row = table[evidence.key] == evidence.value
    if evidence.rank is not None:
        is_row &= table["rank"] == evidence.rank
    candidates = table[is_row]
    chosen = [part for entry in figures if len(part := candidates[entry.rows(candidates, "")])]
    rows: list[Row] = (chosen or [candidates])[0].head(1).to_dict("records")
    return next(iter(rows), None)


def plain_figure(evidence: Evidence) -> str:
    """Return a figure under the name of its column, for those without a sentence of their own."""
    words = evidence.key.removesuffix("_ns").replace("_", " ")
    is_time = evidence.key.endswith("_ns") and not isinstance(evidence.value, str)
    value = format_ns(float(evidence.value)) if is_time else str(evidence.value)
    prefix = "" if evidence.rank is None else f"rank {evidence.rank}: "
    return f"{prefix}{words} of {value} in {evidence.analysis}"


def _idle_sentence(row: Row, idle: str = "the GPU is idle for") -> str:
    calling = f" ({row['api']})" if isinstance(row["api"], str) and row["api"] else ""
    name = row["range"] if isinstance(row["range"], str) else ""
    inside = f"in {places.in_words(name)}" if name else "outside all ranges"
    reason = _IDLE_CLAUSES.get(row["cause"], "for an unknown reason {place}").format(
        place=f"{inside}{calling}"
    )
    return f"{idle} {format_ns(row['idle_ns_per_step'])} of a step {reason}"


class _Cell(NamedTuple):
    """A value in a sentence: ``{time_ns:time}``, ``{read_bytes:size}``, ``{name:kernel}``, ``{calls:call}``.

    Any other word is that for one of what the value counts.
    """

    value: Any

    def __format__(self, spec: str) -> str:
        if spec == "time":
            return format_ns(self.value)
        if spec == "size":
            return format_bytes(self.value)
        if spec == "place":
            return places.in_words(self.value)
        if spec == "kernel":
            name = short_name(self.value)
            return labels([name], _MAX_NAME_LENGTH)[name]
        return counted(int(self.value), spec) if spec.isalpha() else format(self.value, spec)


def _mpi_wait_sentence(row: Row) -> str:
    has_place = isinstance(row["delaying_range"], str) and row["delaying_range"]
    where = f" ({row['delaying_range']})" if has_place else ""
    whom = "" if row["delaying_rank"] is None else f" for rank {int(row['delaying_rank'])}{where}"
    waited = f"it waits {format_ns(row['wait_ns'])} of the whole capture in {row['call']}"
    return f"{waited}{whom}: {row['pattern']}"


def _mpi_call_sentence(row: Row) -> str:
    sizes = f" of {row['size_class']}" if isinstance(row["size_class"], str) else ""
    calls = counted(int(row["calls"]), "call")
    return f"{calls} of {row['call']}{sizes}, {format_ns(row['median_ns'])} each"


def _coincidence_sentence(row: Row) -> str:
    metric = _METRICS.get(row["metric"], row["metric"].replace("_", " "))
    place = "" if str(row["device"]).startswith("rank") else f" of {row['device']}"
    subject = row["subject"]
    then, usual = (_with_unit(row[key], row["unit"]) for key in ("then", "usual"))
    if subject == "io":
        return f"it waits for files in {then} of the samples"
    if subject == "memory":
        return f"it waits for memory in {then} of the time"
    if subject == "cores":
        return f"waiting for its cores costs {then} of the time, while others use them"
    against = "on the other ranks" if subject == "rank" else "else"
    doubt = "" if row["beyond_chance"] else "may be chance, "
    chance = max(row["p_value"], _MIN_SHOWN_P_VALUE)
    p_value = f"p {'<' if chance > row['p_value'] else '='} {chance:.2g}"
    return f"{metric}{place} {then}, {against} {usual} ({doubt}{p_value})"


def _with_unit(value: float, unit: str) -> str:
    if unit.startswith("bytes"):
        return f"{format_bytes(value)}{unit.removeprefix('bytes')}"
    return f"{value:,.4g} {unit}".strip()


_CALLS = "{num_calls:call} of {name}, {total_ns:time} in all"
_COPIES = "{count:operation} {operation}, {total_ns:time} in all"
_SENTENCES: dict[tuple[str, str], str | Callable[[Row], str]] = {
    ("idle_causes", "idle_ns_per_step"): _idle_sentence,
    ("step_account", "idle_ns"): "the GPU is idle for {idle_ns:time} of step {step}",
    ("step_account", "compute_ns"): "compute takes {compute_ns:time} of step {step}",
    ("step_account", "exposed_comm_ns"): "exposed communication takes {exposed_comm_ns:time} of step {step}",
    ("step_account", "exposed_mem_ns"): "copies alone take {exposed_mem_ns:time} of step {step}",
    ("step_times", "wall_ns"): "step {step} takes {wall_ns:time}",
    ("api", "total_ns"): _CALLS,
    ("api", "num_calls"): _CALLS,
    ("os_calls", "ns_per_step"): "{ns_per_step:time} of each step in {call}, {calls:call}",
    ("memops", "total_ns"): _COPIES,
    ("memops", "count"): _COPIES,
    ("kernels", "total_ns"): "{instances:run} of {name:kernel}, {total_ns:time} in all",
    ("kernels", "instances"): "{instances:run} of {name:kernel}, {avg_ns:time} each on average",
    ("skew_summary", "lateness_p50_ns"): "its lateness is {lateness_p50_ns:time} in a median step",
    ("slowdown", "slowdown"): "{name:kernel} takes {slowdown:.2f} times as long beside communication",
    ("mpi_waits", "wait_ns"): _mpi_wait_sentence,
    ("mpi_calls", "calls"): _mpi_call_sentence,
    ("mpi_calls", "transfer_ns"): "{call} transfers for {transfer_ns:time} in all",
    ("rank_collectives", "world_ranks"): "its collectives belong to {world_ranks:rank}",
    ("coincidences", "then"): _coincidence_sentence,
    ("darshan_files", "read_s"): "reads of {file} take {read_s:.3g} s of {ranks:rank}: {read_bytes:size} in "
    "{reads:call} (Darshan)",
    ("darshan_files", "write_s"): "writes to {file} take {write_s:.3g} s of {ranks:rank}: "
    "{written_bytes:size} in {writes:call} (Darshan)",
    ("operators", "calls"): "{calls:call} of {name}",
    ("ranges", "instances"): "{instances:instance} of {range:place}",
}
"""The sentence for a row of an analysis (see `_Cell`), by the analysis and the column of the figure."""

_IDLE_ON_HOST = "no operator and no collective runs for"
_HOST_SENTENCES: dict[tuple[str, str], str | Callable[[Row], str]] = {
    ("idle_causes", "idle_ns_per_step"): lambda row: _idle_sentence(row, _IDLE_ON_HOST),
    ("step_account", "idle_ns"): f"{_IDLE_ON_HOST} {{idle_ns:time}} of step {{step}}",
}
"""The sentences about programs without work on a GPU, where they differ."""
