"""What a law is: one id, one sentence, one reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    id: str
    title: str
    sentence: str
    why: str
    """The failure that it prevents."""
    origin: str
    """A public report or text in which that failure is seen, or where the construction comes from."""
    needs: str = ""
    """The capability without which it is refused."""
    tests: str = ""
    """Where it is tested, for a law of the suite itself; the other laws are found by the marks of their tests."""
    here: str = ""
    """Why it can't be observed on a machine without a GPU; it is then reported as not run here, never as passed."""
