"""Reading and analysing a large PyTorch trace: ``python benchmarks/torch_trace.py TRACE [HTA_PYTHON]``.

Repeats the given trace in time until it has a million events, and prints the seconds of the reading and
of all analyses of one rank, and the peak memory, packed and plain. With the Python of an environment
that has HolisticTraceAnalysis, it prints the same of that, and the ratios, from the same run.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hpcprof.analysis.catalogue import ANALYSES, Scope
from hpcprof.analysis.outcome import of_rank
from hpcprof.readers.detect import read_profile

EVENTS = 1_000_000
HTA = Path(__file__).parents[1] / "tests" / "peers" / "hta_figures.py"
# What differs between two repetitions: times, what links a call to its kernel, the number of the step.
CHANGES = re.compile(r'(?:(?<="ts": )|(?<="correlation": )|(?<="id": )|(?<=ProfilerStep#))([0-9]+)')
BASELINE = ("load", "temporal", "overlap", "kernels")


def repeat(trace: Path, target: Path) -> int:
    """Write ``target``, packed if its suffix says so, and return how many events it has."""
    packed = trace.read_bytes()
    text = (gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed).decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex("]", 0, text.rindex('"traceName"'))
    events = len(json.loads(text)["traceEvents"])
    pieces = CHANGES.split(text[begin:end])
    numbers = [int(piece) for piece in pieces[1::2]]
    kinds = [piece[-8:] for piece in pieces[0:-1:2]]
    times = [n for n, kind in zip(numbers, kinds, strict=True) if kind.endswith('"ts": ')]
    steps = [n for n, kind in zip(numbers, kinds, strict=True) if kind.endswith("Step#")]
    step = {"time": max(times) - min(times) + 1000, "step": max(steps, default=0) - min(steps, default=0) + 1}
    step["id"] = (
        max(n for n, kind in zip(numbers, kinds, strict=True) if not kind.endswith(('"ts": ', "Step#"))) + 1
    )
    by = [
        step["time"] if kind.endswith('"ts": ') else step["step"] if kind.endswith("Step#") else step["id"]
        for kind in kinds
    ]
    copies = -(-EVENTS // events)
    with gzip.open(target, "wt", compresslevel=6) if target.suffix == ".gz" else target.open("w") as file:
        file.write(text[:begin])
        for copy in range(copies):
            pieces[1::2] = [str(n + copy * more) for n, more in zip(numbers, by, strict=True)]
            file.write(("," if copy else "") + "".join(pieces))
        file.write(text[end:])
    return events * copies


def measure(path: Path) -> tuple[float, dict[str, float], float]:
    """Return the seconds of the reading and of each analysis, and the peak memory in MiB."""
    began = time.perf_counter()
    timeline = read_profile(path)
    reading = time.perf_counter() - began
    seconds = {}
    for name, analysis in ANALYSES.items():
        if analysis.scope is Scope.RANK:
            began = time.perf_counter()
            of_rank(analysis, timeline, 0)
            seconds[name] = time.perf_counter() - began
    return reading, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python benchmarks/torch_trace.py TRACE [HTA_PYTHON]")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.pt.trace.json.gz"
        events = repeat(Path(sys.argv[1]), path)
        plain = Path(folder) / "plain" / "rank0.pt.trace.json"
        plain.parent.mkdir()
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        print(
            f"{events:,} events, {plain.stat().st_size / 1e6:,.0f} MB, packed {path.stat().st_size / 1e6:,.0f} MB"
        )
        ours: dict[str, tuple[float, float]] = {}
        for name, file in (("packed", path), ("plain", plain)):
            # A process of its own, so that the peak is of this alone.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                reading, seconds, peak = pool.apply(measure, (file,))
            ours[name] = reading + sum(seconds.values()), peak
            print(
                f"{name}: reading {reading:.2f} s, {len(seconds)} analyses {sum(seconds.values()):.2f} s, {peak:,.0f} MiB"
            )
        print("   " + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items()))
        if len(sys.argv) == 3:
            plain.unlink()
            command = [sys.argv[2], str(HTA), folder]
            found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
            theirs = sum(found["seconds"][name] for name in BASELINE)
            print("HTA: " + ", ".join(f"{name} {value:.2f} s" for name, value in found["seconds"].items()))
            print(f"HTA: {' + '.join(BASELINE)} {theirs:.2f} s, {found['peak_mib']:,.0f} MiB")
            print(
                f"ratio: {theirs / ours['packed'][0]:.1f} x faster, {ours['packed'][1] / found['peak_mib']:.2f} of the memory"
            )


if __name__ == "__main__":
    main()
