"""The clock asks for each sample whether the host was early enough, and intervals hold the median as often as said."""

from __future__ import annotations

import math

import pytest
import torch

from kvproof_kernels import device_clock
from kvproof_kernels.device_clock import DeviceClock, HostTooSlow, median_interval

DEVICE = torch.device("cpu")


class Device:
    """A GPU on paper: reading a stretch takes 1 ms, the host needs ``host_ms`` for a launch that takes 3 ms."""

    def __init__(self, host_ms: float) -> None:
        self.host_ms, self.now, self.busy_until = host_ms, 0.0, 0.0

    def work(self, milliseconds: float) -> None:
        self.busy_until = max(self.busy_until, self.now) + milliseconds

    def launch(self) -> None:
        self.now += self.host_ms
        self.work(3.0)

    def event(self, enable_timing: bool):
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, math.nan

    def record(self) -> None:
        self.at = max(self.device.busy_until, self.device.now)

    def query(self) -> bool:
        return self.device.now >= self.at

    def synchronize(self) -> None:
        self.device.now = self.at

    def elapsed_time(self, end) -> float:
        return end.at - self.at


@pytest.fixture
def clock_on(monkeypatch):
    def build(host_ms: float) -> tuple[DeviceClock, Device]:
        device = Device(host_ms)
        monkeypatch.setattr(torch.cuda, "Event", device.event)
        monkeypatch.setattr(device_clock, "STRETCH_BYTES", 64)
        clock = DeviceClock(DEVICE)
        clock.stretch = type("Stretch", (), {"sum": lambda self: device.work(1.0)})()
        return clock, device

    return build


@pytest.mark.parametrize("host_ms", [0.1, 3.9, 100.0])
def test_the_hosts_time_is_no_part_of_a_sample(clock_on, host_ms):
    clock, device = clock_on(host_ms)
    assert clock.seconds(device.launch) == pytest.approx(3e-3)


def test_a_launch_that_waits_for_the_device_is_not_timed(clock_on):
    clock, device = clock_on(1e9)
    with pytest.raises(HostTooSlow, match="the host is not done"):
        clock.seconds(device.launch)


def test_an_interval_of_ten_samples_leaves_out_one_at_each_end():
    # P(X = 0) = 1/1024, P(X <= 1) = 11/1024: twice that is 2.1 %, and the next step, 10.9 %, is too much
    found = median_interval([float(i) for i in range(10)], confidence=0.95)
    assert (found.low, found.median, found.high) == (1.0, 4.5, 8.0)


def test_too_few_samples_give_no_interval():
    with pytest.raises(ValueError, match=r"5 samples say nothing with confidence 0\.99"):
        median_interval([1.0] * 5, confidence=0.99)


def test_the_interval_misses_the_median_no_more_often_than_said():
    random = torch.Generator().manual_seed(0)
    draws = torch.empty(4000, 30).exponential_(generator=random).tolist()  # skewed, as times are
    missed = sum(not (found.low <= math.log(2) <= found.high) for found in (median_interval(d, 0.9) for d in draws))
    # binomial: at most 10 % of 4,000, plus five standard deviations of 19; the exact level of 30 samples is 4.3 %
    assert missed <= 400 + 5 * 19
