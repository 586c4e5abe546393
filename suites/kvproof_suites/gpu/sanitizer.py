"""NVIDIA's compute-sanitizer around the smoke tier: the command, and what its log says.

Two verdicts are asked for, and both must be good: that of the tool, which is in its log, and that of the laws that ran
under it, which is the exit code. A process that died early has no errors to report.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM = "compute-sanitizer"
CUDA_FOLDER = "/usr/local/cuda/bin"
ABSENT = f"{PROGRAM} is neither on the PATH nor in {CUDA_FOLDER}; it comes with the CUDA toolkit"
TOOLS = ("memcheck", "racecheck", "initcheck")
ERROR_CODE = 86
"""That no test run ends with."""
ENVIRONMENT: Mapping[str, str] = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTEST_TIMEOUT": "0", "OMP_NUM_THREADS": "1"}
"""Without torch's cache each tensor is an allocation, and one element beyond it is seen; a slow test is no fault."""

SUMMARY = re.compile(r"^=+ (?:RACECHECK|ERROR) SUMMARY: (\d+) (?:hazards?|errors?).*$", re.MULTILINE)


def find() -> str | None:
    """Where the program is, or None."""
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path=CUDA_FOLDER)


def command(program: str, tool: str, name: str, results: Path, log: Path) -> tuple[str, ...]:
    """The kernel laws of the implementation ``name`` under ``tool``; not the processes that compile."""
    sanitized = (program, "--tool", tool, "--error-exitcode", str(ERROR_CODE))
    options = ("--target-processes", "application-only", "--log-file", str(log))
    laws = (sys.executable, "-m", "pytest", "--pyargs", "kvproof_suites.kernel", f"--kvproof-impl={name}")
    more = ("--kvproof-device=cuda", "--kvproof-tier=smoke", f"--kvproof-results={results}")
    return (*sanitized, *options, *laws, *more, "-q", "-p", "no:cacheprovider")


def verdict(code: int, log: Path) -> tuple[str, str]:
    """ "passed" or "failed", and the summary."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    summaries = list(SUMMARY.finditer(text))
    if not summaries:
        return "failed", f"exit code {code}, and no summary in {log.name}"
    told = "; ".join(summary.group().lstrip("= ") for summary in summaries)
    clean = not any(int(summary.group(1)) for summary in summaries)
    if clean and code == 0:
        return "passed", told
    return "failed", told if not clean else f"exit code {code}, though: {told}"


def excerpt(log: Path, num_lines: int = 60) -> str:
    """What to publish: the first findings and the summaries; paths of host frames stay in the log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    findings = [line for line in lines if "SUMMARY" not in line and "Host Frame" not in line and " in /" not in line]
    return "\n".join([*findings[:num_lines], *(line for line in lines if "SUMMARY" in line), ""])
