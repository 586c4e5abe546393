"""Our Triton kernels with one line changed, run in Triton's interpreter.

The source text of the kernel, of the steps it is made from and of its adapter is loaded anew under names of its own, so
that the mutant has nothing in common with the kernels that are under test beside it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import SourceLoader
from typing import Any, ClassVar

from kvproof_impls.contract import AttentionSpec, Launch, PagedBatch

CHAIN = ("steps", "combine", "work", "attention", "buffers", "plan", "codes", "cache_write", "block_copy")
"""In order of import; the adapter comes last."""


class MutatedSource(SourceLoader):
    def __init__(self, origin: str, text: str) -> None:
        self.origin, self.text = origin, text

    def get_filename(self, fullname: str) -> str:
        return f"{fullname}.py"

    def get_data(self, path: str | bytes) -> bytes:
        return self.text.encode()


def load_mutant(name: str, module: str, old: str, new: str) -> Any:
    """The adapter's class over kernels in whose ``module`` the text ``old`` has become ``new``.

    Raises:
        ValueError: ``old`` does not stand exactly once in ``module``: the kernel has changed, and the mutant with it.
    """
    originals = {part: f"kvproof_kernels.{part}" for part in CHAIN} | {"adapter": "kvproof_impls.triton_kernels"}
    renamed = {original: f"selftest.wrong.mutated.{name}.{part}" for part, original in originals.items()}
    for part, original in originals.items():
        text = source_of(original)
        if part == module:
            if text.count(old) != 1:
                raise ValueError(f"{name}: {original} has {old!r} {text.count(old)} times, wanted once")
            text = text.replace(old, new)
        for known, alias in renamed.items():
            text = text.replace(f"from {known} import", f"from {alias} import")
        load(renamed[original], text)
    return sys.modules[renamed[originals["adapter"]]].TritonKernel  # type: ignore[attr-defined]


def source_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return file.read()


def load(name: str, text: str) -> None:
    spec = importlib.util.spec_from_loader(name, MutatedSource(name, text))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


class TritonMutant:
    """What differs is said by the subclass: one text of one module."""

    module: ClassVar[str]
    old: ClassVar[str]
    new: ClassVar[str]

    def __init__(self) -> None:
        self.kernel = load_mutant(type(self).__name__, self.module, self.old, self.new)("cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["kernel"], name)

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Launch | None = None) -> Launch:
        return self.kernel.plan(spec, batch, reuse)
