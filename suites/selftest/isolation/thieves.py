"""Kernels that are right, and that take what is the worker's once a context has 17 tokens: its connection, its
descriptors, its output, its clocks; or that have a child do it."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys

import pytest
import torch

from selftest.isolation.hostile import Hostile

EATER = "kept = []\nfor _ in range(60): kept.append(bytearray(b'x' * 100_000_000))"


def connection() -> socket.socket:
    """To the judge."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
    raise LookupError("no socket")


def answer_first() -> None:
    """That everything is well, before the worker can answer."""
    body = json.dumps({"reports": [passed(when) for when in ("setup", "call", "teardown")]}).encode()
    connection().sendall(struct.pack("!Q", len(body)) + body)


def passed(when: str) -> dict[str, object]:
    """A report of a test of somebody else."""
    about = {"nodeid": "paged", "location": ["a", 1, "b"], "keywords": {}, "outcome": "passed", "longrepr": None}
    properties = [["kvproof_law", "A1"], ["kvproof_implementation", "paged"]]
    more = {"when": when, "sections": [], "duration": 0.1, "start": 0.0, "stop": 0.1, "user_properties": properties}
    return {"$report_type": "TestReport", **about, **more}


def eat_in_a_child() -> None:
    subprocess.run([sys.executable, "-c", EATER], check=False)


def fork_and_go_on() -> None:
    """Without a thread of torch, for which its next operation would wait: by the way of an error."""
    if os.fork() == 0:
        raise RuntimeError("this is the child")


def print_without_end() -> None:
    line = "x" * 1_000_000
    while True:
        print(line)


def replace_the_report() -> None:
    """By which pytest tells what became of a test; what is told then is not known."""

    def no_report(*arguments: object, **named: object) -> None:
        raise RuntimeError("no report today")

    pytest.TestReport.from_item_and_call = no_report


forks = Hostile(fork_and_go_on)
closes = Hostile(lambda: os.closerange(0, 4096))
eats_in_a_child = Hostile(eat_in_a_child)
prints = Hostile(print_without_end)
answers_first = Hostile(answer_first)
replaces_equal = Hostile(lambda: setattr(torch, "equal", lambda *tensors: True))
replaces_the_report = Hostile(replace_the_report)
