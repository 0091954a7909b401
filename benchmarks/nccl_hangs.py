"""Programs with NCCL that hang, and the verdict on each.

``python benchmarks/nccl_hangs.py measure FOLDER [NAME…]`` needs two GPUs, hpcprof's command and mpiexec. It
runs programs, all by default, each as a job of two ranks of its own with ``--stall-timeout 15s --on-stall
stop``; a fifth as many at once as there are cores, because forty processes that import PyTorch and start
NCCL on 32 cores at once had not come to their hang after 118 s. ``show FOLDER`` prints for each the kind of
stall and the ranks that were expected, the verdict, the seconds from the hang to the stall that was seen and
to the end of the job, and the files of evidence, on any machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT_S = 15
HANG_STEP = 20
Hang = Callable[[Any, int, Any], None]


def load_batch(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 waits for its data for ever."""
    if rank == 1:
        time.sleep(3600)


def other_order(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 has two collectives in another order."""
    first, second = (torch.distributed.all_reduce, lambda x: torch.distributed.broadcast(x, 0))
    for collective in (second, first) if rank == 1 else (first, second):
        collective(gradient)


def other_size(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 sums a thousandth of what the others sum."""
    torch.distributed.all_reduce(gradient[: len(gradient) // 1000] if rank == 1 else gradient)


def ended_early(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 has no data left and ends its loop; its process goes on."""
    if rank == 1:
        evaluate()


def evaluate() -> None:
    """Wait for what the other ranks never send."""
    threading.Event().wait()


def gone(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 leaves without a word."""
    if rank == 1:
        os._exit(0)


def stopped(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 is stopped by a signal."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def python_lock(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 holds Python's lock in C."""
    if rank == 1:
        ctypes.PyDLL(None).sleep(3600)


def empty_queue(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 reads from a queue whose writer has died."""
    if rank == 1:
        queue.Queue[int]().get()


def branch(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 1 skips a collective because of its data, and comes to another one."""
    if rank == 1:
        torch.distributed.all_gather_into_tensor(gradient.new_empty(2 * len(gradient)), gradient)
    else:
        torch.distributed.all_reduce(gradient)


def receive(torch: Any, rank: int, gradient: Any) -> None:
    """Both ranks receive, and none sends."""
    torch.distributed.recv(gradient, 1 - rank)


def barrier(torch: Any, rank: int, gradient: Any) -> None:
    """Rank 0 alone writes a checkpoint, with a barrier in it."""
    if rank == 0:
        torch.distributed.barrier()


def groups(torch: Any, rank: int, gradient: Any) -> None:
    """The ranks wait in two groups, in another order."""
    for group in (GROUPS[rank], GROUPS[1 - rank]):
        torch.distributed.all_reduce(gradient, group=group)
        torch.cuda.synchronize()


def spin(torch: Any, rank: int, gradient: Any) -> None:
    """A kernel of rank 1 never ends."""
    if rank == 1:
        _launch(torch, "spin", gradient)


def sleeping_kernel(torch: Any, rank: int, gradient: Any) -> None:
    """The GPU of rank 1 sleeps for two weeks before its next kernel."""
    if rank == 1:
        torch.cuda._sleep(1 << 51)


def illegal_access(torch: Any, rank: int, gradient: Any) -> None:
    """A kernel of rank 1 writes to an invalid address."""
    if rank == 1:
        _launch(torch, "stray", gradient)


GROUPS: list[Any] = []
PROGRAMS: dict[str, tuple[Hang, str, tuple[int, ...] | None]] = {
    "load_batch": (load_batch, "never_came", (1,)),
    "other_order": (other_order, "none", ()),
    "other_size": (other_size, "desynchronized", None),
    "ended_early": (ended_early, "never_came", (1,)),
    "gone": (gone, "desynchronized", (1,)),
    "stopped": (stopped, "stopped", (1,)),
    "python_lock": (python_lock, "never_came", (1,)),
    "empty_queue": (empty_queue, "never_came", (1,)),
    "branch": (branch, "desynchronized", (1,)),
    "receive": (receive, "cycle", (0, 1)),
    "barrier": (barrier, "desynchronized", None),
    "groups": (groups, "cycle", (0, 1)),
    "spin": (spin, "inside", (1,)),
    "sleeping_kernel": (sleeping_kernel, "inside", (1,)),
    "illegal_access": (illegal_access, "failure", (1,)),
}
"""Programs with the kind and the ranks of their verdicts; None: of two ranks none is the minority.

NCCL compares neither operations nor sizes: a sum and a broadcast of as many values end together.
"""

_PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 flag) {
    .reg .u64 %a; .reg .u32 %v; .reg .pred %q;
    ld.param.u64 %a, [flag];
again:
    ld.volatile.global.u32 %v, [%a];
    setp.ne.u32 %q, %v, 4242;
    @%q bra again;
    ret;
}
.visible .entry stray(.param .u64 flag) {
    .reg .u64 %a; .reg .u32 %v;
    mov.u64 %a, 64;
    mov.u32 %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
"""


def _launch(torch: Any, name: str, gradient: Any) -> None:
    """Launch a kernel of one thread on the current stream, by the driver alone."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    address = ctypes.c_uint64(gradient.data_ptr())
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(address), ctypes.c_void_p))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for code in (
        driver.cuModuleLoadData(ctypes.byref(module), _PTX),
        driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()),
        driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None),
    ):
        if code:
            raise RuntimeError(f"the driver returned {code} for kernel {name}")


def train(name: str, folder: Path) -> None:
    """Train one rank with a sum of its gradients in each step, until step 20 hangs."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{os.environ['HPCPROF_RUN_DIR']}/meeting",
        rank=rank,
        world_size=2,
        device_id=torch.device("cuda", rank),
        timeout=timedelta(minutes=10),
    )
    GROUPS[:] = [dist.new_group(), dist.new_group()]
    layer = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), 1e-9)
    gradient = torch.ones(1 << 22, device="cuda")
    for group in (None, *GROUPS):
        dist.all_reduce(gradient, group=group)
    for step in range(HANG_STEP + 20):
        layer(torch.ones(8, 1024, device="cuda")).sum().backward()
        if step == HANG_STEP:
            (folder / f"{name}-{rank}.hung").write_text(f"{time.time()}")
            PROGRAMS[name][0](torch, rank, gradient)
        dist.all_reduce(gradient)
        optimizer.step()
        torch.cuda.synchronize()
        time.sleep(0.02)


def measure(folder: Path, names: list[str]) -> None:
    """Run programs, several at once: they share the two GPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max((os.cpu_count() or 1) // 5, 1)) as threads:
        list(threads.map(lambda name: _run(folder, name), names or PROGRAMS))


def _run(folder: Path, name: str) -> None:
    completed = subprocess.run(
        [
            *(sys.executable, "-m", "hpcprof", "submit", "--site", "local"),
            *("--ranks-per-node", "2", "--wait"),
            *("--runs-dir", str(folder / name), "--profiler", "none", "--stall-timeout", f"{TIMEOUT_S}s"),
            *("--on-stall", "stop", "--walltime", "3m", "--"),
            *(sys.executable, __file__, "train", name, str(folder.resolve())),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    (folder / f"{name}.end").write_text(f"{time.time()} {completed.returncode}")
    (folder / f"{name}.txt").write_text(completed.stdout)
    print(f"{name}: exit {completed.returncode}", flush=True)


def show(folder: Path) -> None:
    """Print the verdict on each program beside what was expected."""
    for name, (_, kind, ranks) in PROGRAMS.items():
        run = next((path.parent for path in (folder / name).glob("*/run.json")), None)
        if run is None:
            continue
        command = [sys.executable, "-m", "hpcprof", "explain", str(run), "--format", "json"]
        completed = subprocess.run(command, capture_output=True, text=True)
        explained = json.loads(completed.stdout) if completed.returncode == 0 else {}
        hung = max((float(path.read_text()) for path in folder.glob(f"{name}-*.hung")), default=0.0)
        times = [f"expected {kind} {ranks}"]
        if (run / "state/stalled").exists():
            times.append(f"seen after {(run / 'state/stalled').stat().st_mtime - hung:.1f} s")
        if (folder / f"{name}.end").exists():
            ended, code = (folder / f"{name}.end").read_text().split()
            times.append(f"ended after {float(ended) - hung:.1f} s, exit {code}")
        print(f"{name}: {'; '.join(times)}")
        for line in _verdict(explained) or [completed.stderr.strip()[-300:]]:
            print(f"    {line}")


def _verdict(explained: dict[str, Any]) -> list[str]:
    stall, failure = explained.get("stall"), explained.get("failure")
    lines = []
    if stall:
        where = [f"{each['function']} ({Path(each['file']).name}:{each['line']})" for each in stall["where"]]
        entered = stall["collective"] and (stall["collective"]["name"], stall["collective"]["number"])
        lines.append(f"{stall['kind']} {stall['ranks']}, waiting {stall['waiting']} in {entered}; {where}")
        lines.append(" ".join(stall["evidence"]))
    if failure:
        lines.append(f"rank {failure['rank']}: {failure['cause']}: {failure['summary']}")
    return lines


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1] == "measure":
        measure(Path(sys.argv[2]), sys.argv[3:])
    else:
        show(Path(sys.argv[2]))
