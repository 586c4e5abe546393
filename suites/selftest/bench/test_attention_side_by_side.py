"""Kernels that take an attention step in turns, a process each: each computes attention, and what doesn't is not
timed."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from kvproof_impls.torch_gather import TorchKernel
from kvproof_suites.bench import attention_side_by_side
from kvproof_suites.bench.attention_side_by_side import Entrant, Row, cells, command, take_turn
from kvproof_suites.bench.attention_turns import Step, Turns
from kvproof_suites.under_test import KernelUnderTest

DECODE = Step("3q1s40", "4/2", 32, "float32", 8)
PREFILL = replace(DECODE, point="2q37", block_size=16)
CHUNK = replace(DECODE, point="2q9s40", dtype="bfloat16", block_size=16)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    for module in ("paged_launches", "attention_contest", "eviction"):
        monkeypatch.setattr(f"kvproof_suites.bench.{module}.rotated_bytes", lambda device: 2**16)


def prepared(kernel, step):
    turns = Turns(KernelUnderTest("mine", kernel, "cpu"))
    return turns, turns({"step": vars(step)})["tables"]


@pytest.mark.parametrize("step", [DECODE, PREFILL, CHUNK], ids=str)
def test_a_kernel_is_judged_and_timed_through_its_table(step):
    turns, tables = prepared(TorchKernel(), step)
    assert tables["shuffled"] is None
    assert turns({"table": "shuffled"})["seconds"] > 0


def test_a_kernel_that_does_without_a_table_as_well_takes_two_turns():
    turns, tables = prepared(TorchKernel(), DECODE)
    assert tables == {"shuffled": None, "dense": None}
    assert turns({"table": "dense"})["seconds"] > 0
    assert "decode step" in turns({"step": vars(PREFILL)})["tables"]["dense"]


class Changed(TorchKernel):
    """With something done to its output from the launch number ``after`` on."""

    def __init__(self, after):
        self.after, self.count = after, 0

    def plan(self, spec, batch, reuse=None):
        launch = super().plan(spec, batch)

        def changed(query, pools, out=None):
            self.count += 1
            right = launch(query, pools, out)
            return right.roll(1, -1) if self.count > self.after else right

        return changed


def test_what_is_not_attention_is_not_timed():
    _, tables = prepared(Changed(after=0), DECODE)
    assert "error bound away from attention" in tables["shuffled"]
    assert tables["dense"] is None


def test_a_wrong_output_between_two_turns_is_told_instead_of_a_time():
    kernel = Changed(after=10**6)
    turns, _ = prepared(kernel, DECODE)
    assert "seconds" in turns({"table": "shuffled"})
    kernel.after = 0
    assert "other bits than the one that was verified" in turns({"table": "shuffled"})["reason"]


def test_what_a_kernel_refuses_is_told_with_its_reason():
    kernel = SimpleNamespace(features=frozenset(), unsupported=lambda spec: "block_size 8: 32 only")
    assert prepared(kernel, DECODE)[1] == {"shuffled": "unsupported: block_size 8: 32 only"}
    kernel = SimpleNamespace(features=frozenset(), unsupported=lambda spec: None, max_context_len=32)
    assert "longer than 32" in prepared(kernel, DECODE)[1]["shuffled"]


def test_whoever_drops_out_has_no_samples(monkeypatch):
    answers = iter([{"seconds": 1.0}, attention_side_by_side.Withdrawn("it died")])

    def ask(player, request):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr(attention_side_by_side, "ask", ask)
    entrant = Entrant(SimpleNamespace(name="mine"), "dense", None)
    take_turn(entrant)
    take_turn(entrant)
    assert (entrant.samples, entrant.reason, entrant.name) == ([1.0], "it died", "mine dense")


def test_a_ratio_is_the_median_over_the_rounds_and_not_one_of_medians():
    first, second = Row("cpu", (1.0, 2.0, 4.0), (1.0, 1.0, 1.0)), Row("vllm", (3.0, 2.0, 4.0), (1.0, 1.0, 1.0))
    assert cells(DECODE, second, first)[-1] == "1.00 [1.00 to 2.00]"
    assert cells(DECODE, second, first)[-2] == "3.00 [2.50 to 3.50]"


def test_a_prompt_is_not_held_against_the_roof():
    row = Row("cpu", (1.0, 2.0), (1.0, 1.0))
    assert cells(PREFILL, row, row)[-3:] == ["", "", "1.00 [1.00 to 1.00]"]


def test_a_reason_is_one_cell_of_its_table():
    row = Row("mine", reason="scales are max |row| ÷ 127")
    assert cells(DECODE, row, row) == ["8", "mine", "scales are max /row/ ÷ 127", "", "", ""]


MINE = """
import os
from kvproof_impls.torch_gather import TorchKernel

class Dies(TorchKernel):
    def plan(self, spec, batch, reuse=None):
        os.abort()

class Refuses(TorchKernel):
    def unsupported(self, spec):
        return "everything"
"""


def run(*arguments):
    small = ["--batch", "2", "--context-len", "32", "--heads", "4", "2", "--head-dim", "32", "--rounds", "2"]
    return CliRunner().invoke(command, [*small, *arguments])


def test_kernels_take_turns_in_processes_of_their_own_which_may_die(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    everyone = [(name, None) for name in ("torch", "mine:Dies", "mine:Refuses", "no-such")]
    monkeypatch.setattr(attention_side_by_side, "everyone", lambda half, first: everyone)
    done = run("--dtype", "float32", "--block-size", "16", "--json", "samples.json")
    assert done.exit_code == 0, done.output
    assert "- no-such: unknown implementation" in done.output
    for row in (
        "| block | kernel | ms | GB/s | × roof | × torch |",
        "| 16 | roof |",
        "| 16 | torch |",
        "| 16 | mine:Dies | crashed: killed by signal 6 (SIGABRT)",
        "| 16 | mine:Refuses | unsupported: everything |",
        "| 16 | torch dense |",
    ):
        assert row in done.output
    (step,) = json.loads((tmp_path / "samples.json").read_text())
    assert step["step"] == vars(Step("2q1s32", "4/2", 32, "float32", 16))
    taken = {row["name"]: len(row["samples"]) for row in step["rows"]}
    assert taken == {"torch": 2, "mine:Dies": 0, "mine:Refuses": 0, "torch dense": 2, "mine:Refuses dense": 0}


def test_a_kernel_that_was_named_and_can_not_be_loaded_ends_the_run():
    done = run("--only", "no-such")
    assert done.exit_code == 4
    assert "no-such: unknown implementation" in done.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--query-len", "33"], "--query-len 33 exceeds"), (["--heads", "5", "2"], "must be a multiple of the second")],
)
def test_a_step_that_makes_no_sense_is_refused(arguments, complaint):
    done = run(*arguments)
    assert done.exit_code == 2
    assert complaint in done.output
