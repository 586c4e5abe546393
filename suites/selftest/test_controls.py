"""H2: a case whose data can't tell right from wrong is a defect of the suite, and is reported as one."""

from __future__ import annotations

import pytest
import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_suites.kernel.cases import BASE, Case, decode
from kvproof_suites.kernel.controls import accepted_controls, draw_discriminating
from kvproof_suites.kernel.drawn import draw
from kvproof_suites.outcome import SuiteDefect
from kvproof_suites.under_test import KernelUnderTest
from selftest.wrong.right_kernel import RightKernel


class RoundsItsWeights(RightKernel):
    def arithmetic(self, spec: AttentionSpec) -> dict[str, str]:
        return {"p": spec.dtype}


KERNEL = KernelUnderTest("right", RoundsItsWeights(), "cpu")


def test_ordinary_data_reject_every_negative_control() -> None:
    assert accepted_controls(draw(BASE, torch.Generator().manual_seed(0)), KERNEL) == []


def test_values_that_are_all_alike_accept_the_mean_of_v() -> None:
    drawn = draw(BASE, torch.Generator().manual_seed(0))
    drawn.values.fill_(1.0)
    assert "the mean of V" in accepted_controls(drawn, KERNEL)


def test_values_of_zero_accept_zeros() -> None:
    drawn = draw(BASE, torch.Generator().manual_seed(0))
    drawn.values.zero_()
    assert "zeros" in accepted_controls(drawn, KERNEL)


def test_a_case_that_can_not_tell_is_a_defect_of_the_suite() -> None:
    """The weight of a single token is 1, whatever the query."""
    with pytest.raises(SuiteDefect, match="would accept the mean of V"):
        draw_discriminating(Case(decode(1)), torch.Generator().manual_seed(0), "normal", KERNEL)


def test_data_on_which_chance_hides_a_mistake_are_drawn_again() -> None:
    """With one short peaked sequence a dropped key may weigh next to nothing: seed 2 is such a case."""
    generator = torch.Generator().manual_seed(2)
    assert accepted_controls(draw(Case(decode(17)), torch.Generator().manual_seed(2), "peaked"), KERNEL)
    assert accepted_controls(draw_discriminating(Case(decode(17)), generator, "peaked", KERNEL), KERNEL) == []
