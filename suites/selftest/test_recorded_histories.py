"""What an engine recorded is replayed on any allocator and compared: on the one that made it nothing differs."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvproof_impls import recorded
from kvproof_impls.built_in import BUILT_IN
from kvproof_impls.registry import load, unavailable
from kvproof_suites import cli
from kvproof_suites.histories import open_history
from kvproof_traces import Request, replay, write_native

LEAKS = "selftest.wrong.allocators:LeakOnFree"
ALLOCATORS = [name for name, entry in BUILT_IN.items() if entry.allocator and unavailable(name) is None]
SAME_POLICY = [name for name in ("paged", "paged-python") if name in ALLOCATORS]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["replay", *map(str, arguments)])


def traffic(shared: bool = True) -> list[Request]:
    """More than a small pool holds at once, with samples, forks, a client that goes away and, ``shared``, prompts."""
    made = []
    for index in range(10):
        num_prompt = 3 + index * 5 % 14
        first = index % 2 if shared else 10 * index
        hashes = (first, *(10 * index + block for block in range(1, -(-num_prompt // 4))))
        forks = ((2, 0, 1),) if index % 4 == 0 else ()
        abort = 3 if index == 5 else None
        more = {"num_samples": 2 if index % 3 == 2 else 1, "forks": forks, "abort_after": abort}
        made.append(Request(f"r{index}", 0.0, num_prompt, 6 + index % 3, hashes, 4, **more))
    return made


def recorded_replay(name: str, folder: Path, num_blocks: int = 20, shared: bool = True) -> Path:
    path = folder / f"{name}.jsonl"
    replay(traffic(shared), recorded(load(name).allocator(num_blocks, 4), path), max_num_seqs=8)  # type: ignore[misc]
    return path


def recorded_script(name: str, folder: Path, seed: int, num_operations: int = 120) -> Path:
    """Any operation on any sequence, refused ones among them."""
    path, draw = folder / f"{name}-{seed}.jsonl", random.Random(seed)
    allocator = recorded(load(name).allocator(9, 2), path)  # type: ignore[misc]
    live: dict[int, int] = {}
    swapped: set[int] = set()
    for number in range(num_operations):
        seq = draw.choice([*live, number])
        choices = ["append", "commit", "reserve", "truncate", "free", "preempt", "swap_out", "fork", "step", "swap_in"]
        choice = draw.choice(choices) if seq in live else "allocate"
        try:
            if choice == "allocate":
                tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 6))]
                allocator.allocate(seq, tokens, (("salt", draw.randrange(2)),))
                live[seq] = len(tokens)
            elif choice == "append":
                allocator.append(seq, [draw.randrange(2)])
                live[seq] += 1
            elif choice == "step":
                allocator.append_step(list(live), [draw.randrange(2) for _ in live])
                live = {seq: length + 1 for seq, length in live.items()}
                allocator.commit_step(list(live))
            elif choice == "fork":
                allocator.fork(seq, number)
                live[number] = live[seq]
            elif choice == "reserve":
                allocator.reserve(seq, draw.randrange(4))
            elif choice == "truncate":
                live[seq] = draw.randrange(live[seq] + 1)
                allocator.truncate(seq, live[seq])
            elif choice == "swap_in":
                if swapped:
                    allocator.swap_in(min(swapped))
                    live[min(swapped)] = 0
                    swapped.remove(min(swapped))
            else:
                getattr(allocator, choice)(seq)
                if choice == "swap_out":
                    swapped.add(seq)
                if choice != "commit":
                    del live[seq]
        except MemoryError:
            continue
    return path


@pytest.mark.parametrize("name", ALLOCATORS)
def test_on_the_allocator_that_made_it_nothing_differs(name: str, tmp_path: Path) -> None:
    path = recorded_replay(name, tmp_path)
    told = run(path, f"--allocator={name}", "--compare-only")
    assert told.exit_code == cli.CONFORMS, told.output
    num_operations = len(path.read_text(encoding="utf-8").splitlines()) - 1
    assert told.output.startswith(f"{name}: {num_operations} operations, not judged\n  compared: refusals ")
    assert f"free blocks {num_operations} agree" in told.output
    assert "differ" not in told.output


@pytest.mark.parametrize("name", SAME_POLICY)
def test_allocators_of_one_policy_agree_under_all_laws(name: str, tmp_path: Path) -> None:
    path = recorded_replay("paged-python", tmp_path)
    assert '"raised": "MemoryError"' in path.read_text(encoding="utf-8")
    told = run(path, f"--allocator={name}")
    assert told.exit_code == cli.CONFORMS, told.output
    assert re.search(
        r"every law held\n  compared: refusals \d+ agree; hits \d+ agree; free blocks \d+ agree", told.output
    )


def test_the_oracle_agrees_where_no_block_is_computed_twice(tmp_path: Path) -> None:
    # Of two equal blocks it keeps one when they are committed, which ours does not.
    path = recorded_replay("paged-python", tmp_path, shared=False)
    told = run(path, "--allocator=reference")
    assert told.exit_code == cli.CONFORMS, told.output
    assert "differ" not in told.output


@pytest.mark.parametrize("maker", ["paged-python", "paged"])
@pytest.mark.parametrize("seed", range(6))
def test_every_operation_is_recorded_and_repeated(maker: str, seed: int, tmp_path: Path) -> None:
    if maker not in ALLOCATORS:
        pytest.skip(f"{maker} is unavailable: {unavailable(maker)}")
    path = recorded_script(maker, tmp_path, seed)
    told = run(path, f"--allocator={maker}")
    assert told.exit_code == cli.CONFORMS, told.output
    assert "every law held\n  compared: refusals" in told.output
    assert "differ" not in told.output


def test_the_scripts_hold_every_operation(tmp_path: Path) -> None:
    paths = [recorded_script("paged-python", tmp_path, seed) for seed in range(6)]
    seen = {json.loads(line).get("op") for path in paths for line in path.read_text(encoding="utf-8").splitlines()}
    single = {"allocate", "append", "commit", "fork", "free", "preempt", "reserve", "swap_in", "swap_out", "truncate"}
    assert seen == {None, "append_step", "commit_step", *single}


def test_a_block_that_a_wrong_allocator_loses_is_the_first_difference(tmp_path: Path) -> None:
    path = recorded_replay("paged-python", tmp_path, num_blocks=60)
    lines = path.read_text(encoding="utf-8").splitlines()
    told = run(path, f"--allocator={LEAKS}", "--compare-only")
    first_free = next(number for number, line in enumerate(lines, 1) if '"op": "free"' in line)
    assert re.search(
        rf"first difference: line {first_free}: free\(.*\) left \d+ free blocks, the history has", told.output
    )


def test_the_laws_judge_what_an_engine_recorded(tmp_path: Path) -> None:
    path = recorded_replay("textbook", tmp_path, num_blocks=60)
    told = run(path, "--allocator=textbook")
    assert told.exit_code == cli.LAW_BROKEN
    assert re.match(r"textbook: line \d+: append\(.*\) breaks C1: writing position ", told.output)
    assert "differ" not in told.output


def test_a_replay_writes_the_history_of_its_first_allocator(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.jsonl", tmp_path / "h.jsonl"
    write_native(trace, traffic())
    told = run(trace, "--impl=paged-python,reference", "--num-blocks=40", "--block-size=4", f"--record={path}")
    assert told.exit_code == cli.CONFORMS, told.output
    assert told.stderr.endswith(f"wrote what paged-python was asked and answered to {path}\n")
    assert open_history(path).num_blocks == 40
    assert "differ" not in run(path, "--allocator=paged-python", "--compare-only").output
