"""What a law can end in, besides being verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import pytest

if TYPE_CHECKING:
    from kvproof_suites.allocator.history import History

REFUSED = "refused by declaration: "
NOT_RUN = "not run here: "


class Element(NamedTuple):
    """One element of a kernel's output that is wrong."""

    output: str
    """out or lse"""
    at: tuple[int, ...]
    got: float
    want: float
    bound: float


class LawBroken(AssertionError):
    """The implementation breaks the law; the text says what, where, and what was read or owned instead.

    What else is known goes into the script or the history that repeats the failure: the worst elements of the last
    launch that was judged, or in how many rows the last two launches had to give the same bits, or the operations up
    to here.
    """

    def __init__(
        self, text: str, elements: Sequence[Element] = (), same_bits: int = 0, history: History | None = None
    ) -> None:
        super().__init__(text)
        self.elements, self.same_bits, self.history = tuple(elements), same_bits, history


class SuiteDefect(Exception):
    """The suite's own case is at fault: on this data a wrong kernel would pass. No verdict on the implementation."""


def refuse(reason: str) -> NoReturn:
    """The implementation declares that it does not do this; counted, never as passed."""
    pytest.skip(REFUSED + reason)


def not_run_here(reason: str) -> NoReturn:
    """This machine can't run the case; counted, never as passed."""
    pytest.skip(NOT_RUN + reason)
