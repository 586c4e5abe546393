"""What a kernel declares of its arithmetic: where it rounds, and to which format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvproof_reference.formats import number_format

ROUNDINGS = ("nearest", "toward_zero")


@dataclass(frozen=True)
class Arithmetic:
    """Formats are names of ``kvproof_reference.formats``. The defaults are a float16 kernel's that declares nothing."""

    query: str = "float16"
    """Of the query as it comes in."""
    p: str = "float16"
    """Softmax weights are rounded to it before they multiply V."""
    accumulator: str = "float32"
    """In which scores, exponentials and sums are computed."""
    partials: str = "float32"
    """In which partial results of split contexts are stored."""
    output: str = "float16"
    output_rounding: str = "nearest"
    """"toward_zero" where stores truncate."""
    tf32: bool = False
    """Matrix products round float32 operands to tf32."""
    prescaled_q: bool = False
    """The scale is multiplied into q, which is rounded to its format again."""
    rounded_sum: bool = False
    """The softmax denominator sums the weights after their rounding to ``p``, as FlashInfer's prefill does."""
    weights_take_scale: bool = False
    """Where every token has a v_scale of its own: a weight is multiplied by it before it is rounded to ``p``."""
    tile: int = 16
    """Tokens accumulated at a time."""

    def __post_init__(self) -> None:
        for name in ("query", "p", "accumulator", "partials", "output"):
            number_format(getattr(self, name))
        if self.output_rounding not in ROUNDINGS:
            raise ValueError(f"output_rounding {self.output_rounding!r} is none of {', '.join(ROUNDINGS)}")
        if self.weights_take_scale and self.rounded_sum:
            raise ValueError("weights_take_scale and rounded_sum: weights times scales sum to no denominator")
        if self.tile < 1:
            raise ValueError(f"tile must be at least 1, got {self.tile}")

    @classmethod
    def declared(cls, declaration: Mapping[str, Any], dtype: str) -> Arithmetic:
        """From what a kernel's ``arithmetic(spec)`` returns; what is absent or None is ``dtype``, that of the query.

        Raises:
            ValueError: a key that means nothing, an unknown format or rounding.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(declaration) - known):
            raise ValueError(f"arithmetic declares {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        given = {name: value for name, value in declaration.items() if value is not None}
        return cls(**{"query": dtype, "p": dtype, "output": dtype, **given})
