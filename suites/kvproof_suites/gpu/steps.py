"""The steps of a GPU run, as commands that can be read before anything is started.

Each is a process of its own: a kernel that takes its process down, or a package that is missing, hides nothing of what
comes after. A step that can't run here says why, and is reported as not run.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvproof_impls import environments, registry
from kvproof_impls.built_in import BUILT_IN
from kvproof_suites.exit_codes import CONFORMS, MEANING
from kvproof_suites.gpu import sanitizer

LIMIT_SECONDS = 2 * 3600
"""Of one step. The slowest, a sanitizer on the smoke tier, slows kernels down ten to a hundred times."""

SWEEP = "sweep"
"""The folder of its records."""
LAWS = "laws"
"""The folder with the laws of all implementations in one: by them the benchmark says what stands."""
SHAPES = Path(__file__).with_name("sweep.toml")
"""The profile of the benchmark."""

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


def absent(name: str) -> str | None:
    """Why the implementation can't be judged on this machine; None where it can, or where only its own environment
    knows."""
    entry = BUILT_IN.get(name)
    if entry is None or (entry.environment and environments.python_of(entry.environment)):
        return None
    return registry.unavailable(name)


def steps(
    implementations: Sequence[str],
    folder: Path,
    trace: Path | None,
    sanitized: str = "triton",
    tier: str = "full",
    missing: Callable[[str], str | None] = lambda name: None,
) -> list[Step]:
    """All but the sweep: one for the laws of each implementation, one for each sanitizer.

    Args:
        implementations: names, as ``kvproof list`` has them.
        folder: of the run; each step has a folder in it.
        trace: replayed through the allocators first; None: a made-up one.
        sanitized: the implementation that is put under the sanitizer.
        tier: of the laws.
        missing: why an implementation can't be judged; its step is not run then, and the others are.
    """
    return [
        *(replace(laws(name, folder, trace, tier), missing=missing(name)) for name in implementations),
        *(sanitize(tool, sanitized, folder) for tool in sanitizer.TOOLS),
    ]


def laws(name: str, folder: Path, trace: Path | None, tier: str) -> Step:
    command = [*kvproof("run"), f"--impl={name}", "--device=cuda", f"--tier={tier}"]
    command += [f"--results={folder / name}", *([f"--trace={trace}"] if trace else [])]
    return Step(f"laws and benchmark: {name}", tuple(command))


def sanitize(tool: str, name: str, folder: Path) -> Step:
    program, log = sanitizer.find(), folder / f"{tool}.log"
    command = sanitizer.command(program or sanitizer.PROGRAM, tool, name, folder / tool, log)
    missing = None if program else sanitizer.ABSENT
    return Step(f"{tool}: {name}", command, sanitizer.ENVIRONMENT, missing, lambda code: sanitizer.verdict(code, log))


def sweep(implementations: Sequence[str], folder: Path) -> Step:
    """In one process, since implementations that are compared take turns; only those that were judged here."""
    command = (sys.executable, "-m", "pytest", "--pyargs", "kvproof_suites.bench", "--kvproof-bench", "-q")
    shapes = (f"--kvproof-profile={SHAPES}", "--benchmark-quiet")
    laws = f"--kvproof-verified-by={folder / LAWS}"
    more = ("--kvproof-device=cuda", laws, f"--kvproof-results={folder / SWEEP}", "-p", "no:cacheprovider")
    missing = None if implementations else "no implementation was judged here"
    names = f"--kvproof-impl={','.join(implementations)}"
    return Step("decode sweep", (*command, names, *shapes, *more), missing=missing)


def kvproof(command: str) -> tuple[str, ...]:
    """The command line in this interpreter, whatever ``kvproof`` on the PATH is."""
    return (sys.executable, "-c", "from kvproof_suites.cli import main; main()", command)


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
