"""A ``flashinfer`` that answers what its documentation promises, in float64, and checks every call against the record.

A wrong page index, length, window, scale, layout or LSE base gives a wrong number. What FA2 ignores is ignored: sinks
that are given to ``run`` of a wrapper that does not know them.
"""

import inspect
import math
import sys
from types import SimpleNamespace

import torch

from kvproof_impls.contract import AttentionSpec


def install(monkeypatch, paged, recorded):
    """Put it in the place of the library; ``recorded``: the modules of signatures. Gives the list of calls."""
    calls = []

    def bind(name, *args, **options):
        owner, _, method = name.partition(".")
        target = next(getattr(module, owner) for module in recorded if hasattr(module, owner))
        bound = inspect.signature(getattr(target, method) if method else target).bind(*args, **options)
        bound.apply_defaults()
        calls.append((name, bound.arguments))
        return bound.arguments

    modules = library(paged, bind)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def library(paged, bind):
    class Wrapper:
        """What all wrappers have: the arguments of ``__init__`` and of the latest ``plan``."""

        name = ""

        def __init__(self, *args, **options):
            self.made = bind(f"{self.name}.__init__", self, *args, **options)

        def plan(self, *args, **options):
            self.planned = {
                name.removeprefix("paged_kv_"): value
                for name, value in bind(f"{self.name}.plan", self, *args, **options).items()
            }

    class Decode(Wrapper):
        name = "BatchDecodeWithPagedKVCacheWrapper"

        def run(self, *args, **options):
            run = bind(f"{self.name}.run", self, *args, **options)
            assert not run["args"]
            starts = range(len(run["q"]) + 1)
            return answer(paged, self.made, self.planned | {"causal": True}, run, starts)

    class Prefill(Wrapper):
        name = "BatchPrefillWithPagedKVCacheWrapper"

        def run(self, *args, **options):
            run = bind(f"{self.name}.run", self, *args, **options)
            plan = self.planned | {"head_dim": self.planned["head_dim_qk"]}
            return answer(paged, self.made, plan, run, plan["qo_indptr"].tolist())

    class Sink(Prefill):
        name = "BatchAttentionWithAttentionSinkWrapper"

    class Cascade(Wrapper):
        name = "MultiLevelCascadeAttentionWrapper"

        def plan(self, *args, **options):
            given = bind(f"{self.name}.plan", self, *args, **options)
            lists = [given.pop(f"{name}_arr") for name in ("qo_indptr", "paged_kv_indptr", "paged_kv_indices")]
            lists.append(given.pop("paged_kv_last_page_len"))
            shared = {name: value for name, value in given.items() if name not in ("self", "causal", "head_dim")}
            workspace, layout = self.made["float_workspace_buffer"], self.made["kv_layout"]
            self.levels = [Prefill(workspace, layout) for _ in range(self.made["num_levels"])]
            for level, own in zip(self.levels, zip(*lists, strict=True), strict=True):
                heads = {"head_dim_qk": given["head_dim"], "causal": given["causal"] and level is self.levels[-1]}
                names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
                level.plan(**dict(zip(names, own, strict=True)), **heads, **shared)

        def run(self, *args, **options):
            run = bind(f"{self.name}.run", self, *args, **options)
            state = self.levels[-1].run(run["q"], run["paged_kv_cache"], return_lse=True)
            for level in self.levels[:-1]:
                state = merge(*state, *level.run(run["q"], run["paged_kv_cache"], return_lse=True))
            return state[0]

    class Latent(Wrapper):
        name = "BatchMLAPagedAttentionWrapper"

        def run(self, *args, **options):
            run = bind(f"{self.name}.run", self, *args, **options)
            return latent(paged, self.planned, run)

    def append(*args, **options):
        bound = bind("append_paged_kv_cache", *args, **options)
        indptr, indices = bound["kv_indptr"].tolist(), bound["kv_indices"].tolist()
        pools = [in_order(pool, bound["kv_layout"]) for pool in bound["paged_kv_cache"]]
        places = zip(bound["batch_indices"].tolist(), bound["positions"].tolist(), strict=True)
        for token, (sequence, position) in enumerate(places):
            page, offset = divmod(position, pools[0].shape[1])
            assert indptr[sequence] + page < indptr[sequence + 1]
            for pool, new in zip(pools, (bound["append_key"], bound["append_value"]), strict=True):
                assert new.dtype == pool.dtype
                pool[indices[indptr[sequence] + page], offset] = new[token]

    def merge_state(*args, **options):
        return merge(*bind("merge_state", *args, **options).values())

    kinds = {made.name: made for made in (Decode, Prefill, Sink, Cascade)}
    csr = SimpleNamespace(csr=lambda *args, **options: bind("MLAPlanMetadata.csr", *args, **options))
    mla = SimpleNamespace(BatchMLAPagedAttentionWrapper=Latent, MLAPlanMetadata=csr)
    top = SimpleNamespace(**kinds, append_paged_kv_cache=append, merge_state=merge_state, mla=mla)
    return {"flashinfer": top, "flashinfer.mla": mla}


def in_order(pool, layout):
    return pool.transpose(1, 2) if layout == "HND" else pool


def merge(out, lse, other, other_lse):
    top = torch.maximum(lse, other_lse)
    weights = [torch.exp2((part - top).double())[..., None] for part in (lse, other_lse)]
    merged = (weights[0] * out.double() + weights[1] * other.double()) / (weights[0] + weights[1])
    return merged.to(out.dtype), (top + torch.log2(weights[0] + weights[1])[..., 0]).float()


def answer(paged, made, plan, run, starts):
    """Output, and the LSE to base 2 where it is asked for, from pages in compressed rows."""
    key, value = (in_order(pool, made["kv_layout"]) for pool in run["paged_kv_cache"])
    assert (str(run["q"].dtype), key.dtype) == (str(plan["q_data_type"]), plan["kv_data_type"])
    sinks, scale = run["args"] or (None, plan["sm_scale"] * (run["k_scale"] or 1.0))
    if run["sinks"] is not None and made["backend"] == "trtllm-gen":
        sinks = run["sinks"]
    spec = AttentionSpec(
        *(plan[name] for name in ("num_qo_heads", "num_kv_heads", "head_dim", "page_size")),
        scale=scale,
        causal=plan["causal"],
        window=None if plan["window_left"] < 0 else plan["window_left"] + 1,
        softcap=plan["logits_soft_cap"] or None,
        sinks=None if sinks is None else tuple(sinks.tolist()),
    )
    result, lse = paged.rows(spec, run["q"], key, value, owned(plan), starts)
    result *= run["v_scale"] or 1.0
    if run["out"] is not None:
        result = run["out"].copy_(result)
    return (result, lse / math.log(2)) if run["return_lse"] else result


def owned(plan):
    """(pages, tokens) of each sequence, as kernels count them; the host counts the last page even where none is."""
    indptr, indices, last = (plan[name].tolist() for name in ("indptr", "indices", "last_page_len"))
    for i, last_page_len in enumerate(last):
        pages = indices[indptr[i] : indptr[i + 1]]
        assert 1 <= last_page_len <= plan["page_size"] if pages else last_page_len == 0
        yield pages, max(0, len(pages) - 1) * plan["page_size"] + last_page_len


def latent(paged, plan, run):
    """Latent attention over one pool without an axis of heads."""
    csr, pool, ckv = plan["metadata"], run["kv_cache"], plan["head_dim_ckv"]
    assert (plan["query_layout"], plan["kv_cache_layout"]) == ("packed", "packed")
    assert plan["lse_mode"] == ("basee" if run["return_lse"] else "none")
    assert run["return_lse_base_on_e"] == run["return_lse"]
    spec = AttentionSpec(
        *(plan["num_heads"], 1, ckv + plan["head_dim_kpe"], plan["page_size"]),
        value_dim=ckv,
        scale=plan["sm_scale"],
        causal=plan["causal"],
    )
    indptr, indices = csr["kv_indptr"].tolist(), csr["kv_indices"].tolist()
    lengths = csr["kv_len_arr"].tolist()
    sequences = [(indices[indptr[i] : indptr[i + 1]], length) for i, length in enumerate(lengths)]
    key = pool[:, :, None]
    out, lse = paged.rows(spec, run["query"], key, key[..., :ckv], sequences, csr["qo_indptr"].tolist())
    out = out if run["out"] is None else run["out"].copy_(out)
    return (out, lse) if run["return_lse"] else out
