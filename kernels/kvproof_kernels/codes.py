"""8-bit codes of float32 numbers: fp8 (E4M3 without infinities, E5M2) and int8, rounded to nearest even, saturating.

The formats are those of Micikevicius et al. 2022, "FP8 formats for deep learning". The codes are worked out here rather
than by the compiler's casts, so that the same bits come out of every chip (sm_80 has no cast to E4M3) and of Triton's
interpreter (whose cast does not round to nearest). Only finite numbers are calculated with.
"""

import triton
import triton.language as tl


@triton.jit
def encode(x, CODE: tl.constexpr):
    """The codes of float32 ``x``, as int8 bits; ``CODE``: "float8_e4m3fn", "float8_e5m2" or "int8"."""
    if CODE == "float8_e4m3fn":
        codes = encode_fp8(x, 3, -6, 448.0)
    elif CODE == "float8_e5m2":
        codes = encode_fp8(x, 2, -14, 57344.0)
    else:
        codes = encode_int8(x)
    return codes.to(tl.int8)


@triton.jit
def encode_fp8(x, MANTISSA: tl.constexpr, MIN_EXPONENT: tl.constexpr, LARGEST: tl.constexpr):
    """Sign, exponent and ``MANTISSA`` bits; ``MIN_EXPONENT`` is that of the smallest normal number.

    With e the exponent of |x|, but not less than that of the smallest normal number, codes lie 2^(e - MANTISSA) apart
    around x. So |x| is q spacings, 0 <= q <= 2^(MANTISSA + 1), and its code is (e - MIN_EXPONENT) · 2^MANTISSA + q: the
    leading bit of a normal q, and that of a q rounded up to the next power of two, count the exponent up.
    A NaN stays a NaN: 0x7F is one in both formats.
    """
    bits = x.to(tl.int32, bitcast=True)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    magnitude = tl.where(is_nan, 0, bits & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    magnitude = tl.minimum(magnitude, LARGEST)
    exponent = tl.maximum((magnitude.to(tl.int32, bitcast=True) >> 23) - 127, MIN_EXPONENT)
    spacings = ((127 + MANTISSA - exponent) << 23).to(tl.float32, bitcast=True)  # 2^(MANTISSA - e), exactly
    codes = ((exponent - MIN_EXPONENT) << MANTISSA) + round_to_integer(magnitude * spacings)
    return tl.where(is_nan, 0x7F, codes) | ((bits >> 24) & 0x80)


@triton.jit
def encode_int8(x):
    """-127 to 127: -128 would have no counterpart, and max|row| ÷ 127 needs none. There is no NaN; it becomes 0."""
    return round_to_integer(tl.where(x == x, tl.minimum(tl.maximum(x, -127.0), 127.0), 0.0))


@triton.jit
def round_to_integer(x):
    """The nearest integer of |x| < 2^22, int32; of two equally near the even one.

    Around 1.5 · 2^23 float32 numbers lie 1 apart: the addition rounds, and the bits of the sum count the integers.
    """
    return (x + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def scale_of_rows(x):
    """What makes the largest magnitude of each row 127, [rows] float32: 0 for zeros, NaN for a row that holds one.

    Magnitudes are ordered as their bits are, with infinity and NaN above all others.
    """
    magnitudes = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.div_rn(tl.max(magnitudes, 1).to(tl.float32, bitcast=True), 127.0)
