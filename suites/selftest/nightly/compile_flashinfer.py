"""Build the modules of FlashInfer that its adapters ask for, without a GPU: nvcc, for a Hopper.

    make flashinfer

builds the environment, and runs this. It shows that the library's own generators take the types, dims and options of
the adapters, and that its kernels for them compile. It shows nothing of what the kernels compute.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARCH = "9.0a"
NO_POSITIONS = 0
"""Of ``PosEncodingMode``: keys come with their positions in them."""


def cases() -> dict[str, Callable[[], Any]]:
    """Generators by what an adapter asks for; each makes a module that ``build`` compiles."""
    import torch
    from flashinfer.jit import attention, cascade, page

    half, index = torch.float16, torch.int32
    plain, windowed_and_capped = (False, False), (True, True)

    def decode(kv_type: Any, options: tuple[bool, bool]) -> Any:
        return attention.gen_batch_decode_module(half, kv_type, half, index, 128, 128, NO_POSITIONS, *options)

    return {
        "append": page.gen_page_module,
        "merge_state": cascade.gen_cascade_module,
        "decode": lambda: decode(half, plain),
        "decode, window and soft cap": lambda: decode(half, windowed_and_capped),
        "decode, 8-bit pool": lambda: decode(torch.float8_e4m3fn, plain),
        "latent, FA2": lambda: attention.gen_batch_mla_module("fa2", half, half, half, index, 512, 64, False),
    }


def prepare(folder: Path, toolkit: Path) -> None:
    """What the library reads when it is imported; and an empty libcuda.so, which a GPU's driver brings otherwise."""
    stub = folder / "libcuda.so"
    subprocess.run(["gcc", "-shared", "-o", str(stub), "-x", "c", os.devnull], check=True)
    os.environ |= {"FLASHINFER_CUDA_ARCH_LIST": ARCH, "FLASHINFER_WORKSPACE_BASE": str(folder), "MAX_JOBS": "2"}
    os.environ |= {"CUDA_HOME": str(toolkit), "LIBRARY_PATH": f"{folder}:{toolkit / 'lib64'}"}
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{toolkit / 'bin'}:{os.environ['PATH']}"  # ninja is there


def toolkit_of() -> Path | None:
    """The folder that nvcc is in, by CUDA_HOME or by the PATH."""
    named = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    found = str(named) if named.is_file() else shutil.which("nvcc")
    return Path(found).resolve().parents[1] if found else None


def built(generate: Callable[[], Any], folder: Path) -> str:
    """Number and size of the objects with device code that a build has made."""
    before = set(folder.rglob("*.o"))
    generate().build(verbose=False)
    made = [path.read_bytes() for path in set(folder.rglob("*.o")) - before]
    device = [code for code in made if b".nv_fatbin" in code]
    if not device:
        raise ValueError("no object with device code")
    return f"{len(device)} objects, {sum(map(len, device)):,} bytes"


def main() -> int:
    toolkit = toolkit_of()
    if toolkit is None:
        print("not run: no nvcc; install the CUDA toolkit, or name it by CUDA_HOME")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, toolkit)
        for case, generate in cases().items():
            started = time.monotonic()
            try:
                told = built(generate, folder)
            except Exception as error:  # one that fails hides no other
                failed, told = failed + 1, f"FAILED {type(error).__name__}: {str(error)[-300:]}"
            print(f"sm_90a {case}: {told} ({time.monotonic() - started:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
