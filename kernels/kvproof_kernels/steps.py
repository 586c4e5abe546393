"""The steps that the attention kernel is made of: look up pages, gather rows, score, one step of online softmax.

Names and shapes: a tile has BLOCK_M (query row, head) pairs and BLOCK_N tokens; BLOCK_D is the head dim padded to a
power of two.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


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
    pool, blocks, offsets, owned, stride_block, stride_offset, dims, num_dims, DTYPE: tl.constexpr
):  # fmt: skip
    """Rows of a pool as DTYPE, [BLOCK_N, BLOCK_D]; 0 where the token is not owned or the dim is padding.

    The zero is loaded, not multiplied in: what lies in a slot that nobody owns may be NaN, and 0 · NaN is NaN. Codes of
    8 bits are widened here, which is exact; their scales come in where they cost least, at scores and weights.
    """
    rows = pool + blocks * stride_block + offsets * stride_offset  # [BLOCK_N]
    mask = owned[:, None] & (dims < num_dims)[None, :]
    tile = tl.load(rows[:, None] + dims[None, :], mask=mask, other=0.0)  # [BLOCK_N, BLOCK_D]
    return tile.to(DTYPE)


@triton.jit
def gather_scales(scales, blocks, offsets, owned, stride_block, stride_offset):
    """What the codes of each token are multiplied by, [BLOCK_N] float32; 0 where the token is not owned."""
    return tl.load(scales + blocks * stride_block + offsets * stride_offset, mask=owned, other=0.0)


@triton.jit
def tanh(x):
    """To a few units in the last place, small x included: an odd polynomial below 0.55, 1 - 2 / (e^2|x| + 1) above.

    libdevice's is unknown to Triton's interpreter, and the exponential alone loses the digits of small x. The
    coefficients are a least-squares fit at Chebyshev nodes.
    """
    y = x * x
    small = x + x * y * (
        -0.33333314385 + y * (0.13332474224 + y * (-0.05384005263 + y * (0.0210191275 + y * -0.00619716461)))
    )
    large = 1.0 - 2.0 / (tl.exp2(tl.abs(x) * (2.0 * LOG2_E)) + 1.0)
    return tl.where(tl.abs(x) < 0.55, small, tl.where(x < 0, -large, large))


@triton.jit
def cap_and_bias(scores, distance, softcap, slopes):
    """Soft cap (Gemma 2, section 2), then ALiBi (Press et al. 2022): cap·tanh(s / cap) + slope·(key - query position).

    ``distance`` [BLOCK_M, BLOCK_N], ``slopes`` [BLOCK_M], 0 where there is no bias; a ``softcap`` of 0 is none.
    """
    if softcap > 0.0:
        scores = softcap * tanh(scores / softcap)
    return scores + slopes[:, None] * distance.to(tl.float32)


@triton.jit
def online_softmax(scores, values, value_scales, maximum, normalizer, accumulator, TOKEN_SCALES: tl.constexpr):
    """One step of online softmax (Milakov & Gimelshein 2018; FlashAttention-2, Dao 2023, algorithm 1).

    With scores s in units of log2, of which a hidden one is -inf, and the running m, l, o of the tiles before:

        m' = max(m, max s)        α = 2^(m - m')        p = 2^(s - m')
        l' = α·l + Σ p            o' = α·o + p·V

    While a row has seen no key, m' is -inf and m - m' would be NaN; such a row subtracts 0, so that p = α = 0. Where
    each token has a scale of its own the weights take it along to V: Σ p·(scale·code) = Σ (p·scale)·code.
    """
    new_maximum = tl.maximum(maximum, tl.max(scores, 1))  # [BLOCK_M]
    shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    rescale = tl.exp2(maximum - shift)  # α
    weights = tl.exp2(scores - shift[:, None])  # p, [BLOCK_M, BLOCK_N]
    normalizer = normalizer * rescale + tl.sum(weights, 1)
    accumulator = accumulator * rescale[:, None]  # [BLOCK_M, BLOCK_DV]
    if TOKEN_SCALES:
        weights *= value_scales[None, :]
    accumulator = tl.dot(weights.to(values.dtype), values, accumulator, input_precision="ieee")
    return new_maximum, normalizer, accumulator


@triton.jit
def finish_softmax(maximum, normalizer, accumulator):
    """Output o / l and natural-log LSE (m + log2 l)·ln 2; a row that saw nothing gives 0 and -inf."""
    empty = normalizer == 0.0
    divisor = tl.where(empty, 1.0, normalizer)
    output = accumulator / divisor[:, None]  # [BLOCK_M, BLOCK_DV]
    lse = tl.where(empty, float("-inf"), (maximum + tl.log2(divisor)) * LN_2)
    return output, lse
