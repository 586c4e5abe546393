"""Where a timed row stands under the roof: arithmetic done, over bytes that had to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    intensity: float
    """FLOP a byte."""
    gflops_per_second: float
    """1e9 floating-point operations a second."""


def work(record: Record) -> Work | None:
    """None where the record does not tell what was computed or moved.

    Attention multiplies each query with each key it sees and each weight with a value: 2 multiplications and 2
    additions a channel, for every query head. The softmax is left out, as in the published figures.
    """
    flops, seconds = num_flops(record), (record.get("median_ms") or 0) / 1e3
    bandwidth = record.get("gb_per_second")
    if not flops or not seconds or not bandwidth:
        return None
    return Work(flops / (bandwidth * 1e9 * seconds), flops / seconds / 1e9)


def num_flops(record: Record) -> float | None:
    """Of one launch; only a decode step's can be told from its shape, since each query sees the whole context."""
    if record.get("num_flops") is not None:
        return float(record["num_flops"])
    factors = [record.get(name) for name in ("batch", "context_len", "num_q_heads", "head_dim")]
    if record["group"] != "decode" or None in factors:
        return None
    batch, context_len, num_q_heads, head_dim = factors
    return 4.0 * batch * context_len * num_q_heads * head_dim  # type: ignore[operator]


def ridge(roof_gb_per_second: float, intensities: Sequence[float]) -> tuple[list[float], list[float]]:
    """The slope that memory allows, a little past the intensities that were met: FLOP a byte, GFLOP/s."""
    xs = [min(intensities) / 4, max(intensities) * 4]
    return xs, [x * roof_gb_per_second for x in xs]
