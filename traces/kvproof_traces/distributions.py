"""Distributions of lengths that meet published figures by construction: no constant is fitted by hand.

Only ``random()`` of an integer-seeded generator is drawn from, which Python keeps stable; the rest is arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

_STANDARD = NormalDist()


@dataclass(frozen=True)
class Percentiles:
    """Through published percentiles, with the published mean.

    Between two percentiles a and b a length is a + (b - a)·tᵏ, t from 0 to 1, with one k for all pieces. The mean is
    Σ wᵢ(aᵢ + (bᵢ - aᵢ)/(k + 1)) with wᵢ the share of a piece: linear in 1/(k + 1), which gives k.
    """

    mean: float
    min: int
    p50: float
    p90: float
    p99: float
    max: int

    def __post_init__(self) -> None:
        if not 0 < self._fullness < 1:
            raise ValueError(f"Percentiles.mean: {self.mean} is not between what the percentiles allow")

    @property
    def _pieces(self) -> tuple[tuple[float, float, float, float], ...]:
        """(share before, share of the piece, from, to)."""
        return (
            (0.0, 0.5, self.min, self.p50),
            (0.5, 0.4, self.p50, self.p90),
            (0.9, 0.09, self.p90, self.p99),
            (0.99, 0.01, self.p99, self.max),
        )

    @cached_property
    def _fullness(self) -> float:
        """1/(k + 1)."""
        lowest = sum(share * low for _, share, low, _ in self._pieces)
        highest = sum(share * high for _, share, _, high in self._pieces)
        return (self.mean - lowest) / (highest - lowest)

    def quantile(self, share: float) -> float:
        """The length below which ``share`` of all lie, before rounding."""
        exponent = 1 / self._fullness - 1
        before, width, low, high = next(piece for piece in reversed(self._pieces) if share >= piece[0])
        return low + (high - low) * ((share - before) / width) ** exponent


@dataclass(frozen=True)
class LogNormal:
    """Log-normal, cut at 1 and ``max``: what lies outside counts as the limit.

    ``mean`` is that after the cut, ``variation`` is standard deviation ÷ mean before it.
    """

    mean: float
    variation: float
    max: int

    @cached_property
    def _location(self) -> float:
        """By bisection: the mean after the cut grows with the location."""
        low, high = -20.0, math.log(self.max) + 20.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean_at(middle) < self.mean else (low, middle)
        return (low + high) / 2

    @property
    def _sigma(self) -> float:
        return math.sqrt(math.log(1 + self.variation**2))

    def _mean_at(self, location: float) -> float:
        """E[min(max(X, 1), m)] = E[X; 1 < X < m] + P(X ≤ 1) + m·P(X ≥ m)."""
        sigma = self._sigma

        def below(value: float) -> float:
            return _STANDARD.cdf((math.log(value) - location) / sigma)

        def part_below(value: float) -> float:
            return _STANDARD.cdf((math.log(value) - location) / sigma - sigma)

        whole = math.exp(location + sigma**2 / 2)
        return whole * (part_below(self.max) - part_below(1)) + below(1) + self.max * (1 - below(self.max))

    def quantile(self, share: float) -> float:
        """The length below which ``share`` of all lie, before rounding."""
        value = math.exp(self._location + self._sigma * _STANDARD.inv_cdf(share or 2.0**-54))
        return min(max(value, 1.0), float(self.max))


Length = Percentiles | LogNormal
"""A number of tokens, from 1 to ``max``."""


def rounded(value: float, draw: float) -> int:
    """One of the two whole numbers beside ``value``, such that the mean is kept."""
    return int(value + draw)


def geometric(mean: float, draw: float) -> int:
    """Trials up to the first success, by inversion; 1 or more."""
    return 1 if mean <= 1 else 1 + int(math.log(1 - draw) / math.log(1 - 1 / mean))
