"""A small made-up program on two GPUs as JAX's profiler records it, and a writer of its format."""

from __future__ import annotations

import random
import struct

BASE_NS = 1_795_000_000_000_000_000
PID, TID, STEPS = 4711, 4712, 3
KERNEL_NS, GAP_NS, STEP_NS = 1500, 500, 20_000
KERNELS = ("gemm_fusion_dot", "loop_add_fusion", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
OPS = ("dot.1", "add.2", "all-reduce-start.3")
MODULE, PROGRAM = "jit_step", 7
DETAILS = "regs:32 static_shared:0 dynamic_shared:0 grid:16,2,1 block:128,1,1 occ_pct:100"
COPY = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"

Value = int | float | str | bytes
Message = list[tuple[int, Value]]


def varint(value: int) -> bytes:
    """Return a number in seven bits a byte, the last ones first."""
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def message(fields: Message) -> bytes:
    """Return a message in the wire format."""
    written = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            written += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            written += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            part = value.encode() if isinstance(value, str) else value
            written += varint(number << 3 | 2) + varint(len(part)) + part
    return bytes(written)


class Plane:
    """A plane in the making: it numbers the names of its events and statistics."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._names: dict[str, int] = {}
        self._stats: dict[str, int] = {}
        self._of_names: dict[str, list[bytes]] = {}
        self._own: list[bytes] = []
        self.lines: dict[tuple[int, str], list[bytes]] = {}
        self.displayed: dict[int, str] = {}
        """Short names of events, by the numbers of their names."""

    def stat(self, name: str, value: Value, *, reference: bool = False) -> bytes:
        """Return a statistic; with ``reference`` its text is the name of another one, as XLA writes many."""
        key = self._stats.setdefault(name, len(self._stats) + 1)
        if reference:
            return message([(1, key), (7, self._stats.setdefault(str(value), len(self._stats) + 1))])
        number = {int: 4, float: 2, str: 5, bytes: 6}[type(value)]
        return message([(1, key), (number, value)])

    def own(self, **stats: Value) -> None:
        """Give the plane statistics."""
        self._own += [self.stat(name, value) for name, value in stats.items()]

    def name(self, name: str, **stats: Value) -> int:
        """Return the number of a name, whose events share statistics."""
        self._of_names.setdefault(name, []).extend(self.stat(key, value) for key, value in stats.items())
        return self._names.setdefault(name, len(self._names) + 1)

    def event(self, line: tuple[int, str], name: str, start_ns: int, ns: int, **stats: Value) -> None:
        """Add an event to a line, which is a number and a name."""
        written = [self.stat(key, value, reference=isinstance(value, str)) for key, value in stats.items()]
        fields: Message = [(1, self.name(name)), (2, start_ns * 1000), (3, ns * 1000)]
        self.lines.setdefault(line, []).append(message([*fields, *((4, one) for one in written)]))

    def written(self, start_ns: int = 0) -> bytes:
        """Return the plane."""
        lines = [
            message([(1, number), (2, name), (3, start_ns), *((4, event) for event in events)])
            for (number, name), events in self.lines.items()
        ]
        names = [
            message(
                [
                    (1, key),
                    (
                        2,
                        message(
                            [
                                (1, key),
                                (2, name),
                                *((4, self.displayed[one]) for one in [key] if one in self.displayed),
                                *((5, one) for one in self._of_names[name]),
                            ]
                        ),
                    ),
                ]
            )
            for name, key in self._names.items()
        ]
        stats = [message([(1, key), (2, message([(1, key), (2, one)]))]) for one, key in self._stats.items()]
        parts = ((3, lines), (4, names), (5, stats), (6, self._own))
        return message([(2, self._name), *((number, one) for number, ones in parts for one in ones)])


def array(*sizes: int, kind: int = 11) -> bytes:
    """Return the shape of an array, of floats by default."""
    return message([(2, kind), (3, b"".join(map(varint, sizes)))])


def hlo() -> bytes:
    """Return the program: a product of 64x32 and 32x16, a sum, and its all-reduce over two devices."""

    def operation(number: int, name: str, opcode: str, shape: bytes, *others: tuple[int, Value]) -> bytes:
        return message([(1, name), (2, opcode), (3, shape), (35, number), *others])

    out = array(64, 16)
    operations = (
        operation(1, "p0", "parameter", array(64, 32)),
        operation(2, "p1", "parameter", array(32, 16)),
        operation(
            3,
            OPS[0],
            "dot",
            out,
            (36, varint(1) + varint(2)),
            (30, message([(1, varint(1)), (2, varint(0))])),
        ),
        operation(4, OPS[1], "add", out, (36, varint(3) + varint(3))),
        operation(
            5,
            OPS[2],
            "all-reduce-start",
            out,
            (36, varint(4)),
            (87, message([(1, message([(1, varint(0) + varint(1))]))])),
        ),
    )
    computation = message([(1, "main"), *((2, one) for one in operations), (5, 1)])
    devices = message([(1, 1), (2, 2), *((3, message([(1, varint(one))])) for one in (0, 1))])
    return message([(1, message([(1, MODULE), (3, computation), (15, devices)]))])


def profile(
    gpus: int = 1,
    *,
    marked: bool = True,
    seed: int | None = None,
    cut_kernel: bool = False,
    run_id: int | None = None,
    waits: bool = False,
) -> bytes:
    """Return a profile of ``STEPS`` steps, each a copy and three kernels on every GPU.

    Parameters
    ----------
    marked : bool
        Whether the program marks its steps.
    seed : int, optional
        Shuffles the events of each line.
    cut_kernel : bool
        The first kernel has no possible length.
    run_id : int, optional
        Written as JAX 0.11 does on a GPU beside one of another process, whose executions have this number and
        those that follow: calls do not tell their operation, and a second GPU is seen, but not used. The
        recording begins inside the first call of the program.
    waits : bool
        Each step ends with ``block_until_ready``, as the profiler of Python and that of XLA record it.
    """
    metadata, host = Plane("/host:metadata"), Plane("/host:CPU")
    of_program: dict[str, Value] = {"Hlo Proto": hlo(), "program_id": PROGRAM}
    metadata.name(f"{MODULE}({PROGRAM})", **of_program)
    metadata.own(jax_version="0.10.2", process_id=PID)
    planes = [Plane(f"/device:GPU:{gpu}") for gpu in range(gpus)]
    python, correlation = (-5, "python"), 100
    for gpu, plane in enumerate(planes):
        plane.own(device_vendor="Nvidia", core_count=132, clock_rate=1_980_000, memory_size=80 << 30)
        if run_id is not None:
            plane.own(gpu_device_name="NVIDIA H100 80GB HBM3")
        runtime, thread = (TID + gpu, f"Host Threads/{TID + gpu}"), (-9 - gpu, "py_xla_execute/-9")
        of_module: dict[str, Value] = {"hlo_module": MODULE, "program_id": PROGRAM}
        if run_id is not None:
            runtime = thread = python
        for step in range(STEPS):
            at = step * STEP_NS
            if not gpu:
                stats: dict[str, Value] = {"step_num": step, "_r": 1}
                if marked:
                    host.event(python, "train", at, STEP_NS - GAP_NS, **stats)
                host.event(python, "load", at + 100, 2000)
                if step or run_id is None:
                    host.event(python, f"PjitFunction({MODULE[4:]})", at + 2200, 9000)
                if step and run_id is not None:
                    called: dict[str, Value] = {"run_id": run_id + step, "num_addressable_devices": 1}
                    called |= {"num_replicas": 1, "num_partitions": 2}
                    host.event(python, f"X::Execute ({MODULE})", at + 2300, 8800, **called)
                if waits:
                    host.event(python, "$api.py:3105 block_until_ready", at + 11_500, 3000)
                    host.event(python, "CommonPjRtBuffer::Await", at + 11_600, 2800)
                host.event(python, "ParseArguments", at + 2300, 50)
                host.event(python, "$train.py:12 main", at, 10)
            host.event(thread, f"{MODULE}:XLA GPU module", at + 3000, 8000)
            correlation += 1
            host.event(runtime, "cuMemcpyHtoDAsync", at + 3100, 100, correlation_id=correlation)
            plane.event(
                (13, "Stream #13(MemcpyH2D)"),
                "MemcpyH2D",
                at + 3500,
                300,
                correlation_id=correlation,
                memcpy_details=COPY,
            )
            for place, (kernel, op) in enumerate(zip(KERNELS, OPS, strict=True)):
                correlation += 1
                begin = at + 4000 + place * (KERNEL_NS + GAP_NS)
                host.event(thread, op, begin - 10, 500)
                launched: dict[str, Value] = {"correlation_id": correlation, "hlo_op": op, **of_module}
                told = launched if run_id is None else {"correlation_id": correlation}
                host.event(runtime, "cuLaunchKernel", begin, 400, **told)
                first = cut_kernel and not (step or place or gpu)
                plane.event(
                    (14, "Stream #14(Compute)"),
                    kernel,
                    begin + 600,
                    -1 if first else KERNEL_NS,
                    kernel_details=DETAILS,
                    **launched,
                )
    if run_id is not None:
        planes.append(Plane(f"/device:GPU:{gpus}"))
    if seed is not None:
        choose = random.Random(seed)
        for one in (host, *planes):
            for events in one.lines.values():
                choose.shuffle(events)
    environment = Plane("Task Environment")
    environment.own(profile_start_time=BASE_NS, profile_stop_time=BASE_NS + STEPS * STEP_NS)
    written = [metadata.written(), *(plane.written(1000) for plane in (*planes, host)), environment.written()]
    return message([*((1, one) for one in written), (4, "node0")])


def of_cpu(process: int, first: int, count: int, *, before_ns: int = 0, late_ns: int = 0) -> bytes:
    """Return what one of two processes on CPU devices records of a program that marks no step.

    Each of the ``count`` executions from ``first`` on computes for 2 ms and then takes part in an all-reduce,
    which ends 20 µs after both processes have come to it. The clocks of the processes are 7 s apart.

    Parameters
    ----------
    before_ns, late_ns : int
        For how long the host is busy before it calls the program, in all, and how much of it only the
        process 1 is.
    """
    step, compute, transfer = 2_100_000 + before_ns, 2_000_000, 20_000
    metadata, host = Plane("/host:metadata"), Plane("/host:CPU")
    of_program: dict[str, Value] = {"Hlo Proto": hlo(), "program_id": PROGRAM}
    metadata.name(f"{MODULE}({PROGRAM})", **of_program)
    metadata.own(jax_version="0.10.2", process_id=PID + process)
    python, worker = (-5, "python"), (-6, "tf_XLAPjRtCpuClient/-6")
    for number in range(first, first + count):
        # Executions take turns to be a little quicker and slower.
        at = 7_000_000_000 * process + (number - first + 1) * step + 10_000 * (number % 3)
        own = at + before_ns - (0 if process else late_ns)
        host.event(python, f"PjitFunction({MODULE[4:]})", own, 30_000)
        # JAX counts the execution that compiles the program apart from the others.
        run_id = 782_724_313 + number if number else -667_067_666
        parts = ((OPS[0], own + 50_000, compute), (OPS[2], own + 50_000 + compute, 0))
        end = at + before_ns + 50_000 + compute + transfer
        for op, begin, length in parts:
            stats: dict[str, Value] = {"hlo_op": op, "hlo_module": MODULE, "program_id": PROGRAM}
            ids: dict[str, Value] = {"run_id": run_id, "device_ordinal": process}
            host.event(worker, op, begin, length or end - begin, **stats, **ids)
    environment = Plane("Task Environment")
    environment.own(profile_start_time=BASE_NS, profile_stop_time=BASE_NS + STEPS * STEP_NS)
    written = (metadata.written(), host.written(1000), environment.written())
    return message([*((1, one) for one in written), (4, "node0")])


TPU_MODULE = "jit_train_step(1234567890)"
TPU_OPS = (
    ("fusion.1", "fusion", "convolution fusion", 0, 4000, 0),
    ("all-reduce-start.2", "all-reduce-start", "all-reduce", 4000, 100, 0),
    ("while.7", "while", "while", 4100, 3000, 0),
    ("fusion.3", "fusion", "loop fusion", 4100, 2900, 0),
    ("all-reduce-done.2", "all-reduce-done", "all-reduce", 7100, 900, 0),
    ("copy-done.5", "copy-done", "copy-done", 8000, 200, 0),
    ("all-reduce-start.2", "all-reduce-start", "all-reduce", 4000, 4000, 1),
    ("copy-start.5", "copy-start", "copy-start", 3000, 5100, 1),
)
"""Operations of a core in an execution: name, opcode, category, start and length in ns, 1 beside others."""


def of_tpu(
    cores: int = 2,
    *,
    enqueued: bool = True,
    marked: bool = True,
    asynchronous: bool = True,
    unread: bool = False,
    seed: int | None = None,
    cut_kernel: bool = False,
) -> bytes:
    """Return a profile of ``STEPS`` steps on TPU cores, each an execution that lasts 9 of 20 µs.

    Parameters
    ----------
    enqueued : bool
        Whether the host's calls that enqueue the executions are recorded.
    marked : bool
        Whether the program marks its steps on the host.
    asynchronous : bool
        Whether there is a line of the operations that are under way.
    unread : bool
        Whether there are also a line and a plane that are not read.
    seed, cut_kernel
        As in `profile`.
    """
    host = Plane("/host:CPU")
    planes = [Plane(f"/device:TPU:{core}") for core in range(cores)]
    for core, plane in enumerate(planes):
        plane.own(device_type_string="TPU v5 lite")
        for step in range(STEPS):
            # The host's numbers have more bits than the device's.
            run_id, at = 5 + step, step * STEP_NS
            if marked and not core:
                stats: dict[str, Value] = {"step_num": step, "_r": 1}
                host.event((-5, "python"), "train", at, STEP_NS - GAP_NS, **stats)
            if enqueued:
                call: dict[str, Value] = {"run_id": (7 << 28) + run_id, "device_ordinal": core}
                host.event((-6, "tf_XLATpuClient"), "DoEnqueueProgram", at + 500 + core, 300, **call)
            plane.event((1, "Steps"), str(step), at + 2000, 9000)
            plane.event((2, "XLA Modules"), TPU_MODULE, at + 2000, 9000, run_id=run_id)
            if unread:
                plane.event((5, "Scalar Unit"), "idle", at + 2000, 10)
            plane.event((6, "XLA TraceMe"), "barrier-cores", at + 2000, 10)
            for name, opcode, category, begin, length, beside in TPU_OPS:
                line = (3 + beside, ("XLA Ops", "Async XLA Ops")[beside])
                text = f"%{name} = (f32[8,128]{{1,0:T(8,128)S(5)}}, u32[]) {opcode}(f32[8,128]{{1,0}} %p)"
                if name not in plane.displayed.values():
                    plane.displayed[plane.name(text, hlo_category=category)] = name
                if cut_kernel and not (step or core or begin):
                    length = -1
                if asynchronous or not beside:
                    plane.event(line, text, at + 2000 + begin, length)
    if unread:
        planes.append(Plane("/device:TPU:0 SparseCore 0"))
        planes[-1].event((1, "SparseCore Ops"), "gather.1", 0, 10)
    if seed is not None:
        choose = random.Random(seed)
        for events in (events for plane in (*planes, host) for events in plane.lines.values()):
            choose.shuffle(events)
    environment = Plane("Task Environment")
    environment.own(profile_start_time=BASE_NS, profile_stop_time=BASE_NS + STEPS * STEP_NS)
    written = [plane.written(1000) for plane in (*planes, host)]
    return message([*((1, one) for one in (*written, environment.written())), (4, "node0")])
