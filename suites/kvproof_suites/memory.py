"""Memory of the host and of a device: what is free, and the most that a test held.

What does not fit is told before it is asked for: a machine that has run out ends processes by its own choice.
"""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
LARGEST_SHARE = 0.9
"""Of what is free: the rest is for what the implementation and the libraries below it take."""
MOST_KEPT_BYTES = 2_000_000_000
"""By torch, of memory that nothing lies in; to ask the device for a little of it again costs milliseconds."""


def lack_of_room(what: str, num_bytes: int, device: str) -> str | None:
    """Why ``what``, of ``num_bytes``, can't be made on ``device``, or None."""
    free = free_bytes(device)
    if free is None or num_bytes <= LARGEST_SHARE * free:
        return None
    return f"{what} take {num_bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"


def free_bytes(device: str) -> int | None:
    """None where the system does not say."""
    if device.startswith("cuda"):
        import torch

        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, from earlier
        return torch.cuda.mem_get_info(device)[0] + unused
    found = of_host()
    return None if found is None else found[0]


def of_host() -> tuple[int, int] | None:
    """(available, in all) bytes of the machine, or of its container where less is left; None where nobody tells."""
    found = [each for each in (_of_machine(), _of_container()) if each is not None]
    return min(found, key=lambda each: each[0] / each[1], default=None)


def _of_machine() -> tuple[int, int] | None:
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    if "MemAvailable" not in kilobytes:
        return None
    return kilobytes["MemAvailable"] * 1024, kilobytes["MemTotal"] * 1024


def _of_container() -> tuple[int, int] | None:
    """By its control group; files that were read count as available, as they do for the machine."""
    try:
        limit, used = ((CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        stat = (CGROUP / "memory.stat").read_text().split()
    except OSError:
        return None
    if limit == "max":
        return None
    files = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
    return int(limit) - int(used) + files, int(limit)


def start_peak(device: str) -> bool:
    """From here on the most that is held is counted anew; False where the system can't do so for the host.

    What torch keeps of a large test's memory goes back to the device, where other processes may need it.
    """
    if device.startswith("cuda"):
        import torch

        if torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) > MOST_KEPT_BYTES:
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        (PROC / "self/clear_refs").write_text("5")  # proc(5): the peak becomes what is held now
    except OSError:
        return False
    return True


def peaks(device: str, counts_host: bool) -> dict[str, int]:
    """The most that was held since ``start_peak``, which has returned ``counts_host``, by the name of its field.

    By this process, and by torch on a CUDA device: what others allocate there it does not know.
    """
    found = {"peak_bytes": peak_bytes()} if counts_host else {}
    if device.startswith("cuda"):
        import torch

        found["peak_device_bytes"] = torch.cuda.max_memory_allocated(device)
    return found


def peak_bytes() -> int:
    """Of resident memory."""
    status = (PROC / "self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
