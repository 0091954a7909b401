"""Clocks, power and throttling of a GPU, by NVIDIA's management library (NVML)."""

from __future__ import annotations

from typing import Any

import torch

from hpcprof.workloads.schema import GpuState

# Bits of nvmlClocksEventReasons, without "idle" and "applications clocks setting": they are not throttling.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}

_MOVED = 0.05


class GpuMonitor:
    """Reads the state of one GPU; without a GPU, NVML or ``pynvml`` every reading is None."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        if device.type != "cuda":
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except ImportError:
            return
        except pynvml.NVMLError:
            return
        self._nvml = pynvml

    def read(self) -> GpuState | None:
        """Return the current state; it is meaningful only while the GPU works."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
            return GpuState(
                sm_mhz=nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
                memory_mhz=nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM),
                power_w=nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
                temperature_c=nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU),
                throttled_by=[name for bit, name in _REASONS.items() if mask & bit],
            )
        except nvml.NVMLError:
            return None


def state_change(before: GpuState | None, after: GpuState | None) -> str | None:
    """Describe the changes between two states that make their times incomparable; None without any."""
    if before is None or after is None:
        return None
    found = []
    for name, first, last in (
        ("SM clock", before.sm_mhz, after.sm_mhz),
        ("memory clock", before.memory_mhz, after.memory_mhz),
    ):
        if abs(last - first) > _MOVED * first:
            found.append(f"its {name} changed from {first} to {last} MHz")
    new = [reason for reason in after.throttled_by if reason not in before.throttled_by]
    if new:
        found.append(f"it started to throttle ({', '.join(new)})")
    return " and ".join(found) or None
