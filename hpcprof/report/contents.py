"""What a report says, gathered once for the terminal and for HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpcprof.analysis.framework.registry import ANALYSES, Reads
from hpcprof.common.errors import HpcprofError
from hpcprof.common.units import format_bytes, format_ns, format_value
from hpcprof.profiles.readers.results import read_results
from hpcprof.results.store.store import Row, Store, Stored
from hpcprof.results.store.tables import ProfileRow
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.runs.failures import RankFailure, failed_ranks
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.workloads.schema import RankResult, Training, summarize

ORDER = (
    "steps_summary",
    "phases",
    "breakdown",
    "overlap",
    "collectives_summary",
    "skew",
    "slowdown",
    "kernels",
    "roofline",
    "ncu_kernels",
    "range_gpu",
    "ranges",
    "api",
)
"""The analyses of the full report, the most telling first; the others are shown by name."""

_OPERATIONS = 2
_STRAGGLERS = 3


class _Analyses(Mapping[str, Stored]):
    """The analyses of a run, each read when it is first asked for: some have many rows that few want."""

    def __init__(self, run_id: str, store: Store) -> None:
        self._run_id, self._store = run_id, store
        self._read: dict[str, Stored] = {}

    def __getitem__(self, name: str) -> Stored:
        if name not in self._read:
            if name not in ANALYSES:
                raise KeyError(name)
            self._read[name] = self._store.read(self._run_id, name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)


@dataclass(frozen=True)
class Contents:
    """Everything a report shows of one run. ``status`` is None for an adopted folder."""

    run: Run
    status: JobStatus | None
    failures: list[RankFailure]
    profiles: dict[int, ProfileRow]
    analyses: Mapping[str, Stored]
    results: list[RankResult]
    warnings: list[str]

    def shown(self) -> dict[str, Stored]:
        """Return the analyses of the full report, without those of a kind of profile that the run has not."""
        kinds = {Reads.of(profile.kind) for profile in self.profiles.values()}
        return {
            name: self.analyses[name] for name in ORDER if self.analyses and ANALYSES[name].reads in kinds
        }

    def facts(self) -> list[tuple[str, str]]:
        """Return what describes the run, as names and values."""
        facts = [("run", self.run.id)]
        if self.run.manifest is not None:
            job = self.run.manifest.job
            facts += [
                ("job", f"{job.workload or ' '.join(job.arguments)} on {job.site}"),
                ("ranks", f"{job.nodes} node{'s'[: job.nodes > 1]} x {job.ranks_per_node} ranks"),
                ("submitted", self.run.manifest.created),
            ]
        else:
            facts.append(("folder", str(self.run.path)))
        if self.status is not None:
            facts.append(("state", f"{self.status.state.value} {self.status.reason}".rstrip()))
        if self.profiles:
            kinds = sorted({f"{p.kind} {p.profiler_version or ''}".rstrip() for p in self.profiles.values()})
            devices = sorted({_counted(p.devices) for p in self.profiles.values() if p.devices})
            facts.append(("profiles", f"{len(self.profiles)} ranks, {', '.join(kinds)}"))
            facts.append(("GPUs", "; ".join(devices) or "none recorded"))
        return facts + self._measured() + self._found()

    def _measured(self) -> list[tuple[str, str]]:
        """Return the workload's own figures: its latency of a step, and whether its results are right."""
        if not self.results:
            return []
        first = self.results[0]
        under = "" if all(r.profiler == "none" for r in self.results) else ", while profiled"
        return [
            *(("own clock", _timed(point, under)) for point in first.every_point()),
            *self._checked(),
            *(("overlap", sentence) for point in first.every_point() for sentence in _no_overlap(point)),
            *([("training", trained(first.training))] if first.training else []),
        ]

    def _checked(self) -> list[tuple[str, str]]:
        """Return whether the results are right, where the workload compared them with something."""
        checks = [
            (result.rank, check)
            for result in self.results
            for point in result.every_point()
            for check in (point.correctness, *(mode.correctness for mode in point.modes.values()))
            if check is not None
        ]
        if not checks:
            return []
        wrong = sorted({rank for rank, check in checks if not check.passed})
        # A wrong rank first: its error may be no number, which compares with nothing.
        _, worst = max(
            checks, key=lambda found: (not found[1].passed, found[1].relative_error / found[1].bound)
        )
        verdict = f"wrong on ranks {', '.join(map(str, wrong))}" if wrong else "right"
        return [
            (
                "results",
                f"{verdict}: relative error {worst.relative_error:.1e}, bound {worst.bound:.0e}, against "
                f"{worst.reference} on {worst.rows} rows",
            )
        ]

    def _found(self) -> list[tuple[str, str]]:
        """Return what the collectives tell in a word: how fast they are, and who is late to them."""
        return [
            (name, value)
            for name, value in (
                ("bus bandwidth", self._bandwidth()),
                ("stragglers", stragglers(self._rows("skew_summary"))),
            )
            if value
        ]

    def _bandwidth(self) -> str:
        rows = [row for row in self._rows("collectives_summary") if row["busbw_p50_gbps"] is not None]
        return "; ".join(
            f"{row['op']} of {format_bytes(row['bytes'])} "
            f"{format_value('busbw_p50_gbps', row['busbw_p50_gbps'])} (n={row['count']})"
            for row in rows[:_OPERATIONS]
        )

    def _rows(self, analysis: str) -> list[Row]:
        return self.analyses[analysis].rows if analysis in self.analyses else []


def _timed(result: RankResult, under: str) -> str:
    """Say how long a step took, of the fastest mode where there were several, and at which point."""
    latencies = {name: summarize(mode.latency_ns) for name, mode in result.modes.items()}
    latencies = latencies or {result.mode: summarize(result.latency_ns or result.step_ns)}
    fastest = min(latencies, key=lambda name: latencies[name].p50_ns)
    latency = latencies[fastest]
    mode = f", {fastest}, the fastest of {len(latencies)} modes" if len(latencies) > 1 else ""
    return (
        f"{result.point}{': ' * bool(result.point)}step p50 {format_ns(latency.p50_ns)}, "
        f"p95 {format_ns(latency.p95_ns)} (slowest rank of each step, n={latency.n}{mode}{under})"
    )


def _no_overlap(result: RankResult) -> list[str]:
    """Say which modes show no overlap of communication and compute."""
    if not result.modes:
        return []
    # Imported here: only results of several modes need the workload's own code.
    from hpcprof.workloads.sequence_parallel.figures import no_overlap
    from hpcprof.workloads.sequence_parallel.options import at

    figures = {name: mode.figures for name, mode in result.modes.items() if mode.figures is not None}
    said = (no_overlap(name, found) for name, found in figures.items())
    return [at(result.point, sentence) for sentence in said if sentence]


def trained(training: Training) -> str:
    """Say how fast a training was, and where its loss ended."""
    said = [f"{training.rate:.1f} {training.unit}/s over all ranks"]
    if training.loss:
        last = training.loss[-1]
        said.append(f"loss {'no number' if last is None else f'{last:.4f}'} at the last step")
    if training.bucket_bytes:
        said.append(f"{len(training.bucket_bytes)} buckets, {format_bytes(sum(training.bucket_bytes))}")
    return ", ".join(said)


def stragglers(rows: list[Row]) -> str:
    """Say which ranks `skew_summary` calls stragglers; nothing where one rank alone was profiled."""
    if len(rows) < 2:
        return ""
    late = sorted((row for row in rows if row["verdict"] == "straggler"), key=lambda row: -row["cost_pct"])
    if late:
        named = [
            f"rank {row['rank']} is late by {format_ns(row['lateness_p50_ns'])} a step, "
            f"{row['cost_pct']:.1f} % of the step time "
            f"(n={row['steps']}, clocks ± {format_ns(row['uncertainty_ns'])})"
            for row in late[:_STRAGGLERS]
        ]
        more = len(late) - len(named)
        return "; ".join([*named, *([f"and {more} more"] if more else [])])
    unknown = sum(row["verdict"] == "unknown" for row in rows)
    if unknown:
        return f"unknown for {unknown} of {len(rows)} ranks: hpcprof report --analysis skew says why"
    return f"none among {len(rows)} ranks (n={min(row['steps'] for row in rows)} steps)"


def gather(run: Run, store: Store, status: JobStatus | None) -> Contents:
    """Gather a run's report from the store and the run directory.

    Raises
    ------
    HpcprofError
        If there is nothing to report: nothing collected, no results, no failure.
    """
    profiles = store.profiles(run.id) if store.exists() else {}
    results = read_results(run.path)
    ended_badly = status is not None and status.state.ended and status.state is not JobState.COMPLETED
    if not profiles and not results.ranks and not ended_badly:
        raise HpcprofError(f"{run.id} has not been collected: run hpcprof collect {run.path} first.")
    warnings = results.damaged
    if not profiles:
        warnings = [*warnings, f"no profile of this run has been collected: hpcprof collect {run.path}"]
    if run.manifest is not None and profiles:
        missing = [r for r in run.manifest.job.profiled_ranks if r not in profiles]
        if missing:
            ranks = ", ".join(map(str, missing[:16]))
            warnings = [*warnings, f"ranks chosen for the profiler, but no profile collected: {ranks}"]
    return Contents(
        run=run,
        status=status,
        failures=failed_ranks(run) if ended_badly else [],
        profiles=profiles,
        analyses=_Analyses(run.id, store) if profiles else {},
        results=results.ranks,
        warnings=warnings,
    )


def _counted(devices: str) -> str:
    """Return a node's GPUs with how many there are of each: ``4 x NVIDIA H200``."""
    return ", ".join(f"{n} x {name}" for name, n in Counter(devices.split(", ")).items())
