"""What is known of a built-in implementation before anything of it is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A built-in implementation before it is imported."""

    summary: str
    allocator: str | None = None
    kernel: str | None = None
    distribution: str | None = None
    modules: tuple[str, ...] = ()
    extra: str | None = None
    needs_cuda: bool = False
    compute_capabilities: tuple[int, ...] = ()
    """Major numbers of the CUDA devices that it is made for; none: any."""
    versions: str = ""
    """PEP 440 range of the distribution that the adapter was read against; outside it the name is refused."""
    builds: tuple[str, ...] = ()
    """Other distributions of the same modules, such as one for the CPU."""
    install: str | None = None
    """How to get it, where an extra can't."""
    third_party: bool = False
    """Not written here: judged in a worker process of its own, which it may crash."""
    environment: str | None = None
    """``impls/envs/NAME.txt`` pins a virtual environment of its own, for what can't share one with the rest."""

    @property
    def provides(self) -> str:
        return " + ".join(half for half in ("allocator", "kernel") if getattr(self, half))
