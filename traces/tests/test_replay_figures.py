"""The figures of a replay, as an engine had them that walked through every sequence in every step and called the
allocator for each: however few calls a step makes now, they stay what they were."""

from __future__ import annotations

import sys
import zlib
from dataclasses import astuple, fields

import pytest

from kvproof_traces import Replay, Request, replay

NOT_COMPARED = {"allocator_seconds", "churned", "admission"}


def requests(seed, num_requests=60):
    """Prompts that share beginnings, samples, forks that replace a branch, clients that go away, one at once."""
    state = seed

    def draw(below):
        nonlocal state
        state = (state * 1103515245 + 12345) % 2**31
        return (state >> 8) % below

    made = []
    for index in range(num_requests):
        num_prompt, num_output = 1 + draw(90), 2 + draw(30)
        hashes = [draw(3), *(100 + index * 20 + block for block in range(1, -(-num_prompt // 16)))]
        samples = (1, 1, 1, 2, 3)[draw(5)]
        forks = ((draw(num_output), 0, samples), (num_output - 1, samples, 0)) if draw(4) == 0 else ()
        abort = (0, num_output // 2, None, None, None, None)[draw(6)]
        shared = {"hash_ids": tuple(hashes), "hash_block_size": 16} if draw(2) else {}
        more = {"num_samples": samples, "forks": forks, "abort_after": abort, **shared}
        made.append(Request(f"r{index}", float(index * 7), num_prompt, num_output, **more))
    return made


def figures(result):
    """The numbers, and a checksum of the tables left behind."""
    numbers = {f.name: getattr(result, f.name) for f in fields(Replay) if f.name not in NOT_COMPARED}
    told = [f"{value:.8g}" if isinstance(value, float) else str(value) for value in numbers.values()]
    return " ".join(told), zlib.crc32(repr(astuple(result.churned)).encode())


GOLDEN = {
    ("paged", 1, 300, 4, None): ("38 22 0 60 0 24 18.85 0.04074301 0.58927778 0 2796 1107 0 38 0", 838463323),
    ("paged", 2, 40, 4, None): ("41 19 0 454 57 8 3.1806167 0.040290551 0.75451542 0 2431 1432 3078 102 0", 334559122),
    ("paged", 3, 48, 4, 20.0): ("52 8 0 409 57 10 4.3496333 0.041950889 0.81178688 0 2401 1769 2561 109 0", 3473666637),
    ("paged", 4, 20, 8, None): ("39 20 1 489 60 6 2.5214724 0.074648074 0.73885481 0 3030 1217 3385 73 0", 418120074),
    ("paged", 5, 130, 1, None): ("38 19 3 432 32 8 2.5208333 0 0.70206553 0 2526 1077 1784 0 0", 1281140515),
    ("contiguous", 1, 300, 4, None): ("38 22 0 290 31 5 3.9 0.76969564 0.78 0 2796 1107 754 0 0", 4271796539),
    ("contiguous", 2, 180, 4, None): (
        "37 19 4 519 27 3 2.4662813 0.77912117 0.82209377 0 2431 1268 1163 0 0",
        3396519827,
    ),
    ("contiguous", 3, 180, 4, 20.0): ("46 8 6 620 22 3 2.4564516 0.77573701 0.8188172 0 2401 1513 672 0 0", 578091353),
    ("contiguous", 4, 90, 8, None): (
        "39 20 1 474 16 3 2.6540084 0.73361756 0.88466948 0 3030 1242 719 0 0",
        1209005228,
    ),
    ("contiguous", 5, 720, 1, None): (
        "39 19 2 456 55 3 2.3925439 0.77933875 0.79751462 0 2526 1079 2506 0 0",
        2176569728,
    ),
    ("prefix_caching", 1, 300, 4, None): (
        "38 22 0 67 8 23 16.880597 0.027126726 0.80159204 0.13018598 2796 1107 447 0 0",
        2614128191,
    ),
    ("prefix_caching", 2, 40, 4, None): (
        "30 18 12 469 56 6 2.2558635 0.034604434 0.68853945 0.17605301 2113 1049 1994 0 0",
        1395782420,
    ),
    ("prefix_caching", 3, 48, 4, 20.0): (
        "42 8 10 443 48 9 3.0090293 0.034491187 0.72173627 0.18397345 2109 1323 1915 0 0",
        1762647744,
    ),
    ("prefix_caching", 4, 20, 8, None): (
        "29 19 12 402 40 5 2.0597015 0.064937402 0.70323383 0.14351145 2620 815 2596 0 0",
        2228846424,
    ),
    ("prefix_caching", 5, 130, 1, None): (
        "31 17 12 393 25 7 1.9185751 0 0.62295948 0.18702866 1989 747 803 0 0",
        3445005460,
    ),
    ("leaky", 1, 300, 4, None): ("38 22 0 60 0 24 18.85 0.04074301 0.58927778 0 2796 1107 0 38 46", 303657656),
    ("leaky", 2, 40, 4, None): ("22 15 23 365 28 8 2.2383562 0.04705644 0.48972603 0 1825 806 1019 39 34", 1920014720),
    ("leaky", 3, 48, 4, 20.0): ("23 6 31 351 35 9 2.7606838 0.05622936 0.45216049 0 1309 963 1408 55 42", 1532226185),
    ("leaky", 4, 20, 8, None): ("13 11 36 235 24 5 1.6723404 0.10034718 0.43361702 0 1416 383 890 14 19", 2502152045),
    ("leaky", 5, 130, 1, None): ("36 19 5 454 22 7 2.0969163 0 0.5605388 0 2526 940 622 0 48", 617380511),
}


@pytest.mark.parametrize(("kind", "seed", "num_blocks", "block_size", "step_ms"), GOLDEN)
def test_the_figures_are_those_of_an_engine_that_visits_every_sequence(
    kind, seed, num_blocks, block_size, step_ms, request
):
    allocator = request.getfixturevalue(kind)(num_blocks, block_size)
    result = replay(requests(seed), allocator, max_num_seqs=24, step_ms=step_ms)
    assert figures(result) == GOLDEN[kind, seed, num_blocks, block_size, step_ms]


def test_the_figures_hold_preemptions_copies_hits_and_leaks():
    names = [f.name for f in fields(Replay) if f.name not in NOT_COMPARED]
    columns = dict(
        zip(names, zip(*(map(float, told.split()) for told, _ in GOLDEN.values()), strict=True), strict=True)
    )
    for name in ("num_aborted", "num_preemptions", "prefix_hit_rate", "num_block_copies", "num_leaked_blocks"):
        assert any(columns[name]), name


@pytest.mark.parametrize("num_blocks", [30, 45, 300])
@pytest.mark.parametrize("seed", range(6))
def test_one_call_a_step_gives_the_figures_of_a_call_a_sequence(stepped, paged, seed, num_blocks):
    one_by_one, at_once = (replay(requests(seed), kind(num_blocks, 4), max_num_seqs=24) for kind in (paged, stepped))
    assert figures(at_once)[0] == figures(one_by_one)[0]
    assert at_once.context_lens == one_by_one.context_lens
    assert renamed(at_once.block_tables) == renamed(one_by_one.block_tables)


def renamed(tables):
    """The same sharing, whatever the blocks are called."""
    names = {}
    return [[names.setdefault(block, len(names)) for block in table] for table in tables]


def test_one_call_a_step_appends_the_tokens_that_single_calls_append(stepped, paged):
    class Remembering:
        def free(self, seq):
            self.last = {**getattr(self, "last", {}), seq: list(self.tokens[seq])}
            super().free(seq)

    one_by_one = type("OneByOne", (Remembering, paged), {})(45, 4)
    at_once = type("AtOnce", (Remembering, stepped), {})(45, 4)
    assert replay(requests(1), one_by_one, max_num_seqs=24).num_preemptions > 0
    replay(requests(1), at_once, max_num_seqs=24)
    assert shape(at_once.last) == shape(one_by_one.last)


def shape(histories):
    """Length and number of distinct tokens of each sequence, and how much of it its request's first branch shares."""
    return {
        seq: (len(tokens), len(set(tokens)), len(set(tokens) & set(histories[seq[0], 0])))
        for seq, tokens in histories.items()
    }


@pytest.mark.parametrize("kind", ["stepped", "paged"])
def test_what_a_step_costs_the_engine_does_not_grow_with_what_runs(kind, request):
    allocator = request.getfixturevalue(kind)

    def num_calls(num_requests, num_steps):
        """Of Python functions in the engine's own files."""
        counted = 0

        def count(frame, event, _):
            nonlocal counted
            counted += event == "call" and "kvproof_traces" in frame.f_code.co_filename

        crowd = [Request(f"r{index}", 0.0, 5 + index % 8, num_steps) for index in range(num_requests)]
        sys.setprofile(count)
        replay(crowd, allocator(4_000, 8), watermark=0)
        sys.setprofile(None)
        return counted

    for_few, for_many = (num_calls(num, 60) - num_calls(num, 40) for num in (4, 64))
    assert 0 < for_few == for_many
