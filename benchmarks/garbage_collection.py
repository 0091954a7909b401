"""CPU time that the settings of the garbage collector save a command.

Run it in a folder with a collected run as ``python benchmarks/garbage_collection.py``. Commands with and
without the settings take turns, so that other load on the machine affects both alike; it prints the medians
of user plus system time.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

ROUNDS = 15
DRY_RUN = "submit --dry-run --workload sequence-parallel --ranks-per-node 2 --profiler torch"
COMMANDS = ("--help", DRY_RUN, "list", "report")
PROGRAM = """
import sys
from hpcprof.cli import main
sys.argv = ["hpcprof", *{arguments!r}]
if not {tuned}:
    main._collect_garbage_seldom = lambda: None
main.main()
"""


def cpu_seconds(arguments: list[str], tuned: bool) -> float:
    """Return the CPU time of one run of a command."""
    program = PROGRAM.format(arguments=arguments, tuned=tuned)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print a table."""
    print(f"{'default ms':>11} {'tuned ms':>9} {'saved':>6}  command (n = {ROUNDS}, in turns)")
    for command in COMMANDS:
        pairs = [[cpu_seconds(command.split(), tuned) for tuned in (False, True)] for _ in range(ROUNDS)]
        default, tuned = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        print(f"{default:11.0f} {tuned:9.0f} {1 - tuned / default:6.0%}  hpcprof {command}")


if __name__ == "__main__":
    main()
