"""Start-up time of the command line, against another tool's start on the same machine.

Run it as ``python benchmarks/startup.py [REFERENCE COMMAND…]``, by default against ``reframe --version``
(``pip install reframe-hpc``). The commands take turns, so that what else the machine does meets all of
them; it prints the least and the median of the wall-clock times, and their ratio to the reference.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 25
DRY_RUN = "hpcprof submit --dry-run --workload sequence-parallel --ranks-per-node 2 --profiler torch"


def seconds(command: list[str], folder: str) -> float:
    """Return the wall-clock time of one run of a command."""
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print a table."""
    reference = sys.argv[1:] or ["reframe", "--version"]
    if shutil.which(reference[0]) is None:
        sys.exit(f"{reference[0]} is not on the PATH: pip install reframe-hpc, or name another command.")
    importing = [sys.executable, "-c", "import hpcprof"]
    commands = [reference, ["hpcprof", "--help"], DRY_RUN.split(), [sys.executable, "-c", ""], importing]
    with tempfile.TemporaryDirectory() as folder:
        times = [[seconds(command, folder) for command in commands] for _ in range(ROUNDS)]
    columns = list(zip(*times, strict=True))
    base = statistics.median(columns[0])
    print(f"{'least ms':>9} {'median ms':>10} {'ratio':>6}  command (n = {ROUNDS}, in turns)")
    for command, values in zip(commands, columns, strict=True):
        median = statistics.median(values)
        print(f"{min(values) * 1e3:9.0f} {median * 1e3:10.0f} {median / base:6.2f}  {' '.join(command)}")


if __name__ == "__main__":
    main()
