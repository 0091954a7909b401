"""Random nsys exports that follow the real schema, the same for the same seed on every machine.

They hold what real profiles of a short test do not: several processes and threads, ranges that
overlap, stay open or end on another thread, domains, registered and inline texts, missing names,
correlation ids that repeat in another process, calls that launch several operations, ties.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
  gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
  blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
  category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
  domainId INTEGER);
"""

TEXTS = [
    "void gemm<float, (int)4>(T1::Params)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "elementwise_kernel",
    "größe_核<T>",
    "cudaLaunchKernel_v7000",
    "cudaLaunchKernelExC_v11060",
    "cudaMemcpyAsync_v3020",
    "cuLaunchKernel",
    "_v3020",
    "step",
    "forward",
    "ncclAllReduce",
    "<b>bold & brave</b>",
]
KERNEL_NAMES, API_NAMES, RANGE_NAMES = range(1, 5), range(5, 10), range(10, 14)
LABELS = ["Unknown", "Host-to-Device", "Device-to-Host"]
MACHINE = 281474976710656  # the bits of a global id above the process: machine and hypervisor


class Generator:
    """Fills one export."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        # A coarse clock gives ties, a fine one none.
        self.tick = self.random.choice([1, 1, 7, 10, 50])
        self.span = self.random.choice([60, 400, 5000]) * self.tick
        self.pids = self.random.sample(range(100, 60000), self.random.choice([1, 1, 2, 3]))
        self.calls: list[tuple[int, int, int, int]] = []

    def stamp(self, low: int, high: int) -> int:
        """Return a time of the clock."""
        return self.random.randint(low // self.tick, max(low, high) // self.tick) * self.tick

    def threads(self, pid: int) -> list[int]:
        """Return the global ids of a process' threads."""
        return [MACHINE + pid * 2**24 + pid % 1000 + i for i in range(1 + pid % 3)]

    def call_rows(self) -> list[tuple[object, ...]]:
        """Return API calls, one after the other on each thread, a few inside another."""
        rows: list[tuple[object, ...]] = []
        for pid in self.pids:
            correlation = self.random.randint(1, 50)
            for thread in self.threads(pid):
                now = self.stamp(0, self.span // 8)
                while now < self.span:
                    end = now + self.stamp(0, self.span // 40)
                    self.calls.append((now, end, thread, correlation))
                    if self.random.random() < 0.1:
                        inner = self.stamp(now, end)
                        again = correlation if self.random.random() < 0.5 else correlation + 5000
                        self.calls.append((inner, max(inner, self.stamp(inner, end)), thread, again))
                    correlation += self.random.choice([1, 1, 1, 2])
                    now = end + self.stamp(0, self.span // 20) + self.random.choice([0, self.tick])
                    if end == now:
                        now += self.tick
        self.random.shuffle(self.calls)
        for start, end, thread, correlation in self.calls:
            rows.append((start, end, 0, thread, correlation, self.random.choice(API_NAMES), 0))
        return rows

    def operation_rows(self, kind: str) -> list[tuple[object, ...]]:
        """Return kernels, copies or sets that the calls launched, some without a call."""
        rows: list[tuple[object, ...]] = []
        for start, _, thread, correlation in self.calls:
            for _ in range(self.random.choice([0, 0, 1, 1, 2])):
                begin = start + self.stamp(0, self.span // 5)
                end = begin + self.stamp(0, self.span // 30)
                if self.random.random() < 0.03:
                    correlation += 100000
                pid = thread - thread % 2**24
                device, stream = self.random.randint(0, 1), self.random.randint(7, 9)
                common = (begin, end, device, 1, stream, correlation, pid)
                if kind == "kernel":
                    name = self.random.choice(KERNEL_NAMES)
                    rows.append((*common, name, name, 4, 1, 1, 256, 1, 1))
                else:
                    rows.append((*common, self.random.choice([64, 4096]), self.random.randint(0, 2)))
        return rows

    def range_rows(self) -> list[tuple[object, ...]]:
        """Return domains, marks and ranges; stack-like or overlapping, some never closed."""
        rows: list[tuple[object, ...]] = []
        for pid in self.pids:
            threads = self.threads(pid)
            for domain, name in ((1, "NCCL"), (2, "CCCL")):
                if self.random.random() < 0.7:
                    when = self.stamp(0, self.span // 10)
                    rows.append((when, None, 75, None, None, None, name, threads[0], None, None, domain))
            for thread in threads:
                self.push_pop(rows, thread, 0, self.span, self.random.choice([0, 2, 4]))
                for _ in range(self.random.choice([0, 0, 3, 12])):
                    start = self.stamp(0, self.span)
                    end = None if self.random.random() < 0.15 else self.stamp(start, self.span)
                    other = self.random.choice(threads) if self.random.random() < 0.2 else None
                    rows.append(self.range_row(self.random.choice([60, 60, 71]), start, end, thread, other))
        if self.random.random() < 0.5:
            end = self.span + self.stamp(0, self.span)
            rows.append(
                (end, None, 34, None, None, None, "mark", self.threads(self.pids[0])[0], None, None, 0)
            )
        self.random.shuffle(rows)
        return rows

    def push_pop(self, rows: list[tuple[object, ...]], thread: int, low: int, high: int, depth: int) -> None:
        """Add ranges that nest as a stack does."""
        now = low
        while depth and now < high and self.random.random() < 0.8:
            start = self.stamp(now, high)
            end = max(start, self.stamp(start, high))
            if depth == 4 and self.random.random() < 0.05:
                rows.append(self.range_row(59, start, None, thread, None))
            else:
                rows.append(self.range_row(self.random.choice([59, 59, 59, 70]), start, end, thread, None))
            self.push_pop(rows, thread, start, end, depth - 1)
            now = end + self.tick

    def range_row(
        self, kind: int, start: int, end: int | None, thread: int, other: int | None
    ) -> tuple[object, ...]:
        """Return a range with a registered, an inline or no text."""
        text, text_id = None, None
        draw = self.random.random()
        if draw < 0.5:
            text_id = self.random.choice(RANGE_NAMES)
        elif draw < 0.95:
            text = self.random.choice([*TEXTS[9:], "inline"])
        domain = self.random.choice([0, 0, 0, 1, 2, 3])
        return (start, end, kind, None, None, None, text, thread, other, text_id, domain)


def write(path: Path, seed: int) -> None:
    """Write the export of ``seed``."""
    generator = Generator(seed)
    calls = generator.call_rows()
    tables: dict[str, list[tuple[object, ...]]] = {
        "StringIds": list(enumerate(TEXTS, 1)),
        "ENUM_CUDA_MEMCPY_OPER": [(i, f"KIND_{i}", label) for i, label in enumerate(LABELS)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "CUPTI_ACTIVITY_KIND_KERNEL": generator.operation_rows("kernel"),
        "CUPTI_ACTIVITY_KIND_MEMCPY": generator.operation_rows("copy") if seed % 3 else [],
        "CUPTI_ACTIVITY_KIND_MEMSET": generator.operation_rows("set") if seed % 4 else [],
        "NVTX_EVENTS": generator.range_rows(),
    }
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(SCHEMA)
        for name, rows in tables.items():
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
            else:
                connection.execute(f"DROP TABLE {name}")
    connection.close()
