"""Inputs and forms of simulated right kernels, drawn by number: run 17 is the same run for ever."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_reference.arithmetic import Arithmetic
from kvproof_suites.kernel.drawn import error_to_bound
from kvproof_suites.kernel.oracle import attend_dense
from selftest.nightly.simulated_kernel import Form, simulate

LONGEST = 8195
SCORES = {
    "flat": 0.1,
    "normal": 1.0,
    "peaked": 4.0,
    "very peaked": 16.0,
    "shifted": 1.0,
    "tied": 1.0,
    "all but one": 1.0,
}
"""What the query is multiplied by. Shifted scores have a large part in common; tied ones have few distinct values."""
VALUES = ("normal", "one-hot", "constant", "far from zero", "trend")
EQUAL_TERMS = {("tied", "constant"), ("all but one", "constant")}
"""Scores and values of which the budget promises nothing: a sum of equal terms rounds the same way in every step."""


@dataclass(frozen=True)
class Run:
    number: int
    dtype: str
    context: int
    num_queries: int
    head_dim: int
    scores: str
    values: str
    declared: Arithmetic
    form: Form
    own_scales: bool = False
    """Values are codes of int8, and every token has a scale of its own."""


def draw_run(number: int) -> Run:
    """Lengths are as often between 1 and 2 as between 4,096 and 8,192."""
    choose = random.Random(number)
    dtype = choose.choice(("float16", "bfloat16", "float32"))
    tile = choose.choice((16, 32, 64, 128))
    declared: dict[str, Any] = {"tile": tile, "rounded_sum": choose.random() < 0.3}
    declared |= {"p": choose.choice((dtype, "float32"))} | ({"output": "float32"} if choose.random() < 0.2 else {})
    num_splits = choose.choice((1, 1, 2, 3, 8, 32))
    declared |= {"partials": dtype} if num_splits > 1 and choose.random() < 0.5 else {}
    extra = choose.choice(("none", "none", "tf32", "prescaled_q"))
    if (extra == "tf32") == (dtype == "float32") and extra != "none":
        declared[extra] = True
    context = min(LONGEST, int(2 ** choose.uniform(0, 13.01)))
    run = Run(
        number,
        dtype,
        context,
        min(context, choose.choice((1, 1, 2, 4))),
        choose.choice((64, 80, 128, 256)),
        choose.choice(list(SCORES)),
        choose.choice(VALUES),
        Arithmetic.declared(declared, dtype),
        Form(num_splits, choose.choice(("exp", "exp2", "fma"))),
    )
    return replace(run, values="normal") if (run.scores, run.values) in EQUAL_TERMS else run


def with_own_scales(number: int) -> Run:
    """Run ``number``, of codes whose weights take the scales before they are rounded, to bfloat16 or float16."""
    run = draw_run(number)
    p = random.Random(number).choice(("bfloat16", "float16"))
    declared = replace(run.declared, p=p, weights_take_scale=True, rounded_sum=False)
    return replace(run, own_scales=True, declared=declared)


def value_scales(run: Run) -> torch.Tensor | None:
    """[context] float32: of any size down to far below a weight of float16, or all of them small; a few are 0."""
    if not run.own_scales:
        return None
    drawn = torch.rand(run.context, generator=torch.Generator().manual_seed(run.number))
    exponents = 24 * drawn if run.number % 2 else 14 + 10 * drawn
    return (2.0**-exponents).where(drawn > 0.02, 0.0)


def tensors(run: Run, value_dim: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query [num_queries, head_dim], keys [context, head_dim], values [context, value_dim], in the run's format."""
    generator = torch.Generator().manual_seed(run.number)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    query = SCORES[run.scores] * normal(run.num_queries, run.head_dim)
    keys = normal(run.context, run.head_dim)
    if run.scores == "shifted":
        shift = (1 if run.number % 2 else -1) * 30.0
        query[:, 0], keys[:, 0] = 30.0, shift
    elif run.scores == "tied":
        keys = keys[torch.randint(min(run.context, 4), (run.context,), generator=generator)]
    elif run.scores == "all but one":
        keys[1:] = keys[:1].clone()
        keys[-1] = normal(run.head_dim)
    dtype = getattr(torch, run.dtype)
    values = draw_values(run, normal(run.context, value_dim))
    stored = (16 * values).round().clamp(-127, 127) if run.own_scales else values.to(dtype)
    return query.to(dtype), keys.to(dtype), stored


def draw_values(run: Run, normal: torch.Tensor) -> torch.Tensor:
    context, value_dim = normal.shape
    if run.values == "one-hot":
        return torch.nn.functional.one_hot(torch.arange(context) % value_dim, value_dim).float()
    if run.values == "constant":
        return normal[:1].expand(context, value_dim)
    if run.values == "far from zero":
        return normal + 10
    if run.values == "trend":
        return normal + torch.linspace(-4, 4, context)[:, None]
    return normal


def ratios(run: Run, actual: Arithmetic | None = None) -> tuple[float, float]:
    """Largest error ÷ bound of the output, and of the LSE, for a kernel that rounds as declared, or as ``actual``."""
    query, keys, values = tensors(run)
    spec = AttentionSpec(1, 1, run.head_dim, 16, run.dtype, value_dim=values.shape[1])
    owns = value_scales(run)
    scales = () if owns is None else (torch.ones(run.context, 1), owns[:, None])
    want = attend_dense(query[:, None], keys[:, None], values[:, None], spec, run.declared, *scales)
    out, lse = simulate(query, keys, values, spec.scale_value, actual or run.declared, run.form, owns)
    of_out = error_to_bound(out[:, None].double(), want.out, want.out_bound)
    of_lse = error_to_bound(lse[:, None].double(), want.lse, want.lse_bound)
    return float(of_out.max()), float(of_lse.max())


def with_partials(run: Run, partials: str, num_splits: int) -> Run:
    """The same run with other splits, whose partial results are declared as ``partials``."""
    return replace(
        run, form=replace(run.form, num_splits=num_splits), declared=replace(run.declared, partials=partials)
    )
