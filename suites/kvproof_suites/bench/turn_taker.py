"""The side of a worker that takes turns (``taking_turns``): JSON lines on standard output, one for each on its input.

It answers when its threads sleep. Those of OpenMP spin for a while after a launch, and would take the cores from
whoever comes next.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

REST_SECONDS = 0.01
MOST_RESTS = 100

Told = dict[str, Any]


def serve(about: Mapping[str, Any], answer: Callable[[Told], Told]) -> None:
    """The worker's side: an answer for each request, until there are no more."""
    say(about)
    for line in sys.stdin:
        told = answer(json.loads(line))
        settle()
        say(told)


def say(told: Mapping[str, Any]) -> None:
    print(f"\n{json.dumps(told)}", flush=True)  # a library may have left a line open


def settle() -> None:
    """Wait until the threads of this process sleep, a second at most."""
    for _ in range(MOST_RESTS):
        before = time.process_time()
        time.sleep(REST_SECONDS)
        if time.process_time() - before < REST_SECONDS / 10:
            return


def bare(name: str, error: Exception) -> str:
    """An error's text in one line, without the name that stands before it anyway."""
    text = str(error) or type(error).__name__
    for said in (f"{name}: ", f"{name} is ", "unavailable: ", "not timed: "):
        text = text.removeprefix(said)
    return ": ".join(line.rstrip(".:") for line in text.splitlines())
