"""What a model may fix about its attention: numbers of heads and dims, options that mean something."""

from __future__ import annotations

import math
from collections.abc import Sequence

LARGEST = 3.4028234663852886e38
"""Of float32, in which kernels calculate with scales, caps, slopes and sinks."""
HEADS = ("num_q_heads", "num_kv_heads", "head_dim", "value_dim", "block_size")


def check_heads(*heads: int) -> None:
    for name, number in zip(HEADS, heads, strict=True):
        if number < 1:
            raise ValueError(f"{name} ({number}) must be at least 1")
    if heads[0] % heads[1]:
        raise ValueError(f"num_q_heads ({heads[0]}) must be a multiple of num_kv_heads ({heads[1]})")


def check_options(
    num_q_heads: int,
    window: int | None,
    softcap: float | None,
    alibi_slopes: Sequence[float] | None,
    sinks: Sequence[float] | None,
) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window ({window}) must be at least 1")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap ({softcap}) must be above 0")
    check_numbers(softcap=softcap)
    for name, numbers in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if numbers is not None and len(numbers) != num_q_heads:
            raise ValueError(f"{name} [{len(numbers)}] must be of num_q_heads ({num_q_heads})")
        check_numbers(name == "sinks", **{f"{name}[{head}]": number for head, number in enumerate(numbers or ())})


def check_numbers(minus_infinity: bool = False, **numbers: float | None) -> None:
    """What float32 holds; ``minus_infinity`` may be allowed, which as a sink is none."""
    for name, number in numbers.items():
        if number is not None and not abs(number) <= LARGEST and not (minus_infinity and number == -math.inf):
            allowed = ", or -inf" if minus_infinity else ""
            raise ValueError(f"{name} ({number}) must be a number of float32{allowed}")
