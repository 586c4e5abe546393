"""Student's quantiles are those of the tables, and its interval holds the truth as often as it says."""

import numpy as np
import pytest

from kvproof_reports.student import half_width, quantile


@pytest.mark.parametrize(
    ("confidence", "freedom", "tabulated"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.95, 4, 2.776),
        (0.95, 7, 2.365),
        (0.99, 10, 3.169),
        (0.999, 4, 8.610),
        (0.95, 120, 1.980),
    ],
)
def test_quantiles_are_those_of_the_printed_tables(confidence, freedom, tabulated):
    assert quantile(confidence, freedom) == pytest.approx(tabulated, abs=6e-4)


@pytest.mark.parametrize(("confidence", "freedom"), [(0.95, 0), (0.0, 3), (1.0, 3)])
def test_what_has_no_quantile_is_refused(confidence, freedom):
    with pytest.raises(ValueError, match="a degree of freedom and a confidence"):
        quantile(confidence, freedom)


@pytest.mark.parametrize(("few", "other"), [(2, 1), (3, 1), (3, 3), (5, 4)])
def test_the_difference_of_few_figures_is_held_as_often_as_it_says(few, other):
    random, tries, held = np.random.default_rng(5), 2000, 0
    for _ in range(tries):
        a, b = random.normal(size=few), 0.7 + random.normal(size=other)
        held += abs(b.mean() - a.mean() - 0.7) <= half_width(a, b, 0.95)
    assert held / tries == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / tries))
