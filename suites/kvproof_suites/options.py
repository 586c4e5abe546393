"""The command-line options of the plugin.

Every option is reachable as ``--kvproof-NAME``. The short ``--NAME`` is added after all other plugins and conftest
files have had their turn, and only where nobody else owns it: an installed kvproof must not break a test run that
defines, say, its own ``--device``.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

TIERS = ("smoke", "full", "nightly")

OPTIONS: dict[str, dict[str, Any]] = {
    "impl": {
        "metavar": "NAMES",
        "help": "implementations to put under the laws, separated by commas: built-in names (`kvproof list`), "
        "entry points, or package.module:factory",
    },
    "isolate": {
        "default": "auto",
        "choices": ("auto", "all", "no"),
        "help": "what runs in worker processes, which may crash, hang or run out of memory: auto, whatever is not of "
        "kvproof itself; all; or no, for a debugger; default: auto",
    },
    "timeout": {
        "default": None,
        "type": float,
        "metavar": "SECONDS",
        "help": "for one case in a worker, which is then ended and started anew; default: 300",
    },
    "max-memory": {
        "default": None,
        "type": float,
        "metavar": "GB",
        "help": "of a worker and its children; default: until the machine has next to nothing left",
    },
    "python": {
        "action": "append",
        "default": [],
        "metavar": "[NAME=]PATH",
        "help": "interpreter that runs isolated implementations, or the one that is named; default: that which "
        "`make env` has made, else this one",
    },
    "device": {"default": None, "metavar": "DEVICE", "help": "cpu, cuda, cuda:1; default: cuda where there is one"},
    "tier": {"default": "smoke", "choices": TIERS, "help": "how much to try; default: smoke"},
    "results": {"default": None, "metavar": "DIR", "help": "folder of this run; default: results/<time>"},
    "bench": {"action": "store_true", "default": False, "help": "run the benchmarks as well, after the laws"},
    "profile": {
        "default": "quick",
        "metavar": "NAME",
        "help": "what --bench goes through: quick, paper, full, or a TOML file; default: quick",
    },
    "points": {
        "default": None,
        "metavar": "LIST",
        "help": "batches of attention instead of the profile's, as vLLM names them: 8q1s1k,2q2k_32q1s1k",
    },
    "block-sizes": {"default": None, "metavar": "LIST", "help": "instead of the profile's: 16,64,256"},
    "tables": {
        "default": None,
        "metavar": "LIST",
        "help": "states of the block table instead of the profile's: dense,identity,shuffled,churned,shared-prefix",
    },
    "model": {
        "default": None,
        "metavar": "CONFIG",
        "help": "config.json: heads, dims and type instead of the profile's",
    },
    "threads": {
        "default": None,
        "metavar": "N",
        "help": "of a timed launch on the host; default: one for each core; 1 where others use the cores as well: what "
        "one thread waits for a core is known, and `kvproof gate` takes it off",
    },
    "verified-by": {
        "default": None,
        "metavar": "RUN",
        "help": "folder or results.jsonl of a run whose laws count here; a benchmark that no law stands for is stamped",
    },
    "resume": {
        "action": "store_true",
        "default": False,
        "help": "leave out benchmarks that the folder of --results has in it already",
    },
    "ray": {
        "default": None,
        "metavar": "ADDRESS",
        "help": "spread benchmarks over the machines of a running Ray cluster, all of them like this one: HOST:PORT or "
        "auto on a machine of it, ray://HOST:PORT from elsewhere",
    },
    "seed": {"default": 0, "type": int, "metavar": "N", "help": "of all drawn data; a run repeats exactly; default: 0"},
    "expect": {
        "action": "append",
        "default": [],
        "metavar": "FILE",
        "help": "known failures, TOML, strict: one that passes or names no test is an error; may be given again",
    },
    "min-verified": {
        "default": 0,
        "type": int,
        "metavar": "N",
        "help": "fail a run that verified fewer tests of laws than this",
    },
    "churned": {
        "default": None,
        "metavar": "FILE",
        "help": "block tables left behind by a replay (`kvproof replay` writes them); default: a made-up replay",
    },
    "mlflow": {
        "default": None,
        "nargs": "?",
        "const": "",
        "metavar": "URI",
        "help": "send the results to MLflow at the end; default of URI: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db",
    },
}


def destination(name: str) -> str:
    return f"kvproof_{name.replace('-', '_')}"


def add_long_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvproof", "kvproof: the laws of a paged KV cache")
    for name, settings in OPTIONS.items():
        group.addoption(f"--kvproof-{name}", dest=destination(name), **settings)


def add_short_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvproof")
    for name, settings in OPTIONS.items():
        try:
            group.addoption(f"--{name}", dest=destination(name), **(settings | {"help": f"same as --kvproof-{name}"}))
        except (ValueError, argparse.ArgumentError):  # somebody else's option; the long form stays
            continue


def value(config: pytest.Config, name: str) -> Any:
    return config.getoption(destination(name))
