"""Public acceptance criteria of attention kernels, each written anew from its definition.

``CRITERIA`` maps a name to a function of (got, want, low) that tells whether the output is accepted: ``got`` the output
under test, ``want`` float64 attention of the same inputs, ``low`` attention computed in the tensors' own 16-bit format,
all [num_tokens, num_q_heads, value_dim] in float64. Every criterion is given the same exact ``want``, which flatters
those whose own reference is computed in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

Accepts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]


def within(got: torch.Tensor, want: torch.Tensor, low: torch.Tensor, atol: float, rtol: float) -> bool:
    """|got - want| <= atol + rtol·|want| for every element; NaN is never accepted."""
    return bool(((got - want).abs() <= atol + rtol * want.abs()).all())


def both_errors_small(got: torch.Tensor, want: torch.Tensor, low: torch.Tensor, largest: float) -> bool:
    """An element fails only if its absolute and its relative error are both above ``largest``; all must be finite."""
    error = (got - want).abs()
    relative = error / (want.abs() + 1e-8)
    return bool(got.isfinite().all() and not ((error > largest) & (relative > largest)).any())


def near_low_precision(
    got: torch.Tensor, want: torch.Tensor, low: torch.Tensor, times: float, mean_times: float | None = None
) -> bool:
    """The largest error is at most ``times`` that of a low-precision reference, and the mean ``mean_times``."""
    error, allowed = (got - want).abs(), (low - want).abs()
    largest = bool(error.max() <= times * allowed.max() + 1e-5)
    return largest and (mean_times is None or bool(error.mean() <= mean_times * allowed.mean() + 1e-5))


CRITERIA: dict[str, Accepts] = {
    "vLLM kernel tests": partial(within, atol=1.5e-2, rtol=1e-2),
    "vLLM v1 backends": partial(within, atol=1e-2, rtol=1e-2),
    "FlashInfer bench": partial(within, atol=1e-2, rtol=2e-1),
    "flashinfer-bench": partial(both_errors_small, largest=1e-2),
    "HF kernels": partial(within, atol=1e-2, rtol=1e-5),
    "FlashAttention 2": partial(near_low_precision, times=3),
    "FlashAttention 3": partial(near_low_precision, times=2, mean_times=1.5),
}

DEFINITIONS: dict[str, str] = {
    "vLLM kernel tests": "atol 1.5e-2, rtol 1e-2",
    "vLLM v1 backends": "atol 1e-2, rtol 1e-2",
    "FlashInfer bench": "atol 1e-2, rtol 2e-1",
    "flashinfer-bench": "fails where absolute and relative error are both above 1e-2",
    "HF kernels": "atol 1e-2, rtol 1e-5",
    "FlashAttention 2": "largest error at most 3 times that of a bfloat16 reference",
    "FlashAttention 3": "largest error at most 2 times, mean at most 1.5 times that of a bfloat16 reference",
}
