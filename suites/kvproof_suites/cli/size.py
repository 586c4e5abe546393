"""``kvproof size``: how many tokens and requests a device has room for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvproof_suites.cli.model_files import GIB, kv_dtype, read_config, weight_bytes
from kvproof_suites.cli.terminal import show_json, show_table

if TYPE_CHECKING:
    from kvproof_reference.capacity import Capacity
    from kvproof_reference.model_shape import ModelShape

AT_LEAST_ONE = click.IntRange(min=1)
AMOUNT = click.FloatRange(min=0)


@click.command(short_help="The KV cache of a model on a device.")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--num-layers", type=AT_LEAST_ONE, help="Without CONFIG.")
@click.option("--num-kv-heads", type=AT_LEAST_ONE, help="Without CONFIG.")
@click.option("--head-dim", type=AT_LEAST_ONE, help="Without CONFIG.")
@click.option("--gpu-memory", type=AMOUNT, default=80.0, show_default=True, help="GiB of one device.")
@click.option("--weights", type=AMOUNT, help="GiB of the whole model; else from the safetensors index beside CONFIG.")
@click.option("--activations", type=AMOUNT, default=0.0, show_default=True, help="GiB at the peak, per device.")
@click.option("--cuda-graphs", type=AMOUNT, default=0.0, show_default=True, help="GiB per device.")
@click.option("--gpu-memory-utilization", type=float, default=0.92, show_default=True, help="Share that may be used.")
@click.option("--block-size", type=AT_LEAST_ONE, default=16, show_default=True, help="Tokens a block.")
@click.option("--max-model-len", type=AT_LEAST_ONE, help="Tokens of the longest request; else from CONFIG.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="Such as fp8; auto: the model's own.")
@click.option("--swap-space", type=AMOUNT, default=0.0, show_default=True, help="GiB on the host, per device.")
@click.option("--tensor-parallel-size", type=AT_LEAST_ONE, default=1, show_default=True, help="Devices.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(config: Path | None, as_json: bool, **given: Any) -> None:
    """Work out the KV cache of a model on a device: bytes, blocks, capacity in tokens, concurrency.

    CONFIG is a Hugging Face config.json; without it, give the numbers. Flags are called as in vLLM.

    \b
    kvproof size config.json --weights=15 --kv-cache-dtype=fp8
    kvproof size --num-layers=32 --num-kv-heads=8 --head-dim=128 --weights=15 --max-model-len=8192
    """
    try:
        found = _capacity(config, given)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        derived = {"capacity_tokens": found.capacity_tokens, "max_concurrency": found.max_concurrency}
        show_json({**dataclasses.asdict(found), **derived})
    else:
        from kvproof_reference.capacity import capacity_rows

        show_table(("of one device", ""), capacity_rows(found))
    if found.max_concurrency < 1:
        click.echo(f"not one request of {found.max_model_len:,} tokens fits; lower --max-model-len", err=True)


def _capacity(config: Path | None, given: Mapping[str, Any]) -> Capacity:
    from kvproof_reference.capacity import device_capacity
    from kvproof_reference.model_shape import max_model_len_from_config

    model = read_config(config) if config else {}
    shape = _shape(config, model, given)
    longest = given["max_model_len"] or (max_model_len_from_config(model) if model else None)
    if longest is None:
        raise ValueError("--max-model-len is missing, and no config says it")
    num_devices = given["tensor_parallel_size"]
    return device_capacity(
        shape.shard(num_devices),
        memory_bytes=int(given["gpu_memory"] * GIB),
        weight_bytes=weight_bytes(config, given["weights"]) // num_devices,
        max_model_len=longest,
        block_size=given["block_size"],
        kv_cache_dtype=kv_dtype(given["kv_cache_dtype"], model),
        gpu_memory_utilization=given["gpu_memory_utilization"],
        activation_bytes=int(given["activations"] * GIB),
        graph_bytes=int(given["cuda_graphs"] * GIB),
        swap_bytes=int(given["swap_space"] * GIB),
    )


def _shape(config: Path | None, model: Mapping[str, Any], given: Mapping[str, Any]) -> ModelShape:
    from kvproof_reference.model_shape import ModelShape, shape_from_config

    numbers = {name: given[name] for name in ("num_layers", "num_kv_heads", "head_dim")}
    spelled = {f"--{name.replace('_', '-')}": number for name, number in numbers.items()}
    if config is not None:
        if superfluous := [flag for flag, number in spelled.items() if number is not None]:
            raise ValueError(f"{superfluous[0]} and {config} both describe the model; give one of them")
        return shape_from_config(model)
    if missing := [flag for flag, number in spelled.items() if number is None]:
        raise ValueError(f"{', '.join(missing)} missing: give the numbers, or a config.json")
    return ModelShape(**numbers)
