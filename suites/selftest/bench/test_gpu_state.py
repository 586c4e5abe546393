"""The state of a GPU is read by nvidia-ml-py where there is one (faked here), and a throttled reading is flagged."""

from types import SimpleNamespace

import pytest

from kvproof_suites.bench.gpu_state import GpuState, nvml_reader, reader, summarize


class NVMLError(Exception):
    pass


def fake_nvml(reasons=0, fails_at=None):
    """The functions and constants of nvidia-ml-py that are used, by their names there."""
    calls = []

    def answer(name, value):
        def call(*given):
            calls.append((name, *given))
            if fails_at is not None and len(calls) > fails_at:
                raise NVMLError("Not Supported")
            return value(*given)

        return call

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlClocksThrottleReasonSwPowerCap=0x4,
        nvmlClocksThrottleReasonHwSlowdown=0x8,
        nvmlClocksThrottleReasonSwThermalSlowdown=0x20,
        nvmlClocksThrottleReasonHwThermalSlowdown=0x40,
        nvmlClocksThrottleReasonHwPowerBrakeSlowdown=0x80,
        nvmlInit=answer("init", lambda: None),
        nvmlDeviceGetHandleByUUID=answer("handle", lambda uuid: uuid),
        nvmlDeviceGetClockInfo=answer("clock", lambda handle, kind: {1: 1980, 2: 3201}[kind]),
        nvmlDeviceGetPowerUsage=answer("power", lambda handle: 650_000),
        nvmlDeviceGetTemperature=answer("temperature", lambda handle, sensor: 61),
        nvmlDeviceGetCurrentClocksThrottleReasons=answer("reasons", lambda handle: reasons),
        calls=calls,
    )


def test_a_reading_is_in_megahertz_watts_and_degrees():
    nvml = fake_nvml()
    assert nvml_reader(nvml, "1-2")() == GpuState(1980, 3201, 650.0, 61, throttled=False)
    assert ("handle", "GPU-1-2") in nvml.calls


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [(0x0, False), (0x1, False), (0x2, False), (0x100, False), (0x4, True), (0x8, True), (0x20, True), (0x61, True)],
)
def test_heat_and_power_throttle_and_idling_or_a_clock_that_was_set_do_not(reasons, throttled):
    assert nvml_reader(fake_nvml(reasons), "1")().throttled is throttled


def test_a_driver_that_refuses_is_left_alone():
    nvml = fake_nvml(fails_at=0)
    assert nvml_reader(nvml, "1")() is None
    assert len(nvml.calls) == 1


def test_a_reading_that_fails_later_is_left_out():
    assert nvml_reader(fake_nvml(fails_at=8), "1")() is None


def test_a_cpu_has_no_state():
    assert reader("cpu")() is None


def test_one_throttled_reading_marks_the_row():
    states = [
        GpuState(1980, 3201, 650, 61, False),
        GpuState(1200, 3201, 700, 84, True),
        GpuState(1975, 3201, 660, 70, False),
    ]
    told = {"sm_mhz": 1975, "mem_mhz": 3201, "power_w": 660, "temperature_c": 84, "throttled": True}
    assert summarize(states) == told
    assert summarize([]) is None
