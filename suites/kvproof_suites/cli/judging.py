"""Laws and benchmark in processes of their own: a kernel that crashes takes the run down, not the report."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

YARDSTICKS = ("torch", "paged")
"""What a benchmark is compared with: the plainest kernel, and our allocator."""


@dataclass(frozen=True)
class Judge:
    """How the pytest processes of one run are started; they share its folder."""

    folder: Path
    device: str
    tier: str
    seed: int
    churned: Path | None
    bench_options: tuple[str, ...] = ()
    """Of the plugin: what is timed."""

    def laws(self, names: str) -> int:
        """Exit code of the laws on ``names``, with JUnit beside the records."""
        return self._pytest(
            "kvproof_suites", f"--kvproof-impl={names}", *self._workers(), f"--junitxml={self.folder / 'junit.xml'}"
        )

    def has_judged(self, names: str) -> bool:
        """Whether the folder holds laws of each of ``names``, from an earlier process."""
        from kvproof_suites.bench.standing import laws_of_run

        return set(names.split(",")) <= {law["implementation"] for law in laws_of_run(self.folder)}

    def bench(self, names: str, *, resume: bool = False, with_laws: bool = True) -> int:
        """Exit code of the benchmark of ``names`` and the yardsticks, which are put under the laws first."""
        beside = [name for name in YARDSTICKS if name not in names.split(",")]
        if beside and with_laws and not self.has_judged(",".join(beside)):
            listed = f"--kvproof-impl={','.join(beside)}"
            if broken := self._pytest("kvproof_suites", listed, *self._workers(), "-q", "--no-header"):
                return broken
        compared = ",".join([*names.split(","), *beside])
        again = ("--kvproof-resume",) if resume else ()
        options = (f"--kvproof-impl={compared}", "--kvproof-bench", "--benchmark-quiet")  # the report has the tables
        return self._pytest("kvproof_suites.bench", *options, *self.bench_options, *again)

    def _pytest(self, package: str, *options: str) -> int:
        command = [sys.executable, "-m", "pytest", "--pyargs", package, *options, *self._shared()]
        status = subprocess.run(command, env=self._environment(package), check=False).returncode
        return status if status >= 0 else self._crashed(-status)

    def _environment(self, package: str) -> dict[str, str]:
        """The laws' tensors are tiny and run in several processes, where torch's threads only wait for each other."""
        one_thread = {} if package.endswith(".bench") else {"OMP_NUM_THREADS": "1"}
        return {**os.environ, **one_thread}

    def _shared(self) -> list[str]:
        given = {"device": self.device, "tier": self.tier, "seed": self.seed, "churned": self.churned}
        options = [f"--kvproof-{name}={value}" for name, value in given.items() if value is not None]
        return [f"--kvproof-results={self.folder}", *options, "-p", "no:cacheprovider"]

    def _workers(self) -> list[str]:
        """Two processes halve the time of the interpreter; GPUs get one each, since two would share its memory."""
        if importlib.util.find_spec("xdist") is None:
            return []
        num_workers = self._num_devices() if self.device != "cpu" else min(2, os.cpu_count() or 1)
        return ["-n", str(num_workers)] if num_workers > 1 else []

    def _num_devices(self) -> int:
        """As many as there are, unless one is named by its number."""
        import torch

        return torch.cuda.device_count() if self.device == "cuda" else 1

    def _crashed(self, signal_number: int) -> int:
        print(f"pytest was killed by signal {signal_number}; the records up to there are kept", file=sys.stderr)
        return 3
