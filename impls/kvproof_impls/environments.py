"""Virtual environments of their own, for libraries that can't share one with the rest: ``make env NAME=vllm``.

``impls/envs/NAME.txt`` names every package with its version, and ``.venvs/NAME`` is made from it. What is installed
there is read from its metadata; nothing of it is imported.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

FOLDER = Path(".venvs")
MAX_LOCK_BYTES = 1 << 20
CLONE = Path(__file__).parents[2]


def python_of(environment: str) -> Path | None:
    """The interpreter of an environment that was made: below the working directory, else in the clone."""
    places = (root / FOLDER / environment / "bin" / "python" for root in (Path.cwd(), CLONE))
    return next((place for place in places if place.exists()), None)


def lock_of(environment: str) -> Path:
    return CLONE / "impls" / "envs" / f"{environment}.txt"


def mismatch(environment: str) -> str | None:
    """What differs from the lock in an environment that was made, with what mends it; None where nothing does."""
    python, lock = python_of(environment), lock_of(environment)
    if python is None or not lock.exists():
        return None
    installed = packages_in(python.parents[1])
    for name, version in locked(lock).items():
        if installed.get(name) != version:
            found = f"has {name} {installed[name]}" if name in installed else f"lacks {name}"
            return f"{FOLDER / environment} {found}, and its lock says {version}: make env NAME={environment}"
    return None


def locked(lock: Path) -> dict[str, str]:
    """Versions by package, from lines ``name==version``.

    Raises:
        ValueError: a line that is something else, or a file that is longer than a lock can be.
    """
    with lock.open("rb") as file:
        listed = file.read(MAX_LOCK_BYTES + 1)
    if len(listed) > MAX_LOCK_BYTES:
        raise ValueError(f"{lock}: is longer than {MAX_LOCK_BYTES:,} bytes")
    found = {}
    for number, line in enumerate(listed.decode("utf-8-sig").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        if (match := re.fullmatch(r"([\w.-]+)==([^\s;]+)", text)) is None:
            raise ValueError(f"{lock}: line {number}: {text!r} is no name==version")
        found[normal(match[1])] = match[2]
    return found


def packages_in(environment: Path) -> dict[str, str]:
    """Versions by package, as installed in a virtual environment."""
    folders = [str(path) for path in environment.glob("lib/python3*/site-packages")]
    return {normal(found.metadata["Name"]): found.version for found in metadata.distributions(path=folders)}


def normal(name: str) -> str:
    """As PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()
