"""Signatures of flashinfer-python 0.7.2.post1, read from the source in its wheel: attention in pieces, and latent
attention.

Nothing runs here.
"""


class MultiLevelCascadeAttentionWrapper:
    def __init__(
        self,
        num_levels,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf_arr=None,
        paged_kv_indptr_buf_arr=None,
        paged_kv_indices_buf_arr=None,
        paged_kv_last_page_len_buf_arr=None,
    ): ...

    def plan(
        self,
        qo_indptr_arr,
        paged_kv_indptr_arr,
        paged_kv_indices_arr,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
    ): ...

    def run(self, q, paged_kv_cache): ...


class MLAPlanMetadata:
    @classmethod
    def csr(cls, qo_indptr, kv_indptr, kv_indices, kv_len_arr): ...


class BatchMLAPagedAttentionWrapper:
    def __init__(
        self,
        float_workspace_buffer,
        use_cuda_graph=False,
        qo_indptr=None,
        kv_indptr=None,
        kv_indices=None,
        kv_len_arr=None,
        backend="auto",
    ): ...

    def plan(
        self,
        qo_indptr=None,
        kv_indptr=None,
        kv_indices=None,
        kv_len_arr=None,
        num_heads=None,
        head_dim_ckv=None,
        head_dim_kpe=None,
        page_size=None,
        causal=None,
        sm_scale=None,
        q_data_type=None,
        kv_data_type=None,
        use_profiler=False,
        *,
        metadata=None,
        cum_seq_lens_q=None,
        block_tables=None,
        seq_lens=None,
        max_q_len=None,
        query_layout=None,
        kv_cache_layout=None,
        lse_mode="none",
        output_dtype=None,
        output_scale="none",
        scale_mode="default",
        skip_softmax=False,
        enable_pdl=None,
        use_sinks=False,
    ): ...

    def run(
        self,
        q_nope=None,
        q_pe=None,
        ckv_cache=None,
        kpe_cache=None,
        out=None,
        lse=None,
        return_lse=False,
        profiler_buffer=None,
        kv_len=None,
        page_table=None,
        return_lse_base_on_e=False,
        o_scale=None,
        *,
        query=None,
        kv_cache=None,
        ckv_scale=None,
        ckv_scale_arr=None,
        kpe_scale=None,
        sinks=None,
        skip_softmax_threshold_scale_factor=None,
        bmm1_scale=None,
        bmm2_scale=None,
    ): ...
