"""Processes that take turns: what they say is heard, how they end is told, and who waits leaves the cores alone."""

import sys
import textwrap
import threading
import time

import pytest

from kvproof_suites.bench import taking_turns, turn_taker
from kvproof_suites.bench.taking_turns import Withdrawn, ask, end, gathered, interpreter_for, listed, start
from kvproof_suites.bench.turn_taker import bare, settle
from kvproof_suites.isolation import processes

SAYS = "import json, os, sys, time, subprocess\nfrom kvproof_suites.bench.turn_taker import say, serve\n"


@pytest.fixture
def player(tmp_path, monkeypatch):
    """Starts workers that run the given lines, and ends them after the test."""
    monkeypatch.chdir(tmp_path)
    players = []

    def begin(source):
        (tmp_path / "worker.py").write_text(SAYS + textwrap.dedent(source))
        players.append(start("it", "worker", [], sys.executable, {"GIVEN": "yes"}))
        return players[-1]

    yield begin
    for one in players:
        end(one)


def test_what_a_library_prints_is_passed_over(player):
    it = player("""
        print("loading")
        print("50 %", end="")
        say({"environment": os.environ["GIVEN"]})
        print("more\\nand more")
        serve({"unheard": 1}, lambda request: {"twice": 2 * request["number"]})
    """)
    assert it.about == {"environment": "yes"}
    assert taking_turns.hear(it, 60.0) == {"unheard": 1}
    assert [ask(it, {"number": number})["twice"] for number in (1, 4)] == [2, 8]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("say({'reason': 'no such block size'})", "no such block size"),
        ("raise ValueError('out of luck')", "ended with code 1: ValueError: out of luck"),
        ("os.kill(os.getpid(), 11)", r"crashed: killed by signal 11 \(SIGSEGV\)"),
        ("pass", "ended with code 0"),
        ("os.close(1); time.sleep(60)", "closed its output and lived on"),
        ("time.sleep(60)", "said nothing for 3 s"),
    ],
)
def test_why_a_worker_can_not_take_part_is_told(player, monkeypatch, source, told):
    monkeypatch.setattr(taking_turns, "START_SECONDS", 3.0 if told == "said nothing for 3 s" else 60.0)
    monkeypatch.setattr(taking_turns, "END_SECONDS", 1.0 if "lived on" in told else 60.0)
    with pytest.raises(Withdrawn, match=f"^{told}$"):
        player(source)


def test_who_has_died_stays_dead_with_the_same_reason(player):
    it = player("serve({}, lambda request: os._exit(9))")
    for _ in range(2):
        with pytest.raises(Withdrawn, match="ended with code 9"):
            ask(it, {})


def test_a_reason_ends_a_turn_and_not_the_worker(player):
    it = player("serve({}, lambda request: {'reason': 'not this one'} if request['number'] else {'done': 1})")
    with pytest.raises(Withdrawn, match="not this one"):
        ask(it, {"number": 1})
    assert ask(it, {"number": 0}) == {"done": 1}


def test_what_a_worker_has_started_ends_with_it(player):
    it = player("subprocess.Popen(['sleep', '60'], start_new_session=True)\nserve({}, lambda request: {})")
    assert len(processes.of_worker(it.token)) == 2
    end(it)
    assert processes.of_worker(it.token) == []


def test_an_answer_comes_when_threads_sleep():
    until = time.monotonic() + 0.3

    def spin():
        while time.monotonic() < until:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    settle()
    assert not thread.is_alive()


def test_threads_that_never_sleep_are_waited_for_a_while_only(monkeypatch):
    monkeypatch.setattr(turn_taker, "MOST_RESTS", 3)
    readings = iter(range(100))
    monkeypatch.setattr(turn_taker.time, "process_time", lambda: next(readings))
    settle()
    assert next(readings) == 6


def absent_one(name, python):
    raise Withdrawn("needs what is not here")


def test_who_is_absent_is_listed_and_who_was_named_is_an_error():
    with gathered([("it", None)], absent_one, required=False) as (players, absent):
        assert players == []
        assert listed(absent) == "Not timed:\n\n- it: needs what is not here"
    with pytest.raises(Withdrawn, match="it: needs") as raised, gathered([("it", None)], absent_one, required=True):
        pass
    assert raised.value.exit_code == 4


def test_what_needs_no_process_to_be_known_starts_none(monkeypatch):
    monkeypatch.setattr(taking_turns, "unavailable", lambda name: "needs a CUDA device")
    with pytest.raises(Withdrawn, match=r"^needs a CUDA device$"):
        interpreter_for("torch-varlen")


def test_a_reason_is_one_line_without_the_name():
    assert bare("vllm", ValueError("vllm is unavailable: needs vllm\nmake env")) == "needs vllm: make env"
    assert bare("vllm", KeyError()) == "KeyError"
