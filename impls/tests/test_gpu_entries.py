"""What runs on a GPU alone has a name, says why where it can't run, and imports nothing before it is used."""

import importlib
import importlib.util
import subprocess
import sys
from importlib import metadata

import pytest
import torch

from kvproof_impls import registry
from kvproof_impls.built_in import BUILT_IN
from kvproof_impls.contract import DEFAULT_ARITHMETIC, FEATURES, AttentionSpec

NAMES = [name for name, entry in BUILT_IN.items() if entry.needs_cuda]
KERNELS = [name for name in NAMES if BUILT_IN[name].kernel]
LIBRARIES = ("flash_attn", "flash_attn_interface", "flashinfer", "tensorrt_llm", "quack", "torch")


@pytest.fixture
def hopper(monkeypatch):
    """A machine where every package is found, in its lowest good version, beside an H100."""
    lowest = {entry.distribution: entry.versions.partition(",")[0].removeprefix(">=") for entry in BUILT_IN.values()}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(metadata, "version", lambda name: lowest.get(name) or "1.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


def test_all_that_was_written_for_gpus_has_a_name():
    assert {"flash-attn", "flash-attn-3", "flash-attn-4", "torch-varlen", "flashinfer", "flashinfer-fa2"} <= set(NAMES)
    assert {"flashinfer-fa2-hnd", "flashinfer-fa3", "flashinfer-trtllm-gen", "flashinfer-cudnn"} <= set(NAMES)
    assert {"flashinfer-cascade", "flashinfer-merge", "flashinfer-mla-fa2", "flashinfer-mla-fa3"} <= set(NAMES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is what a machine without a GPU says")
@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_each_says_what_is_missing(name):
    reason = registry.unavailable(name)
    assert reason.startswith(("needs ", f"{BUILT_IN[name].distribution} "))
    with pytest.raises(registry.Unavailable, match=f"{name} is unavailable: "):
        registry.load(name)


def test_a_kernel_for_another_chip_is_refused_by_name(hopper):
    refused = {name: reason for name in NAMES if (reason := registry.unavailable(name)) is not None}
    assert refused == {
        "flashinfer-trtllm-gen": "is made for compute capability 10.x; this device has 9.0",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_version_out_of_range_is_refused_with_the_range(hopper, monkeypatch, name):
    monkeypatch.setattr(metadata, "version", lambda _: "99.0")
    reason = registry.unavailable(name)
    assert f"{BUILT_IN[name].distribution} 99.0 is outside {BUILT_IN[name].versions}" in reason


def test_neither_asking_nor_loading_an_adapter_imports_a_library():
    targets = {(BUILT_IN[name].kernel or BUILT_IN[name].allocator).partition(":")[0] for name in NAMES}
    code = (
        "import importlib, sys\n"
        f"for module in {sorted(targets)}: importlib.import_module(module)\n"
        f"print([name for name in {LIBRARIES} if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_kernel_declares_are_words_of_the_contract(name):
    module, _, factory = BUILT_IN[name].kernel.partition(":")
    kernel = getattr(importlib.import_module(module), factory)()
    assert kernel.features <= set(FEATURES)
    spec = AttentionSpec(num_q_heads=4, num_kv_heads=1, head_dim=64, block_size=256, dtype="bfloat16")
    assert set(kernel.arithmetic(spec)) <= set(DEFAULT_ARITHMETIC)
    assert kernel.arithmetic(spec)["p"] == "bfloat16"
