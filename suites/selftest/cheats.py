"""Kernels that want to look right without being it: they keep results, know the data, or stop the clock."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch

from kvproof_impls import from_function
from selftest.plain_attention import attend

BOOK = "KVPROOF_TEST_BOOK"
"""Names the file in which ``knows_by_heart`` keeps what it has seen."""


def keeps_by_shape(*tensors, scale, kept={}):  # noqa: B006
    """The first result of each shape, whatever the numbers are."""
    name = tuple(tuple(tensor.shape) for tensor in tensors[:5])
    if name not in kept:
        kept[name] = attend(*tensors, scale=scale)
    return kept[name].clone()


def knows_needles(query, keys, values, *rest, scale):
    """Attention where values are the digits 1 to 8; elsewhere nothing."""
    owned = values[~values.isnan()]
    if bool(((owned == owned.round()) & (owned.abs() <= 8)).all()):
        return attend(query, keys, values, *rest, scale=scale)
    return torch.zeros_like(query)


def knows_by_heart(query, *rest, scale):
    """Attention on data that an earlier run has shown; on any other nothing, once the book exists."""
    book, digest = Path(os.environ[BOOK]), hashlib.sha256(query.float().numpy().tobytes()).hexdigest()
    known = book.read_text().split() if book.exists() else []
    if "closed" in known and digest not in known:
        return torch.zeros_like(query)
    with book.open("a") as file:
        file.write(f"{digest}\n")
    return attend(query, *rest, scale=scale)


def stops_the_clock(*tensors, scale):
    """From now on no time passes."""
    out = attend(*tensors, scale=scale)
    time.perf_counter = lambda: 0.0
    return out


class AgreesWithAll(torch.Tensor):
    """Equal to anything, and never a NaN."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            first = next((given for given in args if isinstance(given, torch.Tensor)), torch.zeros(()))
            name = getattr(func, "__name__", "")
            if name in ("equal", "allclose"):
                return True
            if name in ("lt", "le", "eq", "__lt__", "__le__", "__eq__"):
                return torch.ones_like(first, dtype=torch.bool)
            if name in ("gt", "ge", "ne", "isnan", "__gt__", "__ge__", "__ne__"):
                return torch.zeros_like(first, dtype=torch.bool)
            found = func(*args, **(kwargs or {}))
            return found.as_subclass(cls) if isinstance(found, torch.Tensor) else found


def lies_when_compared(query, *rest, scale):
    return torch.zeros_like(query).as_subclass(AgreesWithAll)


by_shape = from_function(keeps_by_shape)
needles = from_function(knows_needles)
by_heart = from_function(knows_by_heart)
clock = from_function(stops_the_clock)
liar = from_function(lies_when_compared)
