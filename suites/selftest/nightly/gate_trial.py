"""``python -m selftest.nightly.gate_trial``: how often the gate is right on this machine, with real timings.

The decode of our CPU kernel is timed in process after process, on one thread, as docs/ci.md asks for on a machine that
does other things as well: first for a baseline, then by turns as it is and slowed down by 10 %. ``kvproof gate`` judges
each, and times again what it can't tell, as a CI job would. It is right when it passes what is unchanged, and fails
what is slower. Exit code 1: less often than in 19 of 20 tries, of either kind.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

RIGHT = 0.95
SUITE = "kvproof_suites.bench.test_decode"
CELL = ("--kvproof-points=8q1s1k", "--kvproof-block-sizes=16", "--kvproof-tables=shuffled", "--kvproof-threads=1")


@dataclass(frozen=True)
class Try:
    slowdown: float
    failed: bool
    ratio: float
    low: float
    high: float
    answer: str
    num_samples: int
    load: float = 0.0
    """Processes that wanted a core, the mean of the last minute."""

    @property
    def right(self) -> bool:
        return self.failed == (self.slowdown > 0)

    def __str__(self) -> str:
        told = f"slowed by {self.slowdown:.0%}" if self.slowdown else "unchanged"
        what = f"x {self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}), {self.num_samples} samples: {self.answer}"
        verdict = f"{'fails' if self.failed else 'passes':<6} load {self.load:.1f}{'' if self.right else '   WRONG'}"
        return f"{told:<14} {what:<60} {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m selftest.nightly.gate_trial")
    parser.add_argument("--tries", type=int, default=20, help="of each kind; default: 20")
    parser.add_argument("--slowdown", type=float, default=0.1, help="default: 0.1")
    parser.add_argument("--baseline-runs", type=int, default=5, help="default: 5")
    parser.add_argument("--rerun", type=int, default=5, help="of the gate; default: 5")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvproof-gate-trial-") as folder:
        tries = list(run(Path(folder), asked))
    shares = {}
    for kind in (0.0, asked.slowdown):
        of_kind = [one for one in tries if one.slowdown == kind]
        shares[kind] = sum(one.right for one in of_kind) / len(of_kind)
        print(f"{'slowed, and failed' if kind else 'unchanged, and passed'}: {shares[kind]:.0%} of {len(of_kind)}")
    return int(min(shares.values()) < RIGHT)


def run(folder: Path, asked: argparse.Namespace) -> list[Try]:
    before = [measure(folder / f"before-{number}", 0.0) for number in range(asked.baseline_runs)]
    baseline = folder / "baseline.jsonl"
    gate(baseline, ["--update", *map(str, before)], 0.0)
    tries = []
    for number in range(asked.tries):
        for slowdown in (0.0, asked.slowdown):
            after = measure(folder / f"{number}-{slowdown}", slowdown)
            failed = gate(baseline, [f"--rerun={asked.rerun}", str(after)], slowdown)
            tries.append(read(after, slowdown, failed))
            print(tries[-1], flush=True)
    return tries


def measure(folder: Path, slowdown: float) -> Path:
    """One process of the benchmark."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-quiet", "--pyargs", SUITE]
    command += [
        "--kvproof-impl=selftest.nightly.slowed:kernel",
        "--kvproof-isolate=no",
        "--kvproof-bench",
        f"--kvproof-results={folder}",
        *CELL,
    ]
    subprocess.run(command, env=environment(slowdown), check=True, stdout=subprocess.DEVNULL)
    return folder


def gate(baseline: Path, arguments: list[str], slowdown: float) -> bool:
    """Whether it fails."""
    start = "from kvproof_suites.cli import main; main()"
    command = [sys.executable, "-c", start, "gate", f"--baseline={baseline}", *arguments]
    ended = subprocess.run(command, env=environment(slowdown), stdout=subprocess.DEVNULL, check=False)
    if ended.returncode not in (0, 1):
        raise SystemExit(f"the gate could not judge: exit code {ended.returncode}")
    return ended.returncode == 1


def environment(slowdown: float) -> dict[str, str]:
    return {**os.environ, "KVPROOF_SLOWDOWN": str(slowdown)}


def read(folder: Path, slowdown: float, failed: bool) -> Try:
    (one,) = json.loads((folder / "gate.json").read_text(encoding="utf-8"))["benchmarks"]
    low, high = one["low"] or 0.0, one["high"] or float("inf")
    return Try(slowdown, failed, one["ratio"], low, high, one["answer"], one["after_samples"], os.getloadavg()[0])


if __name__ == "__main__":
    sys.exit(main())
