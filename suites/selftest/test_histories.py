"""A failed allocator law leaves its operations: as code to read, and as lines that any allocator can be put through."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvproof_impls.registry import load
from kvproof_reports.records import read_run
from kvproof_suites import cli
from kvproof_suites.allocator.driver import Driver
from kvproof_suites.allocator.history import History, Operation
from kvproof_suites.allocator.probes import violate
from kvproof_suites.histories import Source, open_history, read_history
from kvproof_suites.history_replay import replay_history
from kvproof_suites.laws import LAWS
from kvproof_suites.outcome import LawBroken

SKIPS_COPIES = "selftest.wrong.copy_on_write:SkipCopyOnWrite"
LEAKS = "selftest.wrong.allocators:LeakOnFree"
HEAD = '{"kvproof_history": 1, "num_blocks": 4, "block_size": 2}'


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Implementation to the story of its failure, from one run over two wrong allocators."""
    folder = tmp_path_factory.mktemp("user")
    chosen = "(SkipCopyOnWrite and any_program and C1-at) or (LeakOnFree and same_step)"
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvproof_suites.allocator", "-q", "-p", "no:cacheprovider"]
    command += [f"--impl={SKIPS_COPIES},{LEAKS}", "--isolate=no", "-k", chosen, f"--results={folder / 'judged'}"]
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return {law["implementation"]: law["reason"] for law in read_run(folder / "judged").latest("law")}


def replay(path: object, *allocators: str, more: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(cli.main, ["replay", str(path), f"--allocator={','.join(allocators)}", *more])


def kept(history: History, folder: Path) -> Source:
    path = folder / "kept.jsonl"
    path.write_text(history.text(), encoding="utf-8")
    return open_history(path)


def path_in(story: str) -> str:
    return story.partition("history: ")[2].partition("\n")[0]


def test_the_story_is_the_shortest_program_as_code_and_nothing_of_ours(judged: dict[str, str]) -> None:
    story = judged[SKIPS_COPIES]
    program = [line.strip() for line in story.splitlines() if line.strip().startswith("allocator")]
    assert program[0].startswith("allocator = SkipCopyOnWrite(")
    calls = [line.partition("(")[0].removeprefix("allocator.") for line in program[1:]]
    assert calls == ["allocate", "fork", "append", "append"], program
    assert "Driver" not in story
    assert "hypothesis" not in story.lower()


def test_the_history_breaks_the_same_law_again_and_tells_the_state_before_it(judged: dict[str, str]) -> None:
    told = replay(path_in(judged[SKIPS_COPIES]), SKIPS_COPIES)
    assert told.exit_code == cli.LAW_BROKEN, told.output
    first, *rest = told.output.splitlines()
    assert first.startswith(f"{SKIPS_COPIES}: line 5: append")
    assert "breaks C1: " in first
    assert rest[0] == "before it"
    assert "blocks are free" in rest[1]
    assert "tokens [" in rest[2]


def test_a_right_allocator_passes_the_history_and_differs_where_it_copies(judged: dict[str, str]) -> None:
    told = replay(path_in(judged[SKIPS_COPIES]), "paged")
    assert told.exit_code == cli.CONFORMS, told.output
    assert told.output.startswith("paged: 4 operations, every law held\n  first difference: line 4: append")


def test_a_failed_assertion_of_a_test_leaves_its_operations_too(judged: dict[str, str]) -> None:
    path = path_in(judged[LEAKS])
    assert read_history(Path(path)).operations[-1].name == "free"
    assert replay(path, LEAKS).exit_code == cli.LAW_BROKEN
    assert replay(path, "paged").exit_code == cli.CONFORMS


def test_a_history_reads_back_as_it_was_written(tmp_path: Path) -> None:
    history = History(4, 2, late=True, law="E5")
    history.add("allocate", (("a", 1), [1, 2], ("salt",))).returned = 0
    history.add("fork", (("a", 1), 7)).returned = [(0, 1)]
    history.add("append", (7, [3])).raised = "MemoryError"
    history.add("reset_prefix_cache", ())
    history.add("truncate", ("ghost", -1), must_raise="KeyError")
    path = tmp_path / "h.jsonl"
    path.write_text(history.text(), encoding="utf-8")
    again = read_history(path)
    assert again.text() == history.text()
    assert [op.args for op in again.operations] == [op.args for op in history.operations]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "one step late"])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_right_allocator_did_no_right_allocator_breaks(seed: int, late: bool, tmp_path: Path) -> None:
    history = random_history(random.Random(seed), late)
    path = tmp_path / "h.jsonl"
    path.write_text(history.text(), encoding="utf-8")
    told = replay(path, "paged", "reference")
    assert told.exit_code == cli.CONFORMS, told.output
    assert f"paged: {len(history.operations)} operations, every law held\n" in told.output
    assert "differ" not in told.output.partition("reference: ")[0]


def random_history(draw: random.Random, late: bool) -> History:
    """What our allocator made of a random program, forbidden calls among it."""
    driver = Driver(load("paged").allocator(6, 2), LAWS, late)  # type: ignore[misc]
    for number in range(30):
        live = list(driver.live)
        choice = draw.choice(["allocate", "append", "append", "fork", "commit", "truncate", "free", "violate"])
        try:
            if choice == "allocate" or not live:
                driver.allocate(number, [draw.randrange(2) for _ in range(draw.randrange(6))])
            elif choice == "append":
                driver.append(draw.choice(live), [draw.randrange(2)])
            elif choice == "fork":
                driver.fork(draw.choice(live), number)
            elif choice == "truncate":
                driver.truncate(live[0], len(driver.live[live[0]].tags) // 2)
            elif choice == "violate":
                violate(driver, live[0])
            else:
                getattr(driver, choice)(draw.choice(live))
        except MemoryError:
            continue
    return driver.history


def test_a_call_that_must_be_refused_and_is_not_breaks_e5(tmp_path: Path) -> None:
    class TakesAnyId(load("paged").allocator):  # type: ignore[misc]
        def free(self, seq: object) -> None:
            if seq != "ghost":
                super().free(seq)

    history = History(4, 2, operations=[Operation("free", ("ghost",), must_raise="KeyError")])
    source = kept(history, tmp_path)
    assert (broken := replay_history(source, TakesAnyId).broken) is not None
    assert broken.startswith("line 2: free('ghost') breaks E5: free('ghost') must raise KeyError; it succeeded")
    assert replay_history(source, load("paged").allocator).broken is None  # type: ignore[arg-type]


def test_operations_on_a_sequence_that_found_no_room_are_passed_over(tmp_path: Path) -> None:
    history = History(2, 2)
    history.add("allocate", ("a", [1] * 5))
    history.add("append", ("a", [1]))
    outcome = replay_history(kept(history, tmp_path), load("paged").allocator)  # type: ignore[arg-type]
    assert (outcome.num_operations, outcome.num_skipped, outcome.broken) == (1, 1, None)
    assert outcome.difference == "line 2: allocate('a', [1, 1, 1, 1, 1]) gave MemoryError, the history has None"


def test_of_refused_calls_only_the_last_is_shown_as_code() -> None:
    driver = Driver(load("paged").allocator(4, 2), {"E5"})  # type: ignore[misc]
    driver.allocate("a", [1])
    violate(driver, "a")
    with pytest.raises(LawBroken) as broken:
        driver.report("E5", "a fault")
    assert str(broken.value).count("# must raise") == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([HEAD.replace("1", "9", 1)], ":1: kvproof_history: is 9; this kvproof reads versions 1, 2"),
        ([HEAD.replace("4", "0", 1)], ":1: num_blocks: is 0; it must be an integer from 1 on"),
        ([HEAD, '{"op": "append", "seq": "a", "tokens": [1]', ""], ":2: no JSON: "),
        ([HEAD, "[1]"], ":2: [1] is no JSON object"),
        ([HEAD, '{"op": "grow", "seq": "a"}'], ":2: op: is 'grow'; known: allocate, append, "),
        ([HEAD, '{"op": "free"}'], ":2: seq: is missing; free needs it"),
        ([HEAD, "", '{"op": "append", "seq": "a", "tokens": [1.5]}'], ":3: tokens: is [1.5]; it must be a list of int"),
        ([HEAD, '{"op": "reserve", "seq": "a", "num_tokens": true}'], ":2: num_tokens: is True; it must be an integer"),
        ([HEAD, '{"op": "free", "seq": "a", "sequence": "b"}'], ":2: sequence: is no field of free; known: seq"),
        ([HEAD, '{"op": "free", "seq": "a", "must_raise": "OSError"}'], ":2: must_raise: is 'OSError'; known: "),
        (
            [HEAD, '{"op": "free", "seq": {"id": 1}}'],
            ":2: seq: is {'id': 1}; ids and keys are strings",
        ),
        ([HEAD, '{"op": "append_step", "seqs": [[{}]], "tokens": [1]}'], ":2: seqs: is [[{}]]; ids and keys are"),
        ([HEAD, '{"op": "append_step", "seqs": 3, "tokens": [1]}'], ":2: seqs: is 3; it must be a list"),
        ([HEAD, '{"op": "free", "seq": "a", "free": -1}'], ":2: free: is -1; it must be an integer from 0 on"),
        ([HEAD, '{"op": "free", "seq": "a", "raised": 1}'], ":2: raised: is 1; it must be the name of an error"),
        (
            [HEAD, '{"op": "append", "seq": 1, "tokens": [], "returned": [[1]]}'],
            ":2: returned: is [[1]]; it must be",
        ),
        (
            [HEAD, '{"op": "append", "seq": 1, "tokens": [], "returned": {"slots": 1}}'],
            ":2: returned: is {'sl",
        ),
        ([HEAD, "[" * 100_000, ""], ":2: no "),
        ([HEAD, f'{{"op": "free", "seq": {"[" * 50_000}1{"]" * 50_000}}}', ""], ":2: no history: lists in lists"),
    ],
)
def test_a_fault_of_a_history_is_told_as_file_line_and_field(tmp_path: Path, lines: list[str], said: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    told = replay(path, "paged")
    assert told.exit_code == cli.USAGE_ERROR
    assert f"{path}{said}" in told.stderr


def test_an_allocator_without_a_capability_that_is_needed_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(f"{HEAD}\n{json.dumps({'op': 'fork', 'parent': 'a', 'child': 'b'})}\n", encoding="utf-8")
    told = replay(path, "contiguous-max")
    assert told.exit_code == cli.USAGE_ERROR
    assert "contiguous-max: the history uses fork, which this allocator does not have" in told.stderr


def test_an_allocator_that_the_laws_cannot_question_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "class Short:\n"
        "    def __init__(self, num_blocks, block_size):\n"
        "        self.num_blocks, self.block_size = num_blocks, block_size\n"
        "factory = lambda: {'allocator': Short}\n"
    )
    (tmp_path / "short_blocks.py").write_text(source)
    (tmp_path / "h.jsonl").write_text(HEAD + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = replay(tmp_path / "h.jsonl", "short_blocks:factory")
    assert told.exit_code == cli.USAGE_ERROR
    assert "short_blocks:factory: has no pool_blocks, block_table, num_free_blocks, can_allocate, which" in told.stderr


def test_an_option_of_traces_does_not_go_with_a_history(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(f"{HEAD}\n", encoding="utf-8")
    told = replay(path, "paged", more=("--block-size=8",))
    assert told.exit_code == cli.USAGE_ERROR
    assert "is a history, which has no use for --block-size" in told.stderr
