"""Token ids as compiled code takes them: one type of array, int32, contiguous, aligned and writeable, since for another
one it would be compiled anew. Nothing is cast in silence."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

INT32 = np.dtype(np.int32)
LIMIT = np.iinfo(np.int32)


def as_tokens(tokens: Any) -> Any:
    """[num_tokens] int32, without a copy where it is that already.

    Raises:
        ValueError: not whole numbers, more than one dimension, or one outside int32.
    """
    if tokens.__class__ is np.ndarray and tokens.dtype is INT32 and tokens.ndim == 1 and tokens.flags.carray:
        return tokens
    if isinstance(tokens, list | tuple):
        try:
            return np.frombuffer(array("i", tokens), np.int32)  # refuses floats, which NumPy would cut off
        except (OverflowError, TypeError) as error:
            raise ValueError(f"tokens: {error}; token ids are whole numbers that fit into int32") from None
    found = np.asarray(tokens)
    if found.dtype != INT32:
        found = _narrowed(found)
    if found.ndim != 1:
        raise ValueError(f"tokens: have shape {found.shape}; give one dimension")
    return np.require(found, INT32, ["C", "A", "W", "E"])


def _narrowed(found: Any) -> Any:
    if found.dtype.kind not in "iu" and found.size:
        raise ValueError(f"tokens: are {found.dtype}; token ids are whole numbers that fit into int32")
    if found.size and (found.max() > LIMIT.max or found.min() < LIMIT.min):
        raise ValueError(f"tokens: {found.min()} to {found.max()}; token ids are whole numbers that fit into int32")
    return found.astype(np.int32)
