"""The steps of a GPU run: laws and benchmark of each implementation, the sanitizers, the sweep."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvproof_impls import environments, registry
from kvproof_impls.built_in import BUILT_IN
from kvproof_suites.gpu import sanitizer
from kvproof_suites.step import Step

SWEEP = "sweep"
"""The folder of its records."""
LAWS = "laws"
"""The folder with the laws of all implementations in one: by them the benchmark says what stands."""
SHAPES = Path(__file__).with_name("sweep.toml")
"""The profile of the benchmark."""


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
