"""Student's t: how far the mean of a few figures may be from the truth, told by how far they are from each other.

A bootstrap of three processes can't know more than three processes: it draws the same ones again, and its interval is
too narrow. Student's interval is as wide as few figures ask for ("The probable error of a mean", 1908).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

BISECTIONS = 60


@functools.cache
def quantile(confidence: float, freedom: int) -> float:
    """t that holds a variable of ``freedom`` degrees between -t and t with probability ``confidence``.

    Raises:
        ValueError: no degree of freedom, or a confidence that is not between 0 and 1.
    """
    if freedom < 1 or not 0 < confidence < 1:
        raise ValueError(f"Student's t needs a degree of freedom and a confidence in (0, 1): {freedom}, {confidence}")
    low, high = 0.0, math.pi / 2
    for _ in range(BISECTIONS):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Probability of -t to t with t = sqrt(freedom) tan(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd, cosine = freedom % 2, math.cos(angle)
    term = math.sin(angle) * (cosine if odd else 1.0)
    total = 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    return 2 / math.pi * (angle + total) if odd else total


def half_width(a: Sequence[float], b: Sequence[float], confidence: float) -> float:
    """Of the interval of mean(b) - mean(a), where the figures of both scatter alike.

    Args:
        a, b: independent figures, three or more in all.
    """
    freedom = len(a) + len(b) - 2
    spread = sum((one - sum(group) / len(group)) ** 2 for group in (a, b) for one in group)
    return quantile(confidence, freedom) * math.sqrt(spread / freedom * (1 / len(a) + 1 / len(b)))
