"""The calls of vLLM 0.32.0, transformers 5.24.0 and nano-vllm bb823b3 that our adapters make, with their signatures as
``inspect.signature`` gives them; behind them only what an adapter has to see happen. Nothing of the libraries is here.
"""

from types import SimpleNamespace


class KVCacheManager:
    """vllm.v1.core.kv_cache_manager"""

    def __init__(
        self,
        kv_cache_config,
        max_model_len,
        scheduler_block_size,
        hash_block_size,
        max_in_flight_tokens=None,
        enable_caching=True,
        use_eagle=False,
        num_prefill_lookahead=0,
        log_stats=False,
        enable_kv_cache_events=False,
        dcp_world_size=1,
        pcp_world_size=1,
        metrics_collector=None,
        watermark=0.0,
        enable_mamba_shared_prefix_checkpoint=False,
    ):
        self.config, self.calls, self.room, self.hit = kv_cache_config, [], True, 0
        self.block_pool = SimpleNamespace(get_num_free_blocks=lambda: 7)

    def get_computed_blocks(self, request):
        return "found", self.hit, 0

    def allocate_slots(
        self,
        request,
        num_new_tokens,
        num_new_computed_tokens=0,
        new_computed_blocks=None,
        num_lookahead_tokens=0,
        num_external_computed_tokens=0,
        delay_cache_blocks=False,
        num_encoder_tokens=0,
        full_sequence_must_fit=False,
        reserved_blocks=0,
        has_scheduled_reqs=True,
        skip_zeroing_group_ids=(),
    ):
        assert num_new_tokens or num_new_computed_tokens  # the library refuses an allocation of nothing
        self.calls.append((num_new_tokens, num_new_computed_tokens, new_computed_blocks, delay_cache_blocks))
        return "blocks" if self.room else None

    def cache_blocks(self, request, num_computed_tokens):
        self.calls.append(("cache", num_computed_tokens))

    def free(self, request):
        self.calls.append("free")

    def get_block_ids(self, request_id):
        return ([3, 1],)


class Request:
    """vllm.v1.request"""

    def __init__(
        self,
        request_id,
        prompt_token_ids,
        sampling_params,
        pooling_params,
        client_index=0,
        arrival_time=None,
        prompt_embeds=None,
        prompt_is_token_ids=None,
        mm_features=None,
        lora_request=None,
        cache_salt=None,
        priority=0,
        trace_headers=None,
        block_hasher=None,
        resumable=False,
        session_id=None,
        reasoning_ended=None,
        reasoning_parser_kwargs=None,
        abort_immediately=False,
        kv_hints=None,
    ):
        self.request_id, self.tokens, self.cache_salt = request_id, list(prompt_token_ids), cache_salt
        self.num_computed_tokens = 0

    @property
    def num_tokens(self):
        return len(self.tokens)

    def append_output_token_ids(self, token_ids):
        self.tokens += token_ids


class PagedAttentionCache:
    """transformers.generation.continuous_batching.cache; a pool of free blocks, one sector each."""

    def __init__(self, num_blocks, block_size):
        self.calls, self.hit, self.size = [], 0, block_size
        self.free = num_blocks
        self.ledger = SimpleNamespace(cached_blocks={})
        self.blocks = SimpleNamespace(
            ledger=self.ledger,
            block_table={},
            needs_new_blocks=lambda request_id, past_length, query_length: self._needed(past_length, query_length),
            count_non_shareable_blocks=lambda source_request_id, past_length: 1,
            match_prefix_blocks=lambda prompt_ids: [0] * (self.hit // self.size),
        )
        self.cache_allocators = {"full_attention": self.blocks}
        self.pool = SimpleNamespace(count_free_blocks=lambda index: self.free, num_free_sectors=0)

    def search_prefix_match(self, request_id, prompt_ids):
        self.calls.append(("match", request_id))
        return self.hit

    def can_store_request_tokens(self, state, request_len, dry_run=False):
        needed = self._needed(state.position_offset, request_len)
        if needed > self.free:
            return False
        self.free -= needed
        return True

    def mark_complete_blocks(self, state, complete_blocks):
        self.calls.append(("mark", complete_blocks))

    def free_blocks(self, request_id, no_cache=False):
        self.calls.append(("free", request_id))

    def evict_cached_blocks(self):
        self.calls.append("evict")
        self.free += len(self.ledger.cached_blocks)
        self.ledger.cached_blocks.clear()
        return True

    def prepare_fork_request(self, src_state, dst_req_ids, copy_src_and_dst):
        if not self.free:
            return []
        self.free -= 1
        copy_src_and_dst["full_attention"][0].append(4)
        copy_src_and_dst["full_attention"][1].append(9)
        return dst_req_ids

    def _needed(self, past_length, query_length):
        return -(-(past_length + query_length) // self.size) - -(-past_length // self.size)


class RequestState:
    """transformers.generation.continuous_batching.requests"""

    def __init__(self, request_id, initial_tokens, streaming=False, record_timestamps=False, max_new_tokens=20):
        self.request_id, self.initial_tokens = request_id, initial_tokens
        self.generated_tokens, self.position_offset = [], 0
