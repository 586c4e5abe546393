"""The serving workload of allocators: what is drawn, what is on the clock, and which figures are not believed."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kvproof_impls.registry import load
from kvproof_suites.bench import bookkeeping, serving_loop
from kvproof_suites.bench.serving_figures import figures, repeat, summarize
from kvproof_suites.bench.serving_loop import NotServed, Samples, run
from kvproof_suites.bench.serving_workload import BLOCK_SIZE, PREFIX_TOKENS, draw, draw_stable
from kvproof_suites.outcome import LawBroken

PAGED = load("paged-python").allocator
SMALL = draw_stable(num_seqs=5, num_steps=20)


class AppendOnly(PAGED):
    """As most libraries are: a call for each sequence, and no step tensors."""

    append_step = None
    commit_step = None

    def __getattribute__(self, name):
        if name in ("append_step", "commit_step"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_a_workload_is_drawn_as_announced_and_repeats_with_its_seed():
    workload = draw(0.3)
    own = np.array([len(prompt) % PREFIX_TOKENS if len(prompt) > PREFIX_TOKENS else 0 for prompt in workload.prompts])
    assert len(workload.prompts) == 1500
    assert {prompt.dtype for prompt in workload.prompts} == {np.dtype("int32")}
    assert np.mean([len(prompt) for prompt in draw(0.0).prompts]) == pytest.approx(512, rel=0.1)
    assert np.mean(workload.num_outputs) == pytest.approx(256, rel=0.1)
    assert np.mean(own > 0) == pytest.approx(0.3 + 0.05, abs=0.06)  # some prompts are as long without a prefix
    assert all(np.array_equal(a, b) for a, b in zip(workload.prompts, draw(0.3).prompts, strict=True))
    assert not np.array_equal(workload.prompts[0], draw(0.3, seed=1).prompts[0])


def test_the_share_of_common_prefixes_is_what_is_found_cached():
    found = {share: run(PAGED(4096, BLOCK_SIZE), draw(share, 40)) for share in (0.0, 1.0)}
    workload = draw(1.0, 40)
    first_of_each = len({tuple(prompt[:PREFIX_TOKENS]) for prompt in workload.prompts})
    assert found[0.0].num_cached == 0
    assert found[1.0].num_cached == (40 - first_of_each) * PREFIX_TOKENS


def test_every_request_is_admitted_once_decodes_its_tokens_and_leaves():
    workload = draw(0.3, 30)
    samples = run(PAGED(4096, BLOCK_SIZE), workload)
    assert len(samples.admit) == sum(number for _, number in samples.free) == 30
    assert sum(rows for _, rows in samples.step) == sum(workload.num_outputs)
    assert 0 < samples.min_free_blocks < 4096


def test_step_tensors_are_built_apart_for_who_does_not_give_them():
    given, built = run(PAGED(1024, BLOCK_SIZE), SMALL), run(AppendOnly(1024, BLOCK_SIZE), SMALL)
    assert (given.step_tensors_included, built.step_tensors_included) == (True, False)
    assert (len(given.tensors), len(built.tensors)) == (0, 20)
    shown = figures(built, SMALL)
    assert shown["us_per_step"] > 5 * shown["ns_per_append"] / 1e3


class ShowsStaleRow(PAGED):
    def append_step(self, seqs, tokens):
        batch = super().append_step(seqs, tokens)
        batch.block_tables[len(seqs) - 1, 0] += 1
        return batch


class KeepsABlock(PAGED):
    def free(self, seq):
        self.allocate(("kept", seq), [1]) if seq == 3 else None
        super().free(seq)


class GivesOneTableToAll(AppendOnly):
    def block_table(self, seq):
        return list(range(64))


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (ShowsStaleRow, "row 4 of a step, sequence 4 of .* has not its table"),
        (KeepsABlock, "1023 of 1024 blocks are free when all have left"),
        (GivesOneTableToAll, "5 sequences write into"),
    ],
)
def test_an_allocator_that_errs_is_not_timed(broken, complaint):
    same_length = draw_stable(num_seqs=5, num_steps=20)
    if broken is GivesOneTableToAll:
        same_length.prompts[1].resize(same_length.prompts[0].shape, refcheck=False)
    with pytest.raises(LawBroken, match=f"not timed: {complaint}"):
        run(broken(1024, BLOCK_SIZE), same_length)


def test_who_has_no_room_or_no_time_is_refused_with_the_reason(monkeypatch):
    with pytest.raises(NotServed, match=r"request 2 .* does not fit: "):
        run(PAGED(100, BLOCK_SIZE), SMALL)
    monkeypatch.setattr(serving_loop, "GRACE_SECONDS", 0.0)
    with pytest.raises(NotServed, match=r"5 requests would take it some .* at most 0 s"):
        run(PAGED(1024, BLOCK_SIZE), SMALL, most_seconds=0.0)


def test_an_append_is_a_row_of_a_median_full_step_and_the_rest_are_means():
    samples = Samples(admit=[1000, 3000], step=[(10, 1), (100, 2), (300, 2), (200, 2)], free=[(500, 1), (1500, 1)])
    shown = figures(samples, SimpleNamespace(prompts=([1] * 6, [2] * 4), num_prompt_tokens=10))
    assert (shown["ns_per_append"], shown["us_per_step"]) == (100.0, 0.2)
    assert (shown["us_per_admit"], shown["us_per_free"]) == (2.0, 1.0)


def told(ns_per_append, admit, free, hit_rate=0.5):
    events = {"admit": admit, "free": free}
    return {"ns_per_append": ns_per_append, "hit_rate": hit_rate, "events": events}


def test_figures_are_medians_and_an_event_that_was_disturbed_once_counts_as_in_the_other_repeats():
    summary = summarize(
        [
            told(3.0, admit=[1000, 3000], free=[500, 9_000_000]),
            told(9.0, admit=[1000, 4_000_000], free=[500, 1500]),
            told(4.0, admit=[2000, 3000], free=[700, 1500]),
        ]
    )
    assert (summary["ns_per_append"], summary["spread"]["ns_per_append"]) == (4.0, [3.0, 9.0])
    assert (summary["us_per_admit"], summary["us_per_free"], summary["hit_rate"]) == (2.0, 1.0, 0.5)
    assert summary["us_per_admit_p99"] == pytest.approx(3.0, rel=0.01)
    assert summary["num_repeats"] == 3
    assert "events" not in summary


def test_repeats_that_hit_otherwise_are_not_believed():
    with pytest.raises(LawBroken, match="the same requests gave"):
        summarize([told(3.0, [1], [1]), told(3.0, [1], [1], hit_rate=0.4)])


def test_policies_that_are_equal_hit_and_hold_the_same():
    given, stable = [draw(0.3, 60)], SMALL
    (a, b) = (repeat(make, given, stable)["30% shared"] for make in (PAGED, AppendOnly))
    assert (a["hit_rate"], a["min_free_blocks"]) == (b["hit_rate"], b["min_free_blocks"])
    assert a["hit_rate"] > 0.1


def test_bookkeeping_is_what_is_declared_or_what_the_process_grew_by(monkeypatch):
    monkeypatch.setattr(bookkeeping, "POOL_BLOCKS", 500_000)

    def declares(num_blocks, size):
        return SimpleNamespace(bookkeeping_bytes=lambda: 10_000 + 32 * num_blocks)

    assert bookkeeping.bytes_per_block(declares, 16) == (32.0, "declared")
    size, how = bookkeeping.bytes_per_block(lambda num_blocks, size: bytearray(10_000 + 100 * num_blocks), 16)
    assert size == pytest.approx(100, rel=0.05)
    assert how in ("traced allocations", "resident pages")


def serve(*arguments):
    command = [sys.executable, "-m", "kvproof_suites.bench.serving", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_tells_the_figures_of_each_workload_as_json():
    done = serve("--impl", "paged-python", "--requests", "3", "--repeats", "2", "--json")
    shown = json.loads(done.stdout)
    assert set(shown["workloads"]) == {"0% shared", "30% shared"}
    assert shown["workloads"]["0% shared"]["num_repeats"] == 2
    assert shown["bytes_per_block"] > 1


def side_by_side(*arguments):
    command = [sys.executable, "-m", "kvproof_suites.bench.side_by_side", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_allocators_take_turns_and_stand_in_one_table(tmp_path):
    kept = tmp_path / "repeats.json"
    arguments = ["--impl", "paged-python", "--env", f"paged-python={sys.executable}", "--requests", "3"]
    done = side_by_side(*arguments, "--repeats", "2", "--json", str(kept))
    assert done.stdout.count("| paged-python 0") == 4  # two contestants, two workloads
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [
        *["start paged-python"] * 2,
        *["repeat 1 of 2"] * 2,
        *["repeat 2 of 2"] * 2,
    ]
    assert [len(contestant["repeats"]) for contestant in json.loads(kept.read_text())] == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--env", "vllm"], "give a name and the Python"),
        (["--env", "vllm=/no/such/python"], "can't be started"),
        (["--impl", "torch"], "torch has no allocator"),
    ],
)
def test_a_contestant_that_can_not_start_ends_the_run_with_its_reason(arguments, complaint):
    done = side_by_side(*arguments)
    assert done.returncode != 0
    assert complaint in done.stderr


@pytest.mark.parametrize(("name", "code"), [("no-such", 4), ("torch", 4), ("contiguous-max", 5)])
def test_a_name_that_can_not_be_timed_says_why(name, code):
    done = serve("--impl", name)
    assert (done.returncode, done.stdout) == (code, "")
    assert name in done.stderr


@pytest.mark.parametrize(
    ("gone", "left"), [((3,), (0, 1, 2)), ((0,), (3, 1, 2)), ((1, 2), (0, 3)), ((0, 3), (2, 1)), ((0, 1, 2, 3), ())]
)
def test_the_last_rows_fill_the_gaps_of_those_who_left(gone, left):
    assert serving_loop.without((0, 1, 2, 3), gone) == left
