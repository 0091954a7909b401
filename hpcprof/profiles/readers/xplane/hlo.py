"""The programs of a profile: what each operation of XLA's HLO computes, moves and communicates.

The numbers of the fields are those of hlo.proto and xla_data.proto (openxla/xla). XLA's own analysis of costs
is not in a profile, so floating-point operations are those of matrix products and convolutions alone.
"""

import json
import re
from collections.abc import Iterable, Mapping
from math import prod

import msgspec

from hpcprof.profiles.readers.xplane.planes import Metadata
from hpcprof.profiles.readers.xplane.wire import Damage, Field, fields_of, packed

COLLECTIVES = {
    "all-reduce": "AllReduce",
    "all-gather": "AllGather",
    "reduce-scatter": "ReduceScatter",
    "all-to-all": "AlltoAll",
    "ragged-all-to-all": "AlltoAllV",
    "collective-broadcast": "Broadcast",
    "collective-permute": "SendRecv",
    "send": "Send",
    "recv": "Recv",
}
"""The operation of each opcode that communicates, without ``-start`` and ``-done``."""

CONTAINERS = frozenset({"while", "call", "conditional"})
"""Operations that run others."""

_PROTO = "Hlo Proto"
_PROGRAM = re.compile(r".*\((\d{1,18})\)", re.DOTALL)
_TYPES = {
    1: ("pred", 8),
    2: ("s8", 8),
    3: ("s16", 16),
    4: ("s32", 32),
    5: ("s64", 64),
    6: ("u8", 8),
    7: ("u16", 16),
    8: ("u32", 32),
    9: ("u64", 64),
    10: ("f16", 16),
    11: ("f32", 32),
    12: ("f64", 64),
    15: ("c64", 64),
    16: ("bf16", 16),
    18: ("c128", 128),
    19: ("f8e5m2", 8),
    20: ("f8e4m3fn", 8),
    21: ("s4", 4),
    22: ("u4", 4),
    23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8),
    28: ("f8e4m3", 8),
    29: ("f8e3m4", 8),
}
_PRODUCT = re.compile(r"__cublas\$")
_CONVOLUTION = "__cudnn$convForward"
_CONTRACTED_DIMENSIONS = re.compile(r'"lhs_contracting_dimensions":\s*\[([\d",\s]*)\]')
_TUPLE = 13
_MAX_NUMBER = 1 << 62


class Shape(msgspec.Struct, frozen=True):
    """The shapes of the arrays of a value, which is one array or a tuple of arrays."""

    arrays: tuple[tuple[str, int, tuple[int, ...]], ...] = ()

    @property
    def bytes(self) -> int:
        """The size of all arrays."""
        return min(sum(prod(sizes) * bits for _, bits, sizes in self.arrays) // 8, _MAX_NUMBER)


class HloOperation(msgspec.Struct):
    """An operation of a program.

    ``groups`` are the participants of a collective, by their position in the assignment of devices.
    ``contracted`` are the axes over which a matrix product sums in its left input, and ``kernel_features``
    is the axis of the output's features in the kernel of a convolution.
    """

    name: str = ""
    opcode: str = ""
    shape: Shape = msgspec.field(default_factory=Shape)
    operands: list[int] = msgspec.field(default_factory=list)
    called: list[int] = msgspec.field(default_factory=list)
    contracted: list[int] = msgspec.field(default_factory=list)
    kernel_features: int | None = None
    target: str = ""
    groups: list[list[int]] = msgspec.field(default_factory=list)
    inputs: tuple[Shape, ...] = ()
    flops: int = 0

    @property
    def collective(self) -> str | None:
        """The collective operation that it is or begins, as in `COLLECTIVES`."""
        return COLLECTIVES.get(self.opcode.removesuffix("-start"))

    @property
    def bytes(self) -> int:
        """The bytes that it reads and writes."""
        return min(self.shape.bytes + sum(shape.bytes for shape in self.inputs), _MAX_NUMBER)

    @property
    def dims(self) -> str:
        """The shapes of its inputs as JSON."""
        return json.dumps([list(array[2]) for shape in self.inputs for array in shape.arrays])

    @property
    def types(self) -> str:
        """The types of its inputs as JSON."""
        return json.dumps([array[0] for shape in self.inputs for array in shape.arrays])


class HloProgram(msgspec.Struct, frozen=True):
    """A compiled program: its operations by name, and the device of each participant."""

    name: str
    operations: Mapping[str, HloOperation]
    devices: tuple[int, ...] = ()


def programs_of(metadata: Iterable[Metadata]) -> tuple[dict[int, HloProgram], int]:
    """Return the programs in the metadata of a profile by their ids, and how many cannot be read."""
    programs: dict[int, HloProgram] = {}
    damaged = 0
    for event in metadata:
        written, number = event.stats.get(_PROTO), event.stats.get("program_id")
        named = _PROGRAM.fullmatch(event.name)
        if not isinstance(number, int):
            number = int(named[1]) if named else None
        if not isinstance(written, bytes) or number is None:
            continue
        try:
            programs[number] = _program(written)
        except (Damage, RecursionError):
            damaged += 1
    return programs, damaged


def _program(data: bytes) -> HloProgram:
    module = next((field for field in fields_of(data, 0, len(data)) if field.number == 1), Field(1, 0, 0))
    name = ""
    devices: tuple[int, ...] = ()
    computations: dict[int, dict[int, HloOperation]] = {}
    for field in _messages(data, module):
        if field.number == 1:
            name = field.text(data)
        elif field.number == 3:
            number, operations = _computation(data, field)
            computations[number] = operations
        elif field.number == 15:
            # By replica, and then by partition.
            parts = [_numbers(data, part, 1) for part in _messages(data, field) if part.number == 3]
            devices = tuple(device for replica in zip(*parts, strict=False) for device in replica)
    for operations in computations.values():
        for operation in operations.values():
            operation.inputs = tuple(operations[at].shape for at in operation.operands if at in operations)
    costs: dict[int, int] = {}
    for operations in computations.values():
        for operation in operations.values():
            operation.flops = min(_flops(operation, computations, costs), _MAX_NUMBER)
    named = {operation.name: operation for members in computations.values() for operation in members.values()}
    return HloProgram(name, named, devices)


def _messages(data: bytes, message: Field) -> Iterable[Field]:
    if not message.is_part:
        raise Damage
    return (field for field in fields_of(data, message.value, message.end) if field.is_part)


def _computation(data: bytes, message: Field) -> tuple[int, dict[int, HloOperation]]:
    number, operations = 0, {}
    for field in fields_of(data, message.value, message.end):
        if field.number == 5 and not field.is_part:
            number = field.value
        elif field.number == 2 and field.is_part:
            key, operation = _operation(data, field)
            operations[key] = operation
    return number, operations


def _operation(data: bytes, message: Field) -> tuple[int, HloOperation]:
    numbers: dict[int, list[Field]] = {}
    parts: dict[int, list[Field]] = {}
    for field in fields_of(data, message.value, message.end):
        (parts if field.is_part else numbers).setdefault(field.number, []).append(field)
    text = {number: ones[-1].text(data) for number, ones in parts.items() if number in (1, 2, 28, 43)}
    listed = {
        number: [
            value
            for part in (*numbers.get(number, ()), *parts.get(number, ()))
            for value in packed(data, part)
        ]
        for number in (36, 38)
    }
    operation = HloOperation(
        name=text.get(1, ""),
        opcode=text.get(2, ""),
        target=text.get(28, ""),
        shape=Shape(tuple(array for part in parts.get(3, ()) for array in _arrays(data, part))),
        operands=listed[36],
        called=listed[38],
        contracted=[axis for part in parts.get(30, ()) for axis in _numbers(data, part, 1)],
        groups=[_numbers(data, part, 1) for part in parts.get(49, ())],
    )
    # A call of cuBLAS or hipBLASLt has the axes in its configuration.
    if not operation.contracted and (configured := _CONTRACTED_DIMENSIONS.search(text.get(43, ""))):
        operation.contracted = [int(axis) for axis in re.findall(r"\d{1,3}", configured[1])]
    operation.groups += [group for part in parts.get(87, ()) for group in _device_groups(data, part)]
    for field in parts.get(16, ()):
        axes = {axis.number: axis.value for axis in fields_of(data, field.value, field.end)}
        operation.kernel_features = axes.get(4, 0)
    return numbers[35][-1].value if 35 in numbers else 0, operation


def _arrays(data: bytes, message: Field, depth: int = 0) -> Iterable[tuple[str, int, tuple[int, ...]]]:
    """Yield the type, the bits of an element and the sizes of each array of a shape."""
    kind, sizes, parts = 0, [], []
    for field in fields_of(data, message.value, message.end):
        if field.number == 2 and not field.is_part:
            kind = field.value
        elif field.number == 3:
            sizes += packed(data, field)
        elif field.number == 4 and field.is_part:
            parts.append(field)
    if kind == _TUPLE and depth < 8:
        for part in parts:
            yield from _arrays(data, part, depth + 1)
    elif kind in _TYPES and all(size < _MAX_NUMBER for size in sizes):
        yield (*_TYPES[kind], tuple(sizes))


def _numbers(data: bytes, message: Field, number: int) -> list[int]:
    if not message.is_part:
        return []
    parts = [field for field in fields_of(data, message.value, message.end) if field.number == number]
    return [value for field in parts for value in packed(data, field)]


def _device_groups(data: bytes, message: Field) -> list[list[int]]:
    """Return the groups of a list of devices: written out, or as an iota that is reshaped and transposed."""
    groups = []
    for field in _messages(data, message):
        if field.number == 1:
            groups.append(_numbers(data, field, 1))
        elif field.number == 2:
            groups += _iota_groups(data, field)
    return groups


def _iota_groups(data: bytes, message: Field) -> list[list[int]]:
    scalars = {field.number: field.value for field in fields_of(data, message.value, message.end)}
    count, size = scalars.get(1, 0), scalars.get(2, 0)
    sizes, order = _numbers(data, message, 3), _numbers(data, message, 4)
    if not 0 < count * size < 1 << 24 or prod(sizes) != count * size or sorted(order) != [*range(len(sizes))]:
        return []
    strides = [prod(sizes[at + 1 :]) for at in range(len(sizes))]
    flat = [0]
    for axis in order:
        flat = [base + place * strides[axis] for base in flat for place in range(sizes[axis])]
    return [flat[at : at + size] for at in range(0, len(flat), size)]


def _flops(
    operation: HloOperation, computations: Mapping[int, Mapping[int, HloOperation]], costs: dict[int, int]
) -> int:
    """Return the floating-point operations of matrix products in an operation and in what it calls."""
    if operation.opcode == "dot" or _PRODUCT.match(operation.target):
        return _product(operation)
    if operation.opcode == "convolution" or operation.target == _CONVOLUTION:
        return _convolution(operation)
    if operation.opcode in CONTAINERS:
        return 0  # Its operations are events of their own.
    total = 0
    for number in operation.called:
        if number not in costs:
            costs[number] = 0  # A damaged program may call itself.
            inside = computations.get(number, {}).values()
            costs[number] = sum(_flops(member, computations, costs) for member in inside)
        total += costs[number]
    return total


def _product(operation: HloOperation) -> int:
    if not operation.inputs or not operation.inputs[0].arrays or not operation.shape.arrays:
        return 0
    left_shape = operation.inputs[0].arrays[0][2]
    inner = prod(left_shape[axis] for axis in operation.contracted if axis < len(left_shape))
    # Beside the product, a call of cuBLAS returns the memory that it works in.
    return 2 * inner * prod(operation.shape.arrays[0][2]) if operation.contracted else 0


def _convolution(operation: HloOperation) -> int:
    if len(operation.inputs) < 2 or not operation.inputs[1].arrays or not operation.shape.arrays:
        return 0
    kernel = operation.inputs[1].arrays[0][2]
    axis = operation.kernel_features
    if axis is None or axis >= len(kernel) or not kernel[axis]:
        return 0
    return 2 * prod(operation.shape.arrays[0][2]) * (prod(kernel) // kernel[axis])
