"""E3 and E4: what a GPU engine does beyond calling a kernel: it replays graphs, and prepares a step while one runs.

Written for CUDA and run nowhere else: on a CPU there is no graph to capture and no stream to be early or late on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvproof_suites.kernel.attend import require
from kvproof_suites.kernel.cases import Case, by_tier, decode
from kvproof_suites.kernel.drawn import Drawn, draw, judge, place_drawn
from kvproof_suites.kernel.pages import Pages, step_tensors
from kvproof_suites.outcome import not_run_here
from kvproof_suites.under_test import KernelUnderTest

CASES = (Case(decode(17, 33, 1)), Case(decode(15, 16), num_kv_heads=2))
WIDTH = 6
"""Of the block tables, the same before and after: a graph replays on the tensors that it was captured with."""

TENSORS = ("block_tables", "context_lens", "query_start", "slot_mapping")


def need_cuda(under_test: KernelUnderTest) -> None:
    if not under_test.device.startswith("cuda"):
        not_run_here("needs a CUDA device: graphs and streams exist nowhere else")


def widest(pages: Pages) -> int:
    return max(map(len, pages.tables))


def longer(case: Case, seed: int) -> Drawn:
    """The same batch, every sequence a token longer: some of them cross a block boundary."""
    grown = tuple((context_len + 1, query_len) for context_len, query_len in case.seqs)
    return draw(Case(grown, num_kv_heads=case.num_kv_heads), torch.Generator().manual_seed(seed + 1))


@pytest.mark.law("E3")
@pytest.mark.parametrize("case", by_tier(CASES, ()))
def test_a_replayed_graph_gives_what_an_eager_launch_gives(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    need_cuda(kernel)
    require(kernel, case, "graph", "out")
    drawn = draw(case, torch.Generator().manual_seed(seed))
    pools = place_drawn(kernel, drawn)
    after = longer(case, seed)
    batch, later = (
        step_tensors(pages, kernel.device, extra_width=WIDTH - widest(pages)) for pages in (drawn.pages, after.pages)
    )
    query = drawn.query.to(kernel.device)
    out = torch.full_like(query, torch.nan)
    launch = kernel.kernel.plan(drawn.spec, batch)
    launch(query, pools, out)  # compiles, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(query, pools, out)
    for name in TENSORS:
        getattr(batch, name).copy_(getattr(later, name))
    refreshed = place_drawn(kernel, after)
    pools.key.copy_(refreshed.key)
    pools.value.copy_(refreshed.value)
    query.copy_(after.query)
    kernel.kernel.plan(after.spec, later, reuse=launch)
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    judge(after, kernel, (out, None), report_ratio)


@pytest.mark.law("E4")
@pytest.mark.parametrize("case", by_tier(CASES, ()))
def test_a_step_prepared_while_another_waits_does_not_reach_it(
    kernel: KernelUnderTest, case: Case, seed: int, report_ratio: Callable[[float], None]
) -> None:
    need_cuda(kernel)
    require(kernel, case)
    steps = [draw(case, torch.Generator().manual_seed(seed)), longer(case, seed)]
    stream, outs = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # both steps are prepared before the first can run
        for drawn in steps:
            pools = place_drawn(kernel, drawn)
            batch = step_tensors(drawn.pages, kernel.device)
            outs.append(kernel.kernel.plan(drawn.spec, batch)(drawn.query.to(kernel.device), pools))
    stream.synchronize()
    for drawn, out in zip(steps, outs, strict=True):
        judge(drawn, kernel, (out, None), report_ratio)
