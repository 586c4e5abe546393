"""The types that elements are stored in, and what stands for each of them in compiled code: a number of a type that
Numba knows, which is never looked at.

    float32     float32
    float16     int16
    bfloat16    uint16, or uint32 where pairs of bfloat16 are multiplied by one instruction (AVX-512 BF16)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import types
from numba.core.registry import cpu_target

BYTES = {types.float32: 4, types.int16: 2, types.uint16: 2, types.uint32: 2}
WIDENED = {torch.float32: np.float32(0), torch.float16: np.int16(0), torch.bfloat16: np.uint16(0)}
PAIRS = np.uint32(0)
CAN_MULTIPLY_PAIRS = "+avx512bf16" in cpu_target.target_context.codegen().magic_tuple()[2]
"""By what Numba compiles for, which need not be all that this CPU can."""


class Formats(NamedTuple):
    """Of one launch; queries are float32 but for pairs."""

    query: Any
    key: Any
    value: Any


def formats_of(query: torch.dtype, pool: torch.dtype) -> Formats:
    if CAN_MULTIPLY_PAIRS and query == pool == torch.bfloat16:
        return Formats(PAIRS, PAIRS, WIDENED[pool])
    return Formats(WIDENED[torch.float32], WIDENED[pool], WIDENED[pool])
