"""Points of a benchmark, by the grammar of vLLM's: which sequences one launch serves.

A point is a list of groups joined by ``_``. A group is ``<count>q<query>s<context>``: so many sequences, each with so
many new tokens and so many tokens in all, the new ones included. The count may be left out (1), and so may the context
(a whole prompt). ``k`` multiplies by 1,024.

    8q1s1k          8 sequences decode one token over 1,024
    q2k             one prompt of 2,048 tokens
    2q2k_32q1s1k    two prompts beside 32 sequences that decode
    4q512s8k        four chunks of 512 tokens at the end of 8,192
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

GROUP = re.compile(r"(?P<count>\d+)?q(?P<query>\d+k?)(?:s(?P<context>\d+k?))?")
EXAMPLES = "such as 8q1s1k (8 sequences of query 1 over 1,024 tokens), q2k (a prompt), 2q2k_32q1s1k (both kinds)"
MOST_SEQS = 65_536


@dataclass(frozen=True)
class Point:
    """One launch's sequences, by name."""

    seqs: tuple[tuple[int, int], ...]
    """(context length, query length) of each; the query is the last part of the context."""

    @property
    def kind(self) -> str:
        """decode: one new token each; prefill: several each; mixed: both."""
        decoding = [query_len == 1 for _, query_len in self.seqs]
        return "decode" if all(decoding) else "mixed" if any(decoding) else "prefill"

    @property
    def context_lens(self) -> tuple[int, ...]:
        return tuple(context_len for context_len, _ in self.seqs)

    @property
    def query_lens(self) -> tuple[int, ...]:
        return tuple(query_len for _, query_len in self.seqs)

    @property
    def num_tokens(self) -> int:
        """Query rows in all."""
        return sum(self.query_lens)

    def __str__(self) -> str:
        """The shortest name: equal points are called alike, however they were written."""
        return "_".join(_name(*seq, len(list(group))) for seq, group in groupby(self.seqs))


def parse_point(text: str) -> Point:
    """The point called ``text``.

    Raises:
        ValueError: naming the group that is no group, has no sequence, or has more queries than context.
    """
    return Point(tuple(seq for group in text.strip().split("_") for seq in _group(group, text)))


def _group(group: str, text: str) -> list[tuple[int, int]]:
    found = GROUP.fullmatch(group)
    if found is None:
        where = "" if group == text else f" in {text!r}"
        raise ValueError(f"{group!r}{where} is not <count>q<query>s<context>, {EXAMPLES}")
    count, query_len = int(found["count"] or 1), _size(found["query"])
    context_len = _size(found["context"]) if found["context"] else query_len
    if not 1 <= count <= MOST_SEQS:
        raise ValueError(f"{group!r}: {count} sequences; give 1 to {MOST_SEQS:,}")
    if query_len < 1:
        raise ValueError(f"{group!r}: a query of 0 tokens computes nothing; give at least 1")
    if query_len > context_len:
        raise ValueError(
            f"{group!r}: a query of {query_len:,} tokens exceeds the context of {context_len:,}, which includes it"
        )
    return [(context_len, query_len)] * count


def _size(digits: str) -> int:
    return 1024 * int(digits[:-1]) if digits.endswith("k") else int(digits)


def _name(context_len: int, query_len: int, count: int) -> str:
    context = "" if context_len == query_len else f"s{_short(context_len)}"
    return f"{count if count > 1 else ''}q{_short(query_len)}{context}"


def _short(size: int) -> str:
    return str(size) if size % 1024 else f"{size // 1024}k"
