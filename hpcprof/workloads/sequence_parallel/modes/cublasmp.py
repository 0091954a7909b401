"""The cublasmp mode: NVIDIA's cuBLASMp, which overlaps a collective with a matmul, through nvmath-python."""

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from hpcprof.workloads.capture import synchronize
from hpcprof.workloads.distributed import World, nccl_version
from hpcprof.workloads.sequence_parallel.buffers import Buffers, Gradients
from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.tuning import fastest
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer

# cuBLASMp 0.8 and later call functions that NCCL has since this version.
_MIN_NCCL = (2, 29, 2)
# cudaDataType_t and cublasComputeType_t, from library_types.h and cublas_api.h.
_CUDA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
# Those for one collective and one matmul that do not need NVLink multicast.
_ALGORITHMS = ("DEFAULT", "SPLIT_P2P", "ATOMIC_P2P")


@dataclass
class _Workspace:
    """The memory that every call may use: the address and size on the GPU, and memory of the host."""

    pointer: int
    size: int
    host: torch.Tensor


@dataclass(frozen=True)
class _Matmul:
    """One product of distributed matrices, D = A B, with one algorithm."""

    library: Any
    """``nvmath.bindings.cublasMp``."""
    handle: int
    descriptor: int
    """The handle of cuBLASMp, and the descriptor of this product."""
    algorithm: str
    """The name of the algorithm; cuBLASMp takes another one if it does not support it."""
    shape: tuple[int, int, int]
    """The rows and columns of D, and the columns of A."""
    matrices: tuple[int, int, int]
    """The descriptors of A, B and D."""
    # The factors of A B and of the former content of D.
    one: ctypes.c_float = field(default_factory=lambda: ctypes.c_float(1))
    zero: ctypes.c_float = field(default_factory=lambda: ctypes.c_float(0))

    def set(self, attribute: str, value: int) -> None:
        number = ctypes.c_int32(value)
        key = self.library.MatmulDescriptorAttribute[attribute]
        self.library.matmul_descriptor_set_attribute(
            self.descriptor, key, ctypes.addressof(number), ctypes.sizeof(number)
        )

    def workspace(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> tuple[int, int]:
        """Return the bytes of the workspace on the GPU and on the host."""
        device, host = self.library.matmul_buffer_size(*self._arguments(a, b, d))
        return int(device), int(host)

    def run(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, space: _Workspace) -> None:
        self.library.set_stream(self.handle, torch.cuda.current_stream().cuda_stream)
        self.library.matmul(
            *self._arguments(a, b, d), space.pointer, space.size, space.host.data_ptr(), space.host.numel()
        )

    def _arguments(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> tuple[int, ...]:
        layout_a, layout_b, layout_d = self.matrices
        alpha, zero = ctypes.addressof(self.one), ctypes.addressof(self.zero)
        return (
            *(self.handle, self.descriptor, *self.shape, alpha),
            *(a.data_ptr(), 1, 1, layout_a, b.data_ptr(), 1, 1, layout_b, zero),
            *(0, 1, 1, layout_d, d.data_ptr(), 1, 1, layout_d),
        )


class CublasMp(Mode):
    """Runs ``cublasMpMatmul`` twice: all-gather with the first matmul, the second with reduce-scatter.

    cuBLASMp stores matrices by columns, so it computes the transposes Yᵀ = W1ᵀ Xᵀ and Pᵀ = W2ᵀ Yᵀ. A matrix
    shared by columns lies on a grid of 1 x N ranks, and a matrix shared by rows on N x 1. The algorithm of
    each call is the fastest in trials. Sums travel in the data type of the output.
    """

    def __init__(self, parameters: PointParameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        self._library = library = _shared_library(parameters, world, buffers)
        communicator = _communicator(world)
        self._handle = library.create(torch.cuda.current_stream().cuda_stream)
        by_rows = library.grid_create(world.size, 1, library.GridLayout.COL_MAJOR, communicator)
        by_columns = library.grid_create(1, world.size, library.GridLayout.ROW_MAJOR, communicator)
        self._grids = by_rows, by_columns
        rows, hidden, inner = parameters.rows, parameters.hidden_size, parameters.inner_size
        shard, middle = rows // world.size, inner // world.size
        kind = _CUDA_TYPES[buffers.output.dtype]

        def matrix(size: tuple[int, int], block: tuple[int, int], grid: int) -> int:
            descriptor: int = library.matrix_descriptor_create(*size, *block, 0, 0, block[0], kind, grid)
            return descriptor

        weight_1 = matrix((inner, hidden), (middle, hidden), by_rows)
        weight_2 = matrix((hidden, inner), (hidden, middle), by_columns)
        sharded = matrix((hidden, rows), (hidden, shard), by_columns)
        between = matrix((inner, rows), (middle, shard), by_rows)
        self._matrices = [weight_1, weight_2, sharded, between]
        compute = _COMPUTE_32F_FAST_TF32 if parameters.dtype == "tf32" else _COMPUTE_32F

        def variants(shape: tuple[int, int, int], matrices: tuple[int, int, int]) -> list[_Matmul]:
            matmuls = []
            for name in _ALGORITHMS:
                descriptor = library.matmul_descriptor_create(compute)
                matmul = _Matmul(library, self._handle, descriptor, name, shape, matrices)
                matmul.set("ALGO_TYPE", library.MatmulAlgoType[name])
                matmul.set("COMMUNICATION_TYPE", kind)
                matmuls.append(matmul)
            return matmuls

        first = variants((inner, rows, hidden), (weight_1, sharded, between))
        second = variants((hidden, rows, inner), (weight_2, between, sharded))
        self._matmuls = first + second
        self._space = self._reserve(first, second)
        self._first = fastest(world, self._run_first, self._supported(first, self._run_first))
        self._second = fastest(world, self._run_second, self._supported(second, self._run_second))
        self.note = (
            f"cublasmp runs cuBLASMp {_version(library)} with the algorithm {self._first.algorithm} for the "
            f"all-gather and {self._second.algorithm} for the reduce-scatter, the fastest here"
        )

    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Run one step forward."""
        self._run_first(index, self._first)
        self._run_second(index, self._second)
        return self._buffers.output

    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Raise an error: the mode is not available for the backward."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what cuBLASMp holds; a collective call."""
        synchronize()
        library = self._library
        library.buffer_deregister(self._grids[1], self._space.pointer)
        library.free(self._grids[0], self._space.pointer)
        for matmul in self._matmuls:
            library.matmul_descriptor_destroy(matmul.descriptor)
        for matrix in self._matrices:
            library.matrix_descriptor_destroy(matrix)
        for grid in self._grids:
            library.grid_destroy(grid)
        library.destroy(self._handle)

    def _run_first(self, index: int, matmul: _Matmul) -> None:
        buffers = self._buffers
        buffers.weights.use(index)
        matmul.run(buffers.weight_1, buffers.input(index), buffers.inner, self._space)

    def _run_second(self, index: int, matmul: _Matmul) -> None:
        buffers = self._buffers
        buffers.weights.use(index)
        matmul.run(buffers.weight_2, buffers.inner, buffers.output, self._space)

    def _supported(self, matmuls: list[_Matmul], run: Callable[[int, _Matmul], None]) -> list[_Matmul]:
        """Return those that cuBLASMp can run for this shape, which is the same on every rank."""
        supported = []
        for matmul in matmuls:
            with contextlib.suppress(self._library.cuBLASMpError):
                run(0, matmul)
                supported.append(matmul)
        if not supported:
            raise Unavailable("cuBLASMp has no algorithm for this shape")
        return supported

    def _reserve(self, first: list[_Matmul], second: list[_Matmul]) -> _Workspace:
        """Allocate a workspace that is large enough for all calls, where the peers can write."""
        buffers = self._buffers
        sizes = [matmul.workspace(buffers.weight_1, buffers.input(0), buffers.inner) for matmul in first]
        sizes += [matmul.workspace(buffers.weight_2, buffers.inner, buffers.output) for matmul in second]
        device, host = (max(size) for size in zip(*sizes, strict=True))
        by_rows, by_columns = self._grids
        pointer = self._library.malloc(by_rows, device)
        self._library.buffer_register(by_columns, pointer, device)
        return _Workspace(pointer, device, torch.empty(host, dtype=torch.uint8))


def _shared_library(parameters: PointParameters, world: World, buffers: Buffers) -> Any:
    """Return ``nvmath.bindings.cublasMp``, or raise the first rank's `Unavailable`; a collective call."""
    library, reason = None, _unsupported(parameters, world, buffers)
    if reason is None:
        library, reason = _load()
    reason = next(filter(None, world.comm.allgather(reason)), None)
    if reason is not None:
        raise Unavailable(reason)
    return library


def _unsupported(parameters: PointParameters, world: World, buffers: Buffers) -> str | None:
    if world.device.type != "cuda" or world.backend != "nccl":
        return "cuBLASMp needs CUDA and NCCL"
    if parameters.backward:
        return "it runs the forward only"
    if buffers.scales is not None:
        return "it does not support float8 here"
    if parameters.cuda_graph:
        return "it does not support --cuda-graph here"
    return None


def _load() -> tuple[Any, str | None]:
    """Return ``nvmath.bindings.cublasMp``, and why it cannot be used, or None."""
    major = str(torch.version.cuda).partition(".")[0]
    packages = f"NVIDIA's packages nvmath-python and nvidia-cublasmp-cu{major}"
    try:
        library = import_module("nvmath.bindings.cublasMp")
    except ImportError:
        return None, f"it needs {packages}"
    current = nccl_version()
    if current < _MIN_NCCL:
        loaded, needed = (".".join(map(str, version)) for version in (current, _MIN_NCCL))
        return None, f"cuBLASMp needs NCCL {needed} or newer, but PyTorch loaded {loaded}"
    try:
        _version(library)
    except RuntimeError as error:
        # nvmath-python raises a RuntimeError if it does not find the library.
        return None, f"it needs {packages} ({str(error).partition(chr(10))[0].rstrip('.')})"
    return library, None


def _communicator(world: World) -> int:
    """Return the address of PyTorch's NCCL communicator of all ranks, or raise `Unavailable`."""
    group = dist.group.WORLD
    assert group is not None
    with contextlib.suppress(AttributeError):
        address: int = group._get_backend(world.device)._comm_ptr()  # type: ignore[attr-defined]
        return address
    raise Unavailable(f"PyTorch {torch.__version__} does not share its NCCL communicator")


def _version(library: Any) -> str:
    number = library.get_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
