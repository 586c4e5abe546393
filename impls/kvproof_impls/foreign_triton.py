"""What other people's Triton kernels have in common: on a CPU they run in Triton's interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvproof_impls.contract import AttentionSpec


def unsupported_types(spec: AttentionSpec, interpreted: bool) -> str | None:
    """Why the types of ``spec`` can't be run, or None: query and pools are of one, and the interpreter knows two."""
    dtypes = ("float16", "float32") if interpreted else ("float16", "bfloat16", "float32")
    if spec.dtype in dtypes and spec.kv_dtype in (None, spec.dtype):
        return None
    where = " in the interpreter, which multiplies bfloat16 by its bits" if interpreted else ""
    return f"dtype {spec.dtype}, kv_dtype {spec.kv_dtype}: one of {', '.join(dtypes)} for both{where}"


@contextmanager
def quiet() -> Iterator[None]:
    """NumPy, under the interpreter, warns of infinities and of NaN, which a kernel meets and masks."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
