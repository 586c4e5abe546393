"""What measures one sample: the host's monotonic clock, or events on a CUDA stream; eagerly, or by replay of a graph.

``mode`` "eager" is what a step without graphs waits for: the events stand around a launch into an empty queue, so that
a launch whose host work takes longer than the device's is as slow as its host work. ``mode`` "graph" is the device's
time alone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

MODES = ("eager", "graph")
WARM_UPS = 3
"""Runs on a side stream before a capture, in which libraries make their workspaces; what torch's documentation asks."""

REST_SECONDS = 0.005
"""Before a sample: threads that wait for more work do so by spinning, for some milliseconds, and would take the cores
from whoever comes next, be it another's turn or the same one's after its output was checked."""

Call = Callable[[Any], Any]


class Clock(Protocol):
    def time(self, call: Call, given: Any) -> tuple[float, Any]:
        """Seconds of ``call(given)``, and what it returned."""
        ...

    def rest(self) -> None:
        """Until nothing of what ran before is under way."""
        ...

    def replays(self, call: Call, inputs: Sequence[Any]) -> Call:
        """``call`` captured on each of ``inputs``: a call that replays, given one of them by its place."""
        ...


class HostClock:
    """For work that is done when the call returns."""

    def time(self, call: Call, given: Any) -> tuple[float, Any]:
        start = time.perf_counter()
        result = call(given)
        return time.perf_counter() - start, result

    def rest(self) -> None:
        time.sleep(REST_SECONDS)

    def replays(self, call: Call, inputs: Sequence[Any]) -> Call:
        raise ValueError("mode 'graph' needs a CUDA device; on a CPU there is only 'eager'")


class CudaClock:
    """Events on the current stream of ``device``; ``cuda`` is torch.cuda, or what stands in for it."""

    def __init__(self, device: str, cuda: Any = torch.cuda) -> None:
        self.device, self.cuda = device, cuda
        self.start, self.end = (cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, call: Call, given: Any) -> tuple[float, Any]:
        """The queue is empty before, and drained after; elapsed time of events is in milliseconds."""
        self.cuda.synchronize(self.device)
        self.start.record()
        result = call(given)
        self.end.record()
        self.cuda.synchronize(self.device)
        return self.start.elapsed_time(self.end) / 1e3, result

    def rest(self) -> None:
        self.cuda.synchronize(self.device)

    def replays(self, call: Call, inputs: Sequence[Any]) -> Call:
        """A graph for each input, since a graph holds the addresses that it was captured on."""
        graphs, results = [], []
        for given in inputs:
            side = self.cuda.Stream(self.device)
            side.wait_stream(self.cuda.current_stream(self.device))
            with self.cuda.stream(side):
                for _ in range(WARM_UPS):
                    call(given)
            self.cuda.current_stream(self.device).wait_stream(side)
            graph = self.cuda.CUDAGraph()
            with self.cuda.graph(graph):
                results.append(call(given))
            graphs.append(graph)

        def replay(place: int) -> Any:
            graphs[place].replay()
            return results[place]

        return replay


def clock_for(device: str) -> Clock:
    return CudaClock(device) if device.startswith("cuda") else HostClock()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the garbage collector, which would come at some sample or other."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
