"""Measures what a collect costs, in units of a plain query: ``python benchmarks/collect.py EXPORT``.

EXPORT, an nsys SQLite export, is repeated in time (``--times``, by default 3). The unit is the time in which
Python's sqlite3 does ``fetchall`` of five columns of the table of API calls. The commands run in turns for
several rounds, so that other load on the machine affects all of them. The output has the least wall-clock and
CPU times, their ratios to the unit, and the largest memory of one process. With ``--nsys``, ``nsys stats``
runs in turns too.

With ``--jobs 1 2 4 8``, only collects run: each with so many jobs on as many cores, to which it is bound,
and by default on as many as the largest number. The output has how much faster each is than the first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

FETCH = """
import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute(
    "SELECT start, end, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
).fetchall()
"""
MEASURED = """
import os, sys
_, status, usage = os.wait4(os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ), 0)
with open(sys.argv[1], "w") as file:
    print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, file=file)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command from a small process: its ru_maxrss begins with the peak of the one that starts it."""
HPCPROF = [sys.executable, "-m", "hpcprof"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Without compiled modules, as pip installs them, imports take a second more."""

KEYS = ("wall", "cpu", "memory")
# A domain is created once, however often the profile is repeated.
_DOMAIN_CREATE = 75


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a command: seconds and MiB."""

    wall: float
    cpu: float
    memory: float


def cost(command: list[str], folder: Path) -> Cost:
    """Run a command and return its cost, including that of the processes that it waited for."""
    began = time.perf_counter()
    measured = [sys.executable, "-S", "-c", MEASURED, str(folder / "usage.txt"), *command]
    with (folder / "output.txt").open("wb") as output:
        status = subprocess.call(
            measured, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT
        )
    if status:
        sys.exit(f"{' '.join(command)}: {(folder / 'output.txt').read_text()}")
    wall = time.perf_counter() - began
    return Cost(wall, *map(float, (folder / "usage.txt").read_text().split()))


def repeat(source: Path, target: Path, times: int) -> None:
    """Write an export in which everything in ``source`` happens several times, one after the other."""
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as export, export:
        tables = [name for (name,) in export.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: [c[1] for c in export.execute(f'PRAGMA table_info("{name}")')] for name in tables}
        moved = {name: names for name, names in columns.items() if {"start", "correlationId"} & {*names}}
        steps = {
            "start": _span(export, moved),
            "correlationId": 1 + max(_extremes(export, moved, "correlationId"), default=0),
        }
        steps["end"] = steps["start"]
        for name, names in moved.items():
            last = export.execute(f"SELECT max(rowid) FROM {name}").fetchone()[0] or 0
            chosen = f"rowid <= {last}"
            if "eventType" in names:
                chosen += f" AND eventType <> {_DOMAIN_CREATE}"
            for i in range(1, times):
                values = (f'"{c}" + {i * steps[c]}' if c in steps else f'"{c}"' for c in names)
                export.execute(
                    f"INSERT INTO {name} SELECT {', '.join(values)} FROM {name} WHERE {chosen} ORDER BY rowid"
                )


def _span(export: sqlite3.Connection, tables: dict[str, list[str]]) -> int:
    """Return a time that is longer than the profile."""
    stamps = [*_extremes(export, tables, "start"), *_extremes(export, tables, "end")]
    return max(stamps) - min(stamps) + 1000


def _extremes(export: sqlite3.Connection, tables: dict[str, list[str]], column: str) -> list[int]:
    found = []
    for name in (name for name, names in tables.items() if column in names):
        found += export.execute(f'SELECT min("{column}"), max("{column}") FROM {name}').fetchone()
    return [value for value in found if value is not None]


def make_run(folder: Path, export: Path) -> str:
    """Make a run whose only profile is the export, and return its id."""
    command = [*HPCPROF, "submit", "--site", "local", "--wait", "--", "true"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (run,) = (folder / "runs").iterdir()
    (run / "profiles/rank00000.sqlite").symlink_to(export)
    return run.name


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("export", type=Path, help="an nsys SQLite export")
    parser.add_argument("--times", type=int, default=3, help="how often it is repeated (default 3)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each command runs (default 5)")
    parser.add_argument("--nsys", help="an nsys to compare with")
    parser.add_argument(
        "--jobs", type=int, nargs="+", metavar="N", help="numbers of jobs to compare, on N cores"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export = folder / "export.sqlite"
        repeat(given.export.absolute(), export, given.times)
        run = make_run(folder, export)
        fresh = ["sh", "-c", 'rm -rf runs/hpcprof.db runs/*/timeline; exec "$@"', "sh"]
        if given.jobs:
            compare_jobs(given.jobs, given.rounds, [*fresh, *HPCPROF, "collect", run], folder)
            return
        commands = {
            "fetchall of five columns (the unit)": [sys.executable, "-c", FETCH, str(export)],
            "hpcprof collect --jobs 2": [*fresh, *HPCPROF, "collect", "--jobs", "2", run],
            "hpcprof collect --jobs 1": [*fresh, *HPCPROF, "collect", "--jobs", "1", run],
            "hpcprof collect, nothing new": [*HPCPROF, "collect", run],
            "hpcprof report, which explains": [*HPCPROF, "report", run],
            "hpcprof report, from the store": [*HPCPROF, "report", run],
            "import hpcprof": [sys.executable, "-c", "import hpcprof"],
        }
        if given.nsys:
            commands["nsys stats, default reports"] = [given.nsys, "stats", str(export)]
        costs: dict[str, list[Cost]] = {what: [] for what in commands}
        for _ in range(given.rounds):
            for what, command in commands.items():
                costs[what].append(cost(command, folder))
        show(costs, f"{export.stat().st_size / 1e6:.0f} MB, {given.rounds} rounds")


def compare_jobs(jobs: Sequence[int], rounds: int, collect: list[str], folder: Path) -> None:
    """Collect with numbers of jobs in turns, and print the least of each and the ratio of times."""
    cores = sorted(os.sched_getaffinity(0))
    if max(jobs) > len(cores):
        sys.exit(f"--jobs {max(jobs)}: there are {len(cores)} cores.")
    chosen = [(f"--jobs {n}", n, ["--jobs", str(n)]) for n in jobs] + [("default", max(jobs), [])]
    costs: dict[str, list[Cost]] = {what: [] for what, *_ in chosen}
    for _ in range(rounds):
        for what, count, options in chosen:
            bound = ["taskset", "-c", ",".join(map(str, cores[:count])), *collect, *options]
            costs[what].append(cost(bound, folder))
    print(f"{'':>10} {'cores':>5} {'wall s':>7} {'times':>6} {'CPU s':>6} {'MiB':>5}  least of {rounds}")
    least = {what: Cost(*(min(getattr(c, k) for c in all_) for k in KEYS)) for what, all_ in costs.items()}
    first = least[chosen[0][0]].wall
    for what, count, _ in chosen:
        one, memory = least[what], max(c.memory for c in costs[what])
        print(f"{what:>10} {count:5} {one.wall:7.2f} {first / one.wall:6.2f} {one.cpu:6.2f} {memory:5.0f}")


def show(costs: dict[str, list[Cost]], title: str) -> None:
    """Print the least of each command and its ratio to the first."""
    print(f"{'wall s':>8} {'ratio':>6} {'CPU s':>7} {'ratio':>6} {'MiB':>6}  {title}")
    unit: Cost | None = None
    for what, all_costs in costs.items():
        least = Cost(*(min(getattr(c, key) for c in all_costs) for key in KEYS))
        unit = unit or least
        print(
            f"{least.wall:8.2f} {least.wall / unit.wall:6.2f} {least.cpu:7.2f} {least.cpu / unit.cpu:6.2f} "
            f"{max(c.memory for c in all_costs):6.0f}  {what}"
        )


if __name__ == "__main__":
    main()
