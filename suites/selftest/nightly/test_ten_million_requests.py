"""A trace of ten million requests is read, simulated and replayed through our allocator in the memory of one of a
million; a hundredth of each every day."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

NIGHTLY = bool(os.environ.get("KVPROOF_NIGHTLY"))
NUM_REQUESTS = 10_000_000 if NIGHTLY else 100_000
MOST_GROWTH_BYTES = 8 << 20
"""From a tenth of the trace to all of it. A byte kept for each request shows at night, a request kept whole (200 bytes
and more) every day; the noise of two equal runs is below 1 MiB."""

WORK = """
import json, sys
{work}
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([done, int(peak.split()[1]) * 1024]))
"""
"""Not by getrusage, in which a process begins with the peak of the one that started it."""
READ = """
from kvproof_traces import stream
done = sum(1 for _ in stream(sys.argv[1]))
"""
SIMULATED = """
from kvproof_traces import stream
from kvproof_traces.simulation import Pool, Scheduler, simulate
found = simulate(stream(sys.argv[1]), Pool(num_slots=65536, block_size=16), Scheduler())
done = found.num_requests
"""
REPLAYED = """
from kvproof_impls import load
from kvproof_traces import replay, stream
found = replay(stream(sys.argv[1]), load("paged").allocator(4096, 16), max_num_seqs=64)
done = found.num_finished
"""


def azure(number: int) -> str:
    """Ten a second, from midnight on, over the days."""
    seconds, tenth = divmod(number, 10)
    day, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{tenth}000000"
    return f"2023-11-{day + 1:02} {clock},{1 + number % 97},{1 + number % 2}\n"


def native(number: int) -> str:
    return f'{{"timestamp": {number}, "input_length": {1 + number % 97}, "output_length": 1}}\n'


TRACES: dict[str, tuple[str, Callable[[int], str]]] = {
    "azure.csv": ("TIMESTAMP,ContextTokens,GeneratedTokens\n", azure),
    "native.jsonl": ("", native),
}


def peak_bytes(work: str, path: Path, num_requests: int) -> int:
    """Of a process of its own, which must have met every request."""
    start = time.monotonic()
    command = [sys.executable, "-c", WORK.format(work=work), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3500)
    done, peak = json.loads(ended.stdout)
    assert done == num_requests
    print(f"{num_requests:,} requests: peak {peak / 2**20:.1f} MiB, {time.monotonic() - start:.1f} s")
    return int(peak)


@pytest.mark.parametrize(
    ("name", "work"), [("azure.csv", READ), ("native.jsonl", READ), ("azure.csv", SIMULATED), ("azure.csv", REPLAYED)],
    ids=["azure read", "native read", "azure simulated", "azure replayed"],
)  # fmt: skip
def test_memory_does_not_grow_with_the_trace(name: str, work: str, tmp_path: Path) -> None:
    header, row = TRACES[name]
    peaks = []
    for num_requests in (10, NUM_REQUESTS // 10, NUM_REQUESTS):  # the first compiles what has to be compiled
        path = tmp_path / name
        with path.open("w") as file:
            file.write(header)
            file.writelines(map(row, range(num_requests)))
        peaks.append(peak_bytes(work, path, num_requests))
        path.unlink()
    assert peaks[2] - peaks[1] < MOST_GROWTH_BYTES


def test_a_reader_that_keeps_what_it_has_read_is_seen(tmp_path: Path) -> None:
    path, peaks = tmp_path / "native.jsonl", []
    for num_requests in (10_000, 100_000):
        path.write_text("".join(map(native, range(num_requests))))
        kept = "from kvproof_traces import load\ndone = len(load(sys.argv[1]).requests)"
        peaks.append(peak_bytes(kept, path, num_requests))
    assert peaks[1] - peaks[0] > MOST_GROWTH_BYTES
