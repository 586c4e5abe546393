"""As torch operators the kernels give what they give by themselves, in eager mode and inside a compiled function."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvproof_kernels import ops  # noqa: F401  registers the operators
from kvproof_kernels.combine import merge
from kvproof_kernels.ops import arguments

OPTIONS = {"window": 7, "softcap": 20.0, "alibi_slopes": (0.5, 0.25, 0.125, 0.1), "sinks": (0.0, 1.0, -1.0, 2.0)}


def layer(query, key, value, key_pool, value_pool, slot_mapping, *planned):
    """What one layer of a model does: write this step's rows, attend, go on."""
    torch.ops.kvproof.write_cache(key, value, key_pool, value_pool, slot_mapping)
    out, lse = torch.ops.kvproof.paged_attention(query * 2, key_pool, value_pool, *planned)
    return out + 1, lse


@pytest.mark.parametrize("context_lens", [[5, 21], [600, 3]], ids=["whole", "split"])
@pytest.mark.parametrize("changed", [{}, OPTIONS], ids=["plain", "options"])
def test_the_operator_gives_the_bits_of_the_kernel(paged, context_lens, changed):
    case = paged.draw(context_lens)
    attend = case.plan(geometry=replace(case.geometry, **changed))
    out, lse = torch.ops.kvproof.paged_attention(case.query, case.key_pool, case.value_pool, *arguments(attend))
    want, want_lse = attend(case.query, case.key_pool, case.value_pool)
    assert torch.equal(out, want)
    assert torch.equal(lse, want_lse)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_layer_gives_the_bits_of_an_eager_one(paged, backend):
    case = paged.draw([5, 300])
    planned = arguments(case.plan())
    rows = torch.randn(2, 2, 2, 64).half()
    slots = case.block_tables[[0, 1], [0, 18]].long() * 16 + torch.tensor([4, 11])  # the last token of each
    pools = [[pool.clone() for pool in (case.key_pool, case.value_pool)] for _ in range(2)]
    eager = layer(case.query, *rows, *pools[0], slots, *planned)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)(case.query, *rows, *pools[1], slots, *planned)
    for got, want in zip(compiled, eager, strict=True):
        assert torch.equal(got, want)
    for written, want in zip(pools[1], pools[0], strict=True):
        assert torch.equal(written.view(torch.int16), want.view(torch.int16))


@pytest.mark.parametrize(
    ("name", "spoil", "error", "message"),
    [
        ("query", lambda t: t.mT.contiguous().mT, ValueError, r"query \[2, 4, 64\] has last stride 4; it must be 1"),
        ("query", lambda t: t[:1], ValueError, r"query \[1, 4, 64\] must be \[2, 4, 64\]"),
        ("query", lambda t: t[:, :2], ValueError, r"query \[2, 2, 64\] must be \[2, 4, 64\]"),
        ("query", lambda t: t.float(), ValueError, "kv_dtype float16 with dtype float32"),
        ("key_pool", lambda t: t[:, :, :1], ValueError, r"key_pool \[\d+, 16, 1, 64\] and value_pool"),
        ("value_pool", lambda t: t.float(), TypeError, "value_pool is torch.float32, key_pool torch.float16"),
    ],
)
def test_a_tensor_that_does_not_fit_the_plan_is_refused(paged, name, spoil, error, message):
    """A compiled model may hand over other tensors than those that were planned for."""
    case = paged.draw([5, 21])
    planned = arguments(case.plan())
    setattr(case, name, spoil(getattr(case, name)))
    with pytest.raises(error, match=message):
        torch.ops.kvproof.paged_attention(case.query, case.key_pool, case.value_pool, *planned)


def test_the_operators_are_what_they_declare(paged):
    """Schema, mutations and fake kernels, by torch's own check."""
    case = paged.draw([5, 21], poison=0.0)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    planned = (case.query, case.key_pool, case.value_pool, *arguments(case.plan()))
    torch.library.opcheck(torch.ops.kvproof.paged_attention, planned, test_utils=checks)
    rows = torch.randn(2, 3, 2, 64).half()
    written = (*rows, case.key_pool, case.value_pool, torch.tensor([3, -1, 40]))
    torch.library.opcheck(torch.ops.kvproof.write_cache, written, test_utils=checks)
    codes = torch.zeros(2, 4, 16, 2, 64, dtype=torch.int8)
    by_token = {"key_scales": torch.zeros(4, 16, 2), "value_scales": torch.zeros(4, 16, 2)}
    written = (*rows, *codes, torch.tensor([3, -1, 40]))
    torch.library.opcheck(torch.ops.kvproof.write_cache, written, by_token, test_utils=checks)
    torch.library.opcheck(torch.ops.kvproof.merge, (torch.randn(3, 2, 4, 64), torch.randn(3, 2, 4)), test_utils=checks)


def test_the_operator_merges_as_the_function_does():
    outs, lses = torch.randn(3, 2, 4, 64), torch.randn(3, 2, 4)
    for got, want in zip(torch.ops.kvproof.merge(outs, lses), merge(outs, lses), strict=True):
        assert torch.equal(got, want)
