"""Measures the sampler of a node with a GPU: its CPU time, what it costs a step, its energy and its clocks.

``python benchmarks/telemetry_gpu.py measure FOLDER`` needs PyTorch, a GPU and ``nvidia-smi`` and takes three
minutes. ``python benchmarks/telemetry_gpu.py show FOLDER`` prints the figures, on any machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROUNDS, BLOCK_S, LONG_S = 4, 7.0, 60.0
_PROGRAM = """
import sys, time, torch
one = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
def step():
    for _ in range(40):
        torch.mm(one, one)
    torch.cuda.synchronize()
for line in sys.stdin:
    until, times = time.time() + float(line), []
    while time.time() < until:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    print(sum(times) / len(times), flush=True)
"""


def measure(folder: Path) -> None:
    """Run a program on GPU 0 with the sampler and without, and keep what both say."""
    from hpcprof.node import telemetry

    (folder / "state").mkdir(parents=True)
    environment = {**os.environ, "HPCPROF_RUN_DIR": str(folder), "HPCPROF_RANK": "0"}
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    sampler = [
        sys.executable,
        "-c",
        "from hpcprof.node.telemetry import Sampler; import sys; Sampler(sys.argv[1], sys.argv[2], 0).run()",
        str(folder),
        "node",
        "0",
    ]

    def begin(seconds: float) -> None:
        program.stdin.write(f"{seconds}\n")  # type: ignore[union-attr]
        program.stdin.flush()  # type: ignore[union-attr]

    def step(seconds: float) -> float:
        begin(seconds)
        return float(program.stdout.readline())  # type: ignore[union-attr]

    nvml = telemetry.NvidiaGpus()
    handle = nvml._handles[0][1]

    def energy() -> tuple[float, float]:
        joule = nvml._ask("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.c_ulonglong) / 1e3
        return time.time(), joule

    step(5.0)
    blocks = []
    for _ in range(ROUNDS):
        times = []
        for with_sampler in (False, True, True, False):
            one = subprocess.Popen(sampler) if with_sampler else None
            time.sleep(0.5)
            times.append(step(BLOCK_S))
            if one is not None:
                one.send_signal(signal.SIGTERM)
                one.wait()
        blocks.append(times)
    (folder / "telemetry/node.jsonl").unlink()
    one = subprocess.Popen(sampler)
    time.sleep(2.0)
    cpu = [(time.time(), _cpu_s(one.pid))]
    begin(LONG_S)
    time.sleep(3.0)
    first = energy()
    clocks = []
    for _ in range(4):
        time.sleep((LONG_S - 10) / 5)
        asked = time.time()
        said = subprocess.run(["nvidia-smi", "-q", "-d", "CLOCK"], capture_output=True, text=True, check=True)
        found = re.search(r"Clocks\n.*?SM +: (\d+) MHz\n +Memory +: (\d+) MHz", said.stdout, re.DOTALL)
        assert found is not None
        clocks.append((asked, time.time(), int(found[1]), int(found[2])))
    last = energy()
    cpu.append((time.time(), _cpu_s(one.pid)))
    program.stdout.readline()
    one.send_signal(signal.SIGTERM)
    one.wait()
    program.stdin.close()
    program.wait()
    found_all = {"blocks": blocks, "cpu": cpu, "energy": [first, last], "clocks": clocks, "gpus": nvml.names}
    (folder / "measured.json").write_text(json.dumps(found_all))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def show(folder: Path) -> None:
    """Print the figures of `measure`."""
    from hpcprof.analysis.telemetry.tables import RunTelemetry, telemetry_tables
    from hpcprof.profiles.readers.telemetry import read_telemetry
    from hpcprof.runs.live_steps import StepMark

    found = json.loads((folder / "measured.json").read_text())
    (began, cpu), (ended, later) = found["cpu"]
    share = 100 * (later - cpu) / (ended - began)
    print(f"{', '.join(found['gpus'])}: the sampler uses {share:.2f} % of a core")
    changes = [100 * ((b + c) / (a + d) - 1) for a, b, c, d in found["blocks"]]
    step = 1e3 * median(time for block in found["blocks"] for time in block)
    print(
        f"a step of {step:.1f} ms takes {median(changes):+.3f} % longer, from {min(changes):+.3f} to "
        f"{max(changes):+.3f} % (n = {len(changes)} blocks A B B A)"
    )
    nodes = read_telemetry(folder)
    (first, before), (last, after) = found["energy"]
    marks = {0: [StepMark(0, first), StepMark(1, last)]}
    joule = telemetry_tables(RunTelemetry(nodes, marks))["energy"].columns()["energy_j"][0]
    off = 100 * (joule / (after - before) - 1)
    counted = f"by the counter {after - before:.0f} J ({off:+.2f} %)"
    print(f"energy over {last - first:.0f} s: {joule:.0f} J, {counted}")
    samples = nodes[0].metrics_of("gpu0")
    for start, end, sm, memory in found["clocks"]:
        said = [
            [
                int(value)
                for at, value in zip(samples[metric].times, samples[metric].values, strict=True)
                if start - around <= at <= end + around
            ]
            for metric, around in (("sm_mhz", 0.2), ("memory_mhz", 1.5))
        ]
        print(f"nvidia-smi: SM {sm}, memory {memory} MHz; samples around it: {said[0]}, {said[1]}")
    print("sampled of the GPU:", ", ".join(sorted(samples)))
    print("not sampled:", json.dumps(dict(nodes[0].missing)))


if __name__ == "__main__":
    {"measure": measure, "show": show}[sys.argv[1]](Path(sys.argv[2]))
