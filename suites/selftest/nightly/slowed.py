"""Our CPU kernel, each launch of which takes longer by the share in KVPROOF_SLOWDOWN."""

from __future__ import annotations

import os
import time
from typing import Any

from kvproof_impls.registry import load


class Slowed:
    """It waits once the launch is done, as long as the launch took, times the share."""

    def __init__(self, kernel: Any, share: float) -> None:
        self._kernel, self._share = kernel, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def plan(self, *arguments: Any, **options: Any) -> Any:
        launch = self._kernel.plan(*arguments, **options)

        def slower(*given: Any, **more: Any) -> Any:
            start = time.perf_counter()
            result = launch(*given, **more)
            end = start + (1 + self._share) * (time.perf_counter() - start)
            while time.perf_counter() < end:
                pass
            return result

        return slower


def kernel() -> Slowed:
    return Slowed(load("cpu").kernel, float(os.environ.get("KVPROOF_SLOWDOWN", "0")))
