"""Wrong kernels under public acceptance criteria and under the error budget, on the same data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.kernel.attend import arithmetic, attend, place
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.drawn import error_to_bound
from kvproof_suites.kernel.oracle import Attended
from kvproof_suites.under_test import KernelUnderTest
from selftest.killtable.batches import BATCHES, Batch, draw, with_options
from selftest.killtable.criteria import CRITERIA

Kernel = Any
"""The class of a kernel."""


@dataclass
class Compared:
    """One kernel: by batch, who rejects it. A batch counts once, whatever options it was run with."""

    reached: set[str] = field(default_factory=set)
    """Batches on which its output is not bit for bit that of the right kernel it is made from."""
    rejected: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in CRITERIA})
    """Criterion to batches."""
    ratio: dict[str, float] = field(default_factory=dict)
    """Batch to the largest error ÷ bound; infinite where the kernel raised."""


def right_base(factory: Kernel) -> Kernel | None:
    """The right kernel that a wrong one is made from, in plain torch; an interpreted one would take minutes on 8,195
    tokens."""
    bases = (base for base in getattr(factory, "__mro__", ()) if base.__module__.startswith("selftest.wrong.right"))
    return next((base for base in bases if hasattr(base, "plan")), None)


def compare_all(factories: Iterable[Kernel]) -> dict[str, Compared]:
    return {factory.__name__: compare(factory) for factory in factories if right_base(factory)}


def compare(factory: Kernel) -> Compared:
    """``factory`` on every batch, and where it is right on all of them, with each option that it declares."""
    found = Compared()
    for name, case in BATCHES.items():
        add(found, name, case, factory)
    if not found.reached:
        for name, case in with_options(frozenset(factory().features)):
            add(found, name, case, factory)
    return found


def add(found: Compared, name: str, case: Case, factory: Kernel) -> None:
    if factory().unsupported(case.spec) is not None:
        return
    batch = drawn(case)
    want = wanted(case, arithmetic(KernelUnderTest("wrong", factory(), "cpu"), case.spec))
    got = output(factory, case)
    found.ratio[name] = max(found.ratio.get(name, 0.0), float(error_to_bound(got, want.out, want.out_bound).max()))
    if not torch.equal(got, right_output(right_base(factory), case)):
        found.reached.add(name)
    for criterion, accepts in CRITERIA.items():
        if not accepts(got, want.out, batch.low):
            found.rejected[criterion].add(name)


def output(factory: Kernel, case: Case) -> torch.Tensor:
    """[num_tokens, num_q_heads, value_dim] float64; NaN where the kernel raised, which any test that runs it sees.

    A wrong kernel may write into its query: it gets its own.
    """
    batch, under_test = drawn(case), KernelUnderTest("wrong", factory(), "cpu")
    pools = place(under_test, batch.spec, batch.pages, batch.keys, batch.values)
    try:
        return attend(under_test, batch.spec, batch.pages, batch.query.clone(), pools)[0].double()
    except Exception:
        return torch.full((batch.pages.num_query_tokens, batch.spec.num_q_heads, batch.spec.value_dim_value), math.nan)


@cache
def drawn(case: Case) -> Batch:
    return draw(case)


@cache
def wanted(case: Case, rounding: Arithmetic) -> Attended:
    return drawn(case).wanted(rounding)


@cache
def right_output(factory: Kernel, case: Case) -> torch.Tensor:
    return output(factory, case)
