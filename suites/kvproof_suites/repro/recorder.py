"""The kernel under test, which remembers the calls of the current test for the script that repeats a failure.

Tensors are kept by reference: a launch does not change its pools. A write does, so that they are copied before it,
unless they are so large that their memory must not be touched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from kvproof_impls.contract import AttentionSpec, KVPools, PagedBatch
from kvproof_suites.outcome import LawBroken

OUTCOMES = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception, SystemExit)

MAX_CALLS = 8
LARGE = 2**24
"""Elements of a pool that is not copied, and of which only the blocks that a table names are written down."""


@dataclass(eq=False)
class Planned:
    spec: AttentionSpec
    batch: PagedBatch
    reuse: Planned | None = None
    raised: Exception | None = None


@dataclass(eq=False)
class Launched:
    plan: Planned
    query: torch.Tensor
    pools: KVPools
    given: torch.Tensor | None = None
    result: Any = None
    raised: Exception | None = None


@dataclass(eq=False)
class Written:
    spec: AttentionSpec
    key: torch.Tensor
    value: torch.Tensor
    pools: KVPools
    slot_mapping: torch.Tensor
    raised: Exception | None = None


@dataclass(eq=False)
class Copied:
    pools: KVPools
    copies: list[tuple[int, int]]
    raised: Exception | None = None


Call = Planned | Launched | Written | Copied


class RecordedKernel:
    """Everything that ``kernel`` is and declares; only while ``recording`` are its calls kept."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.calls: deque[Call] = deque(maxlen=MAX_CALLS)
        self.recording = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kernel, name)
        recorder = {"write": self._write, "copy_blocks": self._copy_blocks}.get(name)
        return recorder if recorder and self.recording else found

    def plan(self, spec: AttentionSpec, batch: PagedBatch, reuse: Any = None) -> Any:
        earlier = reuse if isinstance(reuse, RecordedLaunch) else None
        inner = {} if reuse is None else {"reuse": earlier.launch if earlier else reuse}
        if not self.recording:
            return self._kernel.plan(spec, batch, **inner)
        planned = Planned(spec, batch, earlier.planned if earlier else None)
        launch = self._keep(planned, lambda: self._kernel.plan(spec, batch, **inner))
        return RecordedLaunch(self, planned, launch)

    def start(self, recording: bool) -> None:
        """Forget the calls of the test before, and the memory that they held."""
        self.calls.clear()
        self.recording = recording

    def _write(self, spec: AttentionSpec, key: Any, value: Any, pools: KVPools, slot_mapping: Any) -> Any:
        written = Written(spec, key, value, _copy(pools), slot_mapping)
        return self._keep(written, lambda: self._kernel.write(spec, key, value, pools, slot_mapping))

    def _copy_blocks(self, pools: KVPools, copies: Any) -> Any:
        copied = Copied(_copy(pools), [(int(source), int(destination)) for source, destination in copies])
        return self._keep(copied, lambda: self._kernel.copy_blocks(pools, copies))

    def _keep(self, call: Call, run: Callable[[], Any]) -> Any:
        self.calls.append(call)
        try:
            return run()
        except Exception as error:
            call.raised = error
            raise
        except OUTCOMES as outcome:
            # Only the suite decides what is skipped or expected to fail.
            raise LawBroken(f"the implementation raised {type(outcome).__name__}: {outcome}") from outcome


class RecordedLaunch:
    def __init__(self, recorder: RecordedKernel, planned: Planned, launch: Any) -> None:
        self.recorder, self.planned, self.launch = recorder, planned, launch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.launch, name)

    def __call__(self, query: torch.Tensor, pools: KVPools, out: torch.Tensor | None = None) -> Any:
        call = Launched(self.planned, query, pools, out)
        given = () if out is None else (out,)
        call.result = self.recorder._keep(call, lambda: self.launch(query, pools, *given))
        return call.result


def _copy(pools: KVPools) -> KVPools:
    if pools.key.numel() > LARGE:
        return pools
    key = _copy_of(pools.key)
    if pools.value.data_ptr() == pools.key.data_ptr():  # latent attention: a part of the keys
        value = key[..., : pools.value.shape[-1]]
    else:
        value = _copy_of(pools.value)
    scales = [None if scale is None else scale.clone() for scale in (pools.key_scale, pools.value_scale)]
    return replace(pools, key=key, value=value, key_scale=scales[0], value_scale=scales[1])


def _copy_of(pool: torch.Tensor) -> torch.Tensor:
    """In the same strides, which a kernel may read."""
    return torch.empty_strided(pool.shape, pool.stride(), dtype=pool.dtype, device=pool.device).copy_(pool)
