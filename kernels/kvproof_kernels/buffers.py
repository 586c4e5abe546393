"""What a captured graph reads besides the tensors that it was given: fixed addresses, with room for other work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvproof_kernels.geometry import Geometry
from kvproof_kernels.work import Work


@dataclass
class Buffers:
    """Work on the device, and where splits leave their partial results."""

    numbers: Tensor
    """int32: all of ``work``, one after the other, so that a plan reaches the device in one copy."""
    work: Work
    """Views of ``numbers`` with all their room; items that are not planned have no rows."""
    partial_out: Tensor
    """[num_partials, num_q_heads, value_dim] float32"""
    partial_lse: Tensor
    """[num_partials, num_q_heads] float32"""
    loaded: Work | None = None
    """What stands in them."""

    @classmethod
    def for_work(cls, work: Work, geometry: Geometry, rows_per_tile: int, room: int, device: torch.device) -> Buffers:
        """``room``: items that may be planned later, beyond what ``work`` has."""
        num_items, width = len(work.items) + room, work.items.shape[1]
        num_partials = max(1, work.num_partials, rows_per_tile * num_items if room else 0)
        sizes = [num_items * width, len(work.positions), len(work.partial_start)]
        numbers = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        items, positions, starts = numbers.split(sizes)
        lse = torch.empty(num_partials, geometry.num_q_heads, dtype=torch.float32, device=device)
        return cls(
            numbers,
            Work(items.view(num_items, width), positions, starts, num_partials),
            lse.new_empty(*lse.shape, geometry.value_dim),
            lse,
        )

    def load(self, work: Work) -> Work:
        """``work`` as it stands in the buffers from now on.

        The copy queues behind the launches before it. Its source is ordinary memory, which the driver has read when the
        call returns: nothing that the next plan does can reach it.

        Raises:
            ValueError: another number of query rows than there is room for.
        """
        if len(work.positions) != len(self.work.positions):
            raise ValueError(
                f"reuse: the earlier launch has {len(self.work.positions)} query rows, this batch {len(work.positions)}"
            )
        idle = work.items.new_zeros(self.work.items.numel() - work.items.numel())
        self.numbers.copy_(torch.cat([work.items.flatten(), idle, work.positions, work.partial_start]))
        items = self.work.items[: len(work.items)]
        self.loaded = replace(self.work, items=items, num_partials=work.num_partials)
        return self.loaded
