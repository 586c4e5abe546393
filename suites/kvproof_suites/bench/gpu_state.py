"""Clocks, power and temperature of a GPU, and whether it holds itself back: a figure of a throttled GPU is flagged.

By nvidia-ml-py (``import pynvml``), where it is installed. Without it, or without a GPU, nothing is known, and the row
says None.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

THROTTLING = (
    "nvmlClocksThrottleReasonSwPowerCap",
    "nvmlClocksThrottleReasonHwSlowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
)
"""Reasons for a low clock that change a figure; idling, and a clock that somebody set, are not among them."""


@dataclass(frozen=True)
class GpuState:
    """One reading."""

    sm_mhz: float
    mem_mhz: float
    power_w: float
    temperature_c: float
    throttled: bool


Read = Callable[[], GpuState | None]


def reader(device: str) -> Read:
    """A function that reads the state of ``device`` now, or gives None where nothing can be known."""
    if not device.startswith("cuda"):
        return lambda: None
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return lambda: None
    import torch

    return nvml_reader(nvml, str(torch.cuda.get_device_properties(device).uuid))


def nvml_reader(nvml: Any, uuid: str) -> Read:
    """By UUID, since CUDA_VISIBLE_DEVICES numbers the devices of a process anew. A driver that refuses (a container
    without its library, a virtual GPU without sensors) is asked once and then left alone."""
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        _read(nvml, handle)
    except nvml.NVMLError:
        return lambda: None

    def read() -> GpuState | None:
        try:
            return _read(nvml, handle)
        except nvml.NVMLError:  # a reading that is missing is no reason to lose the figure
            return None

    return read


def _read(nvml: Any, handle: Any) -> GpuState:
    reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return GpuState(
        sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        mem_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        throttled=any(reasons & getattr(nvml, name) for name in THROTTLING),
    )


def summarize(states: Sequence[GpuState]) -> dict[str, Any] | None:
    """As a record holds it: median clocks and power, the highest temperature, and whether any reading was throttled."""
    if not states:
        return None
    return {
        "sm_mhz": statistics.median(state.sm_mhz for state in states),
        "mem_mhz": statistics.median(state.mem_mhz for state in states),
        "power_w": statistics.median(state.power_w for state in states),
        "temperature_c": max(state.temperature_c for state in states),
        "throttled": any(state.throttled for state in states),
    }
