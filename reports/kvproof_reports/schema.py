"""The fields of a results file, as one table: the writer, the reader and the JSON Schema are all made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA_VERSION = 2
"""2: samples and their interval, prefill and the other groups, how a launch was made, the clocks while it was timed."""

OUTCOMES = ("verified", "broken", "refused", "known_broken", "not_run", "error")
"""What became of one test of a law. ``refused``: the implementation declares that it can't; ``known_broken``: listed in
its expectations file, and still broken; ``not_run``: this machine can't; ``error``: the test itself failed."""

DEATHS = ("crashed", "timed_out", "out_of_memory", "out_of_disk", "tampered", "device_error")
"""What a case may do to the worker that runs it; the judge survives it, and the outcome is ``broken`` all the same."""

TABLES = ("dense", "identity", "shuffled", "churned", "shared-prefix")
"""States of a block table, from no paging at all to what a replayed trace leaves behind, and a prefix in common."""

ATTENTION = ("decode", "prefill", "mixed")
KERNEL_GROUPS = (*ATTENTION, "write", "copy")
HOST_GROUPS = ("allocator", "step_tensors")
"""Groups of benchmarks: launches of kernels, those of attention first among them, and work of the host."""

MOST_SAMPLES = 400
"""Of one benchmark in a results file."""

Condition = tuple[str, tuple[object, ...]]
"""(field, values): true when the record's field holds one of the values."""


@dataclass(frozen=True)
class Field:
    """One field. A field that is not required may be absent or null; readers always see it, as None."""

    type: str
    """A key of ``validate.TYPES``: text, name (no slash), time (ISO 8601), texts, flag, integer, count (integer >= 0),
    counts, signed (finite number), number (finite, >= 0), samples (numbers > 0, at most MOST_SAMPLES), ratio (>= 0, and
    infinite where there is no bound to its size; the text "inf" on disk, since JSON has no infinity), share (0 to 1),
    object, objects."""
    doc: str
    required: bool = False
    identity: bool = False
    """Goes into record_id: of two records of one run that agree in all identity fields the later wins."""
    choices: tuple[str, ...] = ()
    needed_when: Condition | None = None
    only_when: Condition | None = None
    fields: Mapping[str, Field] | None = None


def _needed(type: str, doc: str, **more: object) -> Field:
    return Field(type, doc, required=True, **more)  # type: ignore[arg-type]


COMMON: Mapping[str, Field] = {
    "schema_version": _needed("count", f"this table is version {SCHEMA_VERSION}"),
    "kind": _needed("text", "session, law, benchmark, replay or end"),
    "run_id": _needed("text", "name of the run; one file holds one run"),
    "record_id": _needed(
        "text", "hash of run, kind and the identity fields; stable, so that a sink never doubles a record"
    ),
    "time_utc": _needed("time", "when it was written"),
}

IMPLEMENTATION = {
    "name": _needed("text", "as given to --impl"),
    "version": Field("text", "of the distribution behind it"),
    "provides": Field("text", "allocator, kernel, or allocator + kernel"),
    "summary": Field("text", "one line about it"),
    "unavailable": Field("text", "why it could not be used at all on this machine"),
}

_ENVIRONMENT = {
    "python": Field("text", "version"),
    "torch": Field("text", "version"),
    "triton": Field("text", "version"),
    "platform": Field("text", "operating system and architecture"),
    "cpu": Field("text", "model"),
    "num_cpus": Field("count", "logical cores that the process may use"),
    "gpu": Field("text", "model"),
    "driver": Field("text", "version of the GPU's driver"),
    "cuda": Field("text", "version, or that of HIP, which torch was built for"),
    "git_commit": Field("text", "of the repository the run was started in"),
    "kvproof": Field("text", "version"),
    "spec": Field("text", "version of the laws: their number, and a hash of what they say"),
}

SESSION: Mapping[str, Field] = {
    "implementations": _needed("objects", "what was selected", fields=IMPLEMENTATION),
    "tier": _needed("text", "smoke, full or nightly"),
    "seed": _needed("integer", "all random draws of the run come from it"),
    "device": _needed("text", "torch device"),
    "command": _needed("texts", "arguments that repeat the run"),
    "environment": _needed("object", "versions and machine", fields=_ENVIRONMENT),
}

_COMPARED: Condition = ("outcome", ("verified", "broken", "known_broken", "error"))
_FAILED: Condition = ("outcome", ("broken", "known_broken", "error"))
_UNVERIFIED: Condition = ("outcome", tuple(outcome for outcome in OUTCOMES if outcome != "verified"))

LAW: Mapping[str, Field] = {
    "law": _needed("text", "id in SPEC.md, such as G18", identity=True),
    "sentence": _needed("text", "the law in one sentence"),
    "test": _needed("text", "pytest node id", identity=True),
    "implementation": _needed("text", "name", identity=True),
    "outcome": _needed("text", "what became of it", choices=OUTCOMES),
    "reason": Field("text", "why it is not verified, or what differed", needed_when=_UNVERIFIED),
    "status": Field(
        "text", "how the worker that ran it came to its end, or lost its device", choices=DEATHS, only_when=_FAILED
    ),
    "case": Field("text", "the shrunk case, to paste"),
    "seconds": _needed("number", "duration of the test"),
    "error_to_bound": Field("ratio", "largest error over its bound; above 1 is broken, inf a NaN", only_when=_COMPARED),
    "peak_bytes": Field(
        "count", "the most memory that its process held, that of the laws included", only_when=_COMPARED
    ),
    "peak_device_bytes": Field("count", "the most that torch had allocated on the device", only_when=_COMPARED),
}

_TIMED: Condition = ("timed", (True,))
_DECODE: Condition = ("group", ("decode",))
_ATTENTION: Condition = ("group", ATTENTION)
_KERNEL: Condition = ("group", KERNEL_GROUPS)
_HOST: Condition = ("group", HOST_GROUPS)
_ALLOCATOR: Condition = ("group", ("allocator",))

_CLOCKS = {
    "sm_mhz": Field("number", "clock of the multiprocessors; the median of before, during and after"),
    "mem_mhz": Field("number", "clock of the memory"),
    "power_w": Field("number", "power drawn"),
    "temperature_c": Field("number", "of the chip, the highest"),
    "throttled": Field("flag", "the chip slowed itself down for heat or power"),
}

_RESOURCES = {
    "target": _needed("text", "architecture compiled for, such as sm_90"),
    "registers": Field("count", "a thread"),
    "spill_bytes": Field("count", "a thread, to local memory"),
    "shared_bytes": Field("count", "shared memory a thread block"),
    "num_warps": Field("count", "a thread block"),
    "resident_warps": Field("count", "predicted, of a multiprocessor"),
}

BENCHMARK: Mapping[str, Field] = {
    "group": _needed("text", "what is timed", identity=True, choices=(*KERNEL_GROUPS, *HOST_GROUPS)),
    "implementation": _needed("text", "name", identity=True),
    "operation": Field("text", "call of the host", identity=True, needed_when=_ALLOCATOR, only_when=_HOST),
    "block_size": _needed("count", "tokens a block", identity=True),
    "point": Field("text", "the batch in vLLM's grammar, such as 2q2k_32q1s1k", identity=True),
    "table": Field("text", "state of the block table", identity=True, choices=TABLES, needed_when=_ATTENTION),
    "batch": Field("count", "sequences", identity=True, needed_when=_DECODE),
    "context_len": Field("count", "tokens a sequence", identity=True, needed_when=_DECODE),
    "num_q_heads": Field("count", "query heads", identity=True, needed_when=_ATTENTION),
    "num_kv_heads": Field("count", "K and V heads", identity=True, needed_when=_KERNEL),
    "head_dim": Field("count", "elements a head", identity=True, needed_when=_KERNEL),
    "value_dim": Field("count", "elements a V head, where it has fewer", identity=True),
    "dtype": Field("text", "of query, K and V", identity=True, needed_when=_KERNEL),
    "kv_dtype": Field("text", "of the pools, where it is another", identity=True),
    "cache": Field("text", "hot: inputs are in cache already", identity=True, choices=("cold", "hot")),
    "mode": Field("text", "how it is launched", identity=True, choices=("eager", "graph")),
    "device": _needed("text", "torch device", identity=True),
    "machine": Field("text", "chip and node that timed it, where a run was spread over several machines"),
    "test": Field("text", "what timed it, for pytest --pyargs"),
    "timed": _needed("flag", "false: the row has no figures, and reason says why"),
    "reason": Field("text", "why it was not timed", needed_when=("timed", (False,))),
    "verified": _needed("flag", "the laws of this implementation and shape held in this run"),
    "median_ms": Field("number", "a launch or an operation", needed_when=_TIMED, only_when=_TIMED),
    "q1_ms": Field("number", "lower quartile", needed_when=_TIMED, only_when=_TIMED),
    "q3_ms": Field("number", "upper quartile", needed_when=_TIMED, only_when=_TIMED),
    "low_ms": Field("number", "lower end of the 95 % bootstrap interval of the median", only_when=_TIMED),
    "high_ms": Field("number", "upper end; both null where there are too few samples for one", only_when=_TIMED),
    "num_samples": Field("count", "timed launches", needed_when=_TIMED, only_when=_TIMED),
    "samples_ms": Field("samples", "of the timed launches, in their order, evenly thinned", only_when=_TIMED),
    "core_ms": Field("samples", "samples_ms less waits for a core; null: unknown, several threads", only_when=_TIMED),
    "samples_per_process": Field("counts", "of samples_ms, in order; null: one process gave all", only_when=_TIMED),
    "tokens_per_second": Field("number", "query tokens", only_when=_TIMED),
    "num_flops": Field("number", "of a launch; a multiplication with its addition is two", only_when=_TIMED),
    "gb_per_second": Field("number", "1e9 bytes: live K and V once, block tables, q and out", only_when=_TIMED),
    "roof_gb_per_second": Field("number", "memory bandwidth measured in the same run", only_when=_TIMED),
    "share_of_roof": Field("number", "gb_per_second / roof_gb_per_second; above 1 in cache", only_when=_TIMED),
    "tax": Field("signed", "of paging: time over that of the same kernel without a table, less 1", only_when=_TIMED),
    "plan_ms": Field("number", "host work of one batch, timed apart", only_when=_TIMED),
    "breakeven_launches": Field("number", "of one plan, from which on planning pays", only_when=_TIMED),
    "num_layers": Field("count", "of the model of --model"),
    "step_ms": Field("number", "one plan, and a launch for each layer of the model of --model", only_when=_TIMED),
    "threads": Field("count", "of the host, that a launch was given", only_when=_TIMED),
    "waited": Field("share", "of a sample, that a thread waited for a core; the median of them", only_when=_TIMED),
    "clocks": Field("object", "of the GPU while it was timed", fields=_CLOCKS, only_when=_TIMED),
    "ns_per_token": Field("number", "allocator time", only_when=_TIMED),
    "ns_per_append": Field("number", "a row of a full decode step while requests come and go", only_when=_TIMED),
    "ns_per_append_stable": Field("number", "the same while nobody comes or goes", only_when=_TIMED),
    "us_per_admit": Field("number", "prefix look-up, blocks of the prompt, commit; the mean", only_when=_TIMED),
    "us_per_admit_p99": Field("number", "of the admissions", only_when=_TIMED),
    "us_per_free": Field("number", "the mean", only_when=_TIMED),
    "us_per_step": Field("number", "a full decode step, step tensors included", only_when=_TIMED),
    "step_tensors_included": Field("flag", "ns_per_append has the step tensors in it", only_when=_TIMED),
    "bytes_per_block": Field("number", "bookkeeping of an empty pool of 262,144 blocks", only_when=_TIMED),
    "bytes_found_by": Field("text", "declared, traced allocations or resident pages", only_when=_TIMED),
    "hit_rate": Field("share", "prompt tokens found in the prefix cache", only_when=_TIMED),
    "min_free_blocks": Field("count", "the fewest there were", only_when=_TIMED),
    "num_repeats": Field("count", "whole workloads, of which the figures are medians", only_when=_TIMED),
    "spread": Field("object", "lowest and highest of the repeats, by figure", only_when=_TIMED),
    "resources": Field("objects", "what the compiler says, one for each target", fields=_RESOURCES),
}

REPLAY: Mapping[str, Field] = {
    "trace": _needed("name", "of the trace file, without its folder", identity=True),
    "implementation": _needed("text", "name", identity=True),
    "block_size": _needed("count", "tokens a block", identity=True),
    "num_blocks": _needed("count", "size of the pool", identity=True),
    "num_requests": _needed("count", "replayed", identity=True),
    "num_finished": _needed("count", "requests"),
    "num_rejected": _needed("count", "requests longer than the pool"),
    "num_preemptions": _needed("count", "a request may be preempted more than once"),
    "mean_running": _needed("number", "requests at a time"),
    "peak_running": _needed("count", "requests at a time"),
    "waste": _needed("share", "slots held without a token, of slots held"),
    "hit_rate": Field("share", "prompt tokens found in the prefix cache"),
    "allocator_seconds": Field("number", "time inside the allocator"),
}

END: Mapping[str, Field] = {
    "exit_code": _needed("count", "of the process"),
    "verdict": _needed("text", "as printed"),
    "counts": _needed("object", "tests for each outcome", fields={name: Field("count", "tests") for name in OUTCOMES}),
    "seconds": _needed("number", "duration of the session"),
}

KINDS: Mapping[str, Mapping[str, Field]] = {
    "session": SESSION,
    "law": LAW,
    "benchmark": BENCHMARK,
    "replay": REPLAY,
    "end": END,
}
"""kind -> its fields beside the common ones. A kind without identity fields is identified by its time."""
