"""What a run is given, checked before its first test: a mistake there is the user's, and no verdict on a kernel."""

from __future__ import annotations

import difflib
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvproof_impls.built_in import BUILT_IN
from kvproof_impls.contract import FEATURES
from kvproof_impls.registry import Implementation, ImplementationError, load
from kvproof_suites import options

LARGEST_SEED = 2**63 - 1


def names_of(listed: str) -> list[str]:
    """Of ``--impl``: names with commas between them."""
    return list(dict.fromkeys(filter(None, map(str.strip, listed.split(",")))))


def load_implementation(name: str) -> Implementation:
    try:
        found = load(name)
    except ImplementationError as error:
        raise pytest.UsageError(str(error)) from None
    check_features(found)
    return found


def check_features(implementation: Implementation) -> None:
    """A feature that nobody knows is never asked for: a slip of the pen would pass as a modest declaration."""
    if implementation.kernel is None:
        return
    declared = getattr(implementation.kernel, "features", None)
    if not isinstance(declared, set | frozenset | list | tuple) or not all(isinstance(name, str) for name in declared):
        raise pytest.UsageError(
            f"{implementation.name}: kernel.features is {declared!r}; give a set of names, empty for none"
        )
    for name in sorted(set(declared) - set(FEATURES)):
        near = difflib.get_close_matches(name, FEATURES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FEATURES)}"
        raise pytest.UsageError(f"{implementation.name}: unknown feature {name!r}; {hint}")


def summary_of(name: str) -> str | None:
    return BUILT_IN[name].summary if name in BUILT_IN else None


def choose_device(asked: str | None, worker: str | None = None) -> str:
    """The device asked for, or CUDA where there is one; a device that is missing is an error, not a fallback.

    ``worker`` is pytest-xdist's name of it, "gw0" or so: the workers of a run take the CUDA devices in turn, unless one
    is named. One with a number becomes the current one, since that is where Triton launches whatever its tensors say.
    """
    import torch

    device = asked or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise pytest.UsageError(f"--device={device}: torch finds no CUDA device on this machine")
    if device == "cuda" and worker is not None:
        device = f"cuda:{int(worker.removeprefix('gw')) % torch.cuda.device_count()}"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise pytest.UsageError(f"--device={device}: {str(error).splitlines()[0]}") from None
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)
    return device


def check_numbers(config: pytest.Config) -> None:
    seed = options.value(config, "seed")
    if not 0 <= seed <= LARGEST_SEED:
        raise pytest.UsageError(f"--seed={seed}: give a number from 0 to 2^63 - 1")
    if path := options.value(config, "churned"):
        from kvproof_suites.churn import read_churn

        read_churn(Path(path))


def claim_folder(folder: Path) -> int:
    """Make it, and keep its records to this process: the descriptor that is returned stays open as long as that."""
    from kvproof_reports.appending import Busy, hold

    try:
        folder.mkdir(parents=True, exist_ok=True)
        return hold(folder / "results.jsonl")
    except Busy as error:
        raise pytest.UsageError(f"--results={folder}: {error.strerror}; wait for it, or name another folder") from None
    except OSError as error:
        raise pytest.UsageError(f"--results={folder}: {error.strerror}; name a folder that can be written") from None


def run_name() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
