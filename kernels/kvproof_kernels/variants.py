"""Every compiled variant of our kernels that a launch can choose, as data for the compiler.

Head dims that are padded to the same power of two share a variant, as do all block sizes and group sizes. Types of
arguments follow from their names; which of them are multiples of 16 is what ``validation`` asks of tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from kvproof_kernels.attention import paged_attention_kernel
from kvproof_kernels.block_copy import BlockCopyConfiguration, block_copy_kernel
from kvproof_kernels.cache_write import WriteConfiguration, cache_write_kernel
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.combine import combine_kernel
from kvproof_kernels.geometry import MAX_HIP_FLOAT32_DIM
from kvproof_kernels.launch import Compilable
from kvproof_kernels.machine_code import Line, lines_of
from kvproof_kernels.moves import MAX_ROW_DIM, move_tile
from kvproof_kernels.resources import Resources, Variant, compile_variant
from kvproof_kernels.steps import gather_rows
from kvproof_kernels.tiles import (
    CODES,
    DTYPES,
    MAX_HEAD_DIM,
    MAX_REST_DIM,
    TILES,
    Configuration,
    Form,
    merge_tile_for,
    tile_for,
)

TYPES: Mapping[torch.dtype, str] = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.int8: "i8",
}
ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("block_tables", "items", "positions", "partial_start"), "*i32"),
    **dict.fromkeys(("slot_mapping", "sources", "destinations"), "*i64"),
    **dict.fromkeys(("key_scales", "value_scales", "slopes", "sinks", "lse", "partial_out", "partial_lse"), "*fp32"),
    **dict.fromkeys(("scale", "softcap"), "fp32"),
}
"""Types of the arguments that no dtype changes; any that is neither here nor given is an "i32"."""

KINDS: Mapping[str, str] = {"few": "attention, decode rows", "many": "attention, prompt rows"}
HEAD_DIMS = (*sorted({head_dim for _, _, head_dim in TILES}), MAX_HEAD_DIM + MAX_REST_DIM)
ROW_DIMS = tuple(64 << i for i in range((MAX_ROW_DIM // 64).bit_length()))


def variants(target: str) -> Iterator[Variant]:
    """All that a launch can choose on a chip, a name of ``CHIPS``; the plainest first."""
    for options, kind, form in product((False, True), KINDS, attention_forms()):
        if is_supported(form, target):
            yield attention_variant(kind, Form(**vars(form) | {"options": options}), target)
    for value_dim, dtype in product(HEAD_DIMS[:-1], DTYPES):
        tile = merge_tile_for(value_dim)
        case = f"value dim {value_dim}, {named(dtype)}"
        yield specialize("combine", case, combine_kernel, tile, {"out": f"*{TYPES[dtype]}"})
    for row_dim in ROW_DIMS:
        yield from write_variants(row_dim)
        yield from copy_variants(row_dim)


def attention_forms() -> Iterator[Form]:
    """What models can fix, but soft cap and ALiBi. Above MAX_HEAD_DIM the keys may hold the values (MLA)."""
    for head_dim, dtype, kv_dtype in product(HEAD_DIMS, DTYPES, (None, *CODES)):
        for mla, token_scales in product((False, True), (False, True)):
            if mla == (head_dim > MAX_HEAD_DIM) and token_scales <= (kv_dtype == torch.int8):
                value_dim = min(head_dim, MAX_HEAD_DIM)
                yield Form(head_dim, value_dim, dtype, kv_dtype or dtype, mla=mla, token_scales=token_scales)


def is_supported(form: Form, target: str) -> bool:
    """What ``Geometry.unsupported`` says of a chip: NVIDIA's convert e4m3 from compute capability 8.9 on."""
    if CHIPS[target].target.backend == "hip":
        return form.dtype != torch.float32 or max(form.head_dim, form.value_dim) <= MAX_HIP_FLOAT32_DIM
    return form.kv_dtype != torch.float8_e4m3fn or target != "sm_80"


def attention_variant(kind: str, form: Form, target: str) -> Variant:
    """What is chosen on ``target`` for this kind of rows, "few" or "many"; see ``tiles.tile_for``."""
    case = [f"head dim {form.head_dim}", named(form.dtype)]
    case += [f"{named(form.kv_dtype)} cache"] if form.kv_dtype != form.dtype else []
    traits = {"values in keys": form.mla, "scales a token": form.token_scales, "soft cap or ALiBi": form.options}
    case += [trait for trait, has in traits.items() if has]
    row, pool = f"*{TYPES[form.dtype]}", f"*{TYPES[form.kv_dtype]}"
    configuration = tile_for(kind, form, CHIPS[target].target.backend)
    return specialize(
        *(KINDS[kind], ", ".join(case), paged_attention_kernel, configuration),
        {"query": row, "out": row, "key_pool": pool, "value_pool": pool},
        loader=gather_rows,
        row_bytes=row_bytes(configuration, form.kv_dtype.itemsize, CHIPS[target].target.warp_size),
        needs_tensor_cores=form.dtype != torch.float32,  # IEEE products of float32 are beyond those of NVIDIA
    )


def row_bytes(tile: Configuration, itemsize: int, warp_size: int) -> int:
    """What a thread should load of K and V at once: 16 bytes, or all of its share of the narrowest tile.

    Of codes 8 bytes, which Triton widens to 16 on the way from shared memory to the tensor cores.
    """
    share = tile.block_n * (tile.block_r or tile.block_d) * itemsize // (warp_size * tile.num_warps)
    return min(share, 8 if itemsize == 1 else 16)


@functools.cache
def attention_resources(kind: str, form: Form, target: str) -> Resources:
    """What ``attention_variant`` takes, compiled once in a process."""
    return compile_variant(attention_variant(kind, form, target), target)


def write_variants(row_dim: int) -> Iterator[Variant]:
    """As bits, by the size of an element; or as codes, by dtype and by what one scale serves."""
    tile = move_tile(row_dim)
    for bits in ("i8", "i16", "i32"):
        types = dict.fromkeys(("key", "value", "key_pool", "value_pool"), f"*{bits}")
        yield from written(f"row dim {row_dim}, {bits}", WriteConfiguration(*tile), types, "fp32")
    for dtype, code, scales in product(DTYPES, CODES, ("tensor", "head", "token")):
        if scales != "token" or code == torch.int8:
            tensors = {"key": dtype, "value": dtype, "key_pool": torch.int8, "value_pool": torch.int8}
            yield from written(
                f"row dim {row_dim}, {named(dtype)} to {named(code)}, scales a {scales}",
                WriteConfiguration(*tile, code=named(code), scales=scales),
                {name: f"*{TYPES[of]}" for name, of in tensors.items()},
                "fp32" if scales == "tensor" else "*fp32",
            )


def written(case: str, tile: WriteConfiguration, types: dict[str, str], scale: str) -> Iterator[Variant]:
    """With values, and where MLA alone has such wide rows also without."""
    types |= {"key_scale": scale, "value_scale": scale}
    yield specialize("cache_write", case, cache_write_kernel, tile, types)
    if tile.block_d > MAX_HEAD_DIM:
        absent = ("value", "value_pool")
        yield specialize("cache_write", f"{case}, keys alone", cache_write_kernel, tile, types, absent=absent)


def copy_variants(row_dim: int) -> Iterator[Variant]:
    """By the size of an element, 8-bit rows also with their scales."""
    for bits, token_scales in (("i8", False), ("i8", True), ("i16", False), ("i32", False)):
        types = {"key_pool": f"*{bits}", "value_pool": f"*{bits}"}
        types |= {"key_scale": "*fp32", "value_scale": "*fp32"} if token_scales else {}
        tile = BlockCopyConfiguration(*move_tile(row_dim), token_scales=token_scales)
        case = f"row dim {row_dim}, {bits}" + (", scales a token" if token_scales else "")
        absent = () if token_scales else ("key_scale", "value_scale")
        yield specialize("block_copy", case, block_copy_kernel, tile, types, absent=absent)


def specialize(
    kernel: str,
    case: str,
    function: Any,
    configuration: Compilable,
    types: Mapping[str, str],
    *,
    absent: tuple[str, ...] = (),
    loader: Any = None,
    row_bytes: int = 16,
    needs_tensor_cores: bool = False,
) -> Variant:
    """The kernel as a launch specialises it.

    Args:
        kernel: as tables name it.
        case: what it serves.
        function: the kernel.
        configuration: of ``tiles``.
        types: Triton's type of the arguments that ``ARGUMENTS`` does not know.
        absent: arguments that are None.
        loader: the function that it loads rows of K and V by.
        row_bytes: see ``Variant``, as for the rest.

    Raises:
        ValueError: a process in which Triton only interprets.
    """
    if not isinstance(function, JITFunction):
        raise ValueError("TRITON_INTERPRET is set: nothing can be compiled in this process; unset it")
    constants = {**configuration.constants, **dict.fromkeys(absent)}
    known = {**dict.fromkeys(function.arg_names, "i32"), **ARGUMENTS, **types, **dict.fromkeys(constants, "constexpr")}
    kinds = {name: known[name] for name in function.arg_names}
    divisible = frozenset(
        parameter.name
        for parameter in function.params
        if not parameter.do_not_specialize and kinds[parameter.name] not in ("constexpr", "fp32")
    )
    options = configuration.compiler_options
    row_lines: frozenset[Line] = frozenset() if loader is None else lines_of(loader, function)
    needs = (row_lines, row_bytes, needs_tensor_cores)
    return Variant(kernel, case, function, kinds, constants, options, divisible, *needs)


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
