"""Points are named by the grammar that vLLM's benchmark uses, and a slip of the pen is told."""

import re

import pytest

from kvproof_suites.bench.points import parse_point


@pytest.mark.parametrize(
    ("text", "seqs", "kind"),
    [
        ("8q1s1k", ((1024, 1),) * 8, "decode"),
        ("q1s2k", ((2048, 1),), "decode"),
        ("q2k", ((2048, 2048),), "prefill"),
        ("4q512s8k", ((8192, 512),) * 4, "prefill"),
        ("16q4s1k", ((1024, 4),) * 16, "prefill"),
        ("q1ks2k", ((2048, 1024),), "prefill"),
        ("2q2k_3q1s1k", ((2048, 2048),) * 2 + ((1024, 1),) * 3, "mixed"),
        (" q8190 ", ((8190, 8190),), "prefill"),
    ],
)
def test_groups_are_counts_of_query_and_context(text, seqs, kind):
    point = parse_point(text)
    assert (point.seqs, point.kind) == (seqs, kind)
    assert point.num_tokens == sum(query_len for _, query_len in seqs)


@pytest.mark.parametrize(
    ("text", "name"),
    [("8q1s1024", "8q1s1k"), ("1q2k", "q2k"), ("q2048s2k", "q2k"), ("q1s1k_q1s1k", "2q1s1k"), ("3q5s1500", "3q5s1500")],
)
def test_one_batch_has_one_name(text, name):
    assert str(parse_point(text)) == name
    assert parse_point(name) == parse_point(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("8s1k", "'8s1k' is not <count>q<query>s<context>, such as 8q1s1k"),
        ("2q2k_8x", "'8x' in '2q2k_8x' is not"),
        ("", "'' is not"),
        ("q1s1m", "'q1s1m' is not"),
        ("8q2ks1k", "a query of 2,048 tokens exceeds the context of 1,024"),
        ("0q1s1k", "0 sequences; give 1 to 65,536"),
        ("q0s8", "a query of 0 tokens"),
    ],
)
def test_what_is_no_point_is_refused_with_an_example(text, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_point(text)
