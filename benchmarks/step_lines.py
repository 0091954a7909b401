"""Cost to a program whose ranks write their step times while it runs.

Run it as ``python benchmarks/step_lines.py [STEPS]``. Steps of no work are marked with and without lines, in
turns; it prints the least time per step, what the lines add, and the step time of which that is 0.1 %.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from hpcprof.node.step_lines import StepLines

ROUNDS = 9


def nanoseconds_a_step(run_dir: Path | None, steps: int) -> float:
    """Return the time of a step without work, with its marks."""
    lines = StepLines(run_dir, 0)
    began = time.perf_counter_ns()
    for step in range(steps):
        lines.begin()
        lines.end(step)
    taken = time.perf_counter_ns() - began
    lines.close()
    return taken / steps


def main() -> None:
    """Measure and print."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "state").mkdir()
        both = [
            (nanoseconds_a_step(None, steps), nanoseconds_a_step(Path(folder), steps)) for _ in range(ROUNDS)
        ]
    without, with_lines = (min(column) for column in zip(*both, strict=True))
    added = with_lines - without
    print(f"{without:.0f} ns a step without a run, {with_lines:.0f} ns with lines: {added:.0f} ns more")
    print(
        f"0.1 % of a step of {with_lines / 1e3 / 1e-3:.0f} µs (n = {ROUNDS} rounds of {steps:,} steps, least)"
    )


if __name__ == "__main__":
    main()
