"""Every reader of files that come from outside: how it is called, what it may raise, and a file that it takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvproof_impls.environments import locked
from kvproof_reports.gate_rules import RulesError, read_rules
from kvproof_reports.records import RecordError, read_run
from kvproof_suites.bench.planning import read_model
from kvproof_suites.bench.profiles import ProfileError, read_profile
from kvproof_suites.cli.model_files import read_config, weight_bytes
from kvproof_suites.expectations import read_expectations
from kvproof_suites.histories import HistoryError, read_history
from kvproof_traces import FORMATS, SAMPLES, TablesError, TraceError, read_tables, stream
from kvproof_traces.safetensors import read_integers

OPTIONS = {"bytes_per_token": 4.0, "output_tokens": 5, "hash_block_size": 16}


@dataclass(frozen=True)
class FileReader:
    """One way into the project."""

    name: str
    """Of the file, with the suffix that its kind has."""
    read: Callable[[Path], Any]
    raises: tuple[type[BaseException], ...]
    example: bytes


def trace_of(path: Path, format: str | None) -> list[Any]:
    """All requests; of a reader that loses count of its rows, an assertion fails."""
    rows = stream(path, format=format, **OPTIONS)
    requests = list(rows)
    assert rows.rows_read == len(requests)
    return requests


RECORD = {
    "schema_version": 2,
    "kind": "law",
    "run_id": "run",
    "record_id": "0123456789abcdef",
    "time_utc": "2026-01-01T00:00:00+00:00",
    "law": "G1",
    "sentence": "it holds",
    "test": "test_it",
    "implementation": "torch",
    "outcome": "verified",
    "seconds": 0.5,
    "error_to_bound": "inf",
}
HISTORY = (
    '{"kvproof_history": 2, "num_blocks": 8, "block_size": 4}\n'
    '{"op": "allocate", "seq": "a", "tokens": [1, 2, 3], "key": [], "returned": 0, "free": 7}\n'
    '{"op": "append_step", "seqs": ["a"], "tokens": [4], "returned": {"slots": [3], "copies": [[0, 1]]}}\n'
    '{"op": "free", "seq": "a", "raised": "KeyError"}\n'
)
CONFIG = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "torch_dtype": "float16",
    "layer_types": ["full_attention", "mamba"],
    "text_config": None,
}
PROFILE = b'seconds = 0.5\n[[attention]]\npoints = ["8q1s1k"]\nblock_sizes = [16, 64]\n[serving]\nshares = [0.0, 0.3]\n'
RULES = b'[slower]\naction = "fail"\nthreshold = 0.03\n[implementation.torch.slower]\naction = "off"\n'
EXPECT = b'[[expect]]\nlaw = "A6"\nreason = "it is known"\nversions = ">=2.7"\nraises = "ValueError"\n'
TABLES = {"block_size": 16, "num_blocks": 9, "block_tables": [[3, 1], [8]], "context_lens": [20, 1]}
HEADER = b'{"kv_indptr": {"dtype": "I32", "shape": [3], "data_offsets": [0, 12]}}'
TENSORS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(12)


def line_of(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def sample(name: str) -> bytes:
    return b"\n".join((SAMPLES / name).read_bytes().split(b"\n")[:6])


def trace_readers() -> list[FileReader]:
    """By the content, and by each format told."""
    sniffed = [
        FileReader(path.name, partial(trace_of, format=None), (TraceError,), sample(path.name))
        for path in sorted(SAMPLES.iterdir())
    ]
    told = [
        FileReader(f"told_{name}", partial(trace_of, format=name), (TraceError,), sample(example_of(name)))
        for name in FORMATS
    ]
    return [*sniffed, *told]


def example_of(name: str) -> str:
    known = {
        "dynamo": "mooncake.jsonl",
        "timed_trace": "mooncake.jsonl",
        "sarathi": "vidur.csv",
        "distserve": "sharegpt",
    }
    start = known.get(name, name.replace("-", "_").replace("azure_multimodal", "azure_mm"))
    return next(
        (path.name for path in sorted(SAMPLES.iterdir()) if path.name.startswith(start)), "mooncake_aiperf.jsonl"
    )


READERS = (
    *trace_readers(),
    FileReader("tables.json", read_tables, (TablesError,), line_of(TABLES)),
    FileReader("x.safetensors", partial(read_integers, name="kv_indptr"), (ValueError,), TENSORS),
    FileReader("results.jsonl", read_run, (RecordError,), 2 * line_of(RECORD)),
    FileReader("profile.toml", lambda path: read_profile(str(path)), (ProfileError,), PROFILE),
    FileReader("rules.toml", read_rules, (RulesError,), RULES),
    FileReader("expect.toml", read_expectations, (pytest.UsageError,), EXPECT),
    FileReader("config.json", partial(read_model, device="cpu"), (ProfileError,), line_of(CONFIG)),
    FileReader("size.json", read_config, (ValueError,), line_of(CONFIG)),
    FileReader(
        "model.safetensors.index.json",
        lambda path: weight_bytes(path.with_name("config.json"), None),
        (ValueError,),
        line_of({"metadata": {"total_size": 16060522496}}),
    ),
    FileReader("history.jsonl", read_history, (HistoryError,), HISTORY.encode()),
    FileReader("lock.txt", locked, (ValueError,), b"# made by pip\ntorch==2.13.0\nnumpy==2.0.0\n"),
)
