"""Measures what the pulse costs a PyTorch program: optimizer steps with it and without, in blocks in turns.

Run it as ``python benchmarks/pulse.py [STEPS]``. The optimizers do nothing else, so that the difference
shows, and the thread of the pulse runs beside both. It counts CPU time, which other programs hardly change.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hpcprof.node.pulse import Pulse, watch_optimizers
from hpcprof.node.step_lines import StepLines

ROUNDS = 15


def optimizer(name: str) -> Any:
    """Return an optimizer of a new class, whose steps PyTorch hooks when it is made."""
    kind = type(name, (torch.optim.SGD,), {"step": lambda self: None})
    return kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def nanoseconds_a_step(one: Any, steps: int) -> float:
    """Return the CPU time of a step."""
    began = time.process_time_ns()
    for _ in range(steps):
        one.step()
    return (time.process_time_ns() - began) / steps


def main() -> None:
    """Measure and print."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "state").mkdir()
        pulse = Pulse(Path(folder), 0, 600.0, StepLines(Path(folder), 0))
        without = optimizer("Without")
        watch_optimizers(torch, pulse.stepped)
        with_pulse = optimizer("With")
        pulse.start()
        differences = []
        for _ in range(ROUNDS):
            # A B B A: a drift of the machine counts for both.
            a, b, c, d = (
                nanoseconds_a_step(one, steps) for one in (without, with_pulse, with_pulse, without)
            )
            differences.append((b + c - a - d) / 2)
    added = median(differences)
    print(
        f"the pulse adds {added:.0f} ns to a step, from {min(differences):.0f} to {max(differences):.0f} ns"
    )
    print(f"0.1 % of a step of {added / 1e3:.1f} ms (n = {ROUNDS} blocks A B B A of {steps:,} steps, median)")


if __name__ == "__main__":
    main()
