"""Every compiled form of our kernels that the launcher can choose, as data for the compiler.

Head dims that are padded to the same power of two share a form, as do all block sizes and group sizes. Types of
arguments follow from their names; which of them are multiples of 16 is what ``validation`` asks of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from kvproof_kernels import old_steps as steps
from kvproof_kernels.block_copy import block_copy_kernel
from kvproof_kernels.cache_write import cache_write_kernel
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.decode import decode_kernel
from kvproof_kernels.launch import DTYPES, TILES, copy_tile_for, tile_for
from kvproof_kernels.machine_code import lines_of
from kvproof_kernels.prefill import prefill_kernel
from kvproof_kernels.resources import Form

ATTENTION: Mapping[str, Any] = {"decode": decode_kernel, "prefill": prefill_kernel}
COPIES: Mapping[str, Any] = {"cache_write": cache_write_kernel, "block_copy": block_copy_kernel}

HEAD_DIMS = tuple(sorted({head_dim for _, _, head_dim in TILES}))
TYPES: Mapping[str, str] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
BITS = {2: "i16", 4: "i32"}
ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("block_tables", "context_lens", "query_start"), "*i32"),
    **dict.fromkeys(("slot_mapping", "sources", "destinations"), "*i64"),
    "lse": "*fp32",
    **dict.fromkeys(("scale_log2", "key_scale", "value_scale"), "fp32"),
}
"""Types of the arguments that no dtype changes; any other that is not a row pointer is an "i32"."""
ROW_POINTERS = ("query", "key", "value", "key_pool", "value_pool", "out")


def forms(target: str) -> Iterator[Form]:
    """All that the launcher can choose on a chip, a name of ``CHIPS``."""
    for kernel in ATTENTION:
        for head_dim in HEAD_DIMS:
            yield from (attention_form(kernel, head_dim, dtype, target) for dtype in DTYPES)
    for kernel in COPIES:
        for head_dim in HEAD_DIMS:
            yield from (copy_form(kernel, head_dim, itemsize) for itemsize in BITS)


def attention_form(kernel: str, head_dim: int, dtype: torch.dtype, target: str) -> Form:
    """What the launcher chooses on ``target``, for the larger of head and value dim."""
    tile = tile_for(kernel, head_dim, dtype.itemsize, CHIPS[target].target.backend)
    name = str(dtype).removeprefix("torch.")
    return specialize(
        *(kernel, f"head dim {tile.block_d}, {name}", ATTENTION[kernel]),
        *(tile.constants, tile.options, f"*{TYPES[name]}"),
        row_lines=lines_of(steps.gather_rows),
        needs_tensor_cores=dtype != torch.float32,  # IEEE products of float32 are beyond those of NVIDIA
    )


def copy_form(kernel: str, head_dim: int, itemsize: int) -> Form:
    """Kernels that move bits know nothing of a dtype but its size."""
    tile = copy_tile_for(head_dim)
    case = f"head dim {tile.block_d}, {itemsize} bytes an element"
    plain = {"CODE": "bits", "SCALES": "tensor", "TOKEN_SCALES": False}
    if kernel == "block_copy":
        plain |= {"key_scale": None, "value_scale": None}
    constants = tile.constants | {name: value for name, value in plain.items() if name in COPIES[kernel].arg_names}
    return specialize(kernel, case, COPIES[kernel], constants, tile.options, f"*{BITS[itemsize]}")


def specialize(
    kernel: str,
    case: str,
    function: Any,
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    rows: str,
    **more: Any,
) -> Form:
    """The kernel as the launcher's arguments specialise it; ``rows`` is the type of pointers to rows.

    Raises:
        ValueError: a process in which Triton only interprets.
    """
    if not isinstance(function, JITFunction):
        raise ValueError("TRITON_INTERPRET is set: nothing can be compiled in this process; unset it")
    types = {}
    for parameter in function.params:
        fixed = ARGUMENTS.get(parameter.name, rows if parameter.name in ROW_POINTERS else "i32")
        types[parameter.name] = "constexpr" if parameter.name in constants else fixed
    divisible = frozenset(
        parameter.name
        for parameter in function.params
        if not parameter.do_not_specialize and types[parameter.name] not in ("constexpr", "fp32")
    )
    return Form(kernel, case, function, types, constants, options, divisible, **more)
