"""Clocks: what stands between the events, what a graph replays, and that no device work is left outside. The event API
is faked: this shows the order of the calls, not that a GPU obeys them."""

from contextlib import contextmanager

import pytest

from kvproof_suites.bench.clocks import WARM_UPS, CudaClock, HostClock


class FakeCuda:
    """Keeps the order of calls; a launch takes 2 ms of device time."""

    def __init__(self):
        self.log, self.now_ms = [], 0.0

    def Event(self, enable_timing):
        assert enable_timing, "an event without timing has no elapsed time"
        return FakeEvent(self)

    def Stream(self, device):
        return FakeStream(self, "side")

    def current_stream(self, device):
        return FakeStream(self, "main")

    def CUDAGraph(self):
        return FakeGraph(self)

    def synchronize(self, device):
        self.log.append("synchronize")

    @contextmanager
    def stream(self, stream):
        self.log.append("side stream")
        yield
        self.log.append("main stream")

    @contextmanager
    def graph(self, graph):
        self.log.append("capture")
        yield
        self.log.append("captured")

    def launch(self, given):
        self.log.append(f"launch {given}")
        self.now_ms += 2
        return f"output of {given}"


class FakeEvent:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self):
        self.at_ms = self.cuda.now_ms
        self.cuda.log.append("event")

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


class FakeStream:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def wait_stream(self, other):
        self.cuda.log.append(f"{self.name} waits for {other.name}")


class FakeGraph:
    def __init__(self, cuda):
        self.cuda = cuda

    def replay(self):
        self.cuda.log.append("replay")
        self.cuda.now_ms += 1


@pytest.fixture
def cuda():
    return FakeCuda()


def test_device_time_is_between_two_events_around_the_launch_alone_in_seconds(cuda):
    assert CudaClock("cuda", cuda).time(cuda.launch, "a") == (0.002, "output of a")
    assert cuda.log == ["synchronize", "event", "launch a", "event", "synchronize"]


def test_each_input_has_a_graph_of_its_own_captured_after_a_warm_up_on_a_side_stream(cuda):
    clock = CudaClock("cuda", cuda)
    replay = clock.replays(cuda.launch, ["a", "b"])
    one = ["side waits for main", "side stream", *["launch a"] * WARM_UPS, "main stream", "main waits for side"]
    one += ["capture", "launch a", "captured"]
    assert cuda.log == one + [entry.replace(" a", " b") for entry in one]
    cuda.log.clear()
    assert clock.time(replay, 1) == (0.001, "output of b")
    assert cuda.log == ["synchronize", "event", "replay", "event", "synchronize"]


def test_the_host_has_no_graphs():
    with pytest.raises(ValueError, match="'graph' needs a CUDA device"):
        HostClock().replays(print, [])


def test_the_host_clock_times_the_call_alone():
    seconds, result = HostClock().time(lambda given: given + 1, 1)
    assert result == 2
    assert 0 < seconds < 0.1
