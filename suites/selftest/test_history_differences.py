"""A recorded history beside an allocator that does otherwise: the first difference, and whatever can be wrong with a
file that somebody's engine left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvproof_impls import recorded
from kvproof_impls.registry import load
from kvproof_suites import cli
from kvproof_suites.histories import open_history
from kvproof_suites.history_compare import renamed
from kvproof_suites.history_replay import replay_history

SKIPS_COPIES = "selftest.wrong.copy_on_write:SkipCopyOnWrite"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["replay", *map(str, arguments)])


def test_where_a_step_is_missing_single_calls_do_its_work(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    allocator = recorded(load("paged-python").allocator(8, 2), path)  # type: ignore[misc]
    allocator.allocate("a", [1, 2])
    allocator.allocate("b", [3, 4])
    for token in range(5, 8):
        allocator.append_step(["a", "b"], [token, token])
        allocator.commit_step(["a", "b"])
    with pytest.raises(MemoryError):
        allocator.allocate("c", [1] * 20)
    allocator.preempt("b")
    assert not hasattr(load("reference").allocator, "append_step")
    told = run(path, "--allocator=reference")
    expected = "refusals 6 agree; hits 2 agree; free blocks 10 agree; copies 3 agree"
    assert told.output == f"reference: 10 operations, every law held\n  compared: {expected}\n"


def test_a_step_that_fails_half_way_in_single_calls_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    allocator = recorded(load("paged-python").allocator(4, 2), path)  # type: ignore[misc]
    for number, seq in enumerate("abc"):
        allocator.allocate(seq, [2 * number, 2 * number + 1])
    with pytest.raises(MemoryError):
        allocator.append_step(["a", "b", "c"], [6, 7, 8])
    allocator.preempt("c")
    for token in (9, 11):
        allocator.append_step(["a", "b"], [token, token + 1])
    told = run(path, "--allocator=reference")
    assert told.exit_code == cli.CONFORMS
    assert "refusals 6 agree; hits 3 agree; free blocks 5 agree, 2 differ; copies 2 agree" in told.output
    assert "first difference: line 5: append_step(['a', 'b', 'c'], [6, 7, 8]) left 0 free blocks" in told.output


def test_slots_agree_up_to_the_names_of_blocks() -> None:
    assert renamed([5, 9, 6], 4) == renamed([13, 1, 14], 4)
    assert renamed([5, 9], 4) != renamed([5, 5], 4)
    assert renamed([5, 9], 4) != renamed([5, 10], 4)


def test_a_copy_that_a_wrong_allocator_forgets_is_the_first_difference(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    allocator = recorded(load("paged").allocator(4, 2), path)  # type: ignore[misc]
    allocator.allocate("a", [1, 2, 3])
    allocator.fork("a", "b")
    allocator.append("b", [4])
    told = run(path, f"--allocator={SKIPS_COPIES}", "--compare-only")
    assert told.exit_code == cli.CONFORMS
    first, where, before, free, of_b, of_a, compared = told.output.splitlines()
    assert first == f"{SKIPS_COPIES}: 3 operations, not judged"
    assert re.fullmatch(r"  first difference: line 4: append\('b', \[4\]\) (gave the copies \[\]|left).*", where)
    assert (before, free) == ("  before it", "    2 of 4 blocks are free")
    assert of_b.startswith("    'b': 3 tokens, blocks [")
    assert of_a.startswith("    'a': 3 tokens, blocks [")
    assert "copies 1 agree, 1 differ" in compared
    assert "free blocks 2 agree, 1 differ" in compared


def test_an_error_of_an_allocator_that_nobody_judges_is_a_difference(tmp_path: Path) -> None:
    class ForgetsForks(load("paged-python").allocator):  # type: ignore[misc]
        def fork(self, parent: object, child: object) -> list[object]:
            raise LookupError(child)

    path = tmp_path / "h.jsonl"
    allocator = recorded(load("paged-python").allocator(4, 2), path)  # type: ignore[misc]
    allocator.allocate("a", [1])
    allocator.fork("a", "b")
    allocator.free("b")
    outcome = replay_history(open_history(path), ForgetsForks, judged=False)
    assert (outcome.num_operations, outcome.num_skipped) == (2, 1)
    assert outcome.difference == "line 3: fork('a', 'b') gave LookupError, the history has []"
    assert outcome.before == ["  3 of 4 blocks are free", "  'a': 1 tokens, blocks [0]"]


SCRIPT = """
import sys
from kvproof_impls import recorded

class Blocks:
    '''An allocator of somebody's own: it gives a block back although a fork still reads it.'''

    def __init__(self, num_blocks, block_size):
        self.num_blocks = self.pool_blocks = num_blocks
        self.block_size, self.free_list, self.tables, self.lengths = block_size, list(range(num_blocks)), {}, {}

    def allocate(self, seq, tokens, key=()):
        self.tables[seq], self.lengths[seq] = [], 0
        self.append(seq, tokens)
        return 0

    def append(self, seq, tokens):
        self.lengths[seq] += len(tokens)
        missing = -(-self.lengths[seq] // self.block_size) - len(self.tables[seq])
        if missing > len(self.free_list):
            raise MemoryError
        self.tables[seq] += [self.free_list.pop() for _ in range(missing)]
        return []

    def fork(self, parent, child):
        self.tables[child], self.lengths[child] = list(self.tables[parent]), self.lengths[parent]
        return []

    def free(self, seq):
        self.free_list += self.tables.pop(seq)

    def block_table(self, seq):
        return self.tables[seq]

    def num_free_blocks(self):
        return len(self.free_list)

    def can_allocate(self, num_tokens):
        return -(-num_tokens // self.block_size) <= len(self.free_list)

if __name__ == "__main__":
    allocator = recorded(Blocks(num_blocks=4, block_size=2), sys.argv[1])
    allocator.allocate("chat", [11, 12])
    allocator.fork("chat", "sample")
    allocator.free("chat")
    allocator.allocate("next", [21, 22, 23])
    raise SystemExit("the sample answers nonsense")
"""


def test_a_failure_in_an_engine_of_ones_own_is_a_failing_test_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_engine.py").write_text(SCRIPT, encoding="utf-8")
    path = tmp_path / "h.jsonl"
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "their_engine.py"), str(path)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == "the sample answers nonsense\n"
    monkeypatch.syspath_prepend(tmp_path)
    told = run(path, "--allocator=their_engine:Blocks")
    assert told.exit_code == cli.LAW_BROKEN
    assert told.output.startswith("their_engine:Blocks: line 4: free('chat') breaks A1: num_free_blocks() is 4; ")
    assert "before it\n  3 of 4 blocks are free\n  'chat': 2 tokens [11, 12], blocks [3]" in told.output
    assert run(path, "--allocator=paged-python").exit_code == cli.CONFORMS


def test_what_the_history_refused_and_another_policy_takes_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    allocator = recorded(load("contiguous-max").allocator(8, 2), path)  # type: ignore[misc]
    num_live = 0
    while allocator.can_allocate(1):
        allocator.allocate(num_live, [1])
        num_live += 1
    with pytest.raises(MemoryError):
        allocator.allocate("late", [1, 2])
    allocator.free(0)
    allocator.allocate("late", [1, 2])
    told = run(path, "--allocator=paged-python")
    assert told.exit_code == cli.CONFORMS
    assert told.output.startswith(f"paged-python: {num_live + 3} operations, every law held\n")
    assert f"refusals {num_live + 1} agree, 1 differ" in told.output


@pytest.mark.parametrize(
    ("torn", "num_operations"), [('{"op": "append", "seq": "a", "tokens": [9]', 2), ('{"op": "append", "se', 1)]
)
def test_a_torn_last_line_is_said_and_not_compared(torn: str, num_operations: int, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    recorded(load("paged-python").allocator(4, 2), path).allocate("a", [1])  # type: ignore[misc]
    with path.open("a", encoding="utf-8") as file:
        file.write(torn)
    told = run(path, "--allocator=paged-python")
    assert told.exit_code == cli.CONFORMS
    assert told.stderr == f"{path}:3: torn, the process that recorded it ended in this operation\n"
    assert told.stdout.startswith(f"paged-python: {num_operations} operations, every law held\n")
    assert "refusals 1 agree; hits 1 agree; free blocks 1 agree\n" in told.stdout


def test_a_torn_line_in_the_middle_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    recorded(load("paged-python").allocator(4, 2), path).allocate("a", [1])  # type: ignore[misc]
    with path.open("a", encoding="utf-8") as file:
        file.write('{"op": "append", "se\n{"op": "free", "seq": "a"}\n')
    told = run(path, "--allocator=paged-python")
    assert told.exit_code == cli.USAGE_ERROR
    assert f"{path}:3: no JSON: " in told.stderr


def test_a_long_history_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    head = '{"kvproof_history": 2, "num_blocks": 64, "block_size": 16}\n{"op": "allocate", "seq": 1, "tokens": [1]}\n'
    pair = '{"op": "append", "seq": 1, "tokens": [1, 2, 3, 4]}\n{"op": "truncate", "seq": 1, "num_tokens": 1}\n'
    path.write_text(head + pair * 8_000, encoding="utf-8")
    load("paged-python")
    tracemalloc.start()
    outcome = replay_history(open_history(path), load("paged-python").allocator, judged=False)  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (outcome.num_operations, outcome.num_skipped) == (16_001, 0)
    assert peak < path.stat().st_size / 2


def test_items_are_compared_and_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    allocator = recorded(load("paged-python").allocator(4, 2), path)  # type: ignore[misc]
    allocator.allocate("a", [7, 7, 1], (), [(0, 2, "image")])
    allocator.free("a")
    told = run(path, "--allocator=paged-python")
    assert told.exit_code == cli.USAGE_ERROR
    assert "the laws do not know items; compare without them, with --compare-only" in told.stderr
    assert "hits 1 agree" in run(path, "--allocator=paged-python", "--compare-only").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--compare-only"], "--compare-only goes with a history"),
        (["--record=nowhere/h.jsonl", "--limit=1"], "nowhere/h.jsonl: No such file or directory"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], said: str) -> None:
    told = run(*arguments)
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr
