"""Compile what the adapter of FlashAttention 4 asks for, without a GPU: fake tensors, and machine code for a real chip.

    make flash-attn-4

builds the environment, and runs this once a chip. It shows that the calls are ones that the library takes, down to a
cubin. It shows nothing of what the kernels compute: that is for the laws, on a GPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHIPS = {"sm_90": 132, "sm_100": 148}
"""Multiprocessors, of an H100 and a B200: a grid is made for them, and the driver is asked otherwise."""
DECODE, CHUNK = 1, 3
"""Query rows of each sequence."""
CASES: Mapping[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "decode, pages of 16": (DECODE, {}, ("sm_90", "sm_100")),
    "chunk, pages of a tile": (CHUNK, {"head_dim": 128, "block_size": 128}, ("sm_90", "sm_100")),
    "window and LSE": (CHUNK, {"window": 5, "return_lse": True}, ("sm_90", "sm_100")),
    "sinks": (DECODE, {"sinks": (0.5,) * 8}, ("sm_90", "sm_100")),
    "soft cap": (DECODE, {"softcap": 30.0}, ("sm_90", "sm_100")),
    "192 with 128 dims": (CHUNK, {"head_dim": 192, "value_dim": 128}, ("sm_90", "sm_100")),
    "latent": (CHUNK, {"mla": True, "head_dim": 576, "value_dim": 512, "num_kv_heads": 1}, ("sm_100",)),
}


def prepare(chip: str, folder: str) -> None:
    """What the library reads when it is imported, and what it would ask the driver."""
    os.environ |= {"FLASH_ATTENTION_FAKE_TENSOR": "1", "FLASH_ATTENTION_ARCH": chip, "CUTE_DSL_ARCH": f"{chip}a"}
    os.environ |= {"FLASH_ATTENTION_NUM_SMS": str(CHIPS[chip])}
    os.environ |= {"CUTE_DSL_KEEP": "cubin", "CUTE_DSL_DUMP_DIR": folder, "CUTE_DSL_DISABLE_FILE_CACHING": "1"}
    from cutlass.utils import HardwareInfo

    HardwareInfo.__init__ = lambda info, device_id=0: None
    HardwareInfo.get_device_multiprocessor_count = lambda info: CHIPS[chip]
    HardwareInfo.get_max_active_clusters = lambda info, cluster_size: CHIPS[chip] // cluster_size


def launch(capability: int, query_len: int, options: Mapping[str, Any]) -> None:
    """Plan and run one batch of two sequences on tensors that have no contents."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch
    from kvproof_impls.flash_attention_4 import FlashAttention4Kernel

    shape = {"num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64, "block_size": 16, "dtype": "bfloat16"}
    spec, kernel = AttentionSpec(**{**shape, **options}), FlashAttention4Kernel(capability)
    if (reason := kernel.unsupported(spec)) is not None:
        raise ValueError(reason)
    with FakeTensorMode():
        ints = [torch.zeros(size, dtype=torch.int32, device="cuda") for size in ((2, 4), (2,), (3,))]
        slots = torch.zeros(2 * query_len, dtype=torch.int64, device="cuda")
        batch = PagedBatch(*ints, slots, (40, 50), (query_len, query_len))
        pages = [10, spec.block_size, spec.num_kv_heads]
        dims = (spec.head_dim, spec.value_dim_value)
        key, value = (torch.zeros(*pages, dim, dtype=torch.bfloat16, device="cuda") for dim in dims)
        query = torch.zeros(2 * query_len, spec.num_q_heads, spec.head_dim, dtype=torch.bfloat16, device="cuda")
        result = kernel.plan(spec, batch)(query, KVPools(key, value))
    out = result[0] if spec.return_lse else result
    if tuple(out.shape) != (2 * query_len, spec.num_q_heads, spec.value_dim_value):
        raise ValueError(f"output of shape {tuple(out.shape)}")


def compiled(chip: str, folder: Path, query_len: int, options: Mapping[str, Any]) -> str:
    """Sizes of the cubins that a launch has made."""
    for old in folder.iterdir():
        old.unlink()
    launch(int(chip.removeprefix("sm_")) // 10, query_len, options)
    made = [path.read_bytes() for path in folder.glob(f"*.{chip}a.cubin")]
    if not made or not all(code.startswith(b"\x7fELF") for code in made):
        raise ValueError(f"no cubin for {chip}a")
    return ", ".join(f"{len(code):,} bytes" for code in made)


def main(chip: str) -> int:
    warnings.simplefilter("ignore")  # of the library, about its own classes and about fake tensors
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        prepare(chip, folder)
        for name, (query_len, options, chips) in CASES.items():
            if chip not in chips:
                continue
            started = time.monotonic()
            try:
                told = compiled(chip, Path(folder), query_len, options)
            except Exception as error:  # one that fails hides no other
                failed, told = failed + 1, f"FAILED {type(error).__name__}: {str(error).splitlines()[0][:200]}"
            print(f"{chip} {name}: {told} ({time.monotonic() - started:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
