"""What a law can end in, besides being verified."""

from __future__ import annotations

from typing import NoReturn

import pytest

REFUSED = "refused by declaration: "
NOT_RUN = "not run here: "


class LawBroken(AssertionError):
    """The implementation breaks the law; the text says what, where, and what was read or owned instead."""


def refuse(reason: str) -> NoReturn:
    """The implementation declares that it does not do this; counted, never as passed."""
    pytest.skip(REFUSED + reason)


def not_run_here(reason: str) -> NoReturn:
    """This machine can't run the case; counted, never as passed."""
    pytest.skip(NOT_RUN + reason)
