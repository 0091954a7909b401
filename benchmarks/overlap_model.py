"""The error of the model by which kernels are slower while communication runs, by family of kernels.

``python benchmarks/overlap_model.py EXPORT…`` reads exports of nsys, or other profiles, of programs that
overlap communication. A kernel is a name with its grid and block. It counts if it has three launches without
communication and three that communication covers to 90 % or more, in two steps or more. Its time beside
communication is predicted in two ways and compared with the measured mean:

- *step left out*: by the kernel's own slowdown in all other steps, for each step;
- *kernel left out*: by the slowdown of the other kernels of its profile, weighted by their time: the model of
  `hpcprof.analysis.explain.replay` for kernels that do not show their own.

The table has the mean slowdown of each family, and the medians of the absolute errors in percent.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
# For what lies beside this file's folder.
sys.path.insert(0, str(ROOT))

from hpcprof.analysis.slowdown.kernel_instances import KernelInstances, place_kernels  # noqa: E402
from hpcprof.profiles.kernel_classification import family  # noqa: E402
from hpcprof.profiles.readers.discovery import read_profile  # noqa: E402
from hpcprof.profiles.timeline import Timeline  # noqa: E402

FEWEST = 3


class Family:
    """The kernels of a family: time beside communication and alone, and errors in percent."""

    def __init__(self) -> None:
        self.kernels, self.launches, self.beside_ns, self.alone_ns = 0, 0, 0.0, 0.0
        self.step_left_out: list[float] = []
        self.kernel_left_out: list[float] = []


def add(placed: KernelInstances, families: dict[str, Family]) -> None:
    """Add the kernels of a profile."""
    chosen = []
    for shape in np.unique(placed.shape[placed.overlapped]).tolist():
        mine = placed.shape == shape
        alone, beside = placed.duration[mine & placed.alone], placed.duration[mine & placed.overlapped]
        steps = placed.step[mine & placed.overlapped]
        if min(len(alone), len(beside)) >= FEWEST and len(np.unique(steps)) > 1:
            chosen.append((shape, float(alone.mean()), beside.astype(float), steps))
    weights = np.array([len(beside) * alone for _, alone, beside, _ in chosen])
    ratios = np.array([beside.mean() / alone for _, alone, beside, _ in chosen])
    for place, (shape, alone, beside, steps) in enumerate(chosen):
        kind = families[family(str(placed.shapes.name[shape]))]
        kind.kernels += 1
        kind.launches += len(beside)
        kind.beside_ns += float(beside.sum())
        kind.alone_ns += alone * len(beside)
        for step in np.unique(steps):
            left, rest = beside[steps == step], beside[steps != step]
            kind.step_left_out.append(100 * abs(rest.mean() / left.mean() - 1))
        others = np.arange(len(chosen)) != place
        if others.any():
            usual = float(np.average(ratios[others], weights=weights[others]))
            kind.kernel_left_out.append(100 * abs(usual * alone / beside.mean() - 1))


def main() -> None:
    """Read the profiles and print the table."""
    families: dict[str, Family] = defaultdict(Family)
    for path in sys.argv[1:]:
        timeline = read_profile(Path(path))
        if isinstance(timeline, Timeline):
            add(place_kernels(timeline), families)
    print(
        f"{'family':16} {'kernels':>7} {'launches':>8} {'slowdown':>8} {'step left out':>13}  kernel left out"
    )
    for name, kind in sorted(families.items(), key=lambda item: -item[1].beside_ns):
        slowdown = kind.beside_ns / kind.alone_ns
        errors = (
            np.median(values) if values else np.nan for values in (kind.step_left_out, kind.kernel_left_out)
        )
        print(
            f"{name:16} {kind.kernels:7} {kind.launches:8} {slowdown:8.3f}",
            *(f"{one:13.1f}" for one in errors),
        )


if __name__ == "__main__":
    main()
