"""A case that does not fit is not run, and says so; what a case is said to take covers what it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvproof_impls.registry import load
from kvproof_reports.records import read_run
from kvproof_suites import memory
from kvproof_suites.kernel import room
from kvproof_suites.kernel.attend import require
from kvproof_suites.kernel.cases import DEEPSEEK, Case, decode, prefill
from kvproof_suites.under_test import KernelUnderTest

TORCH = KernelUnderTest("torch", load("torch").kernel, "cpu")
LARGE = {
    "a chunk in a long context": Case(((1025, 80),), num_kv_heads=2),
    "a prompt": Case(prefill(220), num_kv_heads=2, group_size=4, head_dim=128),
    "long contexts": Case(decode(9000, 100), num_kv_heads=4, head_dim=128, dtype="float32"),
    "latent attention": Case(decode(3000), **DEEPSEEK),
}
HUNGRY = """
from kvproof_impls import load
import torch
class Hungry(type(load("torch").kernel)):
    def plan(self, *args):
        torch.ones(150_000_000)
        return super().plan(*args)
def make():
    return Hungry()
"""
HELD_BY = """
import sys
import torch
from kvproof_suites import memory
from kvproof_suites.kernel.cases import Case, decode
from kvproof_suites.kernel.drawn import answers, draw, place_drawn
from selftest.test_room import LARGE, TORCH

case = LARGE[sys.argv[1]]
answers(draw(Case(decode(17)), torch.Generator().manual_seed(0)), TORCH)
memory.start_peak("cpu")
before = memory.peak_bytes()
drawn = draw(case, torch.Generator().manual_seed(0))
pools = place_drawn(TORCH, drawn)
answers(drawn, TORCH)
print(memory.peak_bytes() - before)
"""


LAW = "kvproof_suites.kernel.test_layouts::test_blocks_past_32_bit_offsets_are_found"
UNDER_A_LIMIT = """
import resource, sys
import pytest

resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9))
sys.exit(pytest.main(sys.argv[1:]))
"""


def python(folder: Path, *arguments: str) -> str:
    """With one thread: the others' stacks and heaps would count as addresses that are taken."""
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    ended = subprocess.run(
        command, cwd=folder, env=one_thread, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.parametrize("name", LARGE)
def test_what_a_case_is_said_to_take_covers_what_judging_it_takes(name, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(room, "lack_of_room", lambda what, num_bytes, device: asked.append(num_bytes))
    room.require_room(TORCH, LARGE[name])
    held = int(python(tmp_path, "-c", HELD_BY, name))
    assert held <= asked[0] <= 10 * held


@pytest.fixture
def crowded(monkeypatch):
    """0.1 GB is left, of each device."""
    monkeypatch.setattr(memory, "free_bytes", lambda device: 100_000_000)


def test_a_case_that_does_not_fit_is_not_run_and_tells_the_figures(crowded):
    require(TORCH, Case(decode(17)))
    with pytest.raises(pytest.skip.Exception) as told:
        require(TORCH, LARGE["a prompt"])
    assert str(told.value) == "not run here: its pools and their oracle take 0.3 GB, and 0.1 GB are free"


def test_pools_past_32_bits_need_the_room_of_a_device_and_none_of_a_cpu(crowded):
    pools = room.large_pools(TORCH, Case(decode(17)), 2**21)
    assert pools.key.numel() == 2**31
    with pytest.raises(pytest.skip.Exception) as told:
        room.large_pools(replace(TORCH, device="meta"), Case(decode(17)), 2**21)
    assert str(told.value) == "not run here: its pools take 8.6 GB, and 0.1 GB are free"


def test_where_the_system_promises_no_memory_large_pools_are_not_run_and_break_no_law(tmp_path):
    """As under ``ulimit -v``."""
    python(tmp_path, "-c", UNDER_A_LIMIT, "--impl=torch", "--results=judged", "--pyargs", LAW)
    laws = [record for record in read_run(tmp_path / "judged").records if record["kind"] == "law"]
    assert [record["outcome"] for record in laws] == ["not_run", "not_run"]
    assert all(record["reason"].startswith("its pools take 8.6 GB: ") for record in laws)


def test_the_most_that_is_held_is_counted_anew():
    assert memory.start_peak("cpu")
    before = memory.peak_bytes()
    held = torch.ones(50_000_000)
    del held
    assert 190_000_000 < memory.peak_bytes() - before < 250_000_000
    memory.start_peak("cpu")
    assert memory.peak_bytes() - before < 100_000_000


@pytest.mark.parametrize(("reserved", "given_back"), [(8_600_000_000, 1), (100_000_000, 0)])
def test_what_a_large_test_has_left_goes_back_to_the_device(reserved, given_back, monkeypatch):
    calls = Counter()
    figures = {"memory_reserved": reserved, "memory_allocated": 50_000_000, "max_memory_allocated": 70_000_000}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, figure=figure: figure)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *device, name=name: calls.update([name]))
    memory.start_peak("cuda:0")
    assert calls == Counter(reset_peak_memory_stats=1, empty_cache=given_back)
    assert memory.peaks("cuda:0", counts_host=False) == {"peak_device_bytes": 70_000_000}


def test_what_an_implementation_takes_stands_in_its_records_and_at_the_end_of_its_run(tmp_path):
    """In this process as in a worker."""
    (tmp_path / "hungry.py").write_text(HUNGRY)
    told = python(tmp_path, "-m", "pytest", "--impl=torch,hungry:make", "--results=judged", "--pyargs", LAW)
    held: dict[str, list[int]] = {"torch": [], "hungry:make": []}
    for record in read_run(tmp_path / "judged").records:
        if record["kind"] == "law":
            held[record["implementation"]].append(record["peak_bytes"])
    assert 500e6 < min(held["hungry:make"]) - max(held["torch"]) < 900e6
    assert f"most memory held: {max(held['hungry:make']) / 1e9:.2f} GB (F3 hungry:make)" in told
