"""``python -m selftest.killtable.second_opinion PEER``: a released kernel in the place of the float64 oracle.

The oracle is ours, and so are the wrong kernels that it convicts: both could share a mistake. So a peer computes the
same batches. It has to lie within its own budget of the oracle, and what the oracle convicts must also be further from
the peer's output than the two budgets together allow. Whoever is between one budget and two is acquitted for want of
evidence, and named. Exit code 1: the peer is outside its budget, or convicts nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click
import torch

from kvproof_impls.registry import load
from kvproof_suites.kernel.attend import arithmetic, attend, place
from kvproof_suites.kernel.cases import Case
from kvproof_suites.kernel.drawn import error_to_bound
from kvproof_suites.kernel.oracle import Attended
from kvproof_suites.under_test import KernelUnderTest
from selftest.killtable.batches import BATCHES
from selftest.killtable.catalogue import discover
from selftest.killtable.side_by_side import Kernel, drawn, output, right_base, right_output, wanted


@dataclass(frozen=True)
class Opinion:
    """Of a peer on one batch."""

    ratio: float
    """Its largest error over its bound."""
    convicted: tuple[str, ...]
    """Wrong kernels that the oracle rejects."""
    acquitted: tuple[str, ...]
    """Those of them that the peer does not."""


def opinion(peer: KernelUnderTest, case: Case, factories: Sequence[Kernel]) -> Opinion:
    batch, own = drawn(case), wanted(case, arithmetic(peer, case.spec))
    pools = place(peer, batch.spec, batch.pages, batch.keys, batch.values)
    said = attend(peer, batch.spec, batch.pages, batch.query.clone(), pools)[0].double()
    convicted, acquitted = [], []
    for factory in factories:
        if factory().unsupported(case.spec) is not None:
            continue
        got, want = output(factory, case), of_wrong(factory, case)
        if torch.equal(got, right_output(right_base(factory), case)) or not is_outside(got, want.out, want.out_bound):
            continue
        convicted.append(factory.__name__)
        if not is_outside(got, said, want.out_bound + own.out_bound):
            acquitted.append(factory.__name__)
    ratio = float(error_to_bound(said, own.out, own.out_bound).max())
    return Opinion(ratio, tuple(convicted), tuple(acquitted))


def of_wrong(factory: Kernel, case: Case) -> Attended:
    return wanted(case, arithmetic(KernelUnderTest("wrong", factory(), "cpu"), case.spec))


def is_outside(got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor) -> bool:
    return float(error_to_bound(got, want, bound).max()) > 1


@click.command(help=__doc__)
@click.argument("peer")
@click.option("--batch", "names", multiple=True, type=click.Choice(list(BATCHES)), help="Again; default: all.")
@click.option("--block-size", type=click.IntRange(1), default=16, show_default=True)
def main(peer: str, names: Sequence[str], block_size: int) -> None:
    judge = KernelUnderTest(peer, load(peer).kernel, "cpu")
    wrong = [mistake.factory for mistake in discover() if right_base(mistake.factory)]
    right = True
    for name in names or BATCHES:
        said = opinion(judge, replace(BATCHES[name], block_size=block_size), wrong)
        num_convicted = len(said.convicted) - len(said.acquitted)
        right = right and said.ratio <= 1 and num_convicted > 0
        told = f"of the wrong the oracle convicts {len(said.convicted)}, {peer} {num_convicted}"
        names_left = "".join(f", not {one}" for one in said.acquitted)
        click.echo(f"{name}: {peer} at {said.ratio:.2f} of its budget; {told}{names_left}")
    sys.exit(int(not right))


if __name__ == "__main__":
    main()
