"""How the time of a collect grows with the ranks: ``python benchmarks/scaling.py [KERNELS [RANKS…]]``.

Writes an export of so many kernels (by default 2000) for each rank, and collects some numbers of them (by
default 16 to 256) into an empty store on all CPUs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/data"), str(ROOT / "benchmarks")]

from collect import HPCPROF, cost  # noqa: E402 - it lies beside this file
from many_ranks import write_all  # noqa: E402 - it lies among the tests' data


def main() -> None:
    """Measure and print a table."""
    kernels, *counts = map(int, sys.argv[1:] or ["2000"])
    counts = counts or [16, 32, 64, 128, 256]
    print(f"{'ranks':>6} {'wall s':>7} {'ms a rank':>10}  ({kernels} kernels a rank)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_all(folder / "all", max(counts), kernels)
        for ranks in counts:
            some = folder / f"first{ranks}"
            some.mkdir()
            for path in sorted((folder / "all").iterdir())[:ranks]:
                (some / path.name).hardlink_to(path)
            spent = cost([*HPCPROF, "collect", "--db", f"{ranks}.db", str(some)], folder)
            print(f"{ranks:6} {spent.wall:7.1f} {spent.wall / ranks * 1e3:10.0f}")


if __name__ == "__main__":
    main()
