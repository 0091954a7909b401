"""The GPUs in a profile of rocprofv3, which calls all processors agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from hpcprof.profiles.gpu_peaks import memory_bytes_per_s
from hpcprof.profiles.timeline import Fact, Gpu


class Bank(msgspec.Struct):
    """Memory of an agent."""

    size_in_bytes: int = 0


class Details(msgspec.Struct):
    """The properties of an agent that matter here; clocks are in MHz."""

    cu_count: int = 0
    max_engine_clk_fcompute: int = 0
    mem_banks: list[Bank] = []


KEPT = Details.__struct_fields__
"""The names of these properties."""


@dataclass(frozen=True)
class Agent:
    """A processor; ``number`` identifies it in the profile, ``device`` among the GPUs of the node."""

    number: int
    gpu: bool
    device: int
    architecture: str
    name: str
    details: Details


def gpus_of(agents: Iterable[Agent]) -> tuple[Gpu, ...]:
    """Return the GPUs in the order of their devices."""
    found = {agent.device: agent for agent in agents if agent.gpu}
    return tuple(_gpu(found[device]) for device in sorted(found))


def _gpu(agent: Agent) -> Gpu:
    memory = sum(bank.size_in_bytes for bank in agent.details.mem_banks)
    return Gpu(
        device=agent.device,
        name=agent.name,
        sm_count=_positive(agent.details.cu_count),
        clock_hz=_positive(agent.details.max_engine_clk_fcompute * 1_000_000),
        memory_bytes=_positive(memory),
        memory_bytes_per_s=memory_bytes_per_s(agent.name),
    )


def _positive(value: int) -> int | None:
    return value if 0 < value < 1 << 62 else None


def architectures(agents: Iterable[Agent]) -> Iterator[Fact]:
    """Yield the architectures of the GPUs, such as gfx942."""
    names = sorted({agent.architecture for agent in agents if agent.gpu and agent.architecture})
    if names:
        yield Fact("machine", "GPU architecture", ", ".join(names))
