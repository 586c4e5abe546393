"""Sizing: bytes, blocks, capacity and concurrency, and what a config.json must say for them."""

import pytest

from kvproof_reference.capacity import capacity_rows, device_capacity
from kvproof_reference.model_shape import ModelShape, max_model_len_from_config, shape_from_config
from kvproof_reference.sizing import (
    DEFAULT_UTILISATION,
    GIB,
    KV_FORMATS,
    block_bytes,
    contiguous_waste,
    kv_bytes_per_token,
    max_concurrency,
    num_admitted,
    num_blocks_for,
    num_gpu_blocks,
    num_swap_blocks,
    paged_waste,
)

LLAMA_8B = ModelShape(32, 8, 128)
LLAMA_8B_CONFIG = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
}


@pytest.mark.parametrize(
    ("kv_cache_dtype", "bytes_per_head_vector"),
    [
        ("float32", 512),
        ("float16", 256),
        ("bfloat16", 256),
        ("fp8", 128),
        ("fp8_e4m3", 128),
        ("fp8_e5m2", 128),
        ("fp8_per_token_head", 132),
        ("int8_per_token_head", 132),
    ],
)
def test_an_element_takes_1_2_or_4_bytes_and_scales_come_on_top(kv_cache_dtype, bytes_per_head_vector):
    assert kv_bytes_per_token(LLAMA_8B, KV_FORMATS[kv_cache_dtype]) == 32 * 8 * 2 * bytes_per_head_vector


def test_query_heads_do_not_count():
    shapes = [ModelShape(2, heads, 64) for heads in (8, 2, 1)]  # MHA, GQA, MQA of the same 8 query heads
    assert [kv_bytes_per_token(shape, KV_FORMATS["float16"]) for shape in shapes] == [4096, 1024, 512]


def test_values_may_be_narrower_than_keys():
    assert kv_bytes_per_token(ModelShape(1, 1, 192, 128), KV_FORMATS["float16"]) == (192 + 128) * 2


def test_an_mla_latent_is_stored_once_and_its_rotary_part_with_it():
    shape = ModelShape(1, latent_rank=512, rope_dim=64)
    assert kv_bytes_per_token(shape, KV_FORMATS["float16"]) == 576 * 2
    assert kv_bytes_per_token(shape, KV_FORMATS["fp8"]) == 576


@pytest.mark.parametrize(("num_ranks", "num_heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_tensor_parallel_ranks_share_the_heads_and_hold_at_least_one(num_ranks, num_heads):
    assert LLAMA_8B.shard(num_ranks).num_kv_heads == num_heads


def test_every_tensor_parallel_rank_holds_the_whole_latent():
    shape = ModelShape(61, 128, latent_rank=512, rope_dim=64)
    assert shape.shard(8) == shape


def test_num_gpu_blocks_follows_its_formula_and_rounds_down():
    budget = {"memory_bytes": 80 * GIB, "weight_bytes": 16 * GIB, "activation_bytes": 2 * GIB, "graph_bytes": GIB}
    bytes_per_block = block_bytes(131_072, 16)
    assert DEFAULT_UTILISATION == 0.92
    assert num_gpu_blocks(**budget, bytes_per_block=bytes_per_block) == int((73.6 - 19) * 512)
    assert num_gpu_blocks(**budget, bytes_per_block=bytes_per_block, utilisation=0.5) == (40 - 19) * 512
    seven_of_ten = num_gpu_blocks(memory_bytes=10, weight_bytes=0, bytes_per_block=7, utilisation=0.7)
    assert seven_of_ten == 1, "0.7 as written, not the double below it"
    assert num_gpu_blocks(memory_bytes=100, weight_bytes=0, bytes_per_block=47) == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"weight_bytes": 80 * GIB}, r"no room for a KV block of 2097152 bytes: 0.92 of 80.00 GiB less weights 80.00"),
        ({"utilisation": 0.0}, r"utilisation must lie in \(0, 1\], got 0.0"),
        ({"utilisation": 1.5}, "utilisation must lie in"),
        ({"bytes_per_block": 0}, "bytes_per_block must be at least 1, got 0"),
    ],
)
def test_a_device_without_room_is_refused_by_name(overrides, message):
    arguments = {"memory_bytes": 80 * GIB, "weight_bytes": 16 * GIB, "bytes_per_block": 2**21} | overrides
    with pytest.raises(ValueError, match=message):
        num_gpu_blocks(**arguments)


def test_swap_space_and_max_model_len_in_blocks():
    assert num_swap_blocks(4 * GIB, 2**21) == 2048
    assert [num_blocks_for(length, 16) for length in (0, 1, 15, 16, 17, 8192)] == [0, 1, 1, 1, 2, 512]


def test_concurrency_is_capacity_over_length_in_whole_blocks():
    assert max_concurrency(100, 16, 160) == 100 * 16 / 160 == 10
    assert max_concurrency(100, 16, 161) == 100 / 11


def test_waste_of_what_holds_nothing_is_nothing():
    assert paged_waste(0, 16).fraction == 0
    assert contiguous_waste(0, 0).fraction == 0


def test_admission_stops_at_the_first_that_does_not_fit():
    assert num_admitted([3, 9, 1], 10) == 1
    assert num_admitted([], 10) == 0


@pytest.mark.parametrize(
    "refused",
    [
        lambda: contiguous_waste(10, 11),
        lambda: num_blocks_for(-1, 16),
        lambda: num_blocks_for(1, 0),
        lambda: num_swap_blocks(-1, 16),
        lambda: max_concurrency(8, 16, 0),
        lambda: block_bytes(0, 16),
        lambda: ModelShape(0, 8, 128),
        lambda: ModelShape(2, 8),
        lambda: ModelShape(2, latent_rank=0),
        lambda: LLAMA_8B.shard(3),
        lambda: LLAMA_8B.shard(0),
    ],
)
def test_impossible_numbers_are_refused(refused):
    with pytest.raises(ValueError, match=r"must|can't"):
        refused()


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        pytest.param(LLAMA_8B_CONFIG, LLAMA_8B, id="head_dim from hidden_size"),
        pytest.param(LLAMA_8B_CONFIG | {"head_dim": 64}, ModelShape(32, 8, 64), id="head_dim"),
        pytest.param(LLAMA_8B_CONFIG | {"head_dim": None}, LLAMA_8B, id="head_dim null"),
        pytest.param({"text_config": LLAMA_8B_CONFIG, "vision_config": {"hidden_size": 1}}, LLAMA_8B, id="multimodal"),
        pytest.param(
            {k: v for k, v in LLAMA_8B_CONFIG.items() if k != "num_key_value_heads"}, ModelShape(32, 32, 128), id="MHA"
        ),
        pytest.param({"n_layer": 12, "n_head": 12, "n_embd": 768}, ModelShape(12, 12, 64), id="GPT-2's names"),
        pytest.param(
            {"n_layer": 32, "n_head": 71, "hidden_size": 4544, "multi_query": True}, ModelShape(32, 1, 64), id="MQA"
        ),
        pytest.param(
            {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
            ModelShape(61, latent_rank=512, rope_dim=64),
            id="MLA",
        ),
        pytest.param(LLAMA_8B_CONFIG | {"v_head_dim": 64}, ModelShape(32, 8, 128, 64), id="narrow values"),
        pytest.param(
            LLAMA_8B_CONFIG | {"layer_types": ["linear_attention", "full_attention", "sliding_attention"]},
            ModelShape(2, 8, 128),
            id="hybrid",
        ),
    ],
)
def test_a_config_gives_the_shape(config, shape):
    assert shape_from_config(config) == shape


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"field 'num_hidden_layers' \(or n_layer, num_layers\) is missing"),
        ({"num_hidden_layers": 2}, "field 'num_attention_heads'"),
        ({"num_hidden_layers": 2, "num_key_value_heads": 2, "num_attention_heads": 4}, "field 'hidden_size'"),
        ({"num_hidden_layers": 2, "kv_lora_rank": 512}, "field 'qk_rope_head_dim' is missing"),
        (
            LLAMA_8B_CONFIG | {"num_hidden_layers": "32"},
            "'num_hidden_layers' must be a positive whole number, got '32'",
        ),
        (LLAMA_8B_CONFIG | {"num_key_value_heads": 0}, "'num_key_value_heads' must be a positive whole number, got 0"),
        (LLAMA_8B_CONFIG | {"num_hidden_layers": True}, "must be a positive whole number, got True"),
        (LLAMA_8B_CONFIG | {"hidden_size": 4097}, "hidden_size 4097 is no multiple of num_attention_heads 32"),
        (LLAMA_8B_CONFIG | {"layer_types": ["mamba"]}, "layer_types has no layer that keeps keys"),
        ([1], "config.json must hold an object, found list"),
    ],
)
def test_a_config_that_does_not_say_enough_is_refused_with_the_field(config, message):
    with pytest.raises(ValueError, match=message):
        shape_from_config(config)


def test_the_longest_context_is_read_where_it_is_said():
    assert max_model_len_from_config(LLAMA_8B_CONFIG) == 131072
    assert max_model_len_from_config({"text_config": LLAMA_8B_CONFIG}) == 131072
    assert max_model_len_from_config({}) is None


def test_a_report_ends_with_capacity_in_tokens_and_maximum_concurrency():
    found = device_capacity(
        LLAMA_8B,
        memory_bytes=80 * GIB,
        weight_bytes=16 * GIB,
        max_model_len=8192,
        gpu_memory_utilization=0.9,
        kv_cache_dtype="fp8",
        swap_bytes=4 * GIB,
    )
    num_blocks = (72 - 16) * 1024
    assert (found.num_gpu_blocks, found.num_swap_blocks, found.max_blocks_per_sequence) == (num_blocks, 4096, 512)
    rows = capacity_rows(found)
    assert rows[-2] == ("GPU KV cache size", f"{num_blocks * 16:,} tokens")
    assert rows[-1] == ("Maximum concurrency for 8,192 tokens a request", "112.00x")
    assert dict(rows)["KV bytes a token"] == "65,536 B (0.0625 MiB)"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"kv_cache_dtype": "fp4"}, "unknown kv-cache-dtype 'fp4'; known: float16"),
        ({"max_model_len": 0}, "max-model-len must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
    ],
)
def test_flags_that_mean_nothing_are_refused(overrides, message):
    arguments = {"memory_bytes": 80 * GIB, "weight_bytes": 16 * GIB, "max_model_len": 8192} | overrides
    with pytest.raises(ValueError, match=message):
        device_capacity(LLAMA_8B, **arguments)
