"""SPEC-KILLS.md tells of the wrong implementations that there are, and is counted rightly."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from kvproof_impls.registry import load
from kvproof_suites.under_test import KernelUnderTest
from selftest.killtable import criteria, document
from selftest.killtable.analysis import smallest_set, worth_of_laws
from selftest.killtable.batches import BATCHES
from selftest.killtable.catalogue import Mistake, discover
from selftest.killtable.run import Outcome, judge_all
from selftest.killtable.second_opinion import opinion
from selftest.killtable.side_by_side import compare
from selftest.wrong.right_kernel import RightKernel

WRITTEN = Path(__file__).parents[2] / "SPEC-KILLS.md"
ONE = torch.ones(4, 2, 8, dtype=torch.float64)


class HalfTheWeight(RightKernel):
    """Wrong on every batch, by far more than any criterion allows."""

    def softmax(self, *args):
        out, lse = super().softmax(*args)
        return out / 2, lse


def test_the_document_lists_every_wrong_implementation_under_the_law_meant_for_it():
    listed = {label: law for label, _, law in document.ROW.findall(WRITTEN.read_text(encoding="utf-8"))}
    assert listed == {mistake.label: mistake.law for mistake in discover()}, "out of date: run `make kill-table`"


def test_the_document_knows_no_survivor():
    marks = {label: mark for label, mark, _ in document.ROW.findall(WRITTEN.read_text(encoding="utf-8"))}
    assert marks
    assert not [label for label, mark in marks.items() if mark != "✓"]


def test_a_law_that_is_alone_in_catching_something_is_told_from_a_covered_one():
    worth = worth_of_laws({"a": {"G1", "G18"}, "b": {"G1"}, "c": {"G1", "G18", "F1"}, "d": {"F2"}, "e": set()})
    assert list(worth) == ["G1", "G18", "F1", "F2"]
    assert worth["G1"].alone == ("b",)
    assert worth["G18"].covered_by == ("G1",)
    assert worth["F1"].covered_by == ("G1", "G18")
    assert worth["F2"].covered_by == ()


def test_few_laws_catch_all_that_is_caught():
    assert smallest_set({"a": {"G1", "G18"}, "b": {"G1"}, "c": {"F1", "G1"}, "d": {"F2"}, "e": set()}) == ["G1", "F2"]


def test_survivors_and_laws_that_caught_it_as_well_show_in_the_table():
    caught, survivor = (Mistake("kernels", RightKernel, f"m:{name}", "G18", "ours", "why") for name in ("A", "B"))
    outcomes = {"m:A": Outcome({"G18", "F1"}, num_tests=7), "m:B": Outcome({"G1"}, num_tests=5), "r": Outcome()}
    text = document.write([caught, survivor], outcomes, ["r"], {})
    assert document.ROW.findall(text) == [("kernels.A", "✓", "G18"), ("kernels.B", "✗", "G18")]
    assert "| by the law meant for them | 1 | 1 |" in text
    assert "| tests that came to a verdict | 12 | 12 |" in text


@pytest.mark.parametrize(
    ("name", "passes", "fails"),
    [
        ("vLLM kernel tests", 0.0249, 0.0251),
        ("vLLM v1 backends", 0.0199, 0.0201),
        ("FlashInfer bench", 0.209, 0.211),
        ("flashinfer-bench", 0.0099, 0.0101),
        ("HF kernels", 0.01, 0.0101),
        ("FlashAttention 2", 0.0299, 0.0301),
        ("FlashAttention 3", 0.0149, 0.0151),
    ],
)
def test_a_criterion_accepts_up_to_its_limit(name, passes, fails):
    judge = partial(criteria.CRITERIA[name], want=ONE, low=ONE + 0.01)
    assert judge(ONE + passes)
    assert not judge(ONE + fails)
    assert not judge(ONE * torch.nan)


def test_flashinfer_bench_lets_a_large_error_of_a_large_value_and_any_error_of_a_small_one_pass():
    accepts = criteria.CRITERIA["flashinfer-bench"]
    assert accepts(ONE * 1000 + 5, ONE * 1000, ONE)
    assert accepts(ONE * 0 + 0.009, ONE * 0, ONE)


def test_flash_attention_3_limits_the_mean_as_well_as_the_largest_error():
    low, got = ONE + 0.01, ONE + 0.016
    low[0, 0, 0] += 0.01
    assert criteria.CRITERIA["FlashAttention 2"](got, ONE, low)
    assert not criteria.CRITERIA["FlashAttention 3"](got, ONE, low)


def test_a_right_kernel_passes_every_criterion_and_a_very_wrong_one_none(monkeypatch):
    monkeypatch.setattr(HalfTheWeight, "__module__", "selftest.wrong.here")
    right, wrong = compare(RightKernel), compare(HalfTheWeight)
    assert not right.reached
    assert not any(right.rejected.values())
    assert max(right.ratio.values()) <= 1
    assert all(rejected == wrong.reached == set(wrong.ratio) for rejected in wrong.rejected.values())
    assert min(wrong.ratio.values()) > 1


class ScaleTheQueryInPlace(RightKernel):
    def attend_row(self, spec, batch, row, query, pools):
        query *= 2
        return super().attend_row(spec, batch, row, query, pools)


def test_a_kernel_that_writes_into_its_inputs_spoils_no_later_comparison(monkeypatch):
    monkeypatch.setattr(ScaleTheQueryInPlace, "__module__", "selftest.wrong.here")
    assert compare(ScaleTheQueryInPlace).reached
    assert not compare(RightKernel).reached


def test_a_run_tells_the_laws_that_a_wrong_implementation_breaks(tmp_path):
    name = "selftest.wrong.kernels:Zeros"
    outcome = judge_all([name], tmp_path, 1)[name]
    assert {"G18", "G19", "G1"} <= outcome.broken
    assert not outcome.broken & outcome.verified
    assert not outcome.errors
    assert judge_all([name], tmp_path, 1)[name] == outcome, "what is recorded is not run again"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_second_opinion_convicts_who_reads_elsewhere_and_acquits_the_right():
    peer = KernelUnderTest("torch", load("torch").kernel, "cpu")
    said = opinion(peer, BATCHES["decode"], [RightKernel, HalfTheWeight])
    assert said.ratio < 1
    assert (said.convicted, said.acquitted) == (("HalfTheWeight",), ())
