"""Whether a contest fits: too little memory is told before it is asked for, and told with what would help."""

from __future__ import annotations

import torch


def lack_of_room(num_bytes: int, device: str, num_pools: int) -> str | None:
    """Why pools of ``num_bytes`` can't be made, or None."""
    free = free_bytes(device)
    if free is None or num_bytes <= 0.9 * free:
        return None
    return (
        f"{num_pools} pools and their contents take {num_bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: "
        "name fewer implementations, fewer --tables or a smaller point"
    )


def free_bytes(device: str) -> int | None:
    """None where the system does not say."""
    if device.startswith("cuda"):
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, from earlier
        return torch.cuda.mem_get_info(device)[0] + unused
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
    except OSError:
        return None
