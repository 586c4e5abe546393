"""Tags stand for keys and values: equal exactly where those would be, and as cheap for a long prompt as for a short."""

from __future__ import annotations

import gc

from kvproof_suites.allocator import shadow
from kvproof_suites.allocator.shadow import ShadowPool, tags_of


def test_tags_are_equal_where_token_all_before_it_key_and_epoch_are():
    ours, same = (tags_of(("adapter",), 1, [5, 6, 7]) for _ in range(2))
    assert ours == same
    assert all(one.prefix is other.prefix for one, other in zip(ours, same, strict=True))
    others = (tags_of((), 1, [5, 6, 7]), tags_of(("adapter",), 0, [5, 6, 7]), tags_of(("adapter",), 1, [4, 6, 7]))
    for other in others:
        assert not set(ours) & set(other)


def test_what_is_appended_goes_on_where_the_prompt_ended():
    prompt = tags_of((), 0, [5, 6])
    assert [*prompt, *tags_of((), 0, [7], prompt[-1].prefix)] == tags_of((), 0, [5, 6, 7])
    assert tags_of((), 0, [5, 6, 7])[-1].prefix.tokens() == (5, 6, 7)
    assert str(tags_of((), 0, [5, 6, 7])[-1]) == "token 7 at position 2 of [5, 6, 7]"


def test_a_prefix_of_a_hundred_thousand_tokens_is_let_go_with_its_last_tag():
    gc.collect()
    before = len(shadow._PREFIXES)
    tags = tags_of((), 0, range(100_000))
    assert len(shadow._PREFIXES) == before + 100_000
    del tags
    assert len(shadow._PREFIXES) == before


def test_a_tag_is_missing_once_no_slot_holds_it():
    pool, (first, second) = ShadowPool(1, 4), tags_of((), 0, [5, 6])
    for offset in (0, 1):
        pool.write(0, offset, first)
    assert pool.missing([first, second]) == [second]
    pool.write(0, 0, second)
    assert pool.missing([first, second]) == []
    pool.write(0, 1, None)
    assert pool.missing([first, second]) == [first]
