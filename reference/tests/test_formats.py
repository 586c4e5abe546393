"""The table of number formats, against the bits of the formats themselves."""

import struct

import pytest

from kvproof_reference.formats import FORMATS, number_format


@pytest.mark.parametrize(
    ("name", "code", "bits_of_max"), [("float16", "<e", 0x7BFF), ("float32", "<f", 0x7F7FFFFF), ("float64", "<d", None)]
)
def test_ieee_formats_agree_with_their_bits(name, code, bits_of_max):
    number = FORMATS[name]
    size = struct.calcsize(code)
    bits_of_max = 0x7FEFFFFFFFFFFFFF if bits_of_max is None else bits_of_max
    assert number.num_bytes == size
    assert number.smallest_subnormal == struct.unpack(code, (1).to_bytes(size, "little"))[0]
    assert number.max == struct.unpack(code, bits_of_max.to_bytes(size, "little"))[0]
    one_and_next = int.from_bytes(struct.pack(code, 1.0), "little") + 1
    assert number.unit_roundoff == (struct.unpack(code, one_and_next.to_bytes(size, "little"))[0] - 1) / 2


def test_bfloat16_is_the_upper_half_of_float32():
    def widened(bits):
        return struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]

    assert FORMATS["bfloat16"].smallest_subnormal == widened(1)
    assert FORMATS["bfloat16"].max == widened(0x7F7F)
    assert FORMATS["bfloat16"].unit_roundoff == (widened(0x3F81) - 1) / 2


@pytest.mark.parametrize(
    ("name", "roundoff", "subnormal", "largest"),
    [
        ("tf32", 2.0**-11, 2.0**-136, (2 - 2**-10) * 2.0**127),
        ("float8_e4m3fn", 2.0**-4, 2.0**-9, 448.0),
        ("float8_e5m2", 2.0**-3, 2.0**-16, 57344.0),
    ],
)
def test_formats_without_a_standard_code(name, roundoff, subnormal, largest):
    number = FORMATS[name]
    assert (number.unit_roundoff, number.smallest_subnormal, number.max) == (roundoff, subnormal, largest)


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown number format 'half'; known: float16, bfloat16"):
        number_format("half")
