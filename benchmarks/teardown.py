"""Aborts in PyTorch's teardown: a program without ``destroy_process_group``, alone and recorded.

Two ranks reduce over gloo and end without destroying the group. Ends by a signal are counted, alone and under
``hpcprof run --profiler torch``, in turns::

    python benchmarks/teardown.py 60

On 16 cores with PyTorch 2.11, 12 copies at once, 8 of 60 runs aborted alone and 6 of 60 recorded; with 6
copies none of 51 and none of 51. Earlier, on two busy cores with PyTorch 2.13, it was 2 of 20 and 8 of 22
(Fisher's exact test, one-sided: 0.05), which the larger count does not confirm.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

_PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
dist.all_reduce(torch.ones(1 << 16), async_op=True)
print("work done", flush=True)
"""


def alone(program: Path) -> list[int]:
    """Return the exit codes of two ranks of a program without hpcprof."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]
    return [rank.wait(120) for rank in ranks]


def recorded(program: Path) -> list[int]:
    """Return the exit code of a run of two ranks under the PyTorch profiler, a negative one for a signal."""
    command = [sys.executable, "-m", "hpcprof", "run", "--ranks-per-node", "2", "--profiler", "torch"]
    run = subprocess.run(
        [*command, "--", sys.executable, str(program)],
        cwd=program.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=240,
        check=False,
    )
    return [128 - run.returncode if run.returncode > 128 else run.returncode]


def main() -> None:
    """Run the program in turns, and print how often each way ended by which code."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    ends: dict[str, Counter[int]] = {"alone": Counter(), "recorded": Counter()}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        program.write_text(_PROGRAM)
        for _ in range(count):
            ends["alone"][min(alone(program))] += 1
            ends["recorded"][min(recorded(program))] += 1
            print(*(f"{way}: exit codes {dict(codes)}" for way, codes in ends.items()), sep="; ", flush=True)


if __name__ == "__main__":
    main()
