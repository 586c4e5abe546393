"""One request of a workload: how long, when, what it shares, how it branches and whether it is cut short."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


class FieldError(ValueError):
    """A field of a request that can't be. ``field`` is the attribute, ``what`` is wrong, ``cure`` mends it, ``reason``
    is the name of the check."""

    def __init__(self, field: str, what: str, cure: str, reason: str = "bad number") -> None:
        super().__init__(f"{field}: {what}; {cure}")
        self.field, self.what, self.cure, self.reason = field, what, cure, reason


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a serving engine receives it; lengths only, no text.

    Branches are the parallel samples of a request, numbered from 0: ``num_samples`` of them share the prompt from the
    start, ``forks`` adds or replaces some later.

    Raises:
        FieldError: a value that can't be, with the name of the attribute.
    """

    request_id: str
    arrival_ms: float
    """Milliseconds after the first request of the trace."""
    num_prompt_tokens: int
    num_output_tokens: int
    """Tokens that every branch generates, unless ``abort_after`` comes first."""
    hash_ids: tuple[int, ...] = ()
    """One id a ``hash_block_size`` tokens of the prompt, the last one may be partial: equal ids at the start of two
    requests mean equal tokens. Empty: nothing is known to be shared."""
    hash_block_size: int = 512
    num_samples: int = 1
    forks: tuple[tuple[int, int, int], ...] = ()
    """(output position, parent branch, child branch): once that many tokens are generated, the child becomes a copy of
    the parent. A child that exists is given up first, which is what a step of beam search does."""
    abort_after: int | None = None
    """Output tokens after which the client goes away."""
    priority: int = 0

    def __post_init__(self) -> None:
        _check_identity(self)
        _whole("num_prompt_tokens", self.num_prompt_tokens, at_least=1, reason="no prompt")
        _whole("num_output_tokens", self.num_output_tokens, at_least=1, reason="no output")
        _whole("hash_block_size", self.hash_block_size, at_least=1)
        if self.hash_ids or type(self.hash_ids) is not tuple:
            _check_hash_ids(self)
        _whole("num_samples", self.num_samples, at_least=1)
        if self.forks:
            _check_forks(self)
        if self.abort_after is not None:
            _check_abort(self)

    @property
    def num_branches(self) -> int:
        """Most sequences that are live at once, which is what a scheduler has to leave room for."""
        return self.num_samples + len({child for _, _, child in self.forks if child >= self.num_samples})

    @property
    def num_generated_tokens(self) -> int:
        """Output tokens of each branch by the time the request ends."""
        return self.num_output_tokens if self.abort_after is None else self.abort_after


def _whole(name: str, value: Any, at_least: int, reason: str = "bad number") -> None:
    if type(value) is not int:  # bool is an int to isinstance
        raise FieldError(name, f"{value!r} is not a whole number", f"give an integer of at least {at_least}")
    if value < at_least:
        reason = reason if value == 0 else "bad number"
        raise FieldError(name, f"{value} is below {at_least}", "remove the row or mend the number", reason)


def _check_identity(request: Request) -> None:
    if type(request.request_id) is not str or not request.request_id:
        cure = "give a string that is not empty"
        raise FieldError("request_id", f"{request.request_id!r} is not a name", cure, "malformed")
    arrival = request.arrival_ms
    if type(arrival) is not float or not 0 <= arrival < math.inf:
        cure = "give milliseconds from the first request, 0 up"
        raise FieldError("arrival_ms", f"{arrival!r} is not a time", cure, "bad time")
    if type(request.priority) is not int:
        raise FieldError("priority", f"{request.priority!r} is not a whole number", "give an integer")


def _check_hash_ids(request: Request) -> None:
    ids, size = request.hash_ids, request.hash_block_size
    if type(ids) is not tuple:
        raise FieldError("hash_ids", f"is a {type(ids).__name__}", "give a list of whole numbers")
    # At the speed of C, because prompts have thousands of them; the loop finds the culprit.
    if set(map(type, ids)) != {int} or min(ids) < 0:
        for value in ids:
            _whole("hash_ids", value, at_least=0)
    wanted = -(-request.num_prompt_tokens // size)
    if len(ids) != wanted:
        raise FieldError(
            "hash_ids",
            f"{len(ids)} ids, but {request.num_prompt_tokens} prompt tokens make {wanted} blocks of {size}",
            "check the hash block size and the prompt length",
            "too few hash ids" if len(ids) < wanted else "too many hash ids",
        )


def _check_abort(request: Request) -> None:
    abort_after, end = request.abort_after, request.num_output_tokens
    _whole("abort_after", abort_after, at_least=0)
    if abort_after is not None and abort_after >= end:
        what = f"{abort_after} is not before the end at {end} output tokens"
        raise FieldError("abort_after", what, "give a smaller number, or leave it out", "bad branch")


def _check_forks(request: Request) -> None:
    later, last = set[int](), 0
    for fork in request.forks:
        if type(fork) is not tuple or len(fork) != 3:
            cure = "give [output position, parent, child]"
            raise FieldError("forks", f"{fork!r} is not three numbers", cure, "bad branch")
        position, parent, child = fork
        for value in fork:
            _whole("forks", value, at_least=0)
        if not last <= position < request.num_output_tokens:
            what = f"position {position} is out of order or past the output"
            raise FieldError("forks", what, "sort forks by output position", "bad branch")
        if parent == child or (parent >= request.num_samples and parent not in later):
            what = f"branch {parent} can't be the parent of {child}"
            raise FieldError("forks", what, "fork a branch that exists, into another", "bad branch")
        later.add(child)
        last = position


def in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """The same, one by one.

    Raises:
        ValueError: one arrives before the one in front of it.
    """
    before: Request | None = None
    for request in requests:
        if before is not None and request.arrival_ms < before.arrival_ms:
            raise ValueError(f"requests: {request.request_id} arrives before {before.request_id}; sort by arrival_ms")
        before = request
        yield request
