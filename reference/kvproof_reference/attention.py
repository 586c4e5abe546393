"""Dense attention on nested lists in float64: the truth that every kernel is measured against.

Written from the definition, row by row, without blocks, tiles or running maxima.

Source: Vaswani et al., Attention Is All You Need (2017), section 3.2.1; ALiBi: Press et al. (2022); sinks: one more
logit a head in the denominator, as in gpt-oss; soft cap: Gemma 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvproof_reference.attention_row import Row, Vector, score_row, visible_positions

Heads = Sequence[Vector]  # [num_heads, dim], one position
Positions = Sequence[Heads]  # [num_positions, num_heads, dim]


def attention_rows(
    query: Positions,
    keys: Positions,
    values: Positions,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Vector | None = None,
    sinks: Vector | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    k_scales: Heads | None = None,
    v_scales: Heads | None = None,
    value_dim: int | None = None,
) -> Iterator[tuple[int, int, Row]]:
    """(query row, query head, Row) of every output row of ``attend``, which see."""
    _check_numbers(causal, window, softcap)
    num_kv_heads, num_channels = _check_shapes(query, keys, values, value_dim)
    _check_heads(query, num_kv_heads, alibi_slopes=alibi_slopes, sinks=sinks)
    _check_scales(len(keys), num_kv_heads, k_scales=k_scales, v_scales=v_scales)
    keys, values = _scaled(keys, 1.0, k_scales), _scaled(values, v_scale, v_scales)
    for row, heads in enumerate(query):
        position = len(keys) - len(query) + row
        visible = visible_positions(position, len(keys), causal=causal, window=window)
        for head, vector in enumerate(heads):
            kv_head = head // (len(heads) // num_kv_heads)
            slope = None if alibi_slopes is None else alibi_slopes[head]
            yield (
                row,
                head,
                score_row(
                    vector,
                    [keys[t][kv_head] for t in visible],
                    [values[t][kv_head] for t in visible],
                    value_dim=num_channels,
                    scale=scale * k_scale,
                    softcap=softcap,
                    biases=None if slope is None else [slope * (t - position) for t in visible],
                    sink=None if sinks is None else sinks[head],
                    value_scales=None if v_scales is None else [v_scales[t][kv_head] for t in visible],
                ),
            )


def attend(
    query: Positions,
    keys: Positions,
    values: Positions,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: Vector | None = None,
    sinks: Vector | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    k_scales: Heads | None = None,
    v_scales: Heads | None = None,
    value_dim: int | None = None,
) -> tuple[list[list[list[float]]], list[list[float]]]:
    """Attention of the last positions of one sequence over its whole context.

    Args:
        query: [num_query, num_q_heads, head_dim]; row i stands at position context_len - num_query + i, so that the
            causal mask is aligned to the bottom right.
        keys: [context_len, num_kv_heads, head_dim]; query head h reads key head h // (num_q_heads // num_kv_heads).
        values: [context_len, num_kv_heads, value_dim].
        scale: multiplies q·k.
        window: visible keys, the query's own included.
        softcap: cap·tanh(s/cap) on the scaled score.
        alibi_slopes: [num_q_heads]; adds slope·(key position - query position) after the soft cap.
        sinks: [num_q_heads]; one more logit without a value, counted in the LSE.
        k_scale, v_scale: multiply the stored keys and values.
        k_scales, v_scales: [context_len, num_kv_heads]; multiply those of one token and head, as well.
        value_dim: needed for an empty context only, where ``values`` can't tell; the default there is head_dim.

    Returns:
        (out [num_query, num_q_heads, value_dim], lse [num_query, num_q_heads], natural logarithm). A row without a
        visible key is 0 and -inf, or the sink's value.

    Raises:
        ValueError: shapes that don't go together, a window or soft cap that is not positive.
    """
    out: list[list[list[float]]] = [[] for _ in query]
    lse: list[list[float]] = [[] for _ in query]
    for row, _, piece in attention_rows(
        query,
        keys,
        values,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        k_scales=k_scales,
        v_scales=v_scales,
        value_dim=value_dim,
    ):
        out[row].append(piece.output)
        lse[row].append(piece.lse)
    return out, lse


def _scaled(stored: Positions, scale: float, scales: Heads | None) -> Positions:
    """What codes mean; the same positions where nothing is to be multiplied."""
    if scales is None and scale == 1:
        return stored
    return [
        [[number * scale * own for number in vector] for vector, own in zip(heads, owns, strict=True)]
        for heads, owns in zip(
            stored, [[1.0] * len(heads) for heads in stored] if scales is None else scales, strict=True
        )
    ]


def _check_numbers(causal: bool, window: int | None, softcap: float | None) -> None:
    for name, number in (("window", window), ("softcap", softcap)):
        if number is not None and number <= 0:
            raise ValueError(f"{name} must be positive, got {number}")
    if window is not None and not causal:
        raise ValueError("a window needs causal=True: it ends with the query's own position")


def _check_shapes(query: Positions, keys: Positions, values: Positions, value_dim: int | None) -> tuple[int, int]:
    """(num_kv_heads, value_dim), or ValueError with what doesn't fit."""
    _, head_dim = _heads_and_dim("query", query, (1, 0))
    num_kv_heads, key_dim = _heads_and_dim("keys", keys, (1, head_dim))
    num_value_heads, num_channels = _heads_and_dim("values", values, (1, head_dim if value_dim is None else value_dim))
    if (len(values), num_value_heads) != (len(keys), num_kv_heads):
        raise ValueError(
            f"keys are [{len(keys)}, {num_kv_heads}, {key_dim}], values [{len(values)}, {num_value_heads}, "
            f"{num_channels}]: context and heads must agree"
        )
    if query and key_dim != head_dim:
        raise ValueError(f"keys have head_dim {key_dim}, the query has {head_dim}")
    if value_dim not in (None, num_channels):
        raise ValueError(f"values have {num_channels} channels, value_dim is {value_dim}")
    return num_kv_heads, num_channels


def _check_heads(query: Positions, num_kv_heads: int, **per_head: Vector | None) -> None:
    num_q_heads = len(query[0]) if query else num_kv_heads
    if num_q_heads % num_kv_heads:
        raise ValueError(f"num_q_heads ({num_q_heads}) must be a multiple of num_kv_heads ({num_kv_heads})")
    for name, numbers in per_head.items():
        if query and numbers is not None and len(numbers) != num_q_heads:
            raise ValueError(f"{name} has {len(numbers)} entries, the query has {num_q_heads} heads")


def _check_scales(context_len: int, num_kv_heads: int, **scales: Heads | None) -> None:
    for name, owns in scales.items():
        if owns is not None and [len(heads) for heads in owns] != [num_kv_heads] * context_len:
            raise ValueError(f"{name} must be [{context_len}, {num_kv_heads}], one for each position and key head")


def _heads_and_dim(name: str, positions: Positions, without: tuple[int, int]) -> tuple[int, int]:
    """(num_heads, dim), which must be the same everywhere; ``without`` any position."""
    shapes = {(len(heads), len(vector)) for heads in positions for vector in heads} if positions else {without}
    if len(shapes) != 1 or any(not heads for heads in positions):
        raise ValueError(f"{name} must be [positions, heads, dim] with equal heads and dims; found {sorted(shapes)}")
    return next(iter(shapes))
