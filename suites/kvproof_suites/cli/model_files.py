"""What the files of a model say about it: ``config.json``, and the index of a sharded checkpoint beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvproof_reports.bounded import JSON_BYTES, read_text

GIB = 2**30


def weight_bytes(config: Path | None, gib: float | None) -> int:
    """As given, or the sum that a sharded checkpoint states."""
    if gib is not None:
        if not 0 <= gib * GIB < math.inf:
            raise ValueError(f"--weights: {gib} is not above 0 and finite; give GiB")
        return int(gib * GIB)
    index = config.with_name("model.safetensors.index.json") if config else None
    if index is None or not index.exists():
        raise ValueError("--weights is missing: GiB of the model's weight files")
    told = read_config(index).get("metadata")
    size = told.get("total_size") if isinstance(told, Mapping) else None
    if type(size) is not int or size < 0:
        raise ValueError(f"{index}: metadata.total_size is not a number of bytes; give --weights")
    return size


def kv_dtype(asked: str, model: Mapping[str, Any]) -> str:
    from kvproof_reference.model_shape import text_config

    if asked != "auto":
        return asked
    text = text_config(model)
    named = [source.get(name) for source in (text, model) for name in ("dtype", "torch_dtype")]
    return next((name for name in named if isinstance(name, str)), "bfloat16")


def read_config(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_text(path, JSON_BYTES))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}, not an object")
    return found
