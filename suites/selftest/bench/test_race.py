"""A race: turns in random order, as many samples for one as for another, and outputs that are checked off the clock."""

import time
from itertools import cycle

import pytest
import torch

from kvproof_suites.bench.clocks import HostClock
from kvproof_suites.bench.gpu_state import GpuState
from kvproof_suites.bench.race import MOST_TURNS, PATIENCE, Contestant, race
from kvproof_suites.bench.timing import ENOUGH_SAMPLES, FEWEST_SAMPLES, SAMPLES_TO_JUDGE, Timing
from kvproof_suites.bench.waiting import Watched
from kvproof_suites.outcome import LawBroken


class ScriptedClock:
    """Calls, and says how long that took by a script: noise that never settles."""

    def __init__(self, seconds=0.001, noise=0.5):
        self.seconds, self.noise, self.count = seconds, noise, 0

    def time(self, call, given):
        self.count += 1
        return self.seconds * (1 + self.noise * (self.count % 7) / 7), call(given)

    def rest(self):
        pass

    def replays(self, call, inputs):
        return lambda place: call(inputs[place])


def test_contestants_take_turns_in_random_order_that_repeats_with_its_seed():
    def order(seed):
        seen = []
        race({name: Contestant(lambda given, name=name: seen.append(name), [None]) for name in "abc"},
             ScriptedClock(), seconds=60, seed=seed)  # fmt: skip
        return seen[3:]  # the warm-up

    rounds = [tuple(order(1)[i : i + 3]) for i in range(0, 30, 3)]
    assert all(sorted(one) == list("abc") for one in rounds)
    assert len(set(rounds)) > 2
    assert order(1) == order(1) != order(2)


def test_a_quick_one_takes_several_turns_while_a_slow_one_takes_one():
    class Clock(ScriptedClock):
        def time(self, call, given):
            seconds, factor = super().time(call, given)
            return seconds * factor, None

    seen = []

    def takes(name, factor):
        return Contestant(lambda given: seen.append(name) or factor, [None])

    race({"slow": takes("slow", 50.0), "quick": takes("quick", 1.0), "half": takes("half", 25.0)}, Clock(), seconds=60)
    warm_up, first_round = 3, 3
    later = seen[warm_up + first_round :][: 4 * (1 + 2 + MOST_TURNS)]
    assert later.count("slow") == pytest.approx(4, abs=1)
    assert later.count("half") == pytest.approx(8, abs=3)
    assert later.count("quick") == pytest.approx(4 * MOST_TURNS, abs=3)


def test_a_steady_time_needs_fewer_samples():
    timings = race({"a": Contestant(lambda given: None, [None])}, ScriptedClock(noise=0.0), seconds=60)
    assert FEWEST_SAMPLES < len(timings["a"].samples) < ENOUGH_SAMPLES


def test_whoever_is_too_slow_for_the_budget_still_gives_the_fewest():
    timings = race({"a": Contestant(lambda given: None, [None])}, ScriptedClock(), seconds=0)
    assert len(timings["a"].samples) == FEWEST_SAMPLES


def test_inputs_take_turns_and_are_prepared_off_the_clock():
    seen = []

    def prepare(given):
        time.sleep(0.02)
        return given.upper()

    (timing,) = race({"": Contestant(seen.append, ["a", "b"], prepare)}, HostClock(), seconds=0).values()
    assert seen == list("AB" + "ABABAB")
    assert timing.median_seconds < 0.02


def test_a_hot_input_was_read_just_before():
    seen = []
    race({"": Contestant(seen.append, ["a", "b"], hot=True)}, HostClock(), seconds=0)
    assert seen == list("ab" + "aabb" * (FEWEST_SAMPLES // 2))


def test_every_output_of_the_timed_loop_is_checked_and_a_wrong_one_takes_out_its_own_row_alone():
    count = iter(range(1000))

    def forgets(given):
        return "right" if next(count) < 5 else "stale"

    def check(place, result):
        if result != "right":
            raise LawBroken(f"input {place}: {result}")

    told = race(
        {"bad": Contestant(forgets, [0], check=check), "good": Contestant(lambda given: "right", [0], check=check)},
        ScriptedClock(),
        seconds=60,
    )
    assert str(told["bad"]) == "input 0: stale"
    assert isinstance(told["good"], Timing)
    assert len(told["good"].samples) == ENOUGH_SAMPLES


def test_an_implementation_that_fails_at_its_first_launch_is_told_and_the_others_run():
    def fails(given):
        raise RuntimeError("out of registers")

    told = race({"bad": Contestant(fails, [0]), "good": Contestant(print, [""])}, ScriptedClock(), seconds=0)
    assert str(told["bad"]) == "out of registers"
    assert isinstance(told["good"], Timing)


def test_a_graph_is_replayed_by_the_place_of_its_input():
    seen = []
    race({"": Contestant(seen.append, ["a", "b"], mode="graph")}, ScriptedClock(), seconds=0)
    assert seen == list("ab" + "ab" * (FEWEST_SAMPLES // 2))


def test_the_state_is_read_before_during_and_after(monkeypatch):
    monkeypatch.setattr("kvproof_suites.bench.race.STATE_EVERY_SECONDS", 0.0)
    states = iter(GpuState(1000 + i, 1, 1, 1, False) for i in range(1000))
    (timing,) = race({"": Contestant(print, [""])}, ScriptedClock(), lambda: next(states), seconds=0).values()
    assert next(states).sm_mhz - 1000 == FEWEST_SAMPLES + 2
    assert timing.clocks["throttled"] is False


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_not_swallowed(error):
    def interrupts(given):
        raise error

    with pytest.raises(error):
        race({"": Contestant(interrupts, [0])}, ScriptedClock(), seconds=0)


def test_a_wait_for_a_core_is_told_as_a_share_of_the_samples(monkeypatch):
    readings = iter(range(0, 10**9, 500_000))  # half a millisecond more at each reading
    monkeypatch.setattr("kvproof_suites.bench.waiting.waited_ns", lambda: {"1": next(readings), "2": 7})
    (timing,) = race({"": Contestant(print, [""])}, ScriptedClock(noise=0.0), seconds=0).values()
    assert timing.waited == pytest.approx(0.5)
    assert timing.per(4).fields()["waited"] == pytest.approx(0.5)


class HostByScript(HostClock):
    """The host's clock and the system's counts, by a script of (seconds, own wait, own work, others' work)."""

    def __init__(self, script, monkeypatch):
        self.script = iter(script)
        monkeypatch.setattr("kvproof_suites.bench.race.watch", self.watch)

    def time(self, call, given):
        return self.told[0], call(given)

    def rest(self):
        pass

    def watch(self, call):
        self.told = next(self.script)
        return call(), Watched(self.told[1], *self.told[1:])


CALM, DISTURBED, HELPED = (0.004, 0.0, 0.004, 0.0), (0.010, 0.006, 0.004, 0.0), (0.004, 0.0, 0.004, 0.004)


def timed_alone(script, monkeypatch, seconds=60.0):
    return race({"": Contestant(print, [""])}, HostByScript(script, monkeypatch), seconds=seconds, threads=1)[""]


def test_what_one_thread_waited_for_a_core_is_known_and_only_calm_samples_count_for_enough(monkeypatch):
    timing = timed_alone(cycle([DISTURBED, DISTURBED, CALM]), monkeypatch)
    assert timing.threads == 1
    assert timing.median_seconds == 0.010
    assert timing.on_core == pytest.approx([0.004] * len(timing.samples))
    assert timing.samples.count(0.004) == SAMPLES_TO_JUDGE, "they are steady"


def test_a_machine_that_is_never_calm_gets_some_patience_and_no_more(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("kvproof_suites.bench.race.time.monotonic", lambda: 0.01 * next(clock))
    alone = timed_alone(cycle([DISTURBED]), monkeypatch, seconds=0.1)
    calm = timed_alone(cycle([CALM, (0.005, 0.0, 0.005, 0.0)]), monkeypatch, seconds=0.1)
    own = 0.01 - 0.006
    assert len(alone.samples) == pytest.approx(PATIENCE * 0.1 / own, abs=1)
    assert len(calm.samples) == pytest.approx(0.1 / 0.01, abs=1)


def test_of_several_threads_at_work_nothing_is_taken_off(monkeypatch):
    assert timed_alone(cycle([HELPED]), monkeypatch, seconds=0.0).on_core is None


def test_time_of_a_device_is_nothing_that_a_thread_could_wait_through():
    (timing,) = race({"": Contestant(print, [""])}, ScriptedClock(), seconds=0).values()
    assert timing.on_core is None


def test_as_many_threads_as_asked_for_are_given_and_set_back():
    before, seen = torch.get_num_threads(), []
    race(
        {"": Contestant(lambda given: seen.append(torch.get_num_threads()), [None])}, HostClock(), seconds=0, threads=1
    )
    assert set(seen) == {1}
    assert torch.get_num_threads() == before


def test_threads_rest_before_every_sample_of_a_lone_contestant_too():
    class Clock(ScriptedClock):
        def rest(self):
            seen.append("rest")

    seen = []
    race({"": Contestant(lambda given: seen.append("call"), [None])}, Clock(), seconds=0)
    assert seen == ["call"] + ["rest", "call"] * FEWEST_SAMPLES


def test_a_system_that_does_not_count_waits_says_nothing(monkeypatch):
    monkeypatch.setattr("kvproof_suites.bench.waiting.waited_ns", dict)
    (timing,) = race({"": Contestant(print, [""])}, HostClock(), seconds=0).values()
    assert (timing.waited, timing.on_core) == (None, None)
