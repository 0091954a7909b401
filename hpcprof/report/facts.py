"""The head of a report: what was run, what it measured itself, and who is late."""

import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from operator import itemgetter

from hpcprof.analysis.account.places import in_words
from hpcprof.analysis.collectives.declarations import COST_PCT
from hpcprof.analysis.collectives.verdicts import LATE
from hpcprof.analysis.framework.outcome import Row
from hpcprof.common.masking import masked_command
from hpcprof.common.units import (
    counted,
    format_bytes,
    format_duration,
    format_gbps,
    format_ns,
    listed,
    named_ranks,
    shortened,
    visible,
)
from hpcprof.report.contents import Contents
from hpcprof.report.explanation import in_short, opening_sentences, stall_verdict
from hpcprof.report.mpi import delays, messages, useful_time
from hpcprof.results.across.listing import job_seconds
from hpcprof.results.store.analysis_version import earlier_version
from hpcprof.results.store.tables import ProfileRow
from hpcprof.runs.preparation import describe_old_pythons, describe_staging
from hpcprof.workloads.schema import RankResult, Training, summarize

_MAX_OPERATIONS = 2
_MAX_STRAGGLERS = 3
_MAX_OTHER_RANGES = 4
_MAX_COMMAND = 1000
"""Maximum characters of a program's words that the head shows: a thousand files fill screens."""
_STEP_SOURCES = {
    "automatic": "found as it repeats",
    "MPI calls": "found as its sequence of MPI calls repeats",
    "launches": "found as its sequence of launches repeats",
    "its name": "the only long range",
    "--step-range": "named by --step-range",
    "PyTorch profiler": "",
    "optimizer": "known from PyTorch's optimizers",
}


def facts(contents: Contents, *, findings: bool = True) -> list[tuple[str, str]]:
    """Return the facts about a run as pairs of a label and its text, the run's id first.

    The ``findings`` of its explanation come next.
    """
    run, *described = _description_facts(contents)
    explained = _finding_facts(contents) if findings else []
    return [run, *explained, *described, *_measured_facts(contents.results), *_step_facts(contents)]


def _finding_facts(contents: Contents) -> list[tuple[str, str]]:
    """Return the findings that explain where the time of a step goes, two lines each."""
    if contents.explanation is None:
        if contents.unexplained:
            return [("findings", f"could not be computed: {visible(contents.unexplained)}")]
        return [("findings", f"{contents.explaining} computes them")] if contents.explaining else []
    has_account = contents.table("step_kinds").rows
    opening = (stall_verdict if has_account else opening_sentences)(contents.explanation)
    lines = [*opening, *in_short(contents.explanation), f"details: {contents.explaining}"]
    return [("" if number else "findings", line) for number, line in enumerate(lines)]


def _description_facts(contents: Contents) -> list[tuple[str, str]]:
    run, status, profiles = contents.run, contents.status, contents.profiles.values()
    described = [("run", run.id)]
    if run.manifest is not None:
        job = run.manifest.job
        ranks = counted(job.ranks_per_node, "rank")
        described += [
            (
                "job",
                f"{job.workload or shortened(masked_command(job.arguments), _MAX_COMMAND)} on {job.site}",
            ),
            ("ranks", f"{counted(job.nodes, 'node')} x {ranks}"),
            ("submitted", run.manifest.created),
        ]
    else:
        files = [str(run.path / name) for name in {profile.file for profile in profiles}]
        described.append(("profile", files[0]) if len(files) == 1 else ("folder", str(run.path)))
    if status is not None:
        described.append(("state", str(status)))
        if status.state.ended and (seconds := job_seconds(run)):
            described.append(("duration", format_duration(seconds)))
    if staged := describe_staging(run):
        described.append(("environment", staged))
    if old := describe_old_pythons(run):
        described.append(("Python", old))
    if profiles:
        described.append(("profiles", f"{counted(len(profiles), 'rank')}, {_profilers(profiles)}"))
        # Each rank lists all GPUs of its node.
        unused = " and ".join(sorted({gpu.name for gpu in contents.gpus}))
        described.append(
            ("GPUs", _gpus_of(contents) or (f"no work recorded on {unused}" if unused else "none recorded"))
        )
        earlier = earlier_version(profiles)
        if earlier:
            described.append(("figures", f"computed by {earlier}"))
    return described


def _profilers(profiles: Iterable[ProfileRow]) -> str:
    """Return the profilers with their versions; an older profile may not record its version."""
    versions: dict[str, set[str]] = {}
    for profile in profiles:
        versions.setdefault(profile.kind, set()).add(profile.profiler_version or "")
    named = (f"{kind} {' and '.join(sorted(numbers - {''}))}" for kind, numbers in sorted(versions.items()))
    return ", ".join(text.rstrip() for text in named)


def _gpus_of(contents: Contents) -> str:
    """Return ``4 x NVIDIA H200`` for each model: the GPUs of each rank, shared ones once by their UUIDs."""
    named = [profile.devices.split(", ") for profile in contents.profiles.values() if profile.devices]
    used = Counter(name for names in named for name in names)
    gpus = {(gpu.rank, gpu.uuid) for gpu in contents.gpus if gpu.uuid}
    models = {gpu.uuid: gpu.name for gpu in contents.gpus}
    # A copy without private data has one UUID for all.
    present = Counter(models.values()) if len(gpus) == len(contents.gpus) else used
    return ", ".join(
        f"{min(number, present[name] or number)} x {name}" for name, number in sorted(used.items())
    )


def _measured_facts(results: list[RankResult]) -> list[tuple[str, str]]:
    """Return the measurements of the workload itself: step times, correctness, overlap and training."""
    if not results:
        return []
    first = results[0]
    points = first.every_point()
    profiled = any(result.profiler != "none" for result in results)
    return [
        *(("step time", _step_time(point, profiled)) for point in points),
        *_correctness_facts(results),
        *(("overlap", sentence) for point in points for sentence in _without_overlap(point)),
        *([("training", trained(first.training))] if first.training else []),
    ]


def _step_time(result: RankResult, profiled: bool) -> str:
    """Return the step time at a point of a sweep, of the fastest mode where there are several."""
    latencies = {name: summarize(mode.latency_ns) for name, mode in result.modes.items()}
    latencies = latencies or {result.mode: summarize(result.latency_ns or result.step_ns)}
    fastest = min(latencies, key=lambda name: latencies[name].p50_ns)
    latency = latencies[fastest]
    notes = ["workload's clock", "slowest rank", f"n={latency.n}"]
    if len(latencies) > 1:
        notes.append(f"{fastest}, the fastest of {len(latencies)} modes")
    if profiled:
        notes.append("while profiled")
    return _time_text(
        result.point, f"p50 {format_ns(latency.p50_ns)}, p95 {format_ns(latency.p95_ns)} ({', '.join(notes)})"
    )


def _correctness_facts(results: list[RankResult]) -> list[tuple[str, str]]:
    """Return whether the results are correct; nothing where the workload has no reference."""
    checks = [
        (result.rank, check)
        for result in results
        for point in result.every_point()
        for check in (point.correctness, *(mode.correctness for mode in point.modes.values()))
        if check is not None
    ]
    if not checks:
        return []
    wrong = sorted({rank for rank, check in checks if not check.passed})
    # A failed check is the worst, even where its error is NaN, which compares with nothing.
    worst = max(
        (check for _, check in checks),
        key=lambda check: (not check.passed, check.relative_error / check.bound),
    )
    verdict = f"wrong on {named_ranks(wrong)}"
    return [
        (
            "results",
            f"{verdict if wrong else 'correct'}: relative error {worst.relative_error:.1e} on "
            f"{counted(worst.rows, 'row')} (bound {worst.bound:.0e}); reference: {worst.reference}",
        )
    ]


def _without_overlap(result: RankResult) -> list[str]:
    """Return the workload's own notes on the modes that hide no communication."""
    unseen = [
        name for name, mode in result.modes.items() if mode.figures and mode.figures.overlapped is False
    ]
    return [
        _time_text(result.point, note)
        for name in unseen
        for note in result.notes
        if note.startswith(f"{name} ") and "overlap" in note
    ]


def _time_text(point: str, sentence: str) -> str:
    return f"{point}: {sentence}" if point else sentence


def trained(training: Training) -> str:
    """Return a training's throughput, its last loss and its buckets of gradients."""
    facts = [f"{training.rate:.1f} {training.unit}/s over all ranks"]
    if training.loss:
        last = training.loss[-1]
        facts.append(f"loss {'NaN' if last is None else f'{last:.4f}'} at the last step")
    if training.bucket_bytes:
        buckets = counted(len(training.bucket_bytes), "bucket")
        facts.append(f"{buckets}, {format_bytes(sum(training.bucket_bytes))}")
    return ", ".join(facts)


def _step_facts(contents: Contents) -> list[tuple[str, str]]:
    """Return facts on the steps, the bandwidth of the collectives, and the ranks that are late to them."""
    steps, pop = contents.table("step_times").rows_by_rank, contents.table("pop").rows
    # The barriers of a program that calls MPI outside its steps alone say nothing about these.
    waits = contents.table("mpi_delays").rows if pop or not steps else []
    facts_of_run = [
        ("steps", step_range(contents.table("step_ranges").rows, contents.collect, steps)),
        ("efficiency", useful_time(pop, contents.hides_waits)),
        ("MPI waits", delays(waits)),
        ("MPI messages", messages(contents.table("mpi_matrix").rows)),
        ("bus bandwidth", _bandwidth(contents.table("collectives_summary").rows)),
        (
            "stragglers",
            stragglers(contents.table("skew_summary").rows, contents.in_full("skew"), contents.threshold),
        ),
    ]
    return [(label, text) for label, text in facts_of_run if text]


def step_range(
    rows: list[Row], collect: str = "hpcprof collect", steps: Mapping[int, int] | None = None
) -> str:
    """Return the range that is the step, how it was found, and other candidates; empty without ranges.

    ``collect`` is the command that collects the run again, and ``steps`` the number of steps by rank, shown
    where it differs from the number of ranges.
    """
    if not rows:
        return ""
    chosen = [row for row in rows if row["chosen"]]
    names = dict.fromkeys(row["range"] for row in chosen)
    # Ranges that only repeat come after those that could be found.
    ordered = sorted(rows, key=lambda row: row["source"] == "repeats")
    other_ranges = list(dict.fromkeys(row["range"] for row in ordered if row["range"] not in names))
    possible = listed([visible(shortened(name)) for name in other_ranges], _MAX_OTHER_RANGES)
    if not chosen:
        first = other_ranges[0]
        command = f"; {collect} --step-range {shlex.quote(first)} takes the first"
        return f"none found: figures are per capture; possible: {possible}" + (
            command if shortened(first) == first else ""
        )
    range_texts = [
        _range_sentence(name, [row for row in chosen if row["range"] == name], steps or {}) for name in names
    ]
    return "; ".join([*range_texts, *([f"also possible: {possible}"] if other_ranges else [])])


def _range_sentence(name: str, rows: list[Row], steps: Mapping[int, int]) -> str:
    number = _range_text([row["instances"] for row in rows])
    source = rows[0]["source"]
    how = _STEP_SOURCES.get(source, "" if source == name else f"known from {source}")
    where = f"on {'each of ' if len(rows) > 1 else ''}{counted(len(rows), 'rank')}"
    if any(steps.get(row["rank"], row["instances"]) != row["instances"] for row in rows):
        where += f" ({_range_text([steps.get(row['rank'], 0) for row in rows])} steps)"
    return ", ".join(filter(None, [visible(shortened(in_words(name))), how, f"{number} {where}"]))


def _range_text(counts: Collection[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _bandwidth(rows: list[Row]) -> str:
    measured = [row for row in rows if row["busbw_p50_gbps"] is not None]
    return "; ".join(
        f"{row['op']} of {format_bytes(row['bytes'])}: "
        f"{format_gbps(row['busbw_p50_gbps'])} (n={row['count']})"
        for row in measured[:_MAX_OPERATIONS]
    )


def stragglers(rows: list[Row], details: str, threshold: float = COST_PCT) -> str:
    """Return the ranks that `skew_summary` calls late; nothing where only one rank was profiled.

    ``details`` is the command that shows why some are unknown, and ``threshold`` the cost of a straggler in
    percent of the elapsed time per step.
    """
    if len(rows) < 2:
        return ""
    unknown = [row for row in rows if row["verdict"] == "unknown"]
    hidden = max((_max_lateness_pct(row) for row in unknown), default=0.0)
    cannot_tell = f"unknown for {len(unknown):,} of {len(rows):,} ranks: see {details}"
    late = sorted((row for row in rows if row["verdict"] in LATE), key=lambda row: -row["cost_pct"])
    if late:
        # Ranks that one finding names have one cost.
        groups = [[*group] for _, group in groupby(late, key=itemgetter("cost_ns", "steps"))]
        named = [
            f"the lateness of {named_ranks([row['rank'] for row in group], most=_MAX_STRAGGLERS)} costs "
            f"{format_ns(row['cost_ns'])} a step, {row['cost_pct']:.1f} % of {format_ns(row['elapsed_ns'])} "
            f"(judged over {counted(row['steps'], 'step')}{_clocks_text(row)})"
            for group in groups[:_MAX_STRAGGLERS]
            for row in [max(group, key=lambda row: row["uncertainty_ns"] or 0)]
        ]
        more = sum(map(len, groups[_MAX_STRAGGLERS:]))
        named += [f"and {more} more"] if more else []
        sentence = "; ".join([*named, *([cannot_tell] if hidden >= threshold else [])])
        return sentence if any(row["verdict"] == "straggler" for row in late) else f"none, but {sentence}"
    if hidden >= threshold:
        return cannot_tell
    sentence = f"none among {len(rows):,} ranks (n={counted(min(row['steps'] for row in rows), 'step')})"
    return f"{sentence}, but up to {hidden:.1f} % of the step time may be hidden" if unknown else sentence


def _clocks_text(row: Row) -> str:
    uncertainty = row["uncertainty_ns"]
    return f", clocks ± {format_ns(uncertainty)}" if uncertainty else ""


def _max_lateness_pct(row: Row) -> float:
    """Return the most that a rank's lateness may cost, in percent of a step; infinite if unknown."""
    # Stores of earlier versions have no interval.
    most = row.get("lateness_high_ns")
    return math.inf if most is None else 100 * most / row["elapsed_ns"]
