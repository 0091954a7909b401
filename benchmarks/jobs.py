"""Measures collects of many ranks by numbers of jobs: ``python benchmarks/jobs.py [--before TREE] [SIZE…]``.

A SIZE such as 64x5000 is ranks times kernels. Each is collected into an empty store with ``--jobs 1``, with
``--jobs 2`` and by default, and once more when nothing is new, all in turns. With ``--before``, another
checkout collects with ``--jobs 1`` in turns too. The output has the least wall-clock times, the ratio of the
default to the better number of jobs, how much faster it is than the other checkout, and the memory of the
first process. The last line has what a further rank costs if it is unchanged, and one with one job.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from benchmarks.collect import HPCPROF, Cost, cost  # noqa: E402
from tests.data.many_ranks import write_all  # noqa: E402

SIZES = ("16x20000", "64x200", "64x5000", "256x5000", "4x150000", "1x3000000")
COLLECTS = {"jobs 1": ["--jobs", "1"], "jobs 2": ["--jobs", "2"], "default": []}
BEFORE, UNCHANGED = "before", "unchanged"


def command(tree: Path, arguments: list[str], profiles: Path, fresh: bool = True) -> list[str]:
    """Return a collect by a checkout; the store is its own, and empty if ``fresh``."""
    store = f"{tree.name}.db"
    shell = f'{f"rm -f {store}; " if fresh else ""}PYTHONPATH="$0" exec "$@"'
    return ["sh", "-c", shell, str(tree), *HPCPROF, "collect", "--db", store, *arguments, str(profiles)]


def measure(profiles: Path, folder: Path, rounds: int, before: Path | None) -> dict[str, Cost]:
    """Let the collects take turns, and return the least of each."""
    commands = {what: command(ROOT, options, profiles) for what, options in COLLECTS.items()}
    # What is unchanged follows a collect of the same checkout.
    commands[UNCHANGED] = command(ROOT, [], profiles, fresh=False)
    if before is not None:
        commands = {BEFORE: command(before, ["--jobs", "1"], profiles), **commands}
    costs: dict[str, list[Cost]] = {what: [] for what in commands}
    for _ in range(rounds):
        for what, one in commands.items():
            costs[what].append(cost(one, folder))
    return {
        what: Cost(*(min(getattr(c, key) for c in found) for key in ("wall", "cpu", "memory")))
        for what, found in costs.items()
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=SIZES, metavar="SIZE", help="ranks x kernels")
    parser.add_argument("--rounds", type=int, default=3, help="how often each command runs (default 3)")
    parser.add_argument("--before", type=Path, metavar="TREE", help="another checkout to compare with")
    given = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, least of {given.rounds}; seconds")
    print(
        f"{'ranks x kernels':>16} {'before':>7} {'jobs 1':>7} {'jobs 2':>7} {'default':>7} {'of best':>8} "
        f"{'x before':>9} {'unchanged':>10} {'MiB':>5}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[int, Cost] = {}
        single: dict[int, Cost] = {}
        for size in given.sizes:
            ranks, kernels = map(int, size.split("x"))
            profiles = folder / size
            write_all(profiles, ranks, kernels)
            costs = measure(profiles, folder, given.rounds, given.before)
            subprocess.run(["rm", "-r", str(profiles)], check=True)
            best = min(costs["jobs 1"].wall, costs["jobs 2"].wall)
            wall = {what: one.wall for what, one in costs.items()}
            before = wall.get(BEFORE, float("nan"))
            times = "".join(f" {wall[what]:7.2f}" for what in COLLECTS)
            print(
                f"{size:>16} {before:7.2f}{times} {wall['default'] / best:8.2f} "
                f"{before / wall['default']:9.2f} {wall[UNCHANGED]:10.2f} {costs['default'].memory:5.0f}",
                flush=True,
            )
            found[ranks], single[ranks] = costs[UNCHANGED], costs["jobs 1"]
    fewest, most = min(found), max(found)
    if most > fewest:
        further = (found[most].wall - found[fewest].wall) / (most - fewest) * 1e3
        alone = single[most].wall / most * 1e3
        print(f"a further unchanged rank: {further:.2f} ms; a rank with --jobs 1: {alone:.0f} ms")


if __name__ == "__main__":
    main()
