"""The work of ``kvproof simulate``: requests and settings from its options, and what is told of each run."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kvproof_suites.cli.model_files import kv_dtype, read_config, weight_bytes
from kvproof_suites.cli.terminal import note
from kvproof_suites.cli.trace_reading import opened, watched

if TYPE_CHECKING:
    from kvproof_traces import Request, Stream
    from kvproof_traces.simulation import Pool, Roofline, Scheduler, Simulation

T = TypeVar("T")
NUM_REQUESTS = 10_000
READING = ("format", "skip_bad", "hash_block_size", "bytes_per_token", "output_tokens")


class Simulated(NamedTuple):
    """One run."""

    pool: Pool
    scheduler: Scheduler
    found: Simulation

    def record(self) -> dict[str, Any]:
        derived = {"prefix_hit_rate": self.found.prefix_hit_rate, "waste": self.found.waste}
        settings = dataclasses.asdict(self.pool) | dataclasses.asdict(self.scheduler)
        return settings | dataclasses.asdict(self.found) | derived


@contextmanager
def options_named() -> Iterator[None]:
    """A fault in a field of the settings is one of the option of the same name."""
    try:
        yield
    except ValueError as error:
        fields = r"\b(?:Pool|Scheduler|Roofline)\.(\w+)|^(replacement_rate)\b"
        named = re.sub(fields, lambda found: _option(found[1] or found[2]), str(error))
        raise ValueError(named) from None


def _option(field: str) -> str:
    return {"weight_bytes": "--weights", "flops_per_token": "--params"}.get(field, "--" + field.replace("_", "-"))


def simulated(trace: str, given: Mapping[str, Any]) -> list[Simulated]:
    """A run for each combination of policies, block sizes and watermarks. All settings are looked at before the
    first run."""
    from kvproof_traces.simulation import simulate

    step_time, settings, rows = _step_time(given), list(_settings(given)), []
    if not settings:
        raise ValueError("--policy, --block-size and --watermark: give at least one of each")
    for pool, scheduler in settings:
        note(f"simulating {trace}: {_label(pool, scheduler)} ...")
        source = _source(trace, given)
        requests = _branched(watched(islice(source, given["num_requests"])), given)
        in_turn, saturated = _adapters(given["adapters"]), given["saturated"]
        found = simulate(requests, pool, scheduler, step_time, key_of=in_turn, saturated=saturated)
        rows.append(Simulated(pool, scheduler, found))
    _tell(source)
    if not rows[0].found.num_requests:
        raise ValueError(f"{trace} holds no request that could be kept")
    return rows


def _tell(source: Iterable[Request] | Stream) -> None:
    """What was dropped, and what had to be assumed."""
    for reason, number in getattr(source, "dropped", {}).items():
        click.echo(f"dropped {number:,}: {reason}", err=True)
    for assumed in getattr(source, "notes", ()):
        click.echo(f"note: {assumed}", err=True)


def _settings(given: Mapping[str, Any]) -> Iterator[tuple[Pool, Scheduler]]:
    from kvproof_traces.simulation import Pool, Scheduler

    block_sizes = _several("--block-size", given["block_size"], int)
    watermarks = _several("--watermark", given["watermark"], float)
    same_pool = {name: given[name] for name in ("num_slots", "max_model_len")}
    if_paged = {name: given[name] for name in ("prefix_cache", "window", "num_host_blocks")}
    if_paged["kv_bytes_per_token"] = _kv_bytes(given) or 0
    names = ("admission", "max_num_seqs", "preemption", "token_budget", "lookahead")
    same_scheduler = {name: given[name] for name in names}
    for policy in _several("--policy", given["policy"], str):
        if policy != "paged":  # neither blocks nor a watermark mean anything to it
            yield Pool(policy=policy, **same_pool), Scheduler(watermark=0.0, **same_scheduler)
            continue
        for block_size in block_sizes:
            for watermark in watermarks:
                pool = Pool(policy=policy, block_size=block_size, **same_pool, **if_paged)
                yield pool, Scheduler(watermark=watermark, **same_scheduler)


def _branched(requests: Iterable[Request], given: Mapping[str, Any]) -> Iterable[Request]:
    from kvproof_traces.simulation import in_beams, in_parallel

    if given["samples"] is not None and given["beams"] is not None:
        raise ValueError("--samples and --beams both say how requests branch; give one of them")
    if given["replacement_rate"] is not None and given["beams"] is None:
        raise ValueError("--replacement-rate is for --beams, which is missing")
    if given["samples"] is not None:
        return in_parallel(requests, given["samples"])
    if given["beams"] is not None:
        if given["replacement_rate"] is None:
            raise ValueError("--replacement-rate is missing: it decides what beams share; 0.02 to 0.5 a step")
        return in_beams(requests, given["beams"], given["replacement_rate"], seed=given["seed"])
    return requests


def _source(trace: str, given: Mapping[str, Any]) -> Iterable[Request] | Stream:
    """A file, or else made-up traffic of that name."""
    from kvproof_traces import PROFILES, generate_like

    if trace in PROFILES and not Path(trace).exists():
        num_requests = given["num_requests"] or NUM_REQUESTS
        return generate_like(trace, num_requests, seed=given["seed"], requests_per_second=given["rate"])
    if not Path(trace).exists() and "." not in trace and "/" not in trace:
        raise ValueError(f"{trace} is neither a file nor made-up traffic, which there is: {', '.join(PROFILES)}")
    if given["rate"] is not None:
        raise ValueError(f"--rate is for made-up traffic; {trace} has times of its own")
    return opened(Path(trace), **{name: given[name] for name in READING})


def _step_time(given: Mapping[str, Any]) -> Roofline | float | None:
    if given["gpu"] is None:
        return _fixed_step_ms(given)
    if given["step_ms"] is not None:
        raise ValueError("--step-ms and --gpu both say how long a step takes; give one of them")
    return _roofline(given["gpu"], given)


def _fixed_step_ms(given: Mapping[str, Any]) -> float | None:
    from kvproof_traces.simulation.latencies import SMALLEST_MS

    for option, unsaid in {"weights": None, "params": None, "num_gpus": 1}.items():
        if given[option] != unsaid:
            raise ValueError(f"{_option(option)} is for --gpu, which is missing")
    step_ms: float | None = given["step_ms"]
    if step_ms is not None and not SMALLEST_MS <= step_ms < math.inf:
        raise ValueError(f"--step-ms: {step_ms} is not a duration; give milliseconds, {SMALLEST_MS:g} or more")
    return step_ms


def _roofline(gpu: str, given: Mapping[str, Any]) -> Roofline:
    from kvproof_traces.simulation import GPUS, Roofline

    if gpu not in GPUS:
        raise ValueError(f"--gpu: unknown {gpu!r}; known are {', '.join(GPUS)}")
    if (num_kv_bytes := _kv_bytes(given)) is None:
        raise ValueError("--gpu needs --model or --kv-bytes-per-token: bytes of KV cache to read")
    num_bytes = weight_bytes(given["model"], given["weights"])
    params = given["params"]
    if params is not None and not 0 < params * 1e9 < math.inf:
        raise ValueError(f"--params: {params} is not above 0 and finite; give billions")
    num_params = num_bytes / 2 if params is None else params * 1e9
    return Roofline(GPUS[gpu], num_bytes, num_kv_bytes, 2 * num_params, given["num_gpus"])


def _kv_bytes(given: Mapping[str, Any]) -> int | None:
    from kvproof_reference.model_shape import shape_from_config
    from kvproof_reference.sizing import KV_FORMATS, kv_bytes_per_token

    if given["model"] is None or given["kv_bytes_per_token"] is not None:
        return given["kv_bytes_per_token"]  # type: ignore[no-any-return]
    config = read_config(given["model"])
    name = kv_dtype(given["kv_cache_dtype"], config)
    if name not in KV_FORMATS:
        raise ValueError(f"--kv-cache-dtype: unknown {name!r}; known are {', '.join(KV_FORMATS)}")
    return kv_bytes_per_token(shape_from_config(config), KV_FORMATS[name])


def _adapters(num_adapters: int) -> Callable[[Request], int]:
    turns = count()
    return lambda request: next(turns) % num_adapters


def _several(option: str, text: str, number: Callable[[str], T]) -> list[T]:
    try:
        return [number(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{option}: {text!r} is not a list of numbers; give such as 16,64") from None


def _label(pool: Pool, scheduler: Scheduler) -> str:
    if not pool.is_paged:
        return pool.policy
    return f"{pool.policy}, block size {pool.block_size}, watermark {scheduler.watermark:g}"


def title(trace: str, rows: Sequence[Simulated], num_slots: int) -> str:
    num_requests = rows[0].found.num_requests
    return f"{num_requests:,} requests of {Path(trace).name}, a pool of {num_slots:,} tokens"


def table(rows: Sequence[Simulated]) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells; a column in which nothing happened is left out."""
    from kvproof_reports.figures import figure, percent

    cells = [_cells(row, figure, percent) for row in rows]
    kept = [name for name in cells[0] if any(cell[name] is not None for cell in cells)]
    return kept, [[cell[name] for name in kept] for cell in cells]


def _cells(row: Simulated, figure: Callable[[Any], str], percent: Callable[[Any], str]) -> dict[str, Any]:
    pool, scheduler, found = row
    ttft, tpot = found.ttft_ms, found.tpot_ms
    return {
        "policy": pool.policy,
        "block": pool.block_size if pool.is_paged else None,
        "watermark": f"{scheduler.watermark:g}" if pool.is_paged else None,
        "mean seqs": figure(found.mean_running_seqs),
        "peak": found.peak_running_seqs,
        "tokens": percent(found.token_share),
        "reserved": percent(found.reserved_share) if found.reserved_share else None,
        "internal": percent(found.internal_share),
        "external": percent(found.external_share),
        "preempted": found.num_preemptions or None,
        "recomputed": figure(found.num_recomputed_tokens) if found.num_recomputed_tokens else None,
        "swapped blocks": found.num_swapped_blocks or None,
        "swapped GB": figure(found.swapped_bytes / 1e9) if found.swapped_bytes else None,
        "hit rate": percent(found.prefix_hit_rate) if pool.prefix_cache else None,
        "saving": percent(found.sharing_saving) if found.sharing_saving else None,
        "rejected": found.num_rejected or None,
        "steps": f"{found.num_steps:,}",
        "TTFT ms p50": figure(ttft.p50) if ttft else None,
        "p99": figure(ttft.p99) if ttft else None,
        "TPOT ms p50": figure(tpot.p50) if tpot else None,
        "TPOT p99": figure(tpot.p99) if tpot else None,
        "seconds": figure(found.simulated_ms / 1000) if found.simulated_ms is not None else None,
    }
