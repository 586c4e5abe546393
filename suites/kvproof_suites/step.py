"""A step of a long run: a command that can be read before it is started, and what became of it.

Each is a process of its own: a kernel that takes its process down, or a package that is missing, hides nothing of what
comes after. A step that can't run here says why, and is reported as not run.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvproof_suites.exit_codes import CONFORMS, MEANING

LIMIT_SECONDS = 2 * 3600
"""Of one step. The slowest, a sanitizer on the smoke tier, slows kernels down ten to a hundred times."""

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


def judged(code: int) -> tuple[str, str]:
    """Of the laws and of what follows them."""
    if code == CONFORMS:
        return PASSED, ""
    return FAILED, MEANING.get(code, f"exit code {code}")


@dataclass(frozen=True)
class Step:
    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Beside what is set already."""
    missing: str | None = None
    """Why it can't run here."""
    verdict: Callable[[int], tuple[str, str]] = judged
    """Exit code to status and what a person should know."""

    def __str__(self) -> str:
        words = [f"{name}={text}" for name, text in self.env.items()] + [*self.command]
        return shlex.join(words) if self.missing is None else f"# {self.name}: not run: {self.missing}"


@dataclass(frozen=True)
class Outcome:
    name: str
    status: str
    """``PASSED``, ``FAILED`` or ``NOT_RUN``."""
    detail: str
    seconds: float


def run(step: Step, limit_seconds: float = LIMIT_SECONDS) -> Outcome:
    """Start, wait, judge. What runs past the limit is ended with all that it has started."""
    if step.missing is not None:
        return Outcome(step.name, NOT_RUN, step.missing, 0.0)
    started = time.monotonic()
    try:
        process = subprocess.Popen(step.command, env={**os.environ, **step.env}, start_new_session=True)
    except OSError as error:
        return Outcome(step.name, FAILED, f"{step.command[0]}: {error.strerror}", 0.0)
    try:
        code = process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        end(process)
        return Outcome(step.name, FAILED, f"ended after {limit_seconds:,.0f} s", time.monotonic() - started)
    except BaseException:
        end(process)
        raise
    killed = (FAILED, f"killed by signal {-code}")
    status, detail = killed if code < 0 else step.verdict(code)
    return Outcome(step.name, status, detail, time.monotonic() - started)


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)  # a session of its own: its group is all that it has started
    process.wait()
