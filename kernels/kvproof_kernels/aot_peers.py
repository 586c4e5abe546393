"""Triton attention kernels of vLLM and SGLang through the same compiler, for the shapes of ours.

    VLLM/bin/python -m kvproof_kernels.aot_peers vllm --table kernels/aot-peers.csv
    SGLANG/bin/python -m kvproof_kernels.aot_peers sglang --table kernels/aot-peers.csv

Each runs in an environment that has the library (docs/allocators.md), with this folder on ``PYTHONPATH``. The library's
own Python chooses the configuration: it is called on small tensors, what it launches is caught, and nothing is run.
Tensors lie on the CPU; how the library asks what chip it is on is answered with the chip that is compiled for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import torch
import triton
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from kvproof_kernels.aot_table import Row, read_table, write_table
from kvproof_kernels.chips import CHIPS
from kvproof_kernels.machine_code import load_lines
from kvproof_kernels.resources import Variant, compile_variant

BATCH, BLOCK_SIZE, CONTEXT_LEN, SPLITS, PROMPT = 4, 16, 100, 8, 64


@dataclass(frozen=True)
class Case:
    """What is asked of a library. 4 query heads a key head, 8 of these; with MLA 128 and 1."""

    step: str
    """"decode" or "prefill"."""
    head_dim: int
    dtype: torch.dtype = torch.float16
    kv_dtype: torch.dtype | None = None
    mla: bool = False

    @property
    def name(self) -> str:
        """As our own variants are named."""
        dtype, kv_dtype = (str(item).removeprefix("torch.") for item in (self.dtype, self.kv_dtype or self.dtype))
        return f"head dim {self.head_dim}, {dtype}" + ("" if dtype == kv_dtype else f", {kv_dtype} cache")

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key pool, value pool, output."""
        rows = BATCH * (1 if self.step == "decode" else PROMPT)
        heads, kv_heads, value_dim = (128, 1, 512) if self.mla else (32, 8, self.head_dim)
        key = torch.zeros(64, BLOCK_SIZE, kv_heads, self.head_dim, dtype=self.kv_dtype or self.dtype)
        value = key[..., :value_dim] if self.mla else torch.zeros_like(key)
        query = torch.zeros(rows, heads, self.head_dim, dtype=self.dtype)
        return query, key, value, query.new_zeros(rows, heads, value_dim)


@dataclass(frozen=True)
class Launched:
    function: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@contextmanager
def caught() -> Iterator[list[Launched]]:
    """Triton kernels that are launched inside are listed instead of run."""
    launches: list[Launched] = []

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        launches.append(Launched(self, arguments, keywords))

    original, JITFunction.run = JITFunction.run, run
    try:
        yield launches
    finally:
        JITFunction.run = original


def variant_of(launched: Launched, name: str, case: str, target: str, pointers: tuple[str, ...]) -> Variant:
    """The variant that Triton would specialise for this launch on a chip; ``pointers`` are the arguments of K and V."""
    function = launched.function
    binder = create_function_from_signature(function.signature, function.params, make_backend(CHIPS[target].target))
    bound, specialization, options = binder(*launched.arguments, **launched.keywords)
    kinds = dict(zip(bound, specialization, strict=True))
    types = {argument: kind for argument, (kind, _) in kinds.items()}
    attends = bool(pointers) and set(pointers) <= set(types)
    return Variant(
        *(name, case, function, types),
        constants={argument: bound[argument] for argument, kind in types.items() if kind == "constexpr"},
        options=options,
        divisible=frozenset(
            argument for argument, (kind, known) in kinds.items() if kind != "constexpr" and "D" in str(known or "")
        ),
        row_lines=load_lines(function, *pointers) if attends else frozenset(),
        needs_tensor_cores=attends,
    )


def vllm_unified(case: Case, target: str) -> None:
    """``unified_attention``: segments and a reduction for decode, one kernel for prefill."""
    module = importlib.import_module("vllm.v1.attention.ops.triton_unified_attention")
    family = {"sm_80": 80, "sm_90": 90, "sm_100": 100}.get(target)
    platform = SimpleNamespace(
        is_device_capability_family=lambda asked: asked == family,
        fp8_dtype=lambda: torch.float8_e4m3fn if family else torch.float8_e4m3fnuz,
    )
    vars(module).update(current_platform=platform)
    query, key, value, out = case.tensors()
    query_len = len(query) // BATCH
    splits = case.step == "decode"
    segments = [(BATCH, query.shape[1], SPLITS, case.head_dim), (BATCH, query.shape[1], SPLITS)]
    scale = None if case.kv_dtype is None else torch.ones(1)
    module.unified_attention(
        *(query, key, value, out, torch.arange(BATCH + 1, dtype=torch.int32) * query_len, query_len),
        *(torch.full((BATCH,), CONTEXT_LEN, dtype=torch.int32), CONTEXT_LEN, case.head_dim**-0.5, True, (-1, -1)),
        *(torch.zeros(BATCH, 16, dtype=torch.int32), 0.0, None, scale, scale),
        seq_threshold_3D=128 if splits else None,
        num_par_softmax_segments=SPLITS if splits else None,
        softmax_segm_output=torch.zeros(segments[0]) if splits else None,
        softmax_segm_max=torch.zeros(segments[1]) if splits else None,
        softmax_segm_expsum=torch.zeros(segments[1]) if splits else None,
        kv_quant_mode=module.KVQuantMode(0 if case.kv_dtype is None else 1),
    )


def vllm_latent(case: Case, target: str) -> None:
    """``triton_decode_attention``, which vLLM uses for MLA."""
    module = importlib.import_module("vllm.v1.attention.ops.triton_decode_attention")
    vars(module).update(is_hip_=CHIPS[target].target.backend == "hip")
    query, key, value, out = case.tensors()
    module.decode_attention_fwd(
        *(query, key, value, out, torch.zeros(BATCH, query.shape[1])),
        *(torch.zeros(BATCH, 16, dtype=torch.int32), torch.full((BATCH,), CONTEXT_LEN, dtype=torch.int32)),
        *(torch.zeros(BATCH, query.shape[1], SPLITS, value.shape[-1] + 1), SPLITS, case.head_dim**-0.5, BLOCK_SIZE),
        is_mla=True,
    )


def sglang_decode(case: Case, target: str) -> None:
    """``decode_attention_fwd``: splits and a reduction."""
    module = importlib.import_module("sglang.kernels.ops.attention.decode_attention")
    vars(module).update(_is_hip=CHIPS[target].target.backend == "hip")
    query, key, value, out = case.tensors()
    partials = torch.zeros(BATCH, query.shape[1], SPLITS, value.shape[-1])
    module.decode_attention_fwd(
        *(query, key.flatten(0, 1), value.flatten(0, 1), out),
        *(torch.arange(BATCH + 1, dtype=torch.int32) * CONTEXT_LEN, torch.zeros(1024, dtype=torch.int64)),
        *(partials, partials[..., 0].contiguous(), torch.full((BATCH,), SPLITS, dtype=torch.int32), SPLITS),
        *(case.head_dim**-0.5, 1.0, 1.0),
        has_mla=case.mla,
    )


def sglang_extend(case: Case, target: str) -> None:
    """``extend_attention_fwd``: a prompt behind a cached prefix."""
    module = importlib.import_module("sglang.kernels.ops.attention.extend_attention")
    gpu = CHIPS[target].target
    cuda = gpu.backend == "cuda"
    vars(module).update(_is_hip=not cuda, _is_cuda=cuda, CUDA_CAPABILITY=divmod(gpu.arch, 10) if cuda else None)
    query, key, value, out = case.tensors()
    new = torch.zeros(len(query), *key.shape[2:], dtype=case.dtype)
    starts = torch.arange(BATCH + 1, dtype=torch.int32)
    module.extend_attention_fwd(
        *(query, new, torch.zeros_like(new), out, key.flatten(0, 1), value.flatten(0, 1), starts * PROMPT),
        *(starts * CONTEXT_LEN, torch.zeros(1024, dtype=torch.int64), None, True, None, PROMPT, 1.0, 1.0),
    )


DECODE = [Case("decode", head_dim) for head_dim in (64, 128, 256)]
DECODE += [Case("decode", 128, torch.bfloat16, torch.float8_e4m3fn)]
PREFILL = [Case("prefill", case.head_dim, case.dtype, case.kv_dtype) for case in DECODE]
LATENT = [Case("decode", 576, torch.bfloat16, mla=True)]
Asked = tuple[Callable[[Case, str], None], list[Case], tuple[str, ...]]
LIBRARIES: Mapping[str, list[Asked]] = {
    "vllm": [
        (vllm_unified, DECODE + PREFILL, ("key_cache_ptr", "value_cache_ptr")),
        (vllm_latent, LATENT, ("K_Buffer", "V_Buffer")),
    ],
    "sglang": [
        (sglang_decode, DECODE + LATENT, ("K_Buffer", "V_Buffer")),
        (sglang_extend, PREFILL, ("K_Buffer", "V_Buffer")),
    ],
}


def variants(library: str, target: str) -> Iterator[Variant]:
    """What the library launches for all cases on a chip."""
    if library == "vllm":  # switches Triton off where no driver is active, when it is imported
        triton.backends.backends["cpu"] = SimpleNamespace(
            driver=SimpleNamespace(is_active=lambda: True), compiler=SimpleNamespace(supports_target=lambda _: False)
        )
    for ask, cases, pointers in LIBRARIES[library]:
        for case in cases:
            with caught() as launches:
                ask(case, target)
            for launched in launches:
                name = f"{library} {version(library)}: {launched.function.fn.__name__}, {case.step}"
                yield variant_of(launched, name, case.name, target, pointers)


@click.command(help=__doc__)
@click.argument("library", type=click.Choice(list(LIBRARIES)))
@click.option("--table", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The table to keep.")
def main(library: str, table: Path) -> None:
    rows = []
    for target in CHIPS:
        for variant in variants(library, target):
            try:
                rows.append(Row(triton.__version__, compile_variant(variant, target)))
            except Exception as error:
                print(f"{variant.kernel} ({variant.case}) on {target}: {type(error).__name__}: {str(error)[:300]}")
    others = [row for row in read_table(table) if not row.resources.kernel.startswith(library)]
    write_table(table, [*others, *rows])
    print(f"{len(rows)} variants of {library} {version(library)}")


def version(library: str) -> str:
    """Of the library's distribution, of which one for CPUs has a name of its own."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(library)
    return metadata.version(f"{library}-cpu")


if __name__ == "__main__":
    main()
