"""FlashInfer's attention in pieces and its latent attention: bound to the real signatures, against dense attention.

The library is played by a double: ``flashinfer_double.py``.
"""

import importlib.util
import inspect
import math
from dataclasses import replace

import pytest
import torch

from kvproof_impls import flashinfer_mla
from kvproof_impls.contract import AttentionSpec
from kvproof_impls.flashinfer_cascade import CascadeKernel, MergeKernel
from kvproof_impls.flashinfer_mla import FlashInferMlaKernel

SHARED = 2
"""Blocks of 4 tokens."""
TAILS = ([17, 9, 13], [1, 1, 1])
CHUNKS = ([17, 12, 8], [3, 4, 0])
INSIDE = ([17, 9], [1, 6])
WHOLE = ([17, 8], [1, 8])
SHAPES = {"tails": (TAILS, 2), "chunks": (CHUNKS, 2), "inside the prefix": (INSIDE, 0), "from the start": (WHOLE, 0)}
OPTIONS = {"plain": {}, "softcap": {"softcap": 2.0}, "scale": {"scale": 0.7}}


def make_spec(**options):
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "block_size": 4, "dtype": "float16"}
    return AttentionSpec(**shape | options)


def with_common_prefix(case):
    """Every row begins with the blocks of row 0, and is told so."""
    tables = case.batch.block_tables
    tables[1:, :SHARED] = tables[0, :SHARED]
    for dense, pool in ((case.keys, case.pools.key), (case.values, case.pools.value)):
        for row, own in enumerate(dense):
            own[: SHARED * 4] = pool[tables[row, :SHARED].long()].flatten(0, 1)[: len(own)]
    case.batch = replace(case.batch, common_prefix_blocks=SHARED)
    return case


def close(case, got, want, pieces=2):
    """Each piece, and what they merge to, is rounded to float16 once: 2^-11 of the largest value each."""
    largest = max(float(values.abs().max()) for values in case.values)
    return float((got.double() - want).abs().max()) <= pieces * 2**-11 * largest


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_cascade_over_a_common_prefix_gives_dense_attention(paged, flashinfer_calls, option, shape):
    lens, shared = SHAPES[shape]
    case = with_common_prefix(paged.case(make_spec(**OPTIONS[option]), *lens))
    kernel = CascadeKernel()
    assert kernel.unsupported(case.spec) is None
    out = kernel.plan(case.spec, case.batch)(case.query, case.pools)
    assert close(case, out, paged.expected(case)[0])
    assert kernel.shared_blocks(case.batch, 4) == shared


@pytest.mark.parametrize(("shape", "levels"), [("tails", 2), ("inside the prefix", 1)])
def test_the_prefix_is_a_level_of_its_own_where_all_rows_see_all_of_it(paged, flashinfer_calls, shape, levels):
    case = with_common_prefix(paged.case(make_spec(), *SHAPES[shape][0]))
    CascadeKernel().plan(case.spec, case.batch)
    made = [bound for name, bound in flashinfer_calls if name == "MultiLevelCascadeAttentionWrapper.__init__"]
    assert [bound["num_levels"] for bound in made] == [levels]


def test_a_cascade_without_a_hint_reads_every_row_by_itself(paged, flashinfer_calls):
    case = paged.case(make_spec(), *TAILS)
    out = CascadeKernel().plan(case.spec, case.batch)(case.query, case.pools)
    assert torch.equal(out, paged.expected(case)[0].half())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_merged_halves_give_dense_attention_and_its_natural_lse(paged, flashinfer_calls, option, shape):
    case = paged.case(make_spec(return_lse=True, **OPTIONS[option]), *SHAPES[shape][0])
    kernel = MergeKernel()
    assert kernel.unsupported(case.spec) is None
    out, lse = kernel.plan(case.spec, case.batch)(case.query, case.pools)
    want, want_lse = paged.expected(case)
    assert close(case, out, want)
    assert torch.allclose(lse, want_lse.float(), rtol=1e-6, atol=1e-6)
    assert "merge_state" in [name for name, _ in flashinfer_calls]


@pytest.mark.parametrize("kernel", [CascadeKernel(), MergeKernel()], ids=["cascade", "merge"])
def test_pieces_fill_a_given_output_and_are_merged_in_the_type_of_the_query(paged, flashinfer_calls, kernel):
    case = paged.case(make_spec(), *TAILS)
    out = torch.full_like(case.query, math.nan)
    assert kernel.plan(case.spec, case.batch)(case.query, case.pools, out) is out
    assert close(case, out, paged.expected(case)[0])
    assert kernel.arithmetic(case.spec)["partials"] == "float16"


@pytest.mark.parametrize("options", [{"window": 5}, {"sinks": (0.0,) * 4}], ids=["window", "sinks"])
@pytest.mark.parametrize("kernel", [CascadeKernel(), MergeKernel()], ids=["cascade", "merge"])
def test_an_option_that_would_have_to_know_of_the_other_piece_is_refused(kernel, options):
    assert next(iter(options)) in kernel.unsupported(make_spec(**options))


def test_a_cascade_gives_no_lse():
    assert "lse" not in CascadeKernel().features
    assert "run gives none" in CascadeKernel().unsupported(make_spec(return_lse=True))


def latent_spec(**options):
    shape = {"num_q_heads": 2, "num_kv_heads": 1, "head_dim": 192, "value_dim": 128, "block_size": 4, "mla": True}
    return AttentionSpec(**{**shape, "dtype": "bfloat16", **options})


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
@pytest.mark.parametrize("shape", [TAILS, CHUNKS], ids=["decode", "chunks"])
@pytest.mark.parametrize("options", [{}, {"scale": 0.7}], ids=["plain", "scale"])
def test_latent_attention_and_its_lse_are_those_of_one_pool(paged, flashinfer_calls, options, shape, backend):
    case = paged.latent(paged.case(latent_spec(return_lse=True, **options), *shape))
    kernel = getattr(flashinfer_mla, backend)()
    assert kernel.unsupported(case.spec) is None
    out, lse = kernel.plan(case.spec, case.batch)(case.query, case.pools)
    want, want_lse = paged.expected(case)
    assert torch.equal(out, want.bfloat16())
    assert torch.equal(lse, want_lse.float())
    assert flashinfer_calls[0][1]["backend"] == backend


def test_latent_attention_writes_into_a_given_output(paged, flashinfer_calls):
    case = paged.latent(paged.case(latent_spec(), *TAILS))
    out = torch.full((3, 2, 128), math.nan, dtype=torch.bfloat16)
    assert FlashInferMlaKernel().plan(case.spec, case.batch)(case.query, case.pools, out) is out
    assert torch.equal(out, paged.expected(case)[0].bfloat16())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mla": False, "value_dim": None}, "latent pools only"),
        ({"num_kv_heads": 2}, "no axis of heads"),
        ({"dtype": "float32"}, "float16 or bfloat16"),
        ({"kv_dtype": "float8_e4m3fn"}, "type of the query"),
        ({"head_dim": 80, "value_dim": 64}, "multiple of 128"),
        ({"head_dim": 160}, "one of 64"),
        ({"window": 3}, "window: FA2 and FA3"),
    ],
)
def test_every_limit_of_latent_attention_has_its_reason(options, reason):
    assert reason in FlashInferMlaKernel().unsupported(latent_spec(**options))


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="flashinfer-python is not installed here")
@pytest.mark.parametrize("name", ["__init__", "plan", "run"])
@pytest.mark.parametrize("wrapper", ["MultiLevelCascadeAttentionWrapper", "BatchMLAPagedAttentionWrapper"])
def test_the_installed_package_takes_what_was_recorded(recorded_flashinfer_pieces, wrapper, name):
    library = pytest.importorskip("flashinfer")
    owner = getattr(library, wrapper, None) or getattr(library.mla, wrapper)
    installed = inspect.signature(inspect.unwrap(getattr(owner, name)))
    used = inspect.signature(getattr(getattr(recorded_flashinfer_pieces, wrapper), name)).parameters
    assert set(used) <= set(installed.parameters)
