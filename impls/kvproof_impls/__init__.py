"""The contract of an implementation, the registry of names, and one adapter a file."""

from kvproof_impls.contract import (
    DEFAULT_ARITHMETIC,
    FEATURES,
    AttentionSpec,
    BlockAllocator,
    Copies,
    KVPools,
    Launch,
    PagedBatch,
    PagedKernel,
)
from kvproof_impls.function import from_function
from kvproof_impls.recording import recorded
from kvproof_impls.registry import Implementation, ImplementationError, Unavailable, load, names

__all__ = [
    "DEFAULT_ARITHMETIC",
    "FEATURES",
    "AttentionSpec",
    "BlockAllocator",
    "Copies",
    "Implementation",
    "ImplementationError",
    "KVPools",
    "Launch",
    "PagedBatch",
    "PagedKernel",
    "Unavailable",
    "from_function",
    "load",
    "names",
    "recorded",
]
