"""What of a model decides the size of its KV cache, and where a Hugging Face ``config.json`` says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
QUERY_HEADS = ("num_attention_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HIDDEN = ("hidden_size", "n_embd", "d_model")
LARGEST = 2**31 - 1
"""Of any number here; sizes that are made of them stay exact, and within floating point."""
LAYERS_WITHOUT_KV = frozenset({"linear_attention", "mamba", "conv", "recurrent"})
"""``layer_types`` that keep a state of fixed size instead of keys and values."""


@dataclass(frozen=True)
class ModelShape:
    """Layers and per-layer dimensions of one token's cache entry: K and V a head, or one MLA latent for all heads."""

    num_layers: int
    num_kv_heads: int = 1
    head_dim: int = 0
    value_dim: int | None = None
    """None: the same as ``head_dim``."""
    latent_rank: int | None = None
    """MLA: width of the compressed K and V (kv_lora_rank), stored once and for all heads."""
    rope_dim: int = 0
    """MLA: width of the rotary part beside it (qk_rope_head_dim)."""

    def __post_init__(self) -> None:
        needed = ("num_layers", "latent_rank") if self.is_mla else ("num_layers", "num_kv_heads", "head_dim")
        for name in needed:
            if getattr(self, name) < 1:
                raise ValueError(f"ModelShape.{name} must be at least 1, got {getattr(self, name)}")

    @property
    def is_mla(self) -> bool:
        return self.latent_rank is not None

    def shard(self, tensor_parallel_size: int) -> ModelShape:
        """What one of ``tensor_parallel_size`` ranks holds: its KV heads, at least one; the whole latent of MLA."""
        if tensor_parallel_size < 1:
            raise ValueError(f"tensor_parallel_size must be at least 1, got {tensor_parallel_size}")
        if self.is_mla:
            return self
        larger, smaller = max(self.num_kv_heads, tensor_parallel_size), min(self.num_kv_heads, tensor_parallel_size)
        if larger % smaller:
            raise ValueError(f"{self.num_kv_heads} KV heads can't be spread evenly over {tensor_parallel_size} ranks")
        return replace(self, num_kv_heads=max(1, self.num_kv_heads // tensor_parallel_size))


def shape_from_config(config: Mapping[str, Any]) -> ModelShape:
    """The shape in a parsed ``config.json``; a multimodal model's is looked up in its ``text_config``.

    Without ``num_key_value_heads`` every query head has its own (MHA), or all share one with ``multi_query``; without
    ``head_dim`` it is hidden_size / num_attention_heads; ``kv_lora_rank`` makes it MLA. Sliding-window layers count
    in full: an upper bound.

    Raises:
        ValueError: naming the field that is missing or not a positive whole number.
    """
    text = text_config(config)
    num_layers = _num_layers(text)
    if text.get("kv_lora_rank") is not None:
        rank, rope = _number(text, ("kv_lora_rank",)), _number(text, ("qk_rope_head_dim",))
        return ModelShape(num_layers, latent_rank=rank, rope_dim=rope)
    value_dim = None if text.get("v_head_dim") is None else _number(text, ("v_head_dim",))
    return ModelShape(num_layers, _num_kv_heads(text), _head_dim(text), value_dim)


def max_model_len_from_config(config: Mapping[str, Any]) -> int | None:
    """Longest context the config allows, in tokens; None where it doesn't say."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    text = text_config(config)
    return _number(text, names) if _first(text, names) else None


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model."""
    if not isinstance(config, Mapping):
        raise ValueError(f"config.json must hold an object, found {type(config).__name__}")
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) and not _first(config, LAYERS) else config


def _num_layers(text: Mapping[str, Any]) -> int:
    kinds = text.get("layer_types")
    if not isinstance(kinds, Sequence) or isinstance(kinds, str):
        return _number(text, LAYERS)
    if not all(isinstance(kind, str) for kind in kinds):
        raise ValueError(f"config.json: layer_types must be a list of names, got {kinds!r}")
    if not (num_with_kv := sum(kind not in LAYERS_WITHOUT_KV for kind in kinds)):
        raise ValueError(f"config.json: layer_types has no layer that keeps keys and values: {sorted(set(kinds))}")
    return num_with_kv


def _num_kv_heads(text: Mapping[str, Any]) -> int:
    if _first(text, KV_HEADS):
        return _number(text, KV_HEADS)
    return 1 if text.get("multi_query") else _number(text, QUERY_HEADS)


def _head_dim(text: Mapping[str, Any]) -> int:
    if _first(text, ("head_dim",)):
        return _number(text, ("head_dim",))
    hidden, heads = _number(text, HIDDEN), _number(text, QUERY_HEADS)
    if hidden % heads:
        raise ValueError(
            f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads}; set head_dim"
        )
    return hidden // heads


def _first(text: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of ``names`` that has a value; null counts as absent."""
    return next((name for name in names if text.get(name) is not None), None)


def _number(text: Mapping[str, Any], names: Sequence[str]) -> int:
    name = _first(text, names)
    if name is None:
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise ValueError(
            f"config.json: field {names[0]!r}{others} is missing; it is needed for the size of the KV cache"
        )
    value = text[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: field {name!r} must be a positive whole number, got {value!r}")
    if value > LARGEST:
        raise ValueError(f"config.json: field {name!r} is larger than {LARGEST:,}, which can't be meant")
    return value
