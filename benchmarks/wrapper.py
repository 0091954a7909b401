"""Cost of the rank wrapper, against a bare ``exec`` of the same program.

Run it as ``python benchmarks/wrapper.py``. Both take turns under every shell that is there; it prints the
median of the wall-clock times of ``true`` and their difference.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.request import make_job
from hpcprof.submit.rendering.templates import render
from hpcprof.submit.schedulers.scheduler import WRAPPER, Rendering
from hpcprof.submit.sites.files import load_site

ROUNDS = 200


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return the wall-clock time of one run of a command."""
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Render a wrapper for 512 ranks, every second one profiled, and measure it."""
    site = load_site("local")
    job = make_job(site, JobSpec(("true",), ranks_per_node=512, profiler="torch", profile_ranks="every=2"))
    environment = {"PATH": os.environ["PATH"], "PMI_RANK": "511", "PMI_SIZE": "512", "MPI_LOCALRANKID": "511"}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        for name in ("state", "logs", "profiles"):
            (run / name).mkdir()
        texts = render(site, job, Rendering(run, ["hpcprof"], ["mpiexec", "-n", "512"], ["true"]))
        (run / WRAPPER).write_text(texts[WRAPPER])
        print(f"{'shell':>6} {'bare ms':>8} {'wrapped ms':>11} {'added ms':>9}  (medians of {ROUNDS})")
        for shell in filter(shutil.which, ("dash", "bash")):
            bare = [shell, "-c", 'exec "$@"', shell, "true"]
            wrapped = [shell, str(run / WRAPPER), "true"]
            times = [(seconds(bare, environment), seconds(wrapped, environment)) for _ in range(ROUNDS)]
            a, b = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
            print(f"{shell:>6} {a:8.2f} {b:11.2f} {b - a:9.2f}")


if __name__ == "__main__":
    main()
