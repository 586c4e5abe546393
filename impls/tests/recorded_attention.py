"""What is called of transformers 5.24.0 and OpenVINO 2026.4.1 for attention, by its recorded signature.

The doubles answer as plainly as they can; neither library is installed where these tests run.
"""

import itertools

import torch


class FullAttentionCacheAllocator:
    """transformers.generation.continuous_batching.cache_allocators; made without ``__init__``, as the adapter does."""

    def get_read_indices(self, request_id, past_length, query_length):
        return self._slots(request_id, range(past_length + query_length))

    def get_write_indices(self, request_id, past_length, query_length):
        return self._slots(request_id, range(past_length, past_length + query_length))

    def update(self, key_states, value_states, layer_idx, read_index, write_index):
        for view, new in zip(self._kv_token_views[layer_idx], (key_states, value_states), strict=True):
            view[write_index] = new
        return tuple(view[read_index] for view in self._kv_token_views[layer_idx])

    def _slots(self, request_id, positions):
        table, page = self.block_table[request_id], self.tokens_per_page
        return [table[p // page] * self.block_physical_stride + p % page for p in positions]


def build_attention_mask(attention_mask, cumulative_seqlens_q, cumulative_seqlens_k, sliding_window=1):
    assert sliding_window == 1
    starts = zip(cumulative_seqlens_q, cumulative_seqlens_k, strict=True)
    for (first_q, first_k), (end_q, end_k) in itertools.pairwise(starts):
        for row in range(first_q, end_q):
            attention_mask[0, 0, row, first_k : end_k - (end_q - 1 - row)] = 0


def sdpa_attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    is_causal=None,
    position_bias=None,
    **kwargs,
):
    return eager_paged_attention_forward(module, query, key, value, attention_mask, scaling, **kwargs)


def eager_paged_attention_forward(module, query, key, value, attention_mask, scaling, **kwargs):
    assert not kwargs
    key, value = (x.repeat_interleave(module.num_key_value_groups, 1).double() for x in (key, value))
    scores = query.double() @ key.transpose(2, 3) * scaling
    scores = scores if attention_mask is None else scores + attention_mask.double()
    if hasattr(module, "sinks"):
        sinks = module.sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2).to(query.dtype), None


PAGED_ATTENTION_INPUTS = (
    *("query", "key", "value", "key_cache", "value_cache"),
    *("past_lens", "subsequence_begins", "block_indices", "block_indices_begins"),
    *("scale", "sliding_window", "alibi_slopes", "max_context_len", "score_aggregation_window"),
    *("rotated_block_indices", "rotation_deltas", "rotation_trig_lut"),
    *("xattention_threshold", "xattention_block_size", "xattention_stride"),
    "sinks",
    *("adaptive_rkv_start_size", "adaptive_rkv_evictable_sizes"),
    *("adaptive_rkv_diversity_block_set_indices", "adaptive_rkv_diversity_block_set_indices_begins"),
    *("token_type_ids", "qq_bias", "qq_bias_begins"),
)
"""Of OpenVINO's operator, in the order of its checks (core/src/op/paged_attention.cpp)."""
RANKS = {
    **dict.fromkeys(("query", "key", "value"), (2,)),
    **dict.fromkeys(("key_cache", "value_cache"), (2, 3, 4, 5)),
    **dict.fromkeys(("scale", "sliding_window", "max_context_len", "xattention_block_size"), (0,)),
    **dict.fromkeys(("xattention_stride", "adaptive_rkv_start_size"), (0,)),
    **dict.fromkeys(("rotation_deltas", "rotation_trig_lut", "token_type_ids"), (1, 2)),
    "score_aggregation_window": (0, 1),
    "sinks": (1, 4),
}
"""Allowed by the same checks; all others have rank 1."""
