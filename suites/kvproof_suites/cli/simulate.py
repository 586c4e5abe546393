"""``kvproof simulate``: what policies would make of a million requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvproof_suites.cli import simulating
from kvproof_suites.cli.terminal import show_json, show_table
from kvproof_suites.cli.trace_reading import AT_LEAST_ONE, reading_options, told

F = TypeVar("F", bound=Callable[..., Any])

POOL = (
    click.option("--policy", default="paged", show_default=True, help="Or contiguous-max, -pow2, -oracle; by commas."),
    click.option("--num-slots", type=AT_LEAST_ONE, default=65_536, show_default=True, help="Tokens the pool holds."),
    click.option("--block-size", default="16", show_default=True, help="Tokens a block; several by commas."),
    click.option("--max-model-len", type=AT_LEAST_ONE, help="Tokens of the longest request; longer are rejected."),
    click.option("--prefix-cache", is_flag=True, help="Find prefixes again, by the hash ids of the trace."),
    click.option(
        "--adapters",
        type=AT_LEAST_ONE,
        default=1,
        show_default=True,
        help="So many, in turn; no prefix is shared between two.",
    ),
    click.option("--window", type=AT_LEAST_ONE, help="Sliding window, in tokens."),
    click.option("--num-host-blocks", type=int, default=0, show_default=True, help="Room for swapped blocks."),
)
SCHEDULER = (
    click.option("--admission", default="stop", show_default=True, help="At the first misfit; or skip, or smallest."),
    click.option("--max-num-seqs", type=int, default=256, show_default=True, help="Sequences that run at once."),
    click.option("--watermark", default="0.01", show_default=True, help="Share left free by admissions; by commas."),
    click.option("--preemption", default="recompute", show_default=True, help="Or swap."),
    click.option("--token-budget", type=int, help="Chunked prefill: tokens a step computes at most."),
    click.option("--saturated", is_flag=True, help="Stop when nobody waits: means of a full server."),
    click.option("--lookahead", type=int, default=32, show_default=True, help="Waiting requests that are chosen from."),
)
TRAFFIC = (
    click.option("--num-requests", type=AT_LEAST_ONE, help="The first so many; of made-up traffic 10,000 if not said."),
    click.option("--rate", type=float, help="Of made-up traffic: requests a second; else as published."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of made-up traffic and beams."),
    click.option("--samples", type=AT_LEAST_ONE, help="Parallel samples of each request."),
    click.option("--beams", type=AT_LEAST_ONE, help="Width of a beam search of each request."),
    click.option("--replacement-rate", type=float, help="Beams replaced by copies of others, mean a step."),
)
TIME = (
    click.option("--step-ms", type=float, help="Every step takes as long; else all requests wait from the start."),
    click.option("--gpu", help="Steps take as long as the roofline of this device says; see above."),
    click.option("--num-gpus", type=AT_LEAST_ONE, default=1, show_default=True, help="Tensor parallel."),
    click.option("--model", type=click.Path(path_type=Path), help="A config.json: bytes of KV cache a token."),
    click.option("--kv-bytes-per-token", type=int, help="Without --model."),
    click.option("--kv-cache-dtype", default="auto", show_default=True, help="Such as fp8; auto: the model's own."),
    click.option("--weights", type=float, help="GiB of the model; else from the safetensors index beside --model."),
    click.option("--params", type=float, help="Billions that a token meets; else all weights, 2 bytes each."),
)


def simulation_options(command: F) -> F:
    for option in reversed((*POOL, *SCHEDULER, *TRAFFIC, *TIME)):
        command = option(command)
    return command


@click.command(short_help="Policies on a trace, by counting blocks.")
@click.argument("trace")
@simulation_options
@reading_options
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(trace: str, as_json: bool, **given: Any) -> None:
    """Simulate continuous batching of TRACE by counting blocks: no allocator, no GPU, a million requests a minute.

    TRACE is a file, or the name of made-up traffic (`kvproof trace generate --list`). Each combination of policies,
    block sizes and watermarks is a row. Shares are of the pool's slots, means over steps: tokens; reserved for tokens
    to come; internal, which is reserved in vain or empty in a last block; external, which is the rest. Saving is
    blocks saved by sharing ÷ blocks without sharing. Where a request with several branches makes way, `kvproof replay`
    goes on with half a step and this does not: preemptions then differ.

    With a step time, requests come when the trace says, and TTFT and TPOT are told. A roofline reads the weights once
    a step and the KV cache of each context, or computes 2 FLOPs a parameter and token, whichever takes longer: a lower
    bound. Known devices: a100-80, h100, h200, h20, b200.

    \b
    kvproof simulate trace.jsonl --block-size=16,64,256 --watermark=0.01,0.1
    kvproof simulate sharegpt --policy=paged,contiguous-max,contiguous-pow2,contiguous-oracle \\
        --num-slots=15700 --max-model-len=2048
    kvproof simulate conversation_trace.jsonl --prefix-cache --block-size=512 --num-slots=3000000
    kvproof simulate azure-conv --gpu=h100 --kv-bytes-per-token=131072 --weights=15 --token-budget=2048
    kvproof simulate alpaca --beams=4 --replacement-rate=0.5
    """
    with told(), simulating.options_named():
        rows = simulating.simulated(trace, given)
    if as_json:
        show_json([row.record() for row in rows])
    else:
        show_table(*simulating.table(rows), title=simulating.title(trace, rows, given["num_slots"]))
