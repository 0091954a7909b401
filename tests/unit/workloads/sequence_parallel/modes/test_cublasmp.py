"""The calls of the cublasmp mode; a stand-in for the bindings multiplies by columns, as cuBLASMp does."""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hpcprof.workloads.sequence_parallel.buffers import allocate
from hpcprof.workloads.sequence_parallel.modes import cublasmp
from hpcprof.workloads.sequence_parallel.modes.base import Unavailable
from hpcprof.workloads.sequence_parallel.modes.cublasmp import CublasMp
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import UntimedPhases


class Refused(Exception):
    """The error of the stand-in for an algorithm that it does not support."""


class Bindings:
    """Stands in for ``nvmath.bindings.cublasMp`` on one rank, in host memory and float32."""

    GridLayout = IntEnum("GridLayout", {"COL_MAJOR": 0, "ROW_MAJOR": 1})
    MatmulAlgoType = IntEnum("MatmulAlgoType", {"DEFAULT": 0, "SPLIT_P2P": 1, "ATOMIC_P2P": 3})
    MatmulDescriptorAttribute = IntEnum(
        "MatmulDescriptorAttribute", {"ALGO_TYPE": 3, "COMMUNICATION_TYPE": 27}
    )
    cuBLASMpError = Refused

    def __init__(self) -> None:
        self.made: list[Any] = [None]
        self.algorithms: dict[int, int] = {}
        self.freed: list[str] = []

    def get_version(self) -> int:
        return 1000

    def create(self, stream: int) -> int:
        return 77

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == 77

    def _new(self, what: Any) -> int:
        self.made.append(what)
        return len(self.made) - 1

    def grid_create(self, *grid: int) -> int:
        return self._new(grid)

    def matrix_descriptor_create(self, *matrix: int) -> int:
        return self._new(matrix)

    def matmul_descriptor_create(self, compute: int) -> int:
        return self._new(compute)

    def matmul_descriptor_set_attribute(self, descriptor: int, key: int, address: int, size: int) -> None:
        if key == self.MatmulDescriptorAttribute.ALGO_TYPE:
            self.algorithms[descriptor] = ctypes.c_int32.from_address(address).value

    def matmul_buffer_size(self, *arguments: int) -> tuple[int, int]:
        return 64, 8

    def malloc(self, grid: int, size: int) -> int:
        return 4096

    def buffer_register(self, grid: int, pointer: int, size: int) -> None:
        assert (pointer, size) == (4096, 64)

    def matmul(self, *arguments: int) -> None:
        _, descriptor, m, n, k = arguments[:5]
        if self.algorithms[descriptor] == self.MatmulAlgoType.ATOMIC_P2P:
            raise Refused
        a, b, d = (self._matrix(arguments[at], arguments[at + 3]) for at in (6, 10, 19))
        assert (a.shape, b.shape, d.shape) == ((m, k), (k, n), (m, n))
        d.copy_(a @ b)

    def _matrix(self, address: int, descriptor: int) -> torch.Tensor:
        rows, columns, _, _, _, _, leading, kind, _ = self.made[descriptor]
        assert (leading, kind) == (rows, 0)
        memory = (ctypes.c_float * (rows * columns)).from_address(address)
        return torch.frombuffer(memory, dtype=torch.float32).view(columns, rows).t()

    def __getattr__(self, name: str) -> Any:
        assert name in {
            "buffer_deregister",
            "free",
            "matmul_descriptor_destroy",
            "matrix_descriptor_destroy",
            "grid_destroy",
            "destroy",
        }
        return lambda *_: self.freed.append(name)


WORLD: Any = SimpleNamespace(
    rank=0,
    size=1,
    device=torch.device("cuda"),
    backend="nccl",
    comm=SimpleNamespace(allgather=lambda value: [value]),
)


def test_the_two_calls_compute_the_block_with_an_algorithm_that_is_supported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bindings = Bindings()
    tried: list[list[str]] = []
    monkeypatch.setattr(cublasmp, "_load", lambda: (bindings, None))
    monkeypatch.setattr(cublasmp, "_communicator", lambda world: 5)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))

    def fastest(world: Any, run: Any, variants: list[Any]) -> Any:
        tried.append([variant.algorithm for variant in variants])
        return variants[-1]

    monkeypatch.setattr(cublasmp, "fastest", fastest)
    parameters = PointParameters(24, 16, ffn_multiplier=3)
    buffers = allocate(parameters, 0, 1, torch.device("cpu"))
    mode = CublasMp(parameters, WORLD, buffers)
    assert tried == [["DEFAULT", "SPLIT_P2P"]] * 2
    assert "cuBLASMp 0.10.0 with the algorithm SPLIT_P2P" in mode.note
    mode.poison()
    output = mode.forward(2, UntimedPhases())
    expected = buffers.input(2) @ buffers.weight_1 @ buffers.weight_2
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    mode.close()
    # Six products, four matrices and two grids.
    assert [
        bindings.freed.count(f"{name}_destroy") for name in ("matmul_descriptor", "matrix_descriptor")
    ] == [
        6,
        4,
    ]
    assert bindings.freed[:2] == ["buffer_deregister", "free"]
    assert bindings.freed[-3:] == ["grid_destroy", "grid_destroy", "destroy"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"direction": "both"}, "it runs the forward only"),
        ({"cuda_graph": True}, "it does not support --cuda-graph here"),
        ({}, "it needs NVIDIA's packages nvmath-python and nvidia-cublasmp-cu13"),
    ],
)
def test_where_it_cannot_run_the_reason_is_one_sentence(
    changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasMp", None)
    parameters = PointParameters(24, 16, **changes)
    with pytest.raises(Unavailable, match=f"^{reason}$"):
        CublasMp(parameters, WORLD, allocate(parameters, 0, 1, torch.device("cpu")))


def test_an_old_nccl_and_a_missing_library_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings: Any = ModuleType("nvmath.bindings.cublasMp")
    monkeypatch.setattr(cublasmp, "import_module", lambda name: bindings)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cublasmp, "nccl_version", lambda: (2, 28, 9))
    assert cublasmp._load()[1] == "cuBLASMp needs NCCL 2.29.2 or newer, but PyTorch loaded 2.28.9"

    def missing() -> int:
        raise RuntimeError("Failure finding libcublasmp.so.0\nin …")

    bindings.get_version = missing
    monkeypatch.setattr(cublasmp, "nccl_version", lambda: (2, 29, 7))
    assert str(cublasmp._load()[1]).endswith("nvidia-cublasmp-cu13 (Failure finding libcublasmp.so.0)")
