"""Which elements of an output show that it is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.kernel.oracle import attend_dense
from kvproof_suites.outcome import Element
from kvproof_suites.repro.recorder import Call, Launched

NUM_SHOWN = 6
LONGEST = 8_192
"""Tokens of a context that the oracle is asked about again."""


def worst(output: str, got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor) -> list[Element]:
    """The elements farthest outside ``bound``, one a row of the output so that they tell of several tokens.

    ``want`` and ``bound`` are broadcast to ``got`` [num_tokens, num_q_heads] or [num_tokens, num_q_heads, value_dim].
    """
    got = got.double().cpu()
    want, bound = (part.double().cpu().expand(got.shape) for part in (want, bound))
    ratio = torch.where(got == want, 0.0, ((got - want).abs() / bound).nan_to_num(math.inf, math.inf))
    peaks, where = ratio.flatten(1).max(1)
    rows = [int(row) for row in peaks.argsort(descending=True, stable=True)[:NUM_SHOWN] if peaks[row] > 1]
    found = []
    for row in rows:
        index = (row, *(int(i) for i in torch.unravel_index(where[row], ratio.shape[1:])))
        found.append(Element(output, index, float(got[index]), float(want[index]), float(bound[index])))
    return found


def judged_launch(calls: Sequence[Call], elements: Sequence[Element]) -> int:
    """The last of the launches whose output holds what the judge saw, -1 where none can be told."""
    launches = [call for call in calls if isinstance(call, Launched)]
    for number in range(len(launches) - 1, -1, -1):
        if elements and all(holds(launches[number].result, element) for element in elements):
            return number
    return -1


def holds(result: Any, element: Element) -> bool:
    parts = result if isinstance(result, tuple | list) else (result, None)
    tensor = parts[0 if element.output == "out" else 1]
    inside = tensor is not None and all(i < size for i, size in zip(element.at, tensor.shape, strict=False))
    found = float(tensor[element.at]) if inside else math.nan
    return found == element.got or (math.isnan(found) and math.isnan(element.got))


def at(scale: torch.Tensor | None, place: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor | None:
    """Scales [context, num_kv_heads] of the tokens at ``place``, their blocks and offsets; None: the spec has them."""
    if scale is None:
        return None
    return (scale.expand(len(place[0]), -1) if scale.dim() == 1 else scale[place]).cpu()


def by_oracle(call: Launched, rounding: Arithmetic) -> list[Element]:
    """What the oracle says of a launch that a law judged in another way: every row from its own history."""
    spec, batch, result = call.plan.spec, call.plan.batch, call.result
    if result is None or batch.max_context_len > LONGEST or not batch.num_tokens:
        return []
    rows, start = [], 0
    for row, (context_len, query_len) in enumerate(zip(batch.context_lens_host, batch.query_lens_host, strict=True)):
        position = torch.arange(context_len)
        blocks = batch.block_tables[row].cpu().long()[position // spec.block_size]
        place = (blocks, position % spec.block_size)
        keys, values = (pool[place].cpu() for pool in (call.pools.key, call.pools.value))
        scales = [at(scale, place) for scale in (call.pools.key_scale, call.pools.value_scale)]
        rows.append(attend_dense(call.query[start : start + query_len].cpu(), keys, values, spec, rounding, *scales))
        start += query_len
    out, lse = result if isinstance(result, tuple | list) else (result, None)
    found = worst("out", out, torch.cat([a.out for a in rows]), torch.cat([a.out_bound for a in rows]))
    if not found and lse is not None:
        found = worst("lse", lse, torch.cat([a.lse for a in rows]), torch.cat([a.lse_bound for a in rows]))
    return found
