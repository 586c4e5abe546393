"""Swap: move whole blocks between the pools on a device and pools in host memory, to preempt and to resume.

Evicted blocks go to a swap space of the CPU and come back before the sequence runs again (Kwon et al., SOSP 2023,
section 4.5). No kernel of ours is in this: the copy engines of a GPU do it beside the kernels that run, provided that
the host memory is pinned. What costs is the number of copies, so that neighbours which move to neighbours go as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from kvproof_kernels.moves import block_pairs
from kvproof_kernels.tensor_checks import shape_of

Run = tuple[int, int, int]
"""(first source block, first destination block, number of blocks)"""


def host_pool(device_pool: Tensor, num_blocks: int) -> Tensor:
    """Unwritten host memory for ``num_blocks`` blocks of ``device_pool``, stored in its order.

    Args:
        device_pool: [pool_blocks, ...], a pool or the scales of its tokens, each block one stretch of memory.
        num_blocks: blocks to hold.

    Returns:
        [num_blocks, ...], pinned if ``device_pool`` is on a GPU.

    Raises:
        ValueError: a block of ``device_pool`` is not one stretch of memory.
    """
    _check_packed("device_pool", device_pool)
    packed = torch.empty(
        num_blocks * device_pool[0].numel(),
        dtype=device_pool.dtype,
        device="cpu",
        pin_memory=device_pool.device.type != "cpu",
    )
    return packed.as_strided((num_blocks, *device_pool.shape[1:]), (device_pool[0].numel(), *device_pool.stride()[1:]))


def swap_blocks(sources: Sequence[Tensor], destinations: Sequence[Tensor], copies: Iterable[tuple[int, int]]) -> None:
    """Copy whole blocks from ``sources`` to ``destinations``, bit for bit; one of the two is in host memory.

    Out: ``swap_blocks(device_pools, host_pools, allocator.swap_out(seq))``; in: ``swap_blocks(host_pools, device_pools,
    allocator.swap_in(seq))``. On a GPU the copies are asynchronous, on the current stream of its device: kernels
    launched there before and after see the blocks as if everything ran in turn. Whoever else touches the host pools, or
    works on another stream, waits for an event recorded on this one.

    Args:
        sources: the pool of the keys, that of the values, and the scales of their tokens where there are any (with MLA
            the keys alone): [num_blocks, ...], each block one stretch of memory.
        destinations: the same on the other side: as many, each like its source but for device and number of blocks.
            ``host_pool`` makes one.
        copies: (source block, destination block) pairs in any order, each destination once.

    Raises:
        ValueError: an id lies outside its pool, a destination comes twice, or two pools do not fit each other; host
            memory that is not pinned and a pool on a GPU. Nothing is copied then.
        TypeError: two pools differ in dtype, or an id is no integer.
    """
    if len(sources) != len(destinations):
        raise ValueError(f"{len(sources)} sources and {len(destinations)} destinations; each pool needs its other side")
    for i, (source, destination) in enumerate(zip(sources, destinations, strict=True)):
        _check_fit(f"sources[{i}]", source, f"destinations[{i}]", destination)
    pairs = block_pairs(copies)
    for source, destination in zip(sources, destinations, strict=True):
        _check_ids(pairs, source.shape[0], destination.shape[0])
    runs = merge_runs(pairs)
    for source, destination in zip(sources, destinations, strict=True):
        _copy_runs(_flat(source), _flat(destination), runs)


def merge_runs(copies: Iterable[tuple[int, int]]) -> list[Run]:
    """Pairs whose sources and destinations both count up by one, taken together."""
    runs: list[Run] = []
    for source, destination in sorted(copies):
        if runs:
            first_source, first_destination, length = runs[-1]
            if (source, destination) == (first_source + length, first_destination + length):
                runs[-1] = first_source, first_destination, length + 1
                continue
        runs.append((source, destination, 1))
    return runs


def _copy_runs(source: Tensor, destination: Tensor, runs: list[Run]) -> None:
    """Blocks that lie apart in memory (K and V in one tensor, in turn) are copied one by one."""
    packed = all(flat.stride(0) == flat.shape[1] for flat in (source, destination))
    for first_source, first_destination, length in runs:
        for start, count in [(0, length)] if packed else [(i, 1) for i in range(length)]:
            from_, to = first_source + start, first_destination + start
            destination[to : to + count].copy_(source[from_ : from_ + count], non_blocking=True)


def _flat(pool: Tensor) -> Tensor:
    """[num_blocks, elements of a block] integers in the order of storage: memory as it lies, whatever it means."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[pool.dtype.itemsize]
    size = pool[0].numel()
    return pool.as_strided((pool.shape[0], size), (max(pool.stride(0), size), 1)).view(bits)


def _check_fit(source_name: str, source: Tensor, destination_name: str, destination: Tensor) -> None:
    _check_packed(source_name, source)
    _check_packed(destination_name, destination)
    shown = f"{source_name} {shape_of(source)} and {destination_name} {shape_of(destination)}"
    if source.dtype != destination.dtype:
        raise TypeError(f"{shown} are {source.dtype} and {destination.dtype}; they must be the same")
    if source.shape[1:] != destination.shape[1:]:
        raise ValueError(f"{shown} must agree in all but the number of blocks")
    if _block_strides(source) != _block_strides(destination):
        raise ValueError(
            f"{shown} store a block in different orders, strides {_block_strides(source)} and "
            f"{_block_strides(destination)}; host_pool makes one like the other"
        )
    devices = {source.device.type: source, destination.device.type: destination}
    if "cpu" not in devices:
        raise ValueError(f"{shown} are on {source.device} and {destination.device}; one must be in host memory")
    if len(devices) == 2 and not devices["cpu"].is_pinned():
        name, pool = (source_name, source) if source is devices["cpu"] else (destination_name, destination)
        raise ValueError(
            f"{name} {shape_of(pool)} is not pinned; a GPU copies beside its kernels from pinned memory only"
        )


def _check_packed(name: str, pool: Tensor) -> None:
    if pool.dim() < 2 or 0 in pool.shape:
        raise ValueError(f"{name} {shape_of(pool)} must be [num_blocks, ...], and not empty")
    if pool.dtype.itemsize not in (1, 2, 4):
        raise TypeError(f"{name} {shape_of(pool)} is {pool.dtype}; elements of 1, 2 or 4 bytes are moved")
    expected = 1
    for stride, size in sorted(_block_strides(pool)):
        if stride != expected:
            raise ValueError(
                f"{name} {shape_of(pool)} with strides {tuple(pool.stride())}: a block must be one stretch of memory"
            )
        expected *= size
    if pool.shape[0] > 1 and pool.stride(0) < expected:
        raise ValueError(f"{name} {shape_of(pool)} with strides {tuple(pool.stride())}: its blocks overlap")


def _block_strides(pool: Tensor) -> list[tuple[int, int]]:
    """(stride, size) of each dim of a block that has more than one index."""
    return [(stride, size) for stride, size in zip(pool.stride()[1:], pool.shape[1:], strict=True) if size > 1]


def _check_ids(pairs: list[tuple[int, int]], num_sources: int, num_destinations: int) -> None:
    seen: set[int] = set()
    for source, destination in pairs:
        for role, block, limit in (("source", source, num_sources), ("destination", destination, num_destinations)):
            if not 0 <= block < limit:
                raise ValueError(f"copy ({source}, {destination}): {role} block {block} is not in range({limit})")
        if destination in seen:
            raise ValueError(f"copy ({source}, {destination}): block {destination} is the destination of another copy")
        seen.add(destination)
