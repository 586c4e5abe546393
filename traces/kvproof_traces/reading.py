"""What every reader has in common: where it reads, what it was told, and how a row becomes a request or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof_traces.lines import TraceError
from kvproof_traces.request import FieldError, Request

REASONS = {
    "malformed": "no such row: not UTF-8, not JSON, a cell or field missing, unknown or twice",
    "empty line": "nothing where a request should be",
    "bad number": "a length, an id or a count that is no whole number or out of range",
    "bad time": "not a time, or below zero",
    "time goes back": "before the row above it",
    "no prompt": "zero prompt tokens",
    "no output": "zero output tokens, so nothing was served",
    "failed call": "BurstGPT: a response of zero tokens is a call that failed",
    "wrong total": "BurstGPT, Sarathi: the total is not the sum of its parts",
    "too few hash ids": "len(hash_ids) × hash_block_size is below the prompt's length: prompts would come out shorter",
    "too many hash ids": "more hash ids than the prompt has blocks",
    "two predecessors": "a hash id after two different ids, so that it can't stand for a prefix",
    "id given twice": "two requests of one name",
    "too few turns": "ShareGPT: not a person's turn first and an answer after it",
    "token ids differ": "LLMServingSim: another number of token ids than the length says",
    "bad branch": "a fork, a number of samples or an abort that can't be",
}
"""The named checks: reason to what it means. A skipped row is counted under one of them."""


@dataclass(frozen=True)
class Options:
    """What a file does not say and its reader may have to be told."""

    hash_block_size: int | None = None
    """Tokens of the block that a hash id names."""
    bytes_per_token: float | None = None
    """Stand-in for a tokenizer, where a file holds text: UTF-8 bytes of text for each token, rounded up."""
    output_tokens: int | None = None
    """Output length of rows that don't give one."""

    def __post_init__(self) -> None:
        for name in ("hash_block_size", "output_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name}: {value!r} is not a whole number of at least 1")
        if self.bytes_per_token is not None and not 0 < self.bytes_per_token < float("inf"):
            raise ValueError(f"bytes_per_token: {self.bytes_per_token!r} is not a number above 0")


class MissingOption(TraceError):
    """A file that can't be read without being told more. No fault of a row: never skipped."""


@dataclass(frozen=True)
class Source:
    """One file and what is known about it. ``notes`` collects what a reader had to assume, each sentence once."""

    path: Path
    options: Options = Options()
    notes: dict[str, None] = field(default_factory=dict)

    def note(self, text: str) -> None:
        self.notes[text] = None

    def need(self, option: str, why: str) -> Any:
        """The value of an option that this file can't be read without.

        Raises:
            MissingOption: it was not given.
        """
        value = getattr(self.options, option)
        if value is None:
            flag = f"--{option.replace('_', '-')}"
            raise MissingOption(self.path, 1, option, why, f"give it: {flag} on the command line, {option}= in Python")
        return value


@dataclass(frozen=True)
class Reader:
    """The rows of an open file, and how one becomes a request."""

    rows: Iterator[tuple[int, Any]]
    """(line number, row). A TraceError from here is about the file, and nothing can be read past it."""
    parse: Callable[[int, Any], Request]
    """A TraceError from here is about one row, which may be skipped."""
    time_field: str = "timestamp"
    accept: Callable[[Request], None] | None = None
    """Told of each row that is kept, so that one that is not leaves nothing behind."""
    horizon: Callable[[], float] | None = None
    """For sessions whose later turns have no time of their own: ms before which no later row arrives. Such a reader
    checks the order of the times that the file does give; its requests come in order of arrival."""


def build_request(path: str | Path, number: int, names: dict[str, str], values: dict[str, Any]) -> Request:
    """The request of one line. ``names``: attribute of Request to field of the file, for the error.

    Raises:
        TraceError: a value that Request refuses, under the name it has in the file.
    """
    try:
        return Request(**values)
    except FieldError as error:
        field = names.get(error.field, error.field)
        raise TraceError(path, number, field, error.what, error.cure, reason=error.reason) from None


class ArrivalOrder:
    """Refuses a time that lies before the one above it. Equal times keep the order of the file."""

    def __init__(self, path: str | Path, field: str = "timestamp") -> None:
        self.path, self.field, self.last = path, field, 0.0

    def check(self, number: int, arrival_ms: float) -> None:
        """
        Raises:
            TraceError: time goes backwards.
        """
        if arrival_ms < self.last:
            what = f"{arrival_ms:.10g} ms comes after {self.last:.10g} ms"
            raise TraceError(self.path, number, self.field, what, "sort the file by time", reason="time goes back")

    def accept(self, arrival_ms: float) -> None:
        """The row is kept."""
        self.last = arrival_ms


class PrefixChain:
    """Checks that hash ids name prefixes: an id stands for its block and all blocks before it.

    Then an id has one predecessor wherever it appears, from which follow the rules that it is always at the same
    position, and that nothing can be shared after the first block that isn't. Remembers every distinct id: about 100
    bytes each, the one thing here that grows with the file.
    """

    FIRST = -1  # ids are 0 or above

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.before: dict[int, dict[int, int]] = {}

    def check(self, number: int, request: Request) -> None:
        """
        Raises:
            TraceError: an id with two predecessors; the row counts as not seen.
        """
        ids = request.hash_ids
        before = self.before.setdefault(request.hash_block_size, {})
        previous = (self.FIRST, *ids[:-1])
        # An id twice in one prompt implies two predecessors, as going back from both places shows.
        if tuple(map(before.get, ids, previous)) == previous and len(set(ids)) == len(ids):
            before.update(zip(ids, previous, strict=True))
            return
        here: dict[int, int] = {}
        for position, (value, last) in enumerate(zip(ids, previous, strict=True)):
            known = before.get(value, here.setdefault(value, last))
            if known != last:
                there = _named(known)
                what = f"id {value} at position {position} follows {_named(last)} here and {there} before"
                cure = "an id must stand for its block and all blocks before it"
                raise TraceError(self.path, number, "hash_ids", what, cure, reason="two predecessors")


def _named(value: int) -> str:
    return "nothing" if value == PrefixChain.FIRST else f"id {value}"
