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
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.discovery import read_profile

EVENTS = 1_000_000
HTA = Path(__file__).parents[1] / "tests" / "peers" / "hta_figures.py"
# What differs between two repetitions: times, what links a call to its kernel, the number of the step.
CHANGES = re.compile(r'("(?:ts|correlation|id)" *: *|ProfilerStep#)([0-9]+)')
BASELINE = ("load", "temporal", "overlap", "kernels")


def repeat(trace: Path, target: Path) -> int:
    """Write ``target`` and return how many events it has."""
    packed = trace.read_bytes()
    text = (gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed).decode()
    begin = text.index("[", text.index('"traceEvents"'))
    found, end = json.JSONDecoder().raw_decode(text, begin)
    begin, end = begin + 1, end - 1
    # The text before each number, what names the number, the number, and the text after the last one.
    pieces = CHANGES.split(text[begin:end])
    numbers = [int(piece) for piece in pieces[2::3]]
    kinds = ["time" if "ts" in name else "step" if "#" in name else "link" for name in pieces[1::3]]
    of_kind: dict[str, list[int]] = {kind: [] for kind in ("time", "link", "step")}
    for kind, number in zip(kinds, numbers, strict=True):
        of_kind[kind].append(number)
    shift = {kind: max(same) - min(same) + 1 for kind, same in of_kind.items() if same}
    # A millisecond between two repetitions.
    shift["time"] += 1000
    copies = -(-EVENTS // len(found))
    with target.open("w") as file:
        file.write(text[:begin])
        for copy in range(copies):
            pieces[2::3] = [str(n + copy * shift[kind]) for n, kind in zip(numbers, kinds, strict=True)]
            file.write(("," if copy else "") + "".join(pieces))
        file.write(text[end:])
    return len(found) * copies


def pack(plain: Path, packed: Path) -> None:
    """Compress a file."""
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)


def measure(path: Path) -> tuple[float, dict[str, float], float, float]:
    """Return the seconds of the reading and of each analysis, the peak memory in MiB, and the CPU time."""
    began, cpu = time.perf_counter(), time.process_time()
    timeline = read_profile(path)
    reading = time.perf_counter() - began
    seconds = {}
    for name, analysis in ANALYSES.items():
        if analysis.scope is Scope.RANK:
            began = time.perf_counter()
            analyze_rank(analysis, timeline, 0)
            seconds[name] = time.perf_counter() - began
    # ru_maxrss begins with the peak of the process that started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
    return reading, seconds, peak, time.process_time() - cpu


def alone(work: Callable[..., Any], *arguments: object) -> Any:
    """Run a function in a process of its own, so that its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def main() -> None:
    """Measure and print."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python benchmarks/torch_trace.py TRACE [HTA_PYTHON]")
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "rank0.pt.trace.json.gz"
        plain = Path(folder) / "rank0.pt.trace.json"
        events = alone(repeat, Path(sys.argv[1]), plain)
        alone(pack, plain, packed)
        size = plain.stat().st_size / 1e6
        print(f"{events:,} events, {size:,.0f} MB, packed {packed.stat().st_size / 1e6:,.0f} MB")
        for path in (plain, packed):
            reading, seconds, peak, cpu = alone(measure, path)
            total = sum(seconds.values())
            print(
                f"{path.name}: reading {reading:.2f} s, {len(seconds)} analyses {total:.2f} s, "
                f"CPU {cpu:.2f} s, {peak:.0f} MiB"
            )
        print("    " + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items()))
        if len(sys.argv) == 3:
            plain.unlink()
            command = [sys.argv[2], str(HTA), folder]
            found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
            theirs = sum(found["seconds"][name] for name in BASELINE)
            print("HTA: " + ", ".join(f"{name} {value:.2f} s" for name, value in found["seconds"].items()))
            print(f"HTA: {' + '.join(BASELINE)} {theirs:.2f} s, {found['peak_mib']:,.0f} MiB")
            faster, memory = theirs / (reading + total), peak / found["peak_mib"]
            print(f"packed, all analyses: {faster:.1f} x faster, {memory:.2f} of the memory")


if __name__ == "__main__":
    main()
