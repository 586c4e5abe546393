"""What a reader needs to know of the machine to trust or repeat a run. No paths, no user or host names."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from kvproof_suites import laws

DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))
"""Where the module of a GPU says its version; a container sees them too."""


def describe(device: str) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "num_cpus": os.cpu_count(),
        "gpu": gpu_name(device),
        "driver": driver_version(device),
        "cuda": cuda_version(device),
        "torch": version("torch"),
        "triton": version("triton"),
        "kvproof": version("kvproof"),
        "spec": laws.version(),
        "git_commit": git_commit(),
    }


def version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()


def gpu_name(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.cuda.get_device_name(device)


def driver_version(device: str) -> str | None:
    """Of the kernel module; None on a CPU, and where the module does not say it."""
    texts = (path.read_text(encoding="utf-8") for path in DRIVERS if device.startswith("cuda") and path.is_file())
    found = (re.search(r"(?<!\S)\d+(\.\d+)+", text) for text in texts)
    return next((match[0] for match in found if match), None)


def cuda_version(device: str) -> str | None:
    """Of CUDA, or of HIP, as torch was built for it."""
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.version.cuda or torch.version.hip


def git_commit() -> str | None:
    """Of the working directory, which is what a gate runs in; None outside a repository."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
