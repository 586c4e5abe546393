"""The compiled allocator and the plain Python one agree, step by step, on any history: tables, copies, hits, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

pytest.importorskip("numba")

from kvproof_impls import paged, paged_python

KEYS = ((), ("tenant",), (1,), (True,))
ITEMS = ((), ((0, 2, "cat"),), ((0, 2, "dog"),), ((1, 3, "cat"),))
ERRORS = (KeyError, MemoryError, ValueError)

picks = st.integers(0, 9)
texts = st.lists(st.integers(0, 1), max_size=9)


class Agreement(RuleBasedStateMachine):
    """Every rule does one thing to both and compares all that can be seen; ids that are not live are asked for too."""

    @initialize(num_blocks=st.integers(1, 12), block_size=st.sampled_from((1, 2, 3)), data=st.data())
    def start(self, num_blocks: int, block_size: int, data: Any) -> None:
        options: dict[str, Any] = {
            "eviction": data.draw(st.sampled_from(paged_python.EVICTION)),
            "watermark": data.draw(st.sampled_from((0.0, 0.0, 0.3))),
        }
        kind, window = "PagedAllocator", data.draw(st.sampled_from((0, 0, 0, 1, 4)))
        if window:
            kind, options = "WindowedAllocator", {**options, "window": window}
        self.compiled = getattr(paged, kind)(num_blocks, block_size, max_num_seqs=1, max_model_len=1, **options)
        self.plain = getattr(paged_python, kind)(num_blocks, block_size, **options)
        self.live: list[int] = []
        self.last = 0

    def ask(self, method: str, *args: Any) -> Any:
        """What both answer, or the type of the error that both raise."""
        answers = [answer(getattr(allocator, method), *args) for allocator in (self.compiled, self.plain)]
        given = [seen(one) for one in answers]
        assert given[0] == given[1], f"{method}{args}: compiled {given[0]}, plain {given[1]}"
        assert self.compiled.num_free_blocks() == self.plain.num_free_blocks(), method
        assert self.compiled.counters == self.plain.counters, method
        assert self.compiled.num_evicted_blocks == self.plain.num_evicted_blocks, method
        if hasattr(answers[0], "block_tables"):
            self.compare_tables(*(one.block_tables.tolist() for one in answers), args[0])
        for seq in self.live:
            assert seen(answer(self.compiled.block_table, seq)) == seen(answer(self.plain.block_table, seq)), method
        return given[0]

    def compare_tables(self, compiled: list[list[int]], plain: list[list[int]], seqs: list[int]) -> None:
        """Of each row its own blocks; what lies past them may be anything, and is 0 here."""
        for row, seq in enumerate(seqs):
            num_blocks = len(self.plain.block_table(seq))
            assert compiled[row][:num_blocks] == plain[row][:num_blocks]
            assert not any(compiled[row][num_blocks:])

    def pick(self, choice: int) -> int:
        return self.live[choice % len(self.live)] if self.live else 0

    def can(self, method: str) -> bool:
        return callable(getattr(self.plain, method))

    @rule(text=texts, key=st.sampled_from(KEYS), items=st.sampled_from(ITEMS), commits=st.booleans())
    def allocate(self, text: list[int], key: tuple[Any, ...], items: tuple[Any, ...], commits: bool) -> None:
        self.last += 1
        if not isinstance(self.ask("allocate", self.last, text, key, items), type):
            self.live.append(self.last)
            if commits:
                self.ask("commit", self.last)

    @rule(choice=picks, text=texts)
    def come_back(self, choice: int, text: list[int]) -> None:
        self.ask("allocate", self.pick(choice), text)

    @rule(choice=picks, text=texts, commits=st.booleans())
    def append(self, choice: int, text: list[int], commits: bool) -> None:
        self.ask("append", self.pick(choice), text)
        if commits:
            self.ask("commit", self.pick(choice))

    @rule(rows=st.lists(picks, max_size=4), token=st.integers(0, 1), commits=st.booleans())
    def append_step(self, rows: list[int], token: int, commits: bool) -> None:
        seqs = [self.pick(row) for row in rows]
        self.ask("append_step", seqs, [token] * len(seqs))
        if commits:
            self.ask("commit_step", seqs)

    @rule(choice=picks, method=st.sampled_from(("free", "free", "preempt", "commit")))
    def end(self, choice: int, method: str) -> None:
        self.ask(method, self.pick(choice))

    @rule(choice=picks)
    def fork(self, choice: int) -> None:
        self.last += 1
        if not isinstance(self.ask("fork", self.pick(choice), self.last), type):
            self.live.append(self.last)

    @rule(choice=picks, num_tokens=st.integers(-1, 8))
    def reserve(self, choice: int, num_tokens: int) -> None:
        self.ask("reserve", self.pick(choice), num_tokens)

    @precondition(lambda self: self.can("truncate"))
    @rule(choice=picks, num_tokens=st.integers(-1, 8))
    def truncate(self, choice: int, num_tokens: int) -> None:
        self.ask("truncate", self.pick(choice), num_tokens)

    @precondition(lambda self: self.can("swap_out"))
    @rule(choice=picks, method=st.sampled_from(("swap_out", "swap_in")))
    def swap(self, choice: int, method: str) -> None:
        self.ask(method, self.pick(choice))

    @rule(text=texts, key=st.sampled_from(KEYS), items=st.sampled_from(ITEMS))
    def look_up(self, text: list[int], key: tuple[Any, ...], items: tuple[Any, ...]) -> None:
        self.ask("cached_prefix", text, key, items)
        self.ask("can_allocate", len(text))

    @rule(choice=picks, key=st.sampled_from(KEYS), items=st.sampled_from(ITEMS))
    def look_up_what_a_sequence_holds(self, choice: int, key: tuple[Any, ...], items: tuple[Any, ...]) -> None:
        state = self.plain._sequences.get(self.pick(choice))
        text = [token[0] if isinstance(token, tuple) else token for token in state.tokens] if state else []
        self.ask("cached_prefix", [*text, 0], key, items)

    @precondition(lambda self: self.last % 5 == 4)
    @rule()
    def reset_prefix_cache(self) -> None:
        self.ask("reset_prefix_cache")


def answer(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except ERRORS as error:
        return type(error)


def seen(given: Any) -> Any:
    """An answer as plain data. The tables of a step are left to ``step_tables``, which knows how long they are."""
    if isinstance(given, list | tuple):
        return [tuple(pair) if isinstance(pair, list) else pair for pair in given]
    if not hasattr(given, "slot_mapping"):
        return given
    tensors = (given.slot_mapping, given.context_lens, given.query_start)
    host = (list(given.context_lens_host), list(given.copies), given.common_prefix_blocks)
    return [*(tensor.tolist() for tensor in tensors), *host]


def test_any_history_gives_the_same_answers() -> None:
    run_state_machine_as_test(
        Agreement,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
