"""Growth of a collect with the ranks: ``python benchmarks/scaling.py [RANKS…]``.

Writes the exports of a program in tensor, pipeline and data groups for each number of ranks (by default 64,
256, 1024 and 4096, of 2000 kernels each), and collects them into an empty store. A table has the wall-clock
time, the CPU time a rank and the largest memory of the first process and of any other one; the analyses over
ranks are also measured alone, in a process of their own. The last lines say how much the memory of the first
process, and of that process, grows with each rank.

``--workers 4 8 16`` collects the largest number of ranks with as many jobs instead, and prints how much
faster that is than with the fewest, as a share of the number of jobs.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from tests.data.many_ranks import write_program  # noqa: E402
from tests.data.parallel_program import Program  # noqa: E402

HPCPROF = [sys.executable, "-m", "hpcprof"]
TENSOR, PIPELINE = 8, 4
ACROSS = """
import sys
from pathlib import Path
from hpcprof.results.collect.over_ranks import analyze_over_ranks
from hpcprof.results.store.store import open_store
store = open_store(sys.argv[1], Path("."))
analyze_over_ranks(store.runs()[0].id, store)
"""
NOTHING = """
import hpcprof.analysis.collectives.skew, hpcprof.analysis.collectives.across_ranks
import hpcprof.analysis.account.step_account, hpcprof.results.collect.over_ranks, hpcprof.results.store.store
"""
_LOOK_SECONDS = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """Resources used by a command's processes: seconds, and the largest memory of each in MiB by its id."""

    wall: float = 0.0
    cpu: dict[int, float] = field(default_factory=dict)
    memory: dict[int, float] = field(default_factory=dict)
    first: int = 0

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all processes."""
        return sum(self.cpu.values())

    @property
    def first_mib(self) -> float:
        """The memory of the first process."""
        return self.memory[self.first]

    @property
    def other_mib(self) -> float:
        """The memory of the largest of the other processes."""
        return max((mib for pid, mib in self.memory.items() if pid != self.first), default=0.0)

    def look(self, session: int) -> None:
        """Read what the processes of a session have used until now; a short-lived one may be missed."""
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                values = status.read_text().rpartition(")")[2].split()
                if int(values[3]) != session:
                    continue
                lines = (status.parent / "status").read_text().splitlines()
            except OSError:  # It has just ended.
                continue
            pid = int(status.parent.name)
            self.cpu[pid] = (int(values[11]) + int(values[12])) / _TICKS
            peak = next((line.split()[1] for line in lines if line.startswith("VmHWM")), "0")
            self.memory[pid] = max(self.memory.get(pid, 0.0), int(peak) / 1024)


def used(command: list[str], folder: Path) -> Usage:
    """Run a command in a folder and return what it and the processes that it started used."""
    usage = Usage()
    began = time.perf_counter()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        usage.first = process.pid
        over = threading.Event()
        looking = threading.Thread(target=_look, args=(usage, process.pid, over))
        looking.start()
        _, status, spent = os.wait4(process.pid, 0)
        usage.wall = time.perf_counter() - began
        over.set()
        looking.join()
    if status:
        sys.exit(f"{' '.join(command)}: {(folder / 'output.txt').read_text()}")
    # Of the first process all is known, even where nobody looked in the end; but ru_maxrss begins with the
    # peak of this process.
    if spent.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        usage.memory[process.pid] = max(usage.memory.get(process.pid, 0.0), spent.ru_maxrss / 1024)
    own = spent.ru_utime + spent.ru_stime
    usage.cpu[process.pid] = max(usage.cpu.get(process.pid, 0.0), own) if len(usage.cpu) == 1 else own
    return usage


def _look(usage: Usage, session: int, over: threading.Event) -> None:
    while not over.wait(_LOOK_SECONDS):
        usage.look(session)


def grow(given: argparse.Namespace, folder: Path) -> None:
    """Measure collects of each number of ranks, and print a table."""
    base = used([sys.executable, "-c", NOTHING], folder)
    print(f"imports for the analyses over ranks: {base.cpu_seconds:.1f} s, {base.first_mib:.0f} MiB")
    print(f"{given.kernels} kernels a rank, groups of {TENSOR} x {PIPELINE} x data, --jobs {given.jobs}")
    print(f"{'':6} {'collect':>25} {'MiB of a process':>17} {'analyses over ranks alone':>30}")
    head = ("ranks", "wall s", "ms a rank", "CPU ms a rank", "first", "others", "s", "CPU ms a rank", "MiB")
    print("{:>6} {:>6} {:>9} {:>13} {:>6} {:>6} {:>6} {:>14} {:>6}".format(*head))
    memory = []
    for ranks in given.ranks:
        profiles = folder / f"profiles{ranks}"
        write_program(profiles, Program(ranks, given.kernels, TENSOR, PIPELINE))
        store = str(folder / f"{ranks}.db")
        whole = used([*HPCPROF, "collect", "--jobs", str(given.jobs), "--db", store, str(profiles)], folder)
        alone = used([sys.executable, "-c", ACROSS, store], folder)
        memory.append((ranks, whole.first_mib, alone.first_mib))
        print(
            f"{ranks:6} {whole.wall:6.1f} {whole.wall / ranks * 1e3:9.1f} "
            f"{whole.cpu_seconds / ranks * 1e3:13.1f} {whole.first_mib:6.0f} {whole.other_mib:6.0f} "
            f"{alone.wall:6.1f} {(alone.cpu_seconds - base.cpu_seconds) / ranks * 1e3:14.1f} "
            f"{alone.first_mib:6.0f}",
            flush=True,
        )
        for path in profiles.iterdir():
            path.unlink()
    (few, *least), (many, *most) = memory[0], memory[-1]
    if many > few:
        grown = [(b - a) / (many - few) * 1024 for a, b in zip(least, most, strict=True)]
        print(f"growth a rank: {grown[0]:.0f} KiB in the first process, {grown[1]:.0f} KiB alone")


def spread(given: argparse.Namespace, folder: Path) -> None:
    """Measure collects with several numbers of jobs, and print how well they are used."""
    ranks = max(given.ranks)
    began = time.perf_counter()
    write_program(folder / "profiles", Program(ranks, given.kernels, TENSOR, PIPELINE))
    print(f"{ranks} ranks of {given.kernels} kernels, written in {time.perf_counter() - began:.0f} s")
    print(f"{'jobs':>5} {'wall s':>7} {'efficiency':>11} {'MiB first':>10} {'MiB others':>11}")
    first = 0.0
    for jobs in given.workers:
        store = str(folder / f"jobs{jobs}.db")
        one = used(
            [*HPCPROF, "collect", "--jobs", str(jobs), "--db", store, str(folder / "profiles")], folder
        )
        first = first or one.wall * jobs
        share = 100 * first / (one.wall * jobs)
        print(
            f"{jobs:5} {one.wall:7.1f} {share:9.0f} % {one.first_mib:10.0f} {one.other_mib:11.0f}", flush=True
        )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ranks", type=int, nargs="*", default=[64, 256, 1024, 4096])
    parser.add_argument("--kernels", type=int, default=2000, help="of each rank (default 2000)")
    parser.add_argument("--jobs", type=int, default=1, help="of each collect (default 1)")
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of jobs to compare")
    parser.add_argument("--folder", type=Path, help="where the exports are written for a time")
    given = parser.parse_args()
    if any(ranks % (TENSOR * PIPELINE) for ranks in given.ranks):
        parser.error(f"give multiples of {TENSOR * PIPELINE} ranks: the groups are {TENSOR} x {PIPELINE}")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        (spread if given.workers else grow)(given, Path(name))


if __name__ == "__main__":
    main()
