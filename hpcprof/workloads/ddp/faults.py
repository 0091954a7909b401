"""Faults: known causes of lost time that the training can be given, to check what a diagnosis finds.

They are declared here with the standard library only, for the submit side; what they do on the ranks is in
`hpcprof.workloads.ddp.fault_injection`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcprof.common.errors import UsageError, unknown

BLOCKS = 4
"""The blocks of a measured epoch under ``--fault-blocks``: with the fault, twice without it, and with it."""


_MINIMA = {"rank": 0, "every": 2}
"""Least values of keys where that is not 1."""


@dataclass(frozen=True)
class Fault:
    """A cause that can be injected, and what a diagnosis should say about it."""

    name: str
    cause: str | None
    """The cause that `hpcprof explain` should name; None if there is nothing to find."""
    where: str = ""
    """The range that it should name; empty if the cause is not in one range."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """Its values, which are whole numbers, with their defaults."""
    on_cpu: bool = False
    """True if it makes sense without a GPU."""


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("none", None, on_cpu=True),
        Fault("host_work", "host_work", "data", {"ms": 40}, on_cpu=True),
        Fault("gc", "host_work", "data", {"objects": 400_000}, on_cpu=True),
        Fault("host_sync", "host_sync", "forward"),
        Fault("device_allocation", "device_allocation", keys={"mb": 512}),
        Fault("blocking_copy", "blocking_copy", "data", {"mb": 96}),
        Fault("small_kernels", "small_kernels", "optimizer"),
        Fault("late_rank_host", "late_rank_host", "data", {"ms": 40, "rank": 1}, on_cpu=True),
        Fault("late_rank_gpu", "late_rank_gpu", "forward", {"matmuls": 8, "size": 8192, "rank": 1}),
        Fault("exposed_communication", "exposed_communication", "backward", on_cpu=True),
        Fault("slow_math", "slow_math"),
        Fault("step_spikes", "step_spikes", keys={"ms": 200, "every": 5}),
    )
}

_VALUE_HELP = {
    "none": "nothing, to see what is found in the training as it is",
    "host_work": "sleep for MS milliseconds in the data phase, as a slow loader does",
    "gc": "collect garbage among OBJECTS Python objects in the data phase",
    "host_sync": "read a value with .item() after each layer of the forward pass",
    "device_allocation": "allocate MB megabytes and empty the allocator's cache in the data phase",
    "blocking_copy": "copy MB megabytes from pageable memory to the GPU in the data phase",
    "small_kernels": "update the parameters one by one instead of together",
    "late_rank_host": "sleep for MS milliseconds in the data phase of rank RANK alone",
    "late_rank_gpu": "multiply bfloat16 matrices of SIZE x SIZE MATMULS times in the forward pass of rank "
    "RANK alone",
    "exposed_communication": "sum the gradients after the backward pass instead of beside it",
    "slow_math": "multiply matrices in fp32 without TF32, whatever --precision says",
    "step_spikes": "sleep for MS milliseconds in the data phase of every EVERY-th step",
}
"""Actions of the faults in a step."""


@dataclass(frozen=True)
class InjectedFault:
    """A fault with its values."""

    fault: Fault
    values: Mapping[str, int]

    @property
    def text(self) -> str:
        """The fault as `parse_fault` reads it, with all values."""
        values = ",".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.fault.name}:{values}" if values else self.fault.name

    @property
    def period(self) -> int:
        """One step in this many has the fault's cost: above 1, only the mean step shows it."""
        return self.values.get("every", 1)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it slows; empty if it slows all of them."""
        return (self.values["rank"],) if "rank" in self.values else ()


def parse_fault(text: str) -> InjectedFault:
    """Parse ``CAUSE[:KEY=VALUE[,KEY=VALUE]…]``; keys that are not given have their defaults."""
    name, colon, settings = text.partition(":")
    if name not in FAULTS:
        raise unknown("fault", name, FAULTS)
    fault = FAULTS[name]
    values = dict(fault.keys)
    for part in settings.split(",") if colon else ():
        key, _, value = part.partition("=")
        if key not in fault.keys:
            raise unknown("key", key, fault.keys, f" of fault {name}")
        least = _MINIMA.get(key, 1)
        if not (value.isascii() and value.isdecimal()) or int(value) < least:
            raise UsageError(
                f"fault {name}: {key} is {value!r}, but must be a whole number from {least}, such as "
                f"{key}={fault.keys[key]}."
            )
        values[key] = int(value)
    return InjectedFault(fault, values)


def parse_faults(text: str) -> tuple[InjectedFault, ...]:
    """Parse faults that are separated by spaces."""
    return tuple(parse_fault(part) for part in text.split())


def check_device(faults: Sequence[InjectedFault], device: str) -> None:
    """Check that faults make sense on a type of device."""
    for injected in faults:
        if device == "cpu" and not injected.fault.on_cpu:
            valid = ", ".join(name for name, fault in FAULTS.items() if fault.on_cpu)
            raise UsageError(f"--fault {injected.fault.name} needs a GPU. On a CPU you can inject {valid}.")


def in_block_with_fault(step: int, steps: int) -> bool:
    """Return whether step ``step`` of an epoch of ``steps`` steps is in a block with the fault."""
    return block_of(step, steps) in (0, BLOCKS - 1)


def block_of(step: int, steps: int) -> int:
    """Return the block of a step, from 0; the blocks of an epoch of ``steps`` steps are equally long."""
    return step * BLOCKS // steps


def describe_faults() -> str:
    """Return one line for each fault: its name with the defaults of its keys, and what it does."""
    return "\n".join(
        f"{parse_fault(name).text}: {_VALUE_HELP[name]}{' (also on a CPU)' * fault.on_cpu}"
        for name, fault in FAULTS.items()
    )
