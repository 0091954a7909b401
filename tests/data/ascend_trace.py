"""A made-up trace of torch_npu: two steps of two kernels, a copy, and an all-reduce beside them.

Its form is that of a public sample in the tests of msprof-analyze (Ascend/mstt): a list, times as texts.
"""

import json
import random
from typing import Any

PYTHON, NPU, CANN, HCCL, OVERLAP = 4711, 480, 481, 482, 483
BASE_US = 1_704_161_511_420_000
STEP_US, STEPS = 1000, 2
Fields = dict[str, Any]


def process(pid: int, name: str) -> Fields:
    """Return the name of a process."""
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def event(pid: int, tid: int, name: str, start: float, length: float, **fields: Any) -> Fields:
    """Return an event, given its start and its length in microseconds."""
    times = {"ts": f"{BASE_US + start:.3f}", "dur": length}
    return {"name": name, "pid": pid, "tid": tid, "ph": "X", **times, **fields}


def task(name: str, kind: str, start: float, length: float, stream: int, number: int) -> Fields:
    """Return a task of a stream."""
    arguments = {"Task Type": kind, "Stream Id": stream, "Task Id": number, "connection_id": number}
    return event(NPU, stream, name, start, length, args=arguments)


def launch(start: float, task_start: float, number: int) -> list[Fields]:
    """Return a call, one inside it that ends before the arrow begins, and the arrow to a task."""
    arrow = {"name": f"HostToDevice{number}", "cat": "HostToDevice", "id": str(number << 32)}
    times = (f"{BASE_US + start + 6:.3f}", f"{BASE_US + task_start:.3f}")
    return [
        event(CANN, 11, "AscendCL@aclnnMatmul", start, 10, args={"connection_id": 0}),
        event(CANN, 11, "AscendCL@MatMul_Tiling", start + 1, 2, args={"connection_id": 0}),
        {**arrow, "ph": "s", "pid": CANN, "tid": 11, "ts": times[0]},
        {**arrow, "ph": "f", "pid": NPU, "tid": 2, "ts": times[1], "bp": "e"},
    ]


def trace(*, seed: int | None = None, cut_kernel: bool = False, counters: bool = False) -> bytes:
    """Return the trace.

    ``seed`` shuffles it, ``cut_kernel`` leaves the first kernel without a length, and ``counters`` adds a
    process that is not read.
    """
    names = (("Python", PYTHON), ("CANN", CANN), ("Ascend Hardware", NPU), ("Communication", HCCL))
    thread = {"ph": "M", "name": "thread_name", "pid": HCCL}
    events = [process(pid, name) for name, pid in (*names, ("Overlap Analysis", OVERLAP), ("HBM", 484))]
    events += [
        {**thread, "tid": 0, "args": {"name": "Group 0 Communication"}},
        {**thread, "tid": 1, "args": {"name": "Plane 0"}},
    ]
    for step in range(STEPS):
        at, number = step * STEP_US, step * 10
        events += [
            event(PYTHON, 1, f"ProfilerStep#{step + 3}", at, STEP_US - 10, cat="cpu_op"),
            event(PYTHON, 1, "forward", at + 5, 300, cat="cpu_op"),
            event(PYTHON, 1, "aten::mm", at + 10, 50, cat="cpu_op", args={"Input Dims": [[4, 8], [8, 4]]}),
            event(PYTHON, 1, "Conv2D", at + 12, 5, cat="cpu_op"),
            event(PYTHON, 1, "Dequeue@Conv2D", at + 20, 5, cat="dequeue"),
            *launch(at + 30, at + 100, number + 1),
            *launch(at + 60, at + 300, number + 2),
            task("aclnnMatmul_MatMulV2_MatMulV2", "KERNEL_AICORE", at + 100, 200, 2, number + 1),
            task("aclnnAdd_Add_Add", "KERNEL_AIVEC", at + 300, 50, 2, number + 2),
            task("MEMCPY_ASYNC", "MEMCPY_ASYNC", at + 400, 20, 2, number + 3),
            task("EVENT_WAIT", "EVENT_WAIT", at + 420, 30, 2, number + 4),
            task("SDMA_SQE", "SDMA_SQE", at + 260, 80, 5, number + 5),
            event(HCCL, 0, f"hcom_allReduce__606_{step}_1", at + 250, 150),
            event(HCCL, 1, "Memcpy", at + 260, 80, args={"stream id": 5, "task id": number + 5}),
            event(OVERLAP, 0, "Computing", at + 100, 250),
        ]
        if counters:
            events.append(event(484, 0, "HBM 0/Read", at + 100, 250))
    if cut_kernel:
        next(one for one in events if one["name"].startswith("aclnnMatmul_"))["dur"] = -1
    if seed is not None:
        random.Random(seed).shuffle(events)
    return json.dumps(events).encode()
