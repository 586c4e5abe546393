"""The steps that the attention kernels share: walk the block table, gather rows, one step of online softmax.

Names and shapes: a tile has BLOCK_M query rows and BLOCK_N tokens; BLOCK_D is the head dim padded to a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def walk_block_table(block_table, tokens, owned, block_size):
    """Where the tokens lie: PagedAttention's look-up (Kwon et al., SOSP 2023, section 4.2).

    Logical block ``token // block_size`` of the sequence is physical block ``block_table[token // block_size]``, and
    ``token % block_size`` is the token's slot in it. A table entry is read for owned tokens only: what stands behind
    the last block may be anything. Ids become 64-bit, since id × stride passes 2^31 in pools of a few GiB.
    """
    blocks = tl.load(block_table + tokens // block_size, mask=owned, other=0)  # [BLOCK_N]
    return blocks.to(tl.int64), tokens % block_size


@triton.jit
def gather_rows(
    pool, blocks, offsets, owned, stride_block, stride_offset, dims, num_dims, UPCAST: tl.constexpr
):  # fmt: skip
    """Rows of a pool, [BLOCK_N, BLOCK_D]; 0 where the token is not owned or the dim is padding.

    The zero is loaded, not multiplied in: what lies in a slot that nobody owns may be NaN, and 0 · NaN is NaN.
    """
    rows = pool + blocks * stride_block + offsets * stride_offset  # [BLOCK_N]
    mask = owned[:, None] & (dims < num_dims)[None, :]
    tile = tl.load(rows[:, None] + dims[None, :], mask=mask, other=0.0)  # [BLOCK_N, BLOCK_D]
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def online_softmax(scores, values, maximum, normalizer, accumulator):
    """One step of online softmax (Milakov & Gimelshein 2018; FlashAttention-2, Dao 2023, algorithm 1).

    With scores s in units of log2, of which a hidden one is -inf, and the running m, l, o of the tiles before:

        m' = max(m, max s)        α = 2^(m - m')        p = 2^(s - m')
        l' = α·l + Σ p            o' = α·o + p·V

    While a row has seen no key, m' is -inf and m - m' would be NaN; such a row subtracts 0, so that p = α = 0.
    """
    new_maximum = tl.maximum(maximum, tl.max(scores, 1))  # [BLOCK_M]
    shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    rescale = tl.exp2(maximum - shift)  # α
    weights = tl.exp2(scores - shift[:, None])  # p, [BLOCK_M, BLOCK_N]
    normalizer = normalizer * rescale + tl.sum(weights, 1)
    accumulator = accumulator * rescale[:, None]  # [BLOCK_M, BLOCK_DV]
    accumulator = tl.dot(weights.to(values.dtype), values, accumulator, input_precision="ieee")
    return new_maximum, normalizer, accumulator


@triton.jit
def finish_softmax(maximum, normalizer, accumulator):
    """Output o / l and natural-log LSE ln(l) + m·ln 2; a row that saw no key gives 0 and -inf."""
    empty = normalizer == 0.0
    divisor = tl.where(empty, 1.0, normalizer)
    output = accumulator / divisor[:, None]  # [BLOCK_M, BLOCK_DV]
    lse = tl.where(empty, float("-inf"), (maximum + tl.log2(divisor)) * 0.6931471805599453)
    return output, lse
