"""What records of older versions leave unsaid, so that they can be put beside those of today.

Version 1 had decode and allocators only, the former launched eagerly on inputs that had left the cache, and no samples:
its figures can be shown, and nothing can be concluded from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def upgraded(record: Mapping[str, Any]) -> dict[str, Any]:
    """The valid ``record`` with what its version implied; its schema_version stays."""
    if (record["schema_version"], record["kind"], record.get("group")) != (1, "benchmark", "decode"):
        return dict(record)
    implied = {"cache": "cold", "mode": "eager", "point": _point(record["batch"], record["context_len"])}
    return {**record, **implied}


def _point(batch: int, context_len: int) -> str:
    """In vLLM's grammar: a lone sequence is not counted, and a length is told in units of 1,024 where it can be."""
    context = f"{context_len // 1024}k" if context_len and context_len % 1024 == 0 else str(context_len)
    return f"{batch if batch > 1 else ''}q1s{context}"
