"""Time to pan a timeline of ``hpcprof serve``, and the memory of its server.

``python benchmarks/serve_timeline.py RUN [--db FILE] [--runs-dir DIR]`` starts a server with an empty cache
and pans through the steps as a browser does: a screen of ranks and two tiles at first, then one tile further
each time. Then it scrolls to the next screen of ranks. It prints the time until all tiles of a screen have
come, and the CPU time of the server, which other programs on the machine do not change: where the tiles were
computed, and again where they were kept. The events must have been kept (``hpcprof query --events``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np

RANKS_IN_SIGHT = 12
RANKS_A_REQUEST = 8
TILES_A_STEP = 2
PANS = 12


def main() -> None:
    """Start a server, pan and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--db")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--screens", type=int, default=4, help="how many screens of ranks to pan through")
    options = parser.parse_args()
    command = [sys.executable, "-m", "hpcprof", "serve", "--port", "0", "--runs-dir", options.runs_dir]
    command += ["--db", options.db] if options.db else []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            try:
                place = f"{address}api/runs/{quote(options.run, safe='')}/timeline"
                measure(place, options.screens, server.pid)
                print(f"most memory of the server: {peak_mb(server.pid)} MB")
                kept = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
                print(f"kept tiles: {kept / 1e6:.1f} MB")
            finally:
                server.terminate()


def measure(address: str, screens: int, server: int) -> None:
    """Pan through the steps of the first ranks and print how long that takes."""
    began = time.monotonic()
    overview = json.loads(read(address))
    print(f"overview of {len(overview['ranks'])} ranks: {time.monotonic() - began:.2f} s")
    step = overview["ranks"][0]["steps"][0]
    length = (step[2] - step[1]) / TILES_A_STEP
    level = min(max(int(np.ceil(np.log2(overview["span"] / length))), 0), overview["levels"] - 1)
    first = int(step[1] // (overview["span"] / 2**level))
    ranks = [rank["rank"] for rank in overview["ranks"]]
    for title in ("computed", "kept"):
        opened, panned, used = [], [], []
        for screen in range(screens):
            inside = ranks[screen * RANKS_IN_SIGHT : (screen + 1) * RANKS_IN_SIGHT]
            opened.append(seconds(address, level, (first, first + 1), inside))
            before = cpu_seconds(server)
            panned += [seconds(address, level, (first + 2 + pan,), inside) for pan in range(PANS)]
            used.append((cpu_seconds(server) - before) / PANS)
        print(f"{title}: first tiles of a screen of {RANKS_IN_SIGHT} ranks: {written(opened)}")
        print(f"{title}: pan by a tile: {written(panned)}")
        print(f"{title}: CPU time of the server for a pan: {1e3 * np.mean(used):.0f} ms")


def seconds(address: str, level: int, indices: Sequence[int], ranks: Sequence[int]) -> float:
    """Return how long it takes until tiles of ranks have come; a browser asks for them at once."""
    parts = [ranks[at : at + RANKS_A_REQUEST] for at in range(0, len(ranks), RANKS_A_REQUEST)]
    asked = [f"{address}/{level}/{i}?ranks={','.join(map(str, part))}" for i in indices for part in parts]
    began = time.monotonic()
    with ThreadPoolExecutor(6) as browser:
        list(browser.map(read, asked))
    return time.monotonic() - began


def read(address: str) -> bytes:
    """Return what an address answers."""
    with urlopen(address, timeout=600) as answer:
        found: bytes = answer.read()
    return found


def written(times: Sequence[float]) -> str:
    """Return the median, the 95th percentile and the largest of times, in ms."""
    p50, p95, most = (1e3 * value for value in np.quantile(times, (0.5, 0.95, 1.0)))
    return f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, most {most:.0f} ms (n={len(times)})"


def cpu_seconds(pid: int) -> float:
    """Return how long a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> int:
    """Return the most memory that a process had, in MB."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1000
    return 0


if __name__ == "__main__":
    main()
