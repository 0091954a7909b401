"""How the time of a collect grows with the ranks: ``python benchmarks/scaling.py [KERNELS [RANKS…]]``.

Writes an export of so many kernels (by default 2000) for each rank, and collects some numbers of them (by
default 16 to 256) into an empty store on all CPUs. Then some numbers of collectives of 64 ranks are matched,
and their ranks' lateness computed, on rows as a collect has them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.across_ranks import collectives
from hpcprof.analysis.collectives.skew import skew

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from benchmarks.collect import HPCPROF, cost  # noqa: E402
from tests.data.many_ranks import write_all  # noqa: E402

MATCHED_RANKS = 64
STEP = 10


def rows_of_collectives(ranks: int, count: int) -> dict[str, pd.DataFrame]:
    """Return all-reduces of ranks that come within 5 us, ten a step, as the analyses over ranks get them."""
    draw = np.random.default_rng(1)
    rank, number = (column.ravel() for column in np.indices((ranks, count)))
    begun = number * 1_000_000
    constant = {"op": "AllReduce", "comm_id": "0x1", "bytes": 4096, "fused": 1, "part": 0, "exposed_ns": 1000}
    rows = pd.DataFrame({"rank": rank, "seq": number, "step": number // STEP})
    rows = rows.assign(**constant, comm_ranks=ranks, world_ranks=ranks)
    rows["start_ns"] = begun + draw.integers(0, 5000, len(rows))
    rows["end_ns"] = begun + 50_000 + draw.integers(0, 3000, len(rows))
    rank, step = (column.ravel() for column in np.indices((ranks, count // STEP)))
    steps = pd.DataFrame({"rank": rank, "step": step, "wall_ns": 1_000_000 * STEP})
    return {"rank_collectives": rows, "step_times": steps}


def match() -> None:
    """Measure the analyses that match collectives, and print a table."""
    print(f"{'collectives':>11} {'matched ms':>11} {'skew ms':>8}  ({MATCHED_RANKS} ranks)")
    for count in (500, 1000, 2000, 4000, 8000):
        rows = rows_of_collectives(MATCHED_RANKS, count)
        spent = []
        for analysis in (collectives, skew):
            began = time.perf_counter()
            analysis(rows)
            spent.append((time.perf_counter() - began) * 1e3)
        print(f"{count:11} {spent[0]:11.0f} {spent[1]:8.0f}")


def main() -> None:
    """Measure and print the tables."""
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
    match()


if __name__ == "__main__":
    main()
