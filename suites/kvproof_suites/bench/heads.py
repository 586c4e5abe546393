"""What a model fixes about attention, as benchmarks name it: ``32/8`` heads of dim 128, or ``mla128`` (latent)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvproof_impls.contract import AttentionSpec

AUTO = "auto"
"""float32 on a CPU, where it is the native type, and bfloat16 elsewhere."""
DTYPES = ("float16", "bfloat16", "float32")
KV_DTYPES = (*DTYPES, "float8_e4m3fn", "float8_e5m2", "int8")
INT8_SCALE = 1 / 24
"""What an int8 code means: normal data of five standard deviations fills the range."""
LATENT_DIM, LATENT_VALUE_DIM = 576, 512
"""DeepSeek-V2: a latent of 512 and a rotary part of 64, stored once for all query heads."""

PLAIN = re.compile(r"(\d+)/(\d+)")
LATENT = re.compile(r"mla(\d+)")


@dataclass(frozen=True)
class Heads:
    """Of one layer."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "float32"
    kv_dtype: str | None = None
    """Of the pools; None: the same as ``dtype``."""
    value_dim: int | None = None
    """None: the same as ``head_dim``."""
    mla: bool = False

    def spec(self, block_size: int) -> AttentionSpec:
        scale = INT8_SCALE if self.kv_dtype == "int8" else 1.0
        return AttentionSpec(
            self.num_q_heads,
            self.num_kv_heads,
            self.head_dim,
            block_size,
            self.dtype,
            kv_dtype=self.kv_dtype,
            value_dim=self.value_dim,
            mla=self.mla,
            k_scale=scale,
            v_scale=scale,
        )

    @property
    def stored_dtype(self) -> str:
        return self.kv_dtype or self.dtype

    def fields(self) -> dict[str, Any]:
        """As the record of a run names them."""
        told = {"num_q_heads": self.num_q_heads, "num_kv_heads": self.num_kv_heads, "head_dim": self.head_dim}
        return told | {"dtype": self.dtype, "kv_dtype": self.kv_dtype, "value_dim": self.value_dim}

    def __str__(self) -> str:
        stored = f"-kv_{self.kv_dtype}" if self.kv_dtype else ""
        return f"h{self.num_q_heads}x{self.num_kv_heads}-d{self.head_dim}-{self.dtype}{stored}"


def parse_heads(text: str, head_dim: int, dtype: str, kv_dtype: str | None, device: str) -> Heads:
    """The heads called ``text``; ``head_dim`` is not asked of latent ones, whose dims are those of DeepSeek-V2.

    Raises:
        ValueError: no such notation, query heads that are no multiple of the key heads, or an unknown type.
    """
    dtype = native_dtype(device) if dtype == AUTO else dtype
    _known("dtype", dtype, DTYPES)
    if kv_dtype is not None:
        _known("kv_dtype", kv_dtype, KV_DTYPES)
    kv_dtype = None if kv_dtype == dtype else kv_dtype
    if (latent := LATENT.fullmatch(text)) is not None:
        return _checked(Heads(int(latent[1]), 1, LATENT_DIM, dtype, kv_dtype, LATENT_VALUE_DIM, mla=True))
    plain = PLAIN.fullmatch(text)
    if plain is None:
        raise ValueError(f"heads {text!r}: give query and key heads as 32/8, or mla128 for latent attention")
    return _checked(Heads(int(plain[1]), int(plain[2]), head_dim, dtype, kv_dtype))


def heads_of_model(config: Mapping[str, Any], device: str) -> tuple[Heads, int]:
    """Of a parsed Hugging Face ``config.json``: query heads, key heads, dims and the element type; and how many layers
    keep keys and values.

    Raises:
        ValueError: a field that is missing, or a type that is not one of DTYPES.
    """
    from kvproof_reference.model_shape import QUERY_HEADS, shape_from_config, text_config

    shape, text = shape_from_config(config), text_config(config)
    num_q_heads = next((text[name] for name in QUERY_HEADS if isinstance(text.get(name), int)), None)
    if num_q_heads is None:
        raise ValueError(f"config.json: field {QUERY_HEADS[0]!r} is missing; it is needed for the shape of a query")
    named = [source.get(name) for source in (text, config) for name in ("dtype", "torch_dtype")]
    dtype = next((name for name in named if isinstance(name, str)), native_dtype(device))
    _known("config.json: dtype", dtype, DTYPES)
    if shape.latent_rank is not None:
        latent = (shape.latent_rank + shape.rope_dim, dtype, None, shape.latent_rank)
        return _checked(Heads(num_q_heads, 1, *latent, mla=True)), shape.num_layers
    value_dim = None if shape.value_dim == shape.head_dim else shape.value_dim
    plain = Heads(num_q_heads, shape.num_kv_heads, shape.head_dim, dtype, None, value_dim)
    return _checked(plain), shape.num_layers


def native_dtype(device: str) -> str:
    return "bfloat16" if device.startswith("cuda") else "float32"


def _known(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(f"{name} {given!r}: one of {', '.join(known)}")


def _checked(heads: Heads) -> Heads:
    heads.spec(block_size=1)  # whose own check tells what does not go together
    return heads
