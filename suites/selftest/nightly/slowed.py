"""Our CPU kernel, each launch of which takes longer by the share in KVPROOF_SLOWDOWN."""

from __future__ import annotations

import os
import time
from typing import Any

from kvproof_impls.registry import load


class Slowed:
    """It works on once the launch is done, as long as the thread that launches worked for it, times the share: not as
    long as it took, which would slow it down by more where the machine is busy."""

    def __init__(self, kernel: Any, share: float) -> None:
        self._kernel, self._share = kernel, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def plan(self, *arguments: Any, **options: Any) -> Any:
        launch = self._kernel.plan(*arguments, **options)

        def slower(*given: Any, **more: Any) -> Any:
            start = time.thread_time()
            result = launch(*given, **more)
            end = start + (1 + self._share) * (time.thread_time() - start)
            while time.thread_time() < end:
                pass
            return result

        return slower


def kernel() -> Slowed:
    return Slowed(load("cpu").kernel, float(os.environ.get("KVPROOF_SLOWDOWN", "0")))
