"""Contradictions between the answers about a run: ``python benchmarks/contradictions.py [FOLDER…]``.

Each FOLDER has the profiles of a run (``rank*.sqlite``, ``*.trace.json*``, also as ``.xz``, a
table of operations in ``*.parquet``, an archive in ``*.otf2``), or such folders.
Without any, the runs are generated: the programs of ``benchmarks/programs.py`` whose ranks reduce all
together, on two ranks or, if they need more, on four, and programs of tensor and pipeline groups.
Collects and explains each run in a temporary folder, compares every figure that two places show (analyses,
explanation, bars of the terminal and the page, charts, a comparison of the run with itself, the timeline, the
slices of a Perfetto trace, answers of ``hpcprof serve`` and to agents, SQL, and what commands print), and
prints the differences: run, what is compared, and both values. The last line counts the comparisons; the exit
status is 1 if any differ.
`tests/integration/test_contradictions.py` compares five runs.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote, unquote, urlencode

import anyio
import numpy as np
import pandas as pd
from starlette.types import ASGIApp

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from benchmarks.programs import KINDS, Loop  # noqa: E402
from benchmarks.simulated_exports import write_export  # noqa: E402
from hpcprof.analysis.explain.cause import Cause  # noqa: E402
from hpcprof.analysis.explain.explanation import Explanation, Finding  # noqa: E402
from hpcprof.analysis.framework.registry import ACROSS_RUNS  # noqa: E402
from hpcprof.analysis.steps.run_step import PARTS, ended_steps, whole_steps  # noqa: E402
from hpcprof.common.units import format_ns  # noqa: E402
from hpcprof.mcp.tools import Tools  # noqa: E402
from hpcprof.report.account import Account, accounts_of_steps  # noqa: E402
from hpcprof.report.contents import gather  # noqa: E402
from hpcprof.report.explanation import conclusion  # noqa: E402
from hpcprof.report.facts import facts  # noqa: E402
from hpcprof.report.page.chart_data import chart_data  # noqa: E402
from hpcprof.report.page.first_screen import first_screen  # noqa: E402
from hpcprof.report.perfetto.export import TRACE, export_trace  # noqa: E402
from hpcprof.results.across.across_runs import compare_sides, over_pair  # noqa: E402
from hpcprof.results.api import Results  # noqa: E402
from hpcprof.results.ask.windows import RunWindows  # noqa: E402
from hpcprof.results.collect.run_names import find_known_run  # noqa: E402
from hpcprof.results.store.store import Store, open_store  # noqa: E402
from hpcprof.runs.directory import Run, runs_directory  # noqa: E402
from hpcprof.runs.live_steps import noted_step_time  # noqa: E402
from hpcprof.serve.app import serve_store  # noqa: E402
from hpcprof.serve.catalogue import Catalogue  # noqa: E402
from hpcprof.serve.guard import Access  # noqa: E402
from tests.data.many_ranks import write_program  # noqa: E402
from tests.data.parallel_program import Program as Parallel  # noqa: E402
from tests.unit.report.perfetto.decoded import decode  # noqa: E402

ARCHIVE = "*.otf2"
PATTERNS = ("*.sqlite", "*.sqlite.xz", "*.trace.json*", "*.parquet", ARCHIVE)
ROUNDED = 1.0
"""A figure in whole ns may be rounded twice."""

_COUNTED = re.compile(r"per step of ((?:[\d,]+ of )?[\d,]+ steps?)")

_SHARE_PCT = 3.0
"""Shares of the whole capture, which has time outside the steps, and of steps differ by up to so much."""

_LATE = (Cause.LATE_RANK_HOST, Cause.LATE_RANK_GPU)


Command = Callable[..., str]
"""Runs a command of hpcprof beside the folder of runs, and returns what it prints."""


class Compared(NamedTuple):
    """A figure in two places, and by how much it may differ."""

    name: str
    a: Any
    b: Any
    tolerance: float = 0.0

    @property
    def differs(self) -> bool:
        """Return whether both values differ by more than the tolerance."""
        if isinstance(self.a, (int, float)) and isinstance(self.b, (int, float)):
            return abs(self.a - self.b) > self.tolerance
        return bool(self.a != self.b)


def compared(run: Results, command: Command) -> Iterator[Compared]:
    """Yield every figure of a collected run that two places show."""
    # An explanation prices late ranks in the tables.
    explanation = run.explain()
    tables = {name: run.analysis(name) for name in _TABLES}
    kinds, account = tables["step_kinds"], tables["step_account"]
    if not len(kinds):
        return
    every = kinds.iloc[0].fillna(0)
    yield from _medians(tables, explanation)
    yield from _of_account(every, account, tables)
    yield from _of_gpu_time(tables)
    yield from _of_steps(tables)
    yield from _of_kinds(kinds, explanation)
    yield from _of_findings(run, explanation)
    yield from _of_step_sets(tables, explanation)
    yield from _of_report(run, every, explanation)
    yield from _of_comparison(run, every)
    yield from _of_serve(run, every, explanation)
    yield from _of_commands(run, every, explanation, command)
    yield from _of_agents(run.run, run.store, int(every["elapsed_ns"]))
    windows = RunWindows(run.run, run.store)
    times = tables["step_times"]
    for rank in times["rank"].unique().tolist():
        steps, wall = windows.steps(rank), times["wall_ns"][times["rank"] == rank]
        yield Compared(f"steps of rank {rank}: timeline", (steps.end - steps.start).tolist(), wall.tolist())
    yield from _of_perfetto(run, tables)


def _of_perfetto(run: Results, tables: Mapping[str, pd.DataFrame]) -> Iterator[Compared]:
    """Yield what the slices of an exported trace add up to beside the tables."""
    ranks = sorted(tables["step_times"]["rank"].unique().tolist())
    with tempfile.TemporaryDirectory() as folder:
        export_trace(run.run, run.store, Path(folder), lambda _: None, ranks=ranks, steps=None)
        slices = decode(gzip.decompress((Path(folder) / TRACE).read_bytes())).slices
    skew = tables["skew_summary"].dropna(subset="uncertainty_ns")
    uncertainty = dict(zip(skew["rank"], skew["uncertainty_ns"], strict=True))
    sums = {"step": ("step_times", "wall_ns"), "kernel": ("kernels", "total_ns")}
    sums |= {"memory": ("memops", "total_ns"), "mpi": ("mpi_calls", "total_ns")}
    for rank in ranks:
        for category, (name, column) in sums.items():
            table = run.analysis(name)
            own = [s for s in slices if (s.process, s.category) == (f"rank {rank}", category)]
            drawn = sum(one.end - one.start for one in own)
            whole = int(table[column][table["rank"] == rank].sum()) if len(table) else 0
            # The common clock may run at another rate than that of the rank, and is not exact at either end.
            tolerance = len(own) + 1e-3 * whole + 2 * uncertainty.get(rank, 0)
            yield Compared(f"{name} of rank {rank}: Perfetto", drawn, whole, tolerance)


def compared_notes(run: Run, command: Command) -> Iterator[Compared]:
    """Yield the time of a step of a run without profiles, as each place shows it."""
    step = noted_step_time(run)
    assert step is not None
    folder = ("--runs-dir", str(run.path.parent))

    def written(*words: str) -> Any:
        return json.loads(command(*words, *folder, "--format", "json"))

    shown = written("explain", run.id)["step"]
    (listed,), (point,) = written("list"), written("history")
    compared_runs = written("compare", "--force", "--a", run.id, "--b", run.id)
    metrics = {row["metric"]: row["a"] for row in compared_runs["metrics"]}
    for name, value in {
        "explain": shown["elapsed_ns"],
        "list": listed["step_ns"],
        "history": point["value"],
        "compare": metrics["own_elapsed_per_step_ns"],
    }.items():
        yield Compared(f"elapsed step: {name}", value, step.elapsed_ns, ROUNDED)
    for name, value in {
        "explain": shown["wall_p50_ns"],
        "list": listed["step_p50_ns"],
        "compare": metrics["own_step_p50_ns"],
    }.items():
        yield Compared(f"median step: {name}", value, step.p50_ns, ROUNDED)
    for name in ("status", "explain"):
        said = " ".join(command(name, run.id, *folder).split())
        for quantity, ns in (("elapsed", step.elapsed_ns), ("median", step.p50_ns)):
            yield Compared(f"{quantity} step: text of {name}", format_ns(ns) in said, True)
    yield from _of_agents(run, open_store(None, run.path.parent), step.elapsed_ns, explained=False)


def _of_agents(run: Run, store: Store, elapsed_ns: float, explained: bool = True) -> Iterator[Compared]:
    """Yield what agents are told of the time of a step."""
    runs = store.runs_dir or runs_directory()
    tools = Tools(runs, store, Catalogue(runs, None, store), cast(Any, None), _no_collect)
    answers = {"find_runs": tools.find_runs(search=run.id)}
    if explained:
        answers["explain"] = tools.explain(run.id)
    for name, text in answers.items():
        yield Compared(f"elapsed step: {name} of agents", format_ns(elapsed_ns) in text, True)


def _no_collect(run: Run, store: Store) -> None:
    raise AssertionError(run)


_TABLES = (
    *(
        "step_kinds",
        "step_account",
        "step_times",
        "steps",
        "steps_summary",
        "breakdown",
        "idle_causes",
        "step_idle_causes",
    ),
    *(
        "skew",
        "skew_summary",
        "critical_path",
        "phases",
        "phase_times",
        "step_parts",
        "step_ranges",
        "exposed_communication",
    ),
    *("kernels", "kernels_by_shape", "kernel_classes", "overlap", "device_breakdown", "launches"),
    *("ranges", "range_gpu", "collectives", "collectives_summary", "rank_collectives", "hta_breakdown"),
)


def _medians(tables: Mapping[str, pd.DataFrame], explanation: Explanation) -> Iterator[Compared]:
    kinds = tables["step_kinds"].iloc[0]
    median, steps = int(kinds["wall_p50_ns"]), int(kinds["steps"])
    yield Compared("median step: steps_summary", int(tables["steps_summary"]["p50_ns"].iloc[0]), median)
    yield Compared("number of steps: steps_summary", int(tables["steps_summary"]["steps"].iloc[0]), steps)
    whole = whole_steps(tables["step_times"]).groupby("step")["wall_ns"].max()
    yield Compared("median step: step_times", round(float(whole.median())), median)
    yield Compared("median step: explain", explanation.step.wall_p50_ns, median)
    recorded = explanation.step.recorded_elapsed_ns or explanation.step.elapsed_ns
    yield Compared("elapsed step: explain", recorded, int(kinds["elapsed_ns"]))
    yield Compared("number of steps: explain", explanation.step.steps, steps)
    for value in tables["skew_summary"]["elapsed_ns"].dropna().unique():
        yield Compared("elapsed step: skew_summary", int(value), explanation.step.elapsed_ns)
    for name in ("verdict", "lateness_p50_ns"):
        yield Compared(f"{name}: skew", [*tables["skew"][name]], [*tables["skew_summary"][name]])


def _of_account(
    every: pd.Series[Any], account: pd.DataFrame, tables: Mapping[str, pd.DataFrame]
) -> Iterator[Compared]:
    whole = whole_steps(account)
    ranks, alike = int(account["rank"].nunique()), len(whole) == len(account)
    whole = whole[whole.groupby("rank").cumcount() < _ended_steps(whole_steps(tables["step_parts"]))]
    for name in PARTS:
        mean = float(whole[name].fillna(0).astype(float).mean())
        yield Compared(f"{name}: step_account", every[name], mean, len(PARTS))
    parts = sum(int(every[name]) for name in (*PARTS, "uneven_ns"))
    yield Compared("sum of the parts: step_kinds", parts, int(every["elapsed_ns"]))
    idle, rows = tables["idle_causes"], len(tables["idle_causes"])
    if rows and alike:
        total = float(idle["idle_ns_per_step"].sum()) / ranks
        yield Compared("idle time: idle_causes", total, float(every["idle_ns"]), ROUNDED + rows / 2)
    divided = tables["step_idle_causes"]
    if len(divided):
        keys = ["rank", "step"]
        by_step = divided.groupby(keys)["idle_ns"].sum()
        own = account.set_index(keys)
        filled = by_step.reindex(own.index, fill_value=0)
        yield Compared("idle time of each step: step_idle_causes", [*filled], [*own["idle_ns"].astype(int)])
        for _, row in tables["step_kinds"].iloc[1:].iterrows():
            of_kind = own["kind"] == row["kind"]
            ended = of_kind & own.index.isin([*zip(whole["rank"], whole["step"], strict=True)])
            mean = float(filled[ended if ended.any() else of_kind].mean())
            name = f"idle time of kind {row['kind']}: step_idle_causes"
            yield Compared(name, mean, float(row["idle_ns"]), len(PARTS))
    breakdown = tables["breakdown"]
    steps = float(every["elapsed_ns"]) * len(whole) / ranks
    if len(breakdown) and steps < (1 - _SHARE_PCT / 100) * float(breakdown["span_ns"].mean()):
        return
    for part in ("compute", "exposed_comm", "exposed_mem", "idle") if len(breakdown) else ():
        own = float(every[f"{part}_ns"]) + (float(every["wait_for_peer_ns"]) if part == "exposed_comm" else 0)
        share = 100 * own / float(every["elapsed_ns"])
        mean = float(breakdown[f"{part}_pct"].mean())
        yield Compared(f"share of {part}: breakdown", round(mean, 1), round(share, 1), _SHARE_PCT)


def _ended_steps(parts: pd.DataFrame) -> int:
    """Return how many of the steps have an end on all ranks."""
    names = ("start_ns", "wall_ns")
    by_rank = (rows for _, rows in parts.groupby("rank"))
    return min(ended_steps(*(rows[name].to_numpy(np.int64) for name in names)) for rows in by_rank)


def _of_gpu_time(tables: Mapping[str, pd.DataFrame]) -> Iterator[Compared]:
    """Yield the GPU's time of each rank as sums, unions and classes tell it."""
    by_rank = {name: dict([*table.groupby("rank")]) for name, table in tables.items() if "rank" in table}
    for rank, whole in by_rank["breakdown"].items():
        row = whole.iloc[0]
        own = {name: rows[rank] for name, rows in by_rank.items() if rank in rows}
        of_rank = f"of rank {rank}"
        if "overlap" in own:
            both = own["overlap"].iloc[0]
            exposed = int(both["comm_ns"]) - int(both["overlapped_ns"])
            yield Compared(f"exposed communication {of_rank}: overlap", exposed, int(row["exposed_comm_ns"]))
        if "kernel_classes" in own:
            classes = [
                (set(str(c).split("+")), int(ns)) for c, ns in own["kernel_classes"][["classes", "ns"]].values
            ]
            busy = int(row["span_ns"]) - int(row["idle_ns"])
            yield Compared(f"busy time {of_rank}: kernel_classes", sum(ns for _, ns in classes), busy)
            compute = sum(ns for names, ns in classes if "comp" in names)
            yield Compared(f"compute {of_rank}: kernel_classes", compute, int(row["compute_ns"]))
            exposed = sum(ns for names, ns in classes if "comm" in names and "comp" not in names)
            yield Compared(f"exposed {of_rank}: kernel_classes", exposed, int(row["exposed_comm_ns"]))
            hidden = sum(ns for names, ns in classes if {"comm", "comp"} <= names)
            if "overlap" in own:
                yield Compared(f"overlap {of_rank}: kernel_classes", hidden, int(both["overlapped_ns"]))
        if "exposed_communication" in own:
            parts = own["exposed_communication"]
            exposed = int((parts["end_ns"] - parts["start_ns"]).sum())
            yield Compared(f"exposed {of_rank}: its intervals", exposed, int(row["exposed_comm_ns"]))
        if "kernels" in own and "kernels_by_shape" in own:
            for column in ("instances", "total_ns"):
                totals = [int(own[name][column].sum()) for name in ("kernels", "kernels_by_shape")]
                yield Compared(f"{column} of kernels {of_rank}", *totals)
        if "kernels" in own and "launches" in own:
            fewer = int(own["launches"]["count"].sum()) <= int(own["kernels"]["instances"].sum())
            yield Compared(f"launches {of_rank} are of its kernels", fewer, True)
        if "rank_collectives" in own and "exposed_ns" in own["rank_collectives"]:
            least = int(own["rank_collectives"]["exposed_ns"].fillna(0).max())
            yield Compared(f"exposed collectives {of_rank}", least <= int(row["exposed_comm_ns"]), True)
        if "range_gpu" in own and "ranges" in own:
            count = own["ranges"].groupby("range")["instances"].sum()
            projected = own["range_gpu"].groupby("range")["instances"].sum()
            more = [name for name in projected.index if projected[name] > count.get(name, 0)]
            yield Compared(f"projected ranges {of_rank} are among its ranges", more, [])


def _of_steps(tables: Mapping[str, pd.DataFrame]) -> Iterator[Compared]:
    """Yield the times of each step and phase in the tables that have them."""
    keys = ["rank", "step"]
    wall = tables["step_times"].set_index(keys)["wall_ns"]
    for name in ("step_account", "step_parts"):
        own = tables[name].set_index(keys)["wall_ns"]
        yield Compared(f"wall times: {name}", own.to_dict(), wall[wall.index.isin(own.index)].to_dict())
    account, parts = (tables[name].set_index(keys) for name in ("step_account", "step_parts"))
    if len(account) and account.index.equals(parts.index):
        communication = account["exposed_comm_ns"].fillna(0) + account["wait_for_peer_ns"].fillna(0)
        for name, mine in {"exposed_comm_ns": communication, "compute_ns": account["compute_ns"]}.items():
            yield Compared(f"{name} of steps: step_parts", mine.tolist(), parts[name].tolist())
    longest = tables["step_times"].groupby("step")["wall_ns"].max()
    steps = tables["steps"].set_index("step")["max_ns"]
    common = steps.index.intersection(longest.index)
    yield Compared("longest rank: steps", steps[common].tolist(), longest[common].tolist())
    times = tables["phase_times"]
    medians = dict(times.groupby(["rank", "phase"])["wall_ns"].median()) if len(times) else {}
    for rank, phase, p50 in tables["phases"][["rank", "phase", "p50_ns"]].itertuples(index=False):
        if (rank, phase) in medians:
            yield Compared(
                f"median of {phase} of rank {rank}: phase_times", float(medians[rank, phase]), p50, 1
            )


def _of_step_sets(tables: Mapping[str, pd.DataFrame], explanation: Explanation) -> Iterator[Compared]:
    """Yield the steps that tables say they count, and those of their figures."""
    for name, count in (
        ("critical_path", explanation.step.explained_steps),
        ("skew_summary", tables["skew_summary"]["steps"].max()),
    ):
        if len(tables[name]):
            yield Compared(
                f"steps of {name}", int(tables[name].attrs["steps"].split()[0].replace(",", "")), int(count)
            )


def _of_kinds(kinds: pd.DataFrame, explanation: Explanation) -> Iterator[Compared]:
    rows = [(int(k), float(p), int(w), int(n)) for k, p, w, n in _columns(kinds.iloc[1:])]
    own = [(one.kind, one.share_pct, one.wall_p50_ns, one.steps) for one in explanation.step.kinds]
    yield Compared("kinds of steps: explain", own, rows)
    if rows:
        yield Compared("steps of all kinds", sum(row[-1] for row in rows), int(kinds["steps"].iloc[0]))


def _columns(kinds: pd.DataFrame) -> Iterator[Any]:
    yield from kinds[["kind", "share_pct", "wall_p50_ns", "steps"]].itertuples(index=False)


def _of_findings(run: Results, explanation: Explanation) -> Iterator[Compared]:
    elapsed = explanation.step.elapsed_ns or 0
    verdicts = run.analysis("skew").set_index("rank")["verdict"]
    summary = run.analysis("skew_summary").set_index("rank")
    for finding in _every(explanation.findings):
        name = f"{finding.cause} in {finding.where}"
        if finding.saving_ns is not None and elapsed:
            share = round(100 * finding.saving_ns / elapsed, 3)
            yield Compared(f"share of {name}", finding.share_pct, share, 0.001)
            yield Compared(f"saving of {name} is in the step", finding.saving_ns <= elapsed, True)
            low, high = finding.saving_low_ns or 0, finding.saving_high_ns or 0
            yield Compared(f"interval of {name}", low <= finding.saving_ns <= high, True)
        for one in finding.evidence:
            rows = run.analysis(one.analysis)
            rows = rows if one.rank is None or "rank" not in rows else rows[rows["rank"] == one.rank]
            found = one.value in set(rows[one.key].dropna()) or _is_sum(rows[one.key], one.value)
            yield Compared(f"evidence {one.analysis}.{one.key} = {one.value} of {name}", found, True)
    for finding in explanation.shown():
        if finding.cause in _LATE and len(finding.ranks) == 1 and len(summary):
            (rank,) = finding.ranks
            yield Compared(f"verdict on rank {rank}: skew", verdicts[rank] in ("late", "straggler"), True)
            yield Compared(f"cost of rank {rank}: skew_summary", summary["cost_ns"][rank], finding.saving_ns)
            share = finding.share_pct or 0.0
            yield Compared(f"share of rank {rank}: skew_summary", summary["cost_pct"][rank], share, 0.006)


def _is_sum(values: pd.Series[Any], value: object) -> bool:
    numbers = pd.to_numeric(values, errors="coerce").dropna()
    return (
        isinstance(value, (int, float)) and len(numbers) > 0 and abs(float(numbers.sum()) - value) <= ROUNDED
    )


def _every(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    for one in findings:
        yield one
        yield from _every((*one.alternatives, *one.together))


def _of_report(run: Results, every: pd.Series[Any], explanation: Explanation) -> Iterator[Compared]:
    contents = gather(run.run, run.store, None)
    bars, screen = accounts_of_steps(contents), first_screen(contents)
    yield from _of_bars(run, bars)
    elapsed, median = format_ns(int(every["elapsed_ns"])), format_ns(int(every["wall_p50_ns"]))
    for bar, shown in zip(bars, screen.accounts, strict=True):
        drawn = sum(part.ns for part in bar.parts)
        yield Compared(f"sum of the bar of kind {bar.kind}", drawn, bar.elapsed_ns)
        yield Compared(
            "slices of the page", [one.time for one in shown.slices], [format_ns(p.ns) for p in bar.parts]
        )
    first = conclusion(explanation)[0]
    for name, value in (("elapsed", elapsed), ("median", median)):
        yield Compared(f"{name} step: conclusion of explain", value in first, True)
        yield Compared(f"{name} step: title of the bar", value in screen.accounts[0].title, True)
    counted, shown_count = (_COUNTED.findall(text) for text in (first, screen.accounts[0].title))
    yield Compared("counted steps: conclusion of explain and title of the bar", counted, shown_count)
    charts = {chart.get("id"): chart for chart in chart_data(contents)}
    if rows := charts.get("account", {}).get("rows"):
        account = run.analysis("step_account")
        ranks = len(account["rank"].unique())
        if len(rows) == ranks:
            names = dict(rows[0]["parts"])
            for part, column in (("compute", "compute_ns"), ("idle", "idle_ns")):
                mean = sum(dict(row["parts"]).get(part, 0) for row in rows) / ranks
                if part in names:
                    table_mean = float(account.groupby("rank")[column].mean().mean())
                    yield Compared(f"{part}: chart of the ranks", mean, table_mean, ROUNDED)
    said = dict(facts(contents, findings=False)).get("stragglers", "")
    late = [one for one in explanation.shown() if one.cause in _LATE and len(one.ranks) == 1]
    for one in late:
        silent = said.startswith(("none", "unknown")) and f"rank {one.ranks[0]}" not in said
        yield Compared(f"stragglers ({said!r}) beside {one.cause} on rank {one.ranks[0]}", silent, False)


def _of_bars(run: Results, bars: Sequence[Account]) -> Iterator[Compared]:
    """Yield the parts of each bar beside the account of its kind of steps."""
    kinds = run.analysis("step_kinds").fillna(0).set_index("kind")
    for bar in bars:
        row = kinds.loc[bar.kind]
        yield Compared(f"elapsed step of kind {bar.kind}: bar", bar.elapsed_ns, int(row["elapsed_ns"]))
        yield Compared(f"median step of kind {bar.kind}: bar", bar.p50_ns, int(row["wall_p50_ns"]))
        yield Compared(f"counted steps of kind {bar.kind}: bar", bar.steps.count, int(row["counted_steps"]))
        yield Compared(f"number of steps of kind {bar.kind}: bar", bar.median_steps, int(row["steps"]))
        drawn = {part.name: part.ns for part in bar.parts}
        for name, column in (("compute", "compute_ns"), ("exposed communication", "exposed_comm_ns")):
            if name in drawn:
                yield Compared(f"{name} of kind {bar.kind}: bar", drawn[name], float(row[column]), len(PARTS))


def _of_serve(run: Results, every: pd.Series[Any], explanation: Explanation) -> Iterator[Compared]:
    """Yield what the answers of ``hpcprof serve`` say."""
    app = serve_store(run.run.path.parent / "runs", None, Access(frozenset({"localhost"})))

    def answer(path: str, **asked: str) -> Any:
        return json.loads(anyio.run(_get, app, path, urlencode(asked)))

    address = f"/api/runs/{quote(run.run.id, safe='')}"
    median = int(every["wall_p50_ns"])
    (listed,) = (one for one in answer("/api/runs")["runs"] if one["run"] == run.run.id)
    yield Compared("median step: list of serve", listed["step_p50_ns"], median)
    yield Compared("elapsed step: list of serve", listed["step_ns"], int(every["elapsed_ns"]))
    shown = answer(address)
    short = json.loads(json.dumps(explanation.in_short().as_json()))
    yield Compared("explanation: run of serve", shown["explanation"], short)
    for name in ("step_kinds", "idle_causes", "breakdown", "step_account"):
        columns, table = answer(f"{address}/tables/{name}")["columns"], run.analysis(name)
        for column, values in columns.items():
            own = [None if pd.isna(one) else one for one in table[column]] if column in table else values
            yield Compared(f"{name}.{column}: table of serve", values, own)
    for history in answer("/api/history")["histories"]:
        for point in history["points"]:
            if point["run"] == run.run.id:
                shown = f"{history['metric']}: history of serve"
                yield Compared(shown, point["value"], float(every["elapsed_ns"]))


async def _get(app: ASGIApp, path: str, query: str) -> bytes:
    """Return the body of an answer of an application."""
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        **{"type": "http", "method": "GET", "http_version": "1.1", "scheme": "http", "root_path": ""},
        **{"path": unquote(path), "raw_path": path.encode(), "query_string": query.encode()},
        "headers": [(b"host", b"localhost")],
    }
    await app(scope, receive, send)
    return b"".join(parts)


def _of_commands(
    run: Results, every: pd.Series[Any], explanation: Explanation, command: Command
) -> Iterator[Compared]:
    """Yield what commands write as JSON, and the time of a step in their texts."""

    def written(*words: str) -> Any:
        return json.loads(command(*words, "--format", "json"))

    times = int(every["elapsed_ns"]), int(every["wall_p50_ns"])
    (listed,) = (row for row in written("list") if row["run"] == run.run.id)
    yield Compared("step: list", (listed["step_ns"], listed["step_p50_ns"]), times)
    sql = "SELECT elapsed_ns, wall_p50_ns FROM analysis_step_kinds WHERE kind = 0 AND run_id = '{}'"
    (row,) = written("query", sql.format(run.run.id))
    yield Compared("step: SQL", (row["elapsed_ns"], row["wall_p50_ns"]), times)
    said = " ".join(command("report", str(run.run.path)).split())
    for ns in times:
        yield Compared("step: text of report", format_ns(ns) in said, True)
    explained = written("explain", str(run.run.path))
    whole = json.loads(json.dumps(explanation.as_json()))
    shown = explanation.shown()
    findings = zip(whole["findings"], explanation.findings, strict=True)
    whole["findings"] = [one for one, finding in findings if finding in shown]
    for key in ("step", "hidden", "not_judged", "findings"):
        yield Compared(f"{key}: explain --format json", explained[key], whole[key])


def _of_comparison(run: Results, every: pd.Series[Any]) -> Iterator[Compared]:
    rows = over_pair(ACROSS_RUNS["step_difference"], [run.run], [run.run], run.store).rows
    for row in rows:
        yield Compared(f"{row['part']}: step_difference of the run with itself", row["difference_ns"], 0)
    sides = {row["part"]: row["a_ns"] for row in rows}
    yield Compared("elapsed step: step_difference", sides.get("step"), int(every["elapsed_ns"]))
    yield Compared("compute: step_difference", sides.get("compute"), int(every["compute_ns"]))
    compared_runs = compare_sides([run.run], [run.run], run.store, force=True)
    metrics = {row["metric"]: row for row in compared_runs.rows}
    for name, row in metrics.items():
        yield Compared(f"{name}: compare of the run with itself", row["a"], row["b"])
    for name, column in (("step_p50_ns", "wall_p50_ns"), ("elapsed_per_step_ns", "elapsed_ns")):
        if name in metrics:
            yield Compared(f"{name}: compare", metrics[name]["a"], float(every[column]), ROUNDED)
    for part in PARTS:
        name = f"{part.removesuffix('_ns')}_per_step_ns"
        if name in metrics:
            yield Compared(f"{name}: compare", metrics[name]["a"], float(every[part]), ROUNDED)


def folders(source: Path) -> Iterator[tuple[Path, str]]:
    """Yield each folder with profiles, and the pattern of one kind of them."""
    for folder in sorted({source, *(path for path in source.rglob("*") if path.is_dir())}):
        for pattern in PATTERNS:
            if any(folder.glob(pattern)):
                yield folder, pattern


def unpacked(folder: Path, pattern: str, target: Path) -> None:
    """Put the profiles of a run into a folder of its own."""
    if pattern == ARCHIVE:
        shutil.copytree(folder, target)
        return
    target.mkdir()
    for path in folder.glob(pattern):
        if path.suffix == ".xz":
            with lzma.open(path) as packed, (target / path.stem).open("wb") as file:
                shutil.copyfileobj(packed, file)
        else:
            shutil.copy(path, target)


def generate(folder: Path) -> None:
    """Write the profiles of generated programs, each into a folder of its own."""
    for kind in KINDS:
        program = next(one for ranks in (2, 4) if (one := kind(Loop(0, ranks))) is not None)
        timelines = program.timelines()
        if any(len(one.collectives) for one in timelines.values()):
            # Exports of these would need NCCL's ranges, as the programs of groups below have them.
            continue
        target = folder / kind.__name__
        target.mkdir()
        for rank, timeline in timelines.items():
            write_export(target / f"rank{rank}.sqlite", rank, timeline, len(program.planted))
    for name, of_groups in _OF_GROUPS.items():
        write_program(folder / name, of_groups)


_OF_GROUPS = {
    "tensor": Parallel(8, 300, tensor=2, slow={5: 6.0}),
    "pipeline": Parallel(4, 300, pipeline=4),
    "slow_stage_of_groups": Parallel(8, 300, pipeline=4, slow={2: 20.0, 3: 20.0}),
    "stalled_host": Parallel(4, 300, stalled={1: 6.0}),
    "missing_rank": Parallel(4, 300, missing=frozenset({3})),
    "lost_kernels": Parallel(4, 300, dropped={2: 0.2}),
}


def main() -> None:
    """Hunt for contradictions in every run of some folders."""
    count = differing = runs = 0
    with tempfile.TemporaryDirectory() as temporary:
        work, generated = Path(temporary) / "work", Path(temporary) / "generated"
        work.mkdir()
        generated.mkdir()
        if len(sys.argv) == 1:
            generate(generated)
        for source in [Path(one) for one in sys.argv[1:]] or [generated]:
            for number, (folder, pattern) in enumerate(folders(source)):
                found = [*differences(folder, pattern, work / f"{folder.name}-{number}")]
                runs += bool(found)
                count += len(found)
                for one in found:
                    if one.differs:
                        differing += 1
                        print(f"{folder.name}: {one.name}: {one.a} and {one.b}", flush=True)
    print(f"{differing} of {count:,} comparisons of {runs} runs differ")
    sys.exit(differing > 0)


def differences(folder: Path, pattern: str, target: Path) -> Iterator[Compared]:
    """Collect the profiles in a folder as a run of its own, and yield every figure that two places show."""
    unpacked(folder, pattern, target)
    command = [sys.executable, "-m", "hpcprof", "collect", str(target)]
    done = subprocess.run(
        command, cwd=target.parent, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    if done.returncode:
        print(f"{folder.name}: not collected: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return
    runs = target.parent / "runs"
    store = open_store(None, runs)
    yield from compared(
        Results(find_known_run(str(target), runs, store), store), partial(_ran, target.parent)
    )
    shutil.rmtree(target)


def _ran(folder: Path, *words: str) -> str:
    line = [sys.executable, "-m", "hpcprof", *words]
    done = subprocess.run(
        line, cwd=folder, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    return done.stdout


if __name__ == "__main__":
    main()
