"""Aligned clocks against the truth: ``python benchmarks/clocks.py``.

Ranks train together in tensor, pipeline and data groups (`tests.data.many_ranks`). Their clocks drift
steadily; on top, they wander (a sine of one period and of a phase of its own for each rank) or jump once.
Prints, for each program, how far the aligned clocks are off from the median of the ranks (root mean square,
95 % and most), what they say (median and most), and the share of ranks that are nowhere off by more than they
say.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.collectives.common_clock import connect  # noqa: E402
from hpcprof.analysis.collectives.communication import communication  # noqa: E402
from hpcprof.analysis.framework.outcome import analyze_rank  # noqa: E402
from hpcprof.analysis.framework.registry import ANALYSES  # noqa: E402
from hpcprof.profiles.readers.discovery import read_profile  # noqa: E402
from hpcprof.profiles.timeline import Ints  # noqa: E402
from tests.data.many_ranks import write_program  # noqa: E402
from tests.data.parallel_program import Program  # noqa: E402

PROGRAMS = {
    "tensor": Program(32, 8000, tensor=4),
    "tensor, pipeline": Program(32, 8000, tensor=4, pipeline=4),
    "pipeline, 200 ppm": Program(32, 8000, pipeline=4, drift_ppm=200.0),
}
DISTORTIONS = {"steady": (0, 0), "wanders by 20 µs": (20_000, 0), "jumps by 30 µs": (0, 30_000)}
MOMENTS = 41
HEAD = "clocks             program             rms µs   95 %   most   says   most  ranks within"


def collectives(program: Program) -> pd.DataFrame:
    """Return ``rank_collectives`` of all ranks of a program."""
    with tempfile.TemporaryDirectory() as folder:
        write_program(Path(folder), program)
        rows = []
        for path in sorted(Path(folder).iterdir()):
            profile = read_profile(path)
            rows.append(analyze_rank(ANALYSES["rank_collectives"], profile, profile.origin.rank or 0).frame)
    found: pd.DataFrame = pd.concat(rows, ignore_index=True)
    return found


def distortion(rank: int, low: int, high: int, wander: float, jump: float) -> Callable[[Ints], Ints]:
    """Return what adds to the stamps of a rank between two moments what its clock is wrong by."""
    phase, moment, sign = np.random.default_rng(rank).uniform([0, 0.2, -1], [2 * np.pi, 0.8, 1])

    def wrong(stamps: Ints) -> Ints:
        share = (stamps - low) / (high - low)
        off = wander * np.sin(2 * np.pi * share + phase) + jump * np.sign(sign) * (share > moment)
        result: Ints = stamps + np.rint(off).astype(np.int64)
        return result

    return wrong


def measure(program: Program, rows: pd.DataFrame, wander: float, jump: float) -> str:
    """Return how far the aligned clocks of a program are off, and what they say."""
    ahead, fast = program.clocks()
    own, wrong = rows.copy(), {}
    for rank, of_rank in rows.groupby("rank").indices.items():
        extent = rows["start_ns"].iloc[of_rank].min(), rows["end_ns"].iloc[of_rank].max()
        wrong[rank] = distortion(int(str(rank)), int(extent[0]), int(extent[1]), wander, jump)
        for name in ("start_ns", "end_ns"):
            column = own[name].to_numpy().copy()
            column[of_rank] = wrong[rank](column[of_rank])
            own[name] = column
    clocks = connect(communication([own]).aligned)[0]
    errors = []
    for rank in sorted(clocks.clocks):
        of_rank = rows[rows["rank"] == rank]
        stamps = np.linspace(of_rank["start_ns"].min(), of_rank["end_ns"].max(), MOMENTS).astype(np.int64)
        true = (stamps - ahead[rank]) / fast[rank]
        errors.append(clocks.clocks[rank].to_common(wrong[rank](stamps)) - true)
    # The common clock is that of a rank, and wrong like it.
    error = np.array(errors) - np.median(errors, axis=0)
    off, said = np.abs(error), np.array([clocks.uncertainty[rank] for rank in sorted(clocks.clocks)])
    within = float(np.mean(off.max(axis=1) <= said))
    values = (np.sqrt((error**2).mean()), np.percentile(off, 95), off.max(), np.median(said), said.max())
    return "".join(f"{value / 1e3:7.2f}" for value in values) + f"{100 * within:12.0f} %"


def main() -> None:
    """Print a line for each kind of clock and program."""
    print(HEAD)
    for name, program in PROGRAMS.items():
        rows = collectives(program)
        for kind, (wander, jump) in DISTORTIONS.items():
            print(f"{kind:19}{name:19}{measure(program, rows, wander, jump)}")


if __name__ == "__main__":
    main()
