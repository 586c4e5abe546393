"""The allocators that the figures are measured on, by name: the same that the laws are run on."""

from __future__ import annotations

from typing import Any

from kvproof_impls.registry import load


def make(name: str, num_blocks: int, block_size: int, max_model_len: int | None = None) -> Any:
    """A fresh allocator; ``max_model_len`` in tokens, for those that reserve."""
    factory: Any = load(name).allocator
    return factory(num_blocks, block_size, **({} if max_model_len is None else {"max_model_len": max_model_len}))
