"""Implementations by name: built in, announced by an entry point, or ``package.module:factory``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from kvproof_impls.built_in import BUILT_IN, Entry
from kvproof_impls.contract import BlockAllocator, PagedKernel

ENTRY_POINT_GROUP = "kvproof.impls"


class ImplementationError(Exception):
    """The name means nothing, or what it names can't be used. The text says what to do."""


class Unavailable(ImplementationError):
    """Known, but a package or a device is missing here."""


@dataclass(frozen=True)
class Implementation:
    """A name with an allocator, a kernel, or both."""

    name: str
    allocator: Callable[[int, int], BlockAllocator] | None = None
    """(num_blocks, block_size) to a fresh allocator."""
    kernel: PagedKernel | None = None
    version: str | None = None
    expectations: Path | None = None
    """TOML file of known failures; it lives with the implementation."""

    @property
    def provides(self) -> str:
        halves = {"allocator": self.allocator, "kernel": self.kernel}
        return " + ".join(half for half, present in halves.items() if present is not None)


def names() -> list[str]:
    """Every name that ``load`` knows, built-in ones first."""
    announced = {point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    return [*BUILT_IN, *sorted(announced - set(BUILT_IN))]


def unavailable(name: str) -> str | None:
    """Why the built-in ``name`` can't run on this machine, with the line that mends it, or None."""
    entry = BUILT_IN[name]
    missing = [module for module in entry.modules if importlib.util.find_spec(module) is None]
    if missing:
        return f"needs {', '.join(missing)}: {_how_to_get(entry)}"
    version = _version(entry)
    if entry.versions and version and not SpecifierSet(entry.versions).contains(version, prereleases=True):
        how = entry.install or f"pip install '{entry.distribution}{entry.versions}'"
        return f"{entry.distribution} {version} is outside {entry.versions}, which the adapter was written for: {how}"
    if entry.needs_cuda:
        import torch

        if not torch.cuda.is_available():
            return "needs a CUDA device; torch finds none on this machine"
        major, minor = torch.cuda.get_device_capability()
        if entry.compute_capabilities and major not in entry.compute_capabilities:
            made_for = ", ".join(f"{number}.x" for number in entry.compute_capabilities)
            return f"is made for compute capability {made_for}; this device has {major}.{minor}"
    return None


def _how_to_get(entry: Entry) -> str:
    if entry.install:
        return entry.install
    by_extra = f"pip install 'kvproof[{entry.extra}]'" if entry.extra else ""
    by_make = f"make env NAME={entry.environment}" if entry.environment else ""
    return " or ".join(filter(None, (by_make, by_extra)))


def load(name: str) -> Implementation:
    """The implementation called ``name``.

    Raises:
        ImplementationError: no such name, or the factory failed to import or returned something else.
        Unavailable: a package or a device is missing here.
    """
    if name in BUILT_IN:
        return _load_built_in(name)
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            return adapt(name, _import(point.value, name))
    if ":" in name:
        return adapt(name, _import(name, name))
    raise ImplementationError(
        f"unknown implementation {name!r}.{_hint(name)}\nKnown: {', '.join(names())}, or package.module:factory"
    )


def _hint(name: str) -> str:
    """The name that is nearly meant, or how a file of one's own is named."""
    module = name.removesuffix(".py")
    if Path(f"{module}.py").exists():
        return f" What is in a file is named as module:attribute: {Path(module).name}:factory, if it is called factory."
    near = difflib.get_close_matches(name, names(), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def adapt(name: str, made: Any) -> Implementation:
    """Whatever a factory may give, as an Implementation: a kernel, an allocator class, a mapping, or both halves."""
    if isinstance(made, Implementation):
        return made
    if callable(made) and not hasattr(made, "plan") and not hasattr(made, "allocate"):
        return adapt(name, _call(name, made))
    if isinstance(made, type) and hasattr(made, "plan"):
        made = _call(name, made)
    if hasattr(made, "plan"):
        return Implementation(name, kernel=made, version=getattr(made, "version", None))
    if callable(made) and hasattr(made, "allocate"):
        return Implementation(name, allocator=made, version=getattr(made, "version", None))
    halves = made if isinstance(made, Mapping) else getattr(made, "__dict__", {})
    allocator, kernel = halves.get("allocator"), halves.get("kernel")
    if allocator is None and kernel is None:
        raise ImplementationError(
            f"{name} gave {type(made).__name__}, which is neither a kernel (has plan), an allocator class "
            "(has allocate), nor something with .kernel or .allocator; `kvproof new my_kernel.py` writes a template"
        )
    return Implementation(name, allocator, kernel, halves.get("version"), halves.get("expectations"))


def _load_built_in(name: str) -> Implementation:
    entry = BUILT_IN[name]
    if (reason := unavailable(name)) is not None:
        raise Unavailable(f"{name} is unavailable: {reason}")
    kernel = _import(entry.kernel, name)() if entry.kernel else None
    allocator = _import(entry.allocator, name) if entry.allocator else None
    known = Path(__file__).with_name(f"{name}.toml")
    return Implementation(name, allocator, kernel, _version(entry), known if known.exists() else None)


def _version(entry: Entry) -> str | None:
    for distribution in (entry.distribution or "kvproof", *entry.builds):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _import(target: str, name: str) -> Any:
    """``package.module:attribute``, found from the working directory too, as for a file beside the user."""
    module_name, _, attribute = target.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise ImplementationError(f"{name} failed to import\n{type(error).__name__}: {error}") from error
    return found


def _call(name: str, factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ImplementationError(f"{name}: the factory failed\n{type(error).__name__}: {error}") from error
