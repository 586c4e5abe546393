"""A paged attention kernel for kvproof to judge: pytest --pyargs kvproof_suites --impl=<this module>:factory

It runs as it is. Replace ``_attend`` by your own launch; keep the shapes. Nothing of kvproof needs to be imported.
"""

import torch


class Kernel:
    # Beyond plain causal attention: window, softcap, alibi, sinks, lse, fp8, int8, head_scales, mla, ...
    # One that is not named here is never asked for; one that is named must work. These two do, as it stands: NaN behind
    # the end of a context, in its last block, does no harm, and `out` is written where it is given.
    features = frozenset({"dirty_tail", "out"})

    def unsupported(self, spec):
        """Why this spec (num_q_heads, num_kv_heads, head_dim, block_size, dtype, ...) can't be run, or None."""
        if spec.kv_dtype not in (None, spec.dtype):
            return f"{spec.kv_dtype} pools"
        return None

    def arithmetic(self, spec):
        """Where you round, so that the error bound is yours: here the softmax weights stay in float32."""
        return {"p": "float32"}

    def plan(self, spec, batch, reuse=None):
        """The host work of one batch; the launch it returns may be called many times on new contents."""

        def launch(query, pools, out=None):
            attended = _attend(query, pools.key, pools.value, batch, spec.scale_value)
            return attended if out is None else out.copy_(attended)

        return launch


def _attend(query, key_pool, value_pool, batch, scale):
    """query [num_tokens, num_q_heads, head_dim], pools [num_blocks, block_size, num_kv_heads, head_dim | value_dim]."""
    out = query.new_empty(*query.shape[:2], value_pool.shape[-1])
    block_size = key_pool.shape[1]
    for seq, context_len in enumerate(batch.context_lens.tolist()):
        first, last = batch.query_start[seq : seq + 2].tolist()
        table = batch.block_tables[seq, : -(-context_len // block_size)].long()
        keys = key_pool[table].flatten(0, 1)[:context_len].float()
        values = value_pool[table].flatten(0, 1)[:context_len].float()
        group_size = query.shape[1] // keys.shape[1]
        keys, values = (side.repeat_interleave(group_size, dim=1) for side in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query[first:last].float(), keys) * scale
        # The query rows are the last positions of the context: row r sees keys up to context_len - num_rows + r.
        position = torch.arange(context_len - (last - first), context_len, device=query.device)
        hidden = torch.arange(context_len, device=query.device) > position[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)
    return out


def factory():
    return Kernel()
