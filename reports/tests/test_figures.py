"""Numbers as people read them."""

import pytest

from kvproof_reports.figures import figure, percent, plural


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0, "0"),
        (1234567, "1,234,567"),
        (1234.6, "1,230"),
        (99.96, "100"),
        (9.999, "10.0"),
        (0.04567, "0.0457"),
        (2.0, "2.00"),
        (float("inf"), "∞"),
        (1e-9, "1.00e-09"),
    ],
)
def test_three_significant_digits_and_exact_counts(value, text):
    assert figure(value) == text


def test_shares_are_percent():
    assert (percent(0.951), percent(None)) == ("95.1 %", "–")


def test_one_is_singular():
    assert (plural(1, "test"), plural(2, "test"), plural(0, "test")) == ("1 test", "2 tests", "0 tests")
