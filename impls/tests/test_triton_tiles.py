"""A tile that was measured reaches a launch through the adapter, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvproof_impls.contract import AttentionSpec
from kvproof_impls.triton_kernels import TritonKernel
from kvproof_kernels import tuned
from kvproof_kernels.tiles import Form
from kvproof_kernels.tuned import Key, Place, Tile, Tuned

SPEC = AttentionSpec(num_q_heads=32, num_kv_heads=8, head_dim=128, block_size=16, dtype="bfloat16")
FORM = Form(128, 128, torch.bfloat16, torch.bfloat16)


@pytest.fixture
def an_h200(monkeypatch):
    """On paper, with one line in the table of its tiles."""
    line = Tuned(Key.of(Place("sm_90", 4, 16), "few", FORM), Tile(16, 128, 8, 3), speedup=1.1)
    monkeypatch.setattr(tuned, "table", lambda: {line.key: line})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return TritonKernel("cuda")


def test_the_measured_tile_is_run_and_declared(an_h200):
    assert an_h200.arithmetic(SPEC)["tile"] == 128


@pytest.mark.parametrize(
    "other", [{"block_size": 32}, {"num_q_heads": 64}, {"softcap": 30.0}, {"dtype": "float16"}], ids=str
)
def test_a_spec_that_was_not_measured_runs_as_before(an_h200, other):
    assert an_h200.arithmetic(replace(SPEC, **other))["tile"] == 64


def test_on_a_cpu_no_table_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(tuned, "table", lambda: asked.append("table") or {})
    TritonKernel("cpu").arithmetic(SPEC)
    assert asked == []


def test_a_tile_that_is_forced_is_run_whatever_was_measured(an_h200):
    assert TritonKernel("cuda", block_n=32).arithmetic(SPEC)["tile"] == 32
