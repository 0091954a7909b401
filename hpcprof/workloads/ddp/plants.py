"""Plants: known causes of lost time that the training can be given, to check what a diagnosis finds.

They are declared here with the standard library only, for the submit side; what they do on the ranks is in
`hpcprof.workloads.ddp.planting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcprof.common.errors import UsageError, unknown

BLOCKS = 4
"""The blocks of a measured epoch under ``--plant-blocks``: with the plant, twice without it, and with it."""


@dataclass(frozen=True)
class Key:
    """A value of a plant: a whole number from ``minimum``."""

    default: int
    minimum: int = 1


@dataclass(frozen=True)
class Plant:
    """A cause that can be planted, and what a diagnosis should say about it.

    Attributes
    ----------
    name, does : str
        Its name, and what it does in a step.
    cause : str or None
        The cause that `hpcprof explain` should name; None if there is nothing to find.
    where : str
        The range that it should name; empty if the cause is not in one range.
    keys : mapping of str to Key
        Its values.
    on_cpu : bool
        Whether it makes sense without a GPU.
    """

    name: str
    does: str
    cause: str | None
    where: str = ""
    keys: Mapping[str, Key] = field(default_factory=dict)
    on_cpu: bool = False


_LATE = Key(default=1, minimum=0)

PLANTS: dict[str, Plant] = {
    plant.name: plant
    for plant in (
        Plant("none", "nothing, to see what is found in the training as it is", None, on_cpu=True),
        Plant(
            "host_work",
            "sleep for MS milliseconds in the data phase, as a slow loader does",
            "host_work",
            "data",
            {"ms": Key(40)},
            on_cpu=True,
        ),
        Plant(
            "gc",
            "collect garbage among OBJECTS Python objects in the data phase",
            "host_work",
            "data",
            {"objects": Key(400_000)},
            on_cpu=True,
        ),
        Plant("host_sync", "read a value with .item() after each layer of the forward pass", "host_sync",
              "forward"),
        Plant(
            "device_allocation",
            "allocate MB megabytes and empty the allocator's cache in the data phase",
            "device_allocation",
            keys={"mb": Key(512)},
        ),
        Plant(
            "blocking_copy",
            "copy MB megabytes from pageable memory to the GPU in the data phase",
            "blocking_copy",
            "data",
            {"mb": Key(96)},
        ),
        Plant("small_kernels", "update the parameters one by one instead of together", "small_kernels",
              "optimizer"),
        Plant(
            "late_rank_host",
            "sleep for MS milliseconds in the data phase of rank RANK alone",
            "late_rank_host",
            "data",
            {"ms": Key(40), "rank": _LATE},
            on_cpu=True,
        ),
        Plant(
            "late_rank_gpu",
            "multiply bfloat16 matrices of SIZE x SIZE MATMULS times in the forward pass of rank RANK alone",
            "late_rank_gpu",
            "forward",
            {"matmuls": Key(8), "size": Key(8192), "rank": _LATE},
        ),
        Plant(
            "exposed_communication",
            "sum the gradients after the backward pass instead of beside it",
            "exposed_communication",
            "backward",
            on_cpu=True,
        ),
        Plant("slow_math", "multiply matrices in fp32 without TF32, whatever --precision says", "slow_math"),
        Plant(
            "step_spikes",
            "sleep for MS milliseconds in the data phase of every EVERY-th step",
            "step_spikes",
            keys={"ms": Key(200), "every": Key(5, minimum=2)},
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Planted:
    """A plant with its values."""

    plant: Plant
    values: Mapping[str, int]

    @property
    def text(self) -> str:
        """The plant as `parse_plant` reads it, with all values."""
        values = ",".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.plant.name}:{values}" if values else self.plant.name

    @property
    def period(self) -> int:
        """The number of steps of which one costs: beyond 1, only the mean step tells the cost."""
        return self.values.get("every", 1)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it slows; empty if it slows all of them."""
        return (self.values["rank"],) if "rank" in self.values else ()


def parse_plant(text: str) -> Planted:
    """Parse ``CAUSE[:KEY=VALUE[,KEY=VALUE]…]``; keys that are not given have their defaults.

    Raises
    ------
    UsageError
        The plant or a key is unknown, or a value is wrong.
    """
    name, colon, rest = text.partition(":")
    if name not in PLANTS:
        raise unknown("plant", name, PLANTS)
    plant = PLANTS[name]
    values = {key: known.default for key, known in plant.keys.items()}
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        if key not in plant.keys:
            raise unknown("key", key, plant.keys, f" of plant {name}")
        least = plant.keys[key].minimum
        if not (value.isascii() and value.isdecimal()) or int(value) < least:
            raise UsageError(
                f"plant {name}: {key} is {value!r}, but must be a whole number from {least}, such as "
                f"{key}={plant.keys[key].default}."
            )
        values[key] = int(value)
    return Planted(plant, values)


def parse_plants(text: str) -> tuple[Planted, ...]:
    """Parse plants that are separated by spaces."""
    return tuple(parse_plant(part) for part in text.split())


def check_device(plants: Sequence[Planted], device: str) -> None:
    """Check that plants make sense on a type of device.

    Raises
    ------
    UsageError
        One of them needs a GPU.
    """
    for planted in plants:
        if device == "cpu" and not planted.plant.on_cpu:
            valid = ", ".join(name for name, plant in PLANTS.items() if plant.on_cpu)
            raise UsageError(f"--plant {planted.plant.name} needs a GPU. On a CPU you can plant {valid}.")


def check_rank(planted: Planted, world_size: int) -> None:
    """Check that a job of ``world_size`` ranks has the rank that a plant slows, and others to wait for it.

    Raises
    ------
    UsageError
        It does not.
    """
    for rank in planted.ranks:
        if rank >= world_size:
            ranks = f"{world_size} rank{'s' * (world_size != 1)}"
            raise UsageError(f"--plant {planted.text}: the job has {ranks}, so there is no rank {rank}.")


def in_planted_block(step: int, steps: int) -> bool:
    """Return whether step ``step`` of an epoch of ``steps`` steps is in a block with the plant."""
    return block_of(step, steps) in (0, BLOCKS - 1)


def block_of(step: int, steps: int) -> int:
    """Return the block of a step, from 0; the blocks of an epoch of ``steps`` steps are equally long."""
    return step * BLOCKS // steps


def describe_plants() -> str:
    """Return one line for each plant: its name with the defaults of its keys, and what it does."""
    return "\n".join(
        f"{parse_plant(name).text}: {plant.does}{' (also on a CPU)' * plant.on_cpu}"
        for name, plant in PLANTS.items()
    )
