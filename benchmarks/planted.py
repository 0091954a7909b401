"""Programs with a planted cause of lost time and mended, alone in turns and recorded with nsys.

``python benchmarks/planted.py measure FOLDER PROGRAMS NAME[:RANKS]…`` runs ``PROGRAMS/NAME.py --steps 60
--variant planted`` and ``mended`` in processes of their own, in the order A B B A, and then records each
variant once, and some steps of the planted one. Programs of one rank are spread over the GPUs, each with its
share of the cores. A program prints a line of JSON with ``step_ms_median`` and ``step_ms_mean``; with several
ranks it reads torchrun's variables. ``show FOLDER`` prints what the cause costs, what a step takes recorded,
and the first findings, on any machine.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

STEPS, ROUND = 60, ("planted", "mended", "mended", "planted")
WINDOW = "20-39"
BURSTS = 1.1
"""Minimum ratio of the mean step to the median one at which the mean counts."""
_LOCK = threading.Lock()
_AS_TORCHRUN = """
import os, runpy, sys
rank, size = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, MASTER_ADDR="127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29950")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def measure(folder: Path, programs: Path, names: list[str]) -> None:
    """Run all programs alone, then record them."""
    import torch

    gpus = torch.cuda.device_count()
    folder.mkdir(parents=True, exist_ok=True)
    started = folder / "as_torchrun.py"
    started.write_text(_AS_TORCHRUN)
    width = max(int(name.partition(":")[2] or 1) for name in names)
    jobs: queue.Queue[tuple[str, str, str]] = queue.Queue()
    for name in names:
        for variant in ROUND:
            jobs.put((name, variant, "alone"))
        for variant in ROUND[:2]:
            jobs.put((name, variant, "recorded"))
        jobs.put((name, ROUND[0], "window"))

    def work(first: int) -> None:
        share = (os.cpu_count() or gpus) // gpus
        pinned = ("taskset", "-c", f"{first * share}-{(first + width) * share - 1}")
        visible = ",".join(str(first + each) for each in range(width))
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
        while True:
            try:
                name, variant, way = jobs.get_nowait()
            except queue.Empty:
                return
            name, _, ranks = name.partition(":")
            program = (str(programs / f"{name}.py"), "--steps", str(STEPS), "--variant", variant)
            command: tuple[str, ...] = (sys.executable, *program)
            if way != "alone":
                started_by = (str(started),) if ranks else ()
                window = ("--capture-steps", WINDOW) if way == "window" else ()
                runs = folder / f"{name}-{way if window else variant}"
                command = (
                    *(sys.executable, "-m", "hpcprof", "submit", "--site", "local", "--wait"),
                    *("--ranks-per-node", ranks or "1", "--profiler", "nsys", *window),
                    *("--runs-dir", str(runs), "--", sys.executable),
                    *(*started_by, *program),
                )
            elif ranks:
                command = ("torchrun", "--standalone", f"--nproc_per_node={ranks}", *program)
            ended = subprocess.run([*pinned, *command], capture_output=True, text=True, env=environment)
            found = re.findall(r'\{"step_ms_median".*\}', ended.stdout)
            figures = json.loads(found[-1]) if found else {"error": (ended.stdout + ended.stderr)[-500:]}
            with _LOCK, (folder / "steps.jsonl").open("a") as file:
                file.write(json.dumps({**figures, "name": name, "variant": variant, "way": way}) + "\n")

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, gpus - width + 1, width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def show(folder: Path) -> None:
    """Print a row for each program and variant."""
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    print(f"{'program':24} {'variant':8} {'alone ms':>20} {'cost':>8} {'recorded':>9}  findings (saving)")
    for name in sorted({line["name"] for line in lines}):
        steps = {
            (variant, way): [_step(line, lines) for line in lines if _is(line, name, variant, way)]
            for variant in ROUND[:2]
            for way in ("alone", "recorded")
        }
        means = [sum(steps[each, "alone"]) / max(len(steps[each, "alone"]), 1) for each in ROUND[:2]]
        for variant in ROUND[:2]:
            alone = " ".join(f"{step:.2f}" for step in steps[variant, "alone"])
            cost = f"{means[0] - means[1]:.2f}" if variant == ROUND[0] else ""
            recorded = f"{steps[variant, 'recorded'][0]:.2f}" if steps[variant, "recorded"] else "-"
            said = explained(folder / f"{name}-{variant}")
            print(f"{name:24} {variant:8} {alone:>20} {cost:>8} {recorded:>9}  {said}")


def _is(line: dict[str, Any], name: str, variant: str, way: str) -> bool:
    return (line["name"], line["variant"], line["way"]) == (name, variant, way) and "error" not in line


def _step(line: dict[str, Any], lines: list[dict[str, Any]]) -> float:
    """Return the milliseconds of a step; the mean, if a program's time comes in bursts."""
    bursts = any(
        each["step_ms_mean"] > BURSTS * each["step_ms_median"]
        for each in lines
        if each["name"] == line["name"] and "error" not in each
    )
    return float(line["step_ms_mean" if bursts else "step_ms_median"])


def explained(runs: Path) -> str:
    """Return the step that is explained in a folder of runs, and the first two findings."""
    run = next((path.parent for path in runs.glob("*/run.json")), None)
    if run is None:
        return "not recorded"
    command = [sys.executable, "-m", "hpcprof", "explain", str(run), "--format", "json"]
    completed = subprocess.run(command, capture_output=True, text=True)
    if not completed.stdout:
        return completed.stderr.strip()[-200:]
    explanation = json.loads(completed.stdout)
    findings = [
        f"{each['cause']} {each['where']} {(each['saving_ns'] or 0) / 1e6:.2f} "
        f"({(each['saving_low_ns'] or 0) / 1e6:.2f} to {(each['saving_high_ns'] or 0) / 1e6:.2f})"
        for each in explanation["findings"][:2]
    ]
    step = (explanation["step"]["elapsed_ns"] or 0) / 1e6
    return f"{step:.2f}: {'; '.join(findings) or 'none'}"


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measure(Path(sys.argv[2]), Path(sys.argv[3]).resolve(), sys.argv[4:])
    else:
        show(Path(sys.argv[2]))
