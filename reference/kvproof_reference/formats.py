"""Floating-point formats by name: what the error budget and the sizing need to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NumberFormat:
    """A binary floating-point format with subnormals."""

    name: str
    precision: int
    """Bits of the significand, the implicit one included."""
    min_exponent: int
    """Exponent of the smallest normal number, 2**min_exponent."""
    max: float
    """Largest finite number."""
    num_bytes: int
    """Storage of one element."""

    @property
    def unit_roundoff(self) -> float:
        """u: |round(x) - x| <= u·|x| for normal x, rounding to nearest."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """What is smaller may be flushed to zero."""
        return 2.0**self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        """η: below the normal range, |round(x) - x| <= η/2."""
        return 2.0 ** (self.min_exponent - self.precision + 1)


FORMATS: Mapping[str, NumberFormat] = {
    number_format.name: number_format
    for number_format in (
        NumberFormat("float16", 11, -14, 65504.0, 2),
        NumberFormat("bfloat16", 8, -126, (2 - 2.0**-7) * 2.0**127, 2),
        NumberFormat("float32", 24, -126, (2 - 2.0**-23) * 2.0**127, 4),
        NumberFormat("float64", 53, -1022, (2 - 2.0**-52) * 2.0**1023, 8),
        NumberFormat(
            "tf32", 11, -126, (2 - 2.0**-10) * 2.0**127, 4
        ),  # float32's range and storage, float16's precision
        NumberFormat("float8_e4m3fn", 4, -6, 448.0, 1),  # no infinity; the largest significand is NaN
        NumberFormat("float8_e5m2", 3, -14, 57344.0, 1),
    )
}


def number_format(name: str) -> NumberFormat:
    """The format called ``name``; ValueError lists the known ones."""
    if name not in FORMATS:
        raise ValueError(f"unknown number format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]
