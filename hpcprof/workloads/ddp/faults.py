"""Faults: known causes of lost time that the training can be given, to check what a diagnosis finds.

They are declared here with the standard library only, for the submit side; what they do on the ranks is in
`hpcprof.workloads.ddp.fault_injection`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcprof.common.errors import UsageError, unknown
from hpcprof.common.paths import read_table

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
    action: str = ""
    """Its action in a step."""


def _read_faults() -> Iterator[Fault]:
    for name, cause, where, defaults, device, action in read_table(Path(__file__).with_suffix(".txt")):
        keys = {key: int(value) for key, _, value in (word.partition("=") for word in defaults.split())}
        yield Fault(name, cause or None, where, keys, device == "cpu", action)


FAULTS = {fault.name: fault for fault in _read_faults()}
"""The faults of ``faults.txt`` by name."""


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
        f"{parse_fault(name).text}: {fault.action}{' (also on a CPU)' * fault.on_cpu}"
        for name, fault in FAULTS.items()
    )
