"""H2: a case whose data can't tell right from wrong is a defect of the suite, and is reported as one."""

from __future__ import annotations

import pytest
import torch

from kvproof_suites.conftest import KernelUnderTest
from kvproof_suites.kernel.cases import BASE, Case, decode
from kvproof_suites.kernel.controls import require_discriminating
from kvproof_suites.kernel.drawn import draw
from kvproof_suites.outcome import SuiteDefect
from selftest.wrong.right_kernel import RightKernel

KERNEL = KernelUnderTest("right", RightKernel(), "cpu")


def test_ordinary_data_reject_every_negative_control() -> None:
    require_discriminating(draw(BASE, torch.Generator().manual_seed(0)), KERNEL)


def test_values_that_are_all_alike_accept_the_mean_of_v() -> None:
    drawn = draw(BASE, torch.Generator().manual_seed(0))
    drawn.values.fill_(1.0)
    with pytest.raises(SuiteDefect, match=r"would accept the mean of V"):
        require_discriminating(drawn, KERNEL)


def test_values_of_zero_accept_zeros() -> None:
    drawn = draw(BASE, torch.Generator().manual_seed(0))
    drawn.values.zero_()
    with pytest.raises(SuiteDefect, match="would accept zeros"):
        require_discriminating(drawn, KERNEL)


def test_a_single_token_can_not_tell_uniform_weights() -> None:
    drawn = draw(Case(decode(1)), torch.Generator().manual_seed(0))
    with pytest.raises(SuiteDefect):
        require_discriminating(drawn, KERNEL)
