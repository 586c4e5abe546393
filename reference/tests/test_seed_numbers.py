"""Every number that the literature on paged KV caches works out by hand, worked out here."""

import pytest

from kvproof_reference.allocator import ReferenceAllocator
from kvproof_reference.model_shape import ModelShape
from kvproof_reference.sizing import (
    GIB,
    KV_FORMATS,
    capacity_tokens,
    contiguous_waste,
    fits_contiguously,
    kv_bytes_per_token,
    max_concurrency,
    num_admitted,
    num_blocks_for,
    num_divergence_copies,
    num_sampling_blocks,
    paged_waste,
)

MIB = 2**20
LLAMA_2_13B = ModelShape(40, 40, 128)
STACK_100M = ModelShape(30, 2, 64)
GQA_EXERCISE = ModelShape(32, 8, 128)
LENGTHS = [40, 128, 300, 64, 210, 96, 180, 48, 150, 80, 60, 420, 33, 256, 90, 110]


def half(shape):
    return kv_bytes_per_token(shape, KV_FORMATS["float16"])


@pytest.mark.parametrize(
    ("shape", "num_bytes"),
    [
        pytest.param(LLAMA_2_13B, 819_200, id="Llama-2-13B"),
        pytest.param(ModelShape(32, 32, 128), 524_288, id="Llama-2-7B"),
        pytest.param(ModelShape(32, 8, 128), 131_072, id="Llama-3.1-8B"),
        pytest.param(ModelShape(80, 8, 128), 327_680, id="Llama-3-70B"),
        pytest.param(ModelShape(126, 8, 128), 516_096, id="Llama-3.1-405B"),
        pytest.param(ModelShape(28, 4, 128), 57_344, id="Qwen2.5-7B"),
        pytest.param(ModelShape(61, latent_rank=512, rope_dim=64), 70_272, id="DeepSeek-V3"),
        pytest.param(ModelShape(60, latent_rank=512, rope_dim=64), 69_120, id="DeepSeek-V2"),
        pytest.param(STACK_100M, 15_360, id="30 layers, 2 heads, 64 dims"),
        pytest.param(GQA_EXERCISE, 131_072, id="32 layers, 8 heads, 128 dims"),
    ],
)
def test_kv_bytes_of_one_token_in_16_bits(shape, num_bytes):
    assert half(shape) == num_bytes


def test_deepseek_v3_in_its_fp8_layout_takes_656_bytes_a_token_and_layer():
    shape = ModelShape(61, latent_rank=512, rope_dim=64)
    assert kv_bytes_per_token(shape, KV_FORMATS["fp8_ds_mla"]) == 61 * 656 == 40_016


def test_llama_2_13b_takes_0_781_mib_a_token():
    assert half(LLAMA_2_13B) / MIB == pytest.approx(0.781, abs=5e-4)


def test_llama_2_13b_takes_1_5625_gib_at_2048_tokens():
    assert half(LLAMA_2_13B) * 2048 == 1.5625 * GIB


def test_the_small_model_takes_31_5_mb_at_2048_tokens():
    assert half(STACK_100M) * 2048 / 1e6 == pytest.approx(31.5, abs=0.05)


def test_four_million_tokens_at_0_3125_mib_take_1_19_tib():
    assert half(ModelShape(80, 8, 128)) == 0.3125 * MIB
    assert pytest.approx(1.19, abs=5e-3) == 4_000_000 * 0.3125 * MIB / 2**40


def test_6000_tokens_of_the_exercise_take_0_732_gib():
    assert 6000 * half(GQA_EXERCISE) / GIB == pytest.approx(0.732, abs=5e-4)


def test_40_gib_hold_54_sequences_of_6000_tokens():
    num_blocks = 40 * GIB // (16 * half(GQA_EXERCISE))
    assert int(max_concurrency(num_blocks, 16, 6000)) == 54


def test_reserving_512_for_40_tokens_wastes_472_slots():
    assert contiguous_waste(512, 40).num_wasted_slots == 472


def test_reserving_2048_for_30_tokens_wastes_2018_slots_where_paging_holds_2_blocks_not_128():
    assert contiguous_waste(2048, 30).num_wasted_slots == 2018
    assert (num_blocks_for(30, 16), num_blocks_for(2048, 16)) == (2, 128)


def test_reserving_2048_for_100_tokens_wastes_1948_slots_or_95_1_percent():
    waste = contiguous_waste(2048, 100)
    assert waste.num_wasted_slots == 1948
    assert waste.fraction == pytest.approx(0.951, abs=5e-4)


def test_paging_100_tokens_takes_7_blocks_and_wastes_12_slots_or_10_7_percent():
    waste = paged_waste(100, 16)
    assert (num_blocks_for(100, 16), waste.num_wasted_slots) == (7, 12)
    assert waste.fraction == pytest.approx(0.107, abs=5e-4)


def test_one_and_a_half_gib_are_refused_with_four_gib_free_in_holes():
    holes = [GIB, GIB, 3 * GIB // 4, GIB // 2, 3 * GIB // 4]
    assert sum(holes) == 4 * GIB
    assert not fits_contiguously(3 * GIB // 2, holes)
    assert fits_contiguously(3 * GIB // 2, [*holes, 3 * GIB // 2])


def test_a_pool_of_128_blocks_admits_4_reservations_of_512_but_13_paged_sequences():
    assert num_admitted([num_blocks_for(512, 16)] * len(LENGTHS), 128) == 4
    assert num_admitted([num_blocks_for(length, 16) for length in LENGTHS], 128) == 13


def test_the_reference_allocator_admits_the_same_13():
    allocator = ReferenceAllocator(128, 16)
    admitted = 0
    while allocator.can_allocate(LENGTHS[admitted]):
        allocator.allocate(admitted, range(LENGTHS[admitted]))
        admitted += 1
    assert admitted == 13
    assert 128 - allocator.num_free_blocks() == 118


def test_four_samples_without_sharing_take_3800_slots_or_1187_5_mib():
    num_slots = 4 * (800 + 150)
    assert num_slots == 3800
    assert num_slots * 0.3125 == 1187.5


def test_four_samples_with_sharing_take_90_blocks_or_450_mib_2_64_times_less():
    num_blocks = num_sampling_blocks(800, 150, 4, 16)
    assert num_blocks == 50 + 4 * 10 == 90
    assert capacity_tokens(num_blocks, 16) == 1440
    assert 1440 * 0.3125 == 450
    assert pytest.approx(2.64, abs=5e-3) == 3800 / 1440


def test_the_reference_allocator_shares_the_prompt_and_copies_nothing_at_divergence():
    allocator = ReferenceAllocator(100, 16)
    allocator.allocate(0, range(800))
    for sample in (1, 2, 3):
        allocator.fork(0, sample)
    copies = [allocator.append(sample, range(sample, sample + 150)) for sample in range(4)]
    assert copies == [[]] * 4
    assert num_divergence_copies(800, 4, 16) == 0
    assert 100 - allocator.num_free_blocks() == 90


@pytest.mark.parametrize("num_prompt", [1, 15, 16, 17, 799, 801])
def test_blocks_and_copies_of_samples_agree_with_the_allocator_for_any_prompt(num_prompt):
    allocator = ReferenceAllocator(300, 16)
    allocator.allocate(0, range(num_prompt))
    for sample in (1, 2, 3):
        allocator.fork(0, sample)
    num_copies = sum(len(allocator.append(sample, range(150))) for sample in range(4))
    assert num_copies == num_divergence_copies(num_prompt, 4, 16)
    assert 300 - allocator.num_free_blocks() == num_sampling_blocks(num_prompt, 150, 4, 16)


def test_of_200_shared_blocks_a_diverging_write_copies_1():
    allocator = ReferenceAllocator(201, 16)
    allocator.allocate("parent", range(200 * 16 - 1))
    allocator.fork("parent", "child")
    copies = allocator.append("child", [7])
    parent, child = allocator.block_table("parent"), allocator.block_table("child")
    assert copies == [(parent[-1], child[-1])]
    assert parent[:199] == child[:199]


def test_a_pool_of_8_blocks_refuses_200_tokens_and_takes_100():
    allocator = ReferenceAllocator(8, 16)
    assert (num_blocks_for(200, 16), allocator.can_allocate(200)) == (13, False)
    assert (num_blocks_for(100, 16), allocator.can_allocate(100)) == (7, True)


def test_the_pool_of_the_paper_has_15_7_thousand_slots():
    assert 12 * GIB // half(LLAMA_2_13B) == 15_728
