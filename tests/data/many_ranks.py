"""Exports of many ranks in the real schema: ``python -m tests.data.many_ranks FOLDER RANKS KERNELS``.

Each rank trains for some steps: a forward range, a backward one whose work is launched by a second thread,
and an optimizer, with the collectives and messages of `tests.data.parallel_program` and NCCL's own ranges
for them. Every kernel has its launch call. The ranks differ in their clocks, which drift.

The ranks of a stage have the same rows with other numbers. So each stage is written once by SQLite, with a
mark of eight bytes in the place of each number, and the file of a rank is a copy in which these are replaced.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

if not __package__:
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.data.generated_exports import MACHINE, SCHEMA
from tests.data.parallel_program import Floats, Operation, Program, Simulation

Ints = NDArray[np.int64]

_META = """
CREATE TABLE MPI_RANKS (globalTid INTEGER NOT NULL, rank INTEGER NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL,
  idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER,
  offset INTEGER);
ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData BLOB;
"""
_LOST = """
CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, timestampType INTEGER, source INTEGER, severity INTEGER,
  text TEXT, globalPid INTEGER);
INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, 2, 'Not all CUDA events might have been collected.', NULL);
"""
_TEXTS = [
    "void gemm<float, (int)128>(Params)",
    "elementwise_kernel",
    "layer_norm_kernel<float>",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "cudaLaunchKernel_v7000",
    *("iteration", "data_loading", "forward", "backward", "optimizer"),
    *("ncclCommInitRank", "ncclAllReduce", "ncclSend", "ncclRecv"),
]
_CALL, _RANGES, _INIT = 6, (7, 8, 9, 10, 11), 12
_KERNEL = {"tensor": 4, "data": 4, "Send": 5, "Recv": 5}
_FUNCTION = {"tensor": 13, "data": 13, "Send": 14, "Recv": 15}
_STREAM = {"compute": 7, "tensor": 13, "data": 17, "Send": 21, "Recv": 21}
_BYTES = {"tensor": 2**22, "data": 2**28, "Send": 2**21, "Recv": 2**21}
_COMMUNICATOR = {"tensor": 0, "data": 1, "Send": 2, "Recv": 2}

_SCHEMAS = {
    "init": (16777227, (("NCCL communicator ID", 18), ("No. of ranks", 5), ("Rank", 5), ("CUDA device", 5))),
    "collective": (16777223, (("NCCL communicator ID", 18), ("Message size [bytes]", 22))),
    "message": (
        16777225,
        (("NCCL communicator ID", 18), ("Message size [bytes]", 22), ("Peer rank", 5), ("Padding", 5)),
    ),
}
_NCCL_DOMAIN, _DOMAIN, _PUSH_POP = 1, 75, 59

_BEFORE_KERNEL_NS, _CALL_NS, _RANGE_NS, _BEFORE_RANGE_NS = 12_000, 3_000, 2_000, 15_000
_GPUS_A_HOST = 8

_MARK = 0x5AC37E
_MAIN, _AUTOGRAD, _PROCESS, _RANK, _UTC, _STAMPS = range(6)


def _mark(number: int) -> int:
    """Return what takes the place of a number in the template; large, so that it takes eight bytes."""
    return _MARK << 40 | number


def _communicator_mark(number: int) -> bytes:
    return _mark(number).to_bytes(8, "little")


class _Rows:
    """The rows of a stage, with marks for what differs between its ranks."""

    def __init__(self, program: Program, operations: list[Operation]) -> None:
        self.program, self.operations = program, operations
        kernels = [one for one in operations for _ in range(one.kernels)]
        self.kernels = kernels
        self.steps = program.steps
        self.operation = np.repeat(np.arange(len(operations)), [one.kernels for one in operations])
        place = np.concatenate([np.arange(one.kernels) for one in operations])
        count = np.array([one.kernels for one in kernels])
        communicates = np.array([one.kind != "compute" for one in kernels])
        # A kernel takes nearly all of its part of the stretch; a collective takes its whole extent.
        self.first = place / count
        self.last = np.where(communicates, 1.0, (place + 0.98) / count)
        self.communicating = np.flatnonzero(communicates)
        phases = [one.phase for one in operations]
        self.phase_begin = [phases.index(phase) for phase in ("forward", "backward", "optimizer")]
        sizes = {"tensor": program.tensor, "data": program.data, "Send": program.pipeline}
        self.groups = [kind for kind, size in sizes.items() if size > 1]
        self.sizes = sizes

    def stamps(self, step: Floats, begin: Floats, end: Floats) -> Floats:
        """Return all time stamps of a rank, in the order of their marks.

        ``step`` has shape (steps,), ``begin`` and ``end`` (steps, operations).
        """
        start, length = begin[:, self.operation], (end - begin)[:, self.operation]
        kernel_begin, kernel_end = start + self.first * length, start + self.last * length
        call = kernel_begin - _BEFORE_KERNEL_NS
        inside = call[:, self.communicating]
        fronts = [begin[:, place] - _BEFORE_RANGE_NS for place in self.phase_begin]
        over = end.max(axis=1) + 5_000
        made = -1e9 + np.arange(len(self.groups)) * 1e6
        parts = [
            *(call, call + _CALL_NS, kernel_begin, kernel_end),
            *(inside - _RANGE_NS, inside + _CALL_NS + _RANGE_NS),
            *(step, over + 2, step + 1, fronts[0] - 1, fronts[0], fronts[1] - 1, fronts[1], fronts[2] - 1),
            *(fronts[2], over, made, made + 5e5),
        ]
        return np.concatenate([part.ravel() for part in parts])

    def write(self, path: Path) -> None:
        """Write the template."""
        with closing(sqlite3.connect(path)) as export, export:
            export.executescript("PRAGMA synchronous = OFF;" + SCHEMA + _META)
            for table, rows in self._tables().items():
                marks = ", ".join("?" * len(rows[0]))
                export.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _tables(self) -> dict[str, list[tuple[object, ...]]]:
        number = iter(range(_STAMPS, 2**31))
        shapes = [(self.steps, len(self.kernels))] * 4 + [(self.steps, len(self.communicating))] * 2
        calls, returns, begins, ends, enter, leave = (
            [[_mark(next(number)) for _ in range(columns)] for _ in range(rows)] for rows, columns in shapes
        )
        process, main, autograd = _mark(_PROCESS), _mark(_MAIN), _mark(_AUTOGRAD)
        launched: list[tuple[object, ...]] = []
        kernels: list[tuple[object, ...]] = []
        ranges = [self._range(0, None, _DOMAIN, main, None, text="NCCL")]
        for step in range(self.steps):
            for k, one in enumerate(self.kernels):
                thread = autograd if one.phase == "backward" else main
                correlation = step * len(self.kernels) + k + 1
                launched.append((calls[step][k], returns[step][k], 0, thread, correlation, _CALL, 0))
                name = _KERNEL.get(one.kind, k % 3 + 1)
                where = (0, 1, _STREAM[one.kind], correlation, process, name, name)
                kernels.append((begins[step][k], ends[step][k], *where, k % 9 + 1, 1, 1, 256, 1, 1))
            for c, k in enumerate(self.communicating.tolist()):
                one = self.kernels[k]
                thread = autograd if one.phase == "backward" else main
                payload = self._payload(one)
                times = (enter[step][c], leave[step][c])
                ranges.append(self._range(*times, _PUSH_POP, thread, _FUNCTION[one.kind], payload))
        for text in _RANGES:
            both = [[_mark(next(number)) for _ in range(self.steps)] for _ in range(2)]
            ranges += [
                self._range(begin, end, _PUSH_POP, main, text) for begin, end in zip(*both, strict=True)
            ]
        made = [[_mark(next(number)) for _ in self.groups] for _ in range(2)]
        for kind, begin, end in zip(self.groups, *made, strict=True):
            content = self.sizes[kind].to_bytes(4, "little") + bytes(8)
            ranges.append(self._range(begin, end, _PUSH_POP, main, _INIT, _payload("init", kind, content)))
        return {
            "StringIds": list(enumerate(_TEXTS, 1)),
            "CUPTI_ACTIVITY_KIND_RUNTIME": launched,
            "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
            "NVTX_EVENTS": ranges,
            "NVTX_PAYLOAD_SCHEMA_ENTRIES": _schema_rows(),
            "MPI_RANKS": [(main, _mark(_RANK))],
            "TARGET_INFO_SESSION_START_TIME": [(_mark(_UTC), None, None)],
            "TARGET_INFO_SYSTEM_ENV": [("Hostname", "node-#####")],
            "META_DATA_CAPTURE": [("ENVIRONMENT_VARIABLE", f"WORLD_SIZE={self.program.ranks}")],
        }

    @staticmethod
    def _range(
        start: int,
        end: int | None,
        kind: int,
        thread: int,
        text_id: int | None,
        payload: bytes | None = None,
        text: str | None = None,
    ) -> tuple[object, ...]:
        domain = _NCCL_DOMAIN if payload or text else 0
        return (start, end, kind, *[None] * 3, text, thread, None, text_id, domain, payload)

    @staticmethod
    def _payload(one: Operation) -> bytes:
        size = _BYTES[one.kind].to_bytes(8, "little")
        if one.peer < 0:
            return _payload("collective", one.kind, size)
        return _payload("message", one.kind, size + one.peer.to_bytes(8, "little"))


def _payload(schema: str, kind: str, content: bytes) -> bytes:
    """Return NCCL's payload as nsys writes it: a header of 64-bit numbers, then the communicator's id."""
    header = (1, _SCHEMAS[schema][0], 8 + len(content), 32)
    begin = b"".join(number.to_bytes(8, "little") for number in header)
    return begin + _communicator_mark(_COMMUNICATOR[kind]) + content


def _schema_rows() -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for schema, entries in _SCHEMAS.values():
        offset = 0
        for place, (name, kind) in enumerate(entries):
            rows.append((_NCCL_DOMAIN, schema, place, None, kind, name, None, None, offset or None))
            offset += 4 if kind == 5 else 8
    return rows


def _positions(text: bytes, content: bytes) -> Ints:
    return np.array([match.start() for match in re.finditer(re.escape(text), content)], np.int64)


class _Template:
    """The bytes of a stage's template, and where its marks are."""

    def __init__(self, rows: _Rows) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "template.sqlite"
            rows.write(path)
            content = path.read_bytes()
        self.rows = rows
        self.content = np.frombuffer(content, np.uint8)
        begin = _MARK.to_bytes(3, "big")
        found = np.flatnonzero(self.content[:-7] == begin[0])
        for place in (1, 2):
            found = found[self.content[found + place] == begin[place]]
        self.bytes = found[:, np.newaxis] + np.arange(8)
        self.number = self.content[self.bytes[:, 3:]].astype(np.int64) @ (256 ** np.arange(4, -1, -1))
        self.host = _positions(b"node-#####", content)
        self.communicator = [_positions(_communicator_mark(number), content) for number in range(3)]

    def write(self, path: Path, rank: int, stamps: Ints, communicators: Sequence[int]) -> None:
        """Write the export of a rank."""
        process = MACHINE + (1000 + rank) * 2**24
        fixed = [process + 1, process + 2, process, rank, 1_790_000_000_000_000_000 - 1000 * rank]
        numbers = np.concatenate([np.array(fixed, np.int64), stamps])
        # What looks like a mark by chance, in a large file, has a higher number than there are.
        real = self.number < len(numbers)
        values = numbers[self.number[real]]
        content = self.content.copy()
        content[self.bytes[real]] = values.astype(">i8").view(np.uint8).reshape(-1, 8)
        host = f"node-{rank // _GPUS_A_HOST:05d}".encode()
        identities = (number.to_bytes(8, "little") for number in communicators)
        texts = [(self.host, host), *zip(self.communicator, identities, strict=True)]
        for places, text in texts:
            content[np.add.outer(places, np.arange(len(text)))] = np.frombuffer(text, np.uint8)
        path.write_bytes(content)


def write_program(folder: Path, program: Program) -> Simulation:
    """Write the exports of a program, and return what was simulated."""
    folder.mkdir(parents=True, exist_ok=True)
    simulation = Simulation(program)
    ahead, fast = program.clocks()
    for stage, operations in enumerate(simulation.operations):
        template = _Template(_Rows(program, operations))
        times = simulation.times[stage]
        for data in range(program.data):
            for tensor in range(program.tensor):
                rank = (stage * program.data + data) * program.tensor + tensor
                if rank in program.missing:
                    continue
                own = (
                    times.step[:, data, tensor],
                    *(t[:, :, data, tensor] for t in (times.begin, times.end)),
                )
                stamps = np.rint(template.rows.stamps(*own) * fast[rank] + ahead[rank]).astype(np.int64)
                # The groups of each kind are numbered by the other two places.
                numbers = (stage * program.data + data, stage * program.tensor + tensor)
                groups = (*numbers, data * program.tensor + tensor)
                identities = [
                    (kind + 1) << 56 | (group + 1) * 0x9E3779B1 for kind, group in enumerate(groups)
                ]
                path = folder / f"rank{rank:05d}.sqlite"
                template.write(path, rank, stamps, (identities[0], identities[1], identities[2]))
                if rank in program.dropped:
                    _drop(path, program.dropped[rank])
    return simulation


def _identity(kind: int, group: int) -> int:
    """Return the id of a communicator."""
    return (kind + 1) << 56 | (group + 1) * 0x9E3779B1


def write_all(folder: Path, ranks: int, kernels: int) -> None:
    """Write the exports of a data-parallel program."""
    write_program(folder, Program(ranks, kernels))


def _drop(path: Path, share: float) -> None:
    """Delete a share of the kernels, and let the profiler warn of it."""
    with closing(sqlite3.connect(path)) as export, export:
        export.execute(
            "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid * 7919 % 1000 < ?", (round(share * 1000),)
        )
        export.executescript(_LOST)


def _numbers(texts: list[str]) -> dict[int, float]:
    return {int(rank): float(value) for rank, _, value in (text.partition("=") for text in texts)}


def main(arguments: list[str]) -> None:
    """Write the exports that the arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m tests.data.many_ranks", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("ranks", type=int)
    parser.add_argument("kernels", type=int)
    for name in ("tensor", "pipeline"):
        parser.add_argument(f"--{name}", type=int, default=1, help="ranks in each such group")
    for name in ("slow", "stalled"):
        what = "GPU" if name == "slow" else "host"
        parser.add_argument(f"--{name}", nargs="+", default=[], metavar="RANK=MS", help=f"by its {what}")
    parser.add_argument("--missing", nargs="+", type=int, default=[], metavar="RANK")
    parser.add_argument("--dropped", nargs="+", default=[], metavar="RANK=SHARE")
    parser.add_argument("--step-ms", type=float, default=Program.step_ms)
    parser.add_argument("--drift-ppm", type=float, default=Program.drift_ppm)
    parser.add_argument("--offset-s", type=float, default=Program.offset_s)
    parser.add_argument("--seed", type=int, default=Program.seed)
    given = parser.parse_args(arguments)
    if given.ranks % (given.tensor * given.pipeline):
        parser.error(f"{given.ranks} ranks do not fill groups of {given.tensor} x {given.pipeline}")
    program = Program(
        given.ranks,
        given.kernels,
        tensor=given.tensor,
        pipeline=given.pipeline,
        step_ms=given.step_ms,
        slow=_numbers(given.slow),
        stalled=_numbers(given.stalled),
        missing=frozenset(given.missing),
        dropped=_numbers(given.dropped),
        offset_s=given.offset_s,
        drift_ppm=given.drift_ppm,
        seed=given.seed,
    )
    write_program(given.folder, program)


if __name__ == "__main__":
    main(sys.argv[1:])
