"""Running the kernel under test: what it declares is asked first, and a refusal is counted, never passed."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvproof_impls.contract import DEFAULT_ARITHMETIC, AttentionSpec, KVPools, PagedBatch
from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.pages import Pages, empty_pools, fill_pool, step_tensors
from kvproof_suites.kernel.room import require_room
from kvproof_suites.kernel.scales import Scales, scale_pools
from kvproof_suites.outcome import LawBroken, refuse
from kvproof_suites.under_test import KernelUnderTest

Output = tuple[torch.Tensor, torch.Tensor | None]
"""(out, lse or None)"""


def require(under_test: KernelUnderTest, case: Case, *features: str) -> None:
    """Refuse the case by what the kernel declares: a missing feature, an unsupported spec, too long a context. One that
    this machine has no room for is not run."""
    kernel, spec = under_test.kernel, case.spec
    if missing := [feature for feature in (*features, *case.features) if feature not in kernel.features]:
        refuse(f"does not declare {', '.join(missing)}")
    if (reason := kernel.unsupported(spec)) is not None:
        if not isinstance(reason, str) or not reason:
            raise LawBroken(f"unsupported(spec) returned {reason!r}; the contract says a reason in words, or None")
        refuse(reason)
    longest = getattr(kernel, "max_context_len", None)
    if longest is not None and max(context_len for context_len, _ in case.seqs) > longest:
        refuse(f"contexts longer than {longest} are declared impractical")
    require_room(under_test, case)


def place(
    under_test: KernelUnderTest,
    spec: AttentionSpec,
    pages: Pages,
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: Scales | None = None,
) -> KVPools:
    """Pools in the kernel's own storage that hold ``keys`` and ``values`` [num_slots, num_kv_heads, dim], as stored;
    of latent attention the keys alone, which hold the values."""
    pools = empty_pools(pages, spec, under_test.kernel, under_test.device)
    fill_pool(pools.key, keys)
    if not spec.mla:
        fill_pool(pools.value, values)
    key_scale, value_scale = scale_pools(scales, spec, pages, under_test.device)
    return replace(pools, key_scale=key_scale, value_scale=value_scale)


def attend(
    under_test: KernelUnderTest,
    spec: AttentionSpec,
    pages: Pages,
    query: torch.Tensor,
    pools: KVPools,
    batch: PagedBatch | None = None,
) -> Output:
    """Plan and launch once; the shapes are checked against what the contract promises."""
    batch = step_tensors(pages, under_test.device) if batch is None else batch
    query = query.to(under_test.device, getattr(torch, spec.dtype))
    result = under_test.kernel.plan(spec, batch)(query, pools)
    out, lse = result if spec.return_lse else (result, None)
    for given in (out, lse) if spec.return_lse else (out,):
        if type(given) is not torch.Tensor:  # a subclass says by itself what it is equal to
            raise LawBroken(
                f"the output is a {type(given).__qualname__}; the contract says a torch.Tensor, no subclass"
            )
    expected = (batch.num_tokens, spec.num_q_heads, spec.value_dim_value)
    if tuple(out.shape) != expected or out.dtype != query.dtype:
        raise LawBroken(
            f"the output is {out.dtype} {list(out.shape)}, the contract says {query.dtype} {list(expected)}"
        )
    if lse is not None and tuple(lse.shape) != expected[:2]:
        raise LawBroken(f"the LSE has shape {list(lse.shape)}, the contract says {list(expected[:2])}")
    return out, lse


def arithmetic(under_test: KernelUnderTest, spec: AttentionSpec) -> Arithmetic:
    """What the kernel declares of its rounding; what it leaves out is the contract's default."""
    declare = getattr(under_test.kernel, "arithmetic", None)
    return Arithmetic.declared(dict(DEFAULT_ARITHMETIC) | dict(declare(spec) if declare else {}), spec.dtype)
