"""The arguments of the events of a PyTorch trace that a timeline holds."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

import msgspec

from hpcprof.common.decode import lenient_json

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Shape = tuple[Int64, Int64, Int64]
ValueT = TypeVar("ValueT")

# A number of at most 18 decimal or 16 hexadecimal digits; int() refuses leading zeros.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17}|0[xX][0-9a-fA-F]{1,16})")

# By the names of c10::ScalarType, of torch.dtype, and of the types of an operator's inputs.
_ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"), 1),
    **dict.fromkeys(("short", "short int", "half", "bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("int", "float", "float32", "int32", "uint32", "complexhalf", "complex32"), 4),
    **dict.fromkeys(("long", "long int", "double", "float64", "int64", "uint64"), 8),
    **dict.fromkeys(("complexfloat", "complex64", "complex<float>"), 8),
    **dict.fromkeys(("complexdouble", "complex128", "complex<double>"), 16),
}


def element_bytes(kind: object) -> int:
    """Return the bytes of an element of a type, by any name that PyTorch gives it; 0 if it is unknown."""
    return _ELEMENT_BYTES.get(kind.lower().removeprefix("c10::"), 0) if isinstance(kind, str) else 0


class CallArguments(msgspec.Struct, gc=False):
    """The arguments of an API call that a timeline holds."""

    correlation: Int64 | None = None
    external_id: Int64 | None = msgspec.field(default=None, name="External id")


class GpuArguments(CallArguments, gc=False):
    """The arguments of any event on the GPU; without them, its device is the pid and its stream the tid."""

    device: Int64 | None = None
    stream: Int64 | None = None


class KernelArguments(GpuArguments, gc=False):
    """The arguments of a kernel."""

    grid: _Shape = (1, 1, 1)
    block: _Shape = (1, 1, 1)


class MemoryArguments(GpuArguments, gc=False):
    """The arguments of a memory operation."""

    bytes: Int64 | None = None


class WaitArguments(GpuArguments, gc=False):
    """The arguments of an annotation or a wait on the GPU; a wait names the record of its event."""

    wait_on_stream: Int64 | None = None
    wait_on_cuda_event_record_corr_id: Int64 | None = None


class OperatorArguments(msgspec.Struct, gc=False):
    """The shapes and types of an operator's inputs, and the values of inputs that are no tensors, as JSON."""

    dims: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="Input Dims", default=msgspec.UNSET)
    types: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="Input type", default=msgspec.UNSET)
    values: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="Concrete Inputs", default=msgspec.UNSET)


class RangeArguments(OperatorArguments, gc=False):
    """The inputs of a range, which works of process groups have, and whether it ended.

    The profiler writes its own end for ranges that were open when it stopped.
    """

    finished: bool = True


class AllocatorArguments(msgspec.Struct, gc=False):
    """The arguments of an event of the allocator; device type 0 is the host (c10::DeviceType)."""

    bytes: Int64 = msgspec.field(name="Bytes")
    allocated: Int64 = msgspec.field(name="Total Allocated")
    reserved: Int64 = msgspec.field(name="Total Reserved")
    device: Int64 = msgspec.field(name="Device Id")
    device_type: Int64 = msgspec.field(name="Device Type")


class BatchDecoder(Generic[ValueT]):
    """Decodes values of one type: all at once if they are valid, else one by one."""

    def __init__(self, kind: Any) -> None:
        self._list_decoder: msgspec.json.Decoder[list[ValueT]] = msgspec.json.Decoder(list[kind])
        self._decoder: msgspec.json.Decoder[ValueT] = msgspec.json.Decoder(kind)

    def __call__(self, written: Sequence[msgspec.Raw | bytes]) -> Sequence[ValueT | None]:
        """Return the values; None for one that is absent or of another type."""
        with suppress(msgspec.DecodeError):
            values = self._list_decoder.decode(b"[%b]" % b",".join(written))
            if len(values) == len(written):  # A single absent value is an empty list.
                return values
        return [self._single_value(bytes(value)) for value in written]

    def _single_value(self, value: bytes) -> ValueT | None:
        try:
            return self._decoder.decode(value)
        except msgspec.DecodeError:
            return None


class ArgumentsDecoder(Generic[ValueT]):
    """Decodes the arguments of events; only arguments of another type are dropped."""

    def __init__(self, kind: type[ValueT]) -> None:
        self._kind = kind
        self._decode: BatchDecoder[ValueT] = BatchDecoder(kind)
        self._types = get_type_hints(kind, include_extras=True)

    def __call__(self, written: Sequence[msgspec.Raw]) -> tuple[Sequence[ValueT], Counter[str]]:
        """Return the arguments of each event, and the number of dropped ones by name."""
        damaged: Counter[str] = Counter()
        whole = [
            self._lenient(bytes(text), damaged) if value is None else value
            for value, text in zip(self._decode(written), written, strict=True)
        ]
        return whole, damaged

    def _lenient(self, written: bytes, damaged: Counter[str]) -> ValueT:
        decoded = parsed_object(written)
        if decoded is None:
            damaged["args"] += 1
            decoded = {}
        arguments: dict[str, Any] = {}
        for name, kind in self._types.items():
            try:
                if name in decoded:
                    arguments[name] = msgspec.convert(number(decoded[name]), kind)
            except msgspec.ValidationError:
                damaged[name] += 1
        return self._kind(**arguments)


def parsed_object(written: bytes) -> dict[str, Any] | None:
    """Parse an object, which may hold NaN; None if the text is something else."""
    loads = lenient_json(written)
    return loads if isinstance(loads, dict) else None


def number(value: object) -> object:
    """Return the number that a text spells, as in traces made on ROCm: ``"128"``, ``"0x0"``."""
    return int(value, 0) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
