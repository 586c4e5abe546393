"""Whether an implementation can be loaded where it would be run, asked in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from kvproof_impls.registry import ImplementationError
from kvproof_suites.isolation import death

SECONDS = 180
"""For imports: the largest libraries take half a minute where the machine is busy."""
MOST_CHARACTERS = 300


def probe(name: str, python: Path) -> dict[str, str | None]:
    """``provides`` and ``version``.

    Raises:
        ImplementationError: why it can't be used; of a death the last line that it wrote.
    """
    command = [str(python), "-m", "kvproof_impls", name]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ImplementationError(f"{name} is not loaded after {SECONDS} s") from None
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    if ended.returncode != 0:
        told = str(death.by_exit(ended.returncode, ""))
        raise ImplementationError(f"{name} died when it was loaded: {told}: {lines[-1] if lines else 'no word of it'}")
    answer: dict[str, str | None] = json.loads(ended.stdout.splitlines()[-1])
    if error := answer.get("error"):
        raise ImplementationError(error if len(error) < MOST_CHARACTERS else f"{error[:MOST_CHARACTERS]}...")
    return answer
