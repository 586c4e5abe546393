"""The script that a failed kernel law leaves: it shows the failure where there is no kvproof, and its absence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvproof_reports.records import read_run

KERNELS = """
import torch

class Right:
    features = frozenset({"lse", "relabel_bitwise", "capacity_bitwise", "run_bitwise", "dirty_tail"})

    def unsupported(self, spec):
        return None if spec.window is None and spec.softcap is None else "plain attention only"

    def plan(self, spec, batch, reuse=None):
        def launch(query, pools, out=None):
            outs, lses = zip(*(self.row(spec, batch, row, query, pools) for row in range(batch.num_seqs)))
            return (torch.cat(outs), torch.cat(lses)) if spec.return_lse else torch.cat(outs)
        return launch

    def row(self, spec, batch, row, query, pools):
        n, start = batch.context_lens_host[row], int(batch.query_start[row])
        t = torch.arange(n)
        block = batch.block_tables[row][t // spec.block_size].long()
        k, v = (pool[block, t % spec.block_size].float() for pool in (pools.key, pools.value))
        k, v = (part.repeat_interleave(spec.group_size, 1) for part in (k, v))
        q = query[start : start + batch.query_lens_host[row]].float()
        s = torch.einsum("qhd,khd->hqk", q, k) * spec.scale_value
        s = s.masked_fill(~torch.ones(s.shape[1:], dtype=torch.bool).tril(self.last(n, len(q))), -torch.inf)
        return torch.einsum("hqk,khd->qhd", s.softmax(-1), v).to(query.dtype), s.logsumexp(-1).T

    def last(self, n, num_queries):
        return n - num_queries

    def write(self, spec, key, value, pools, slot_mapping):
        kept = slot_mapping >= 0
        at = slot_mapping[kept] // spec.block_size, slot_mapping[kept] % spec.block_size
        pools.key[at], pools.value[at] = key[kept], value[kept]

    def copy_blocks(self, pools, copies):
        for source, destination in copies:
            pools.key[destination], pools.value[destination] = pools.key[source], pools.value[source]

class SeesOneTokenTooMany(Right):
    def last(self, n, num_queries):
        return n - num_queries + 1

class ReadsTheNullBlock(Right):
    def row(self, spec, batch, row, query, pools):
        out, lse = super().row(spec, batch, row, query, pools)
        return out + 0 * pools.value[0, 0, 0, 0], lse

class WritesPaddingToSlotZero(Right):
    def write(self, spec, key, value, pools, slot_mapping):
        super().write(spec, key, value, pools, slot_mapping.clamp(min=0))

class CopiesKeysOnly(Right):
    def copy_blocks(self, pools, copies):
        for source, destination in copies:
            pools.key[destination] = pools.key[source]

class Codes(Right):
    # int8 with a scale for each token and key head, and latent attention.
    features = Right.features | {"int8", "token_scales", "mla"}

    def plan(self, spec, batch, reuse=None):
        launch = super().plan(spec, batch)
        return lambda query, pools, out=None: launch(query, self.meant(spec, pools))

    def meant(self, spec, pools):
        key = pools.key if pools.key_scale is None else pools.key.float() * pools.key_scale[..., None]
        if spec.mla:
            return type(pools)(key, key[..., : spec.value_dim_value], None, None)
        scale = pools.value_scale
        return type(pools)(key, pools.value if scale is None else pools.value.float() * scale[..., None], None, None)

    def write(self, spec, key, value, pools, slot_mapping):
        kept = slot_mapping >= 0
        at = slot_mapping[kept] // spec.block_size, slot_mapping[kept] % spec.block_size
        parts = [(pools.key, key[kept], pools.key_scale), (pools.value, value[kept], pools.value_scale)]
        for pool, rows, scales in parts[: 1 if spec.mla else 2]:
            if scales is not None:
                scales[at] = rows.float().abs().amax(-1) / 127
                rows = self.round((rows.float() / scales[at][..., None]).nan_to_num(nan=0.0))
            pool[at] = rows.to(pool.dtype)

    def round(self, numbers):
        return numbers.round()

    def copy_blocks(self, pools, copies):
        for source, destination in copies:
            for part in (pools.key, pools.value, pools.key_scale, pools.value_scale):
                if part is not None:
                    part[destination] = part[source]

class CodesWithoutScales(Codes):
    def meant(self, spec, pools):
        return super().meant(spec, type(pools)(pools.key, pools.value, None, None))

class CodesAreCutOff(Codes):
    def round(self, numbers):
        return numbers.trunc()

class ScalesStayBehind(Codes):
    copy_blocks = Right.copy_blocks

class WritesLatentValuesToo(Codes):
    def write(self, spec, key, value, pools, slot_mapping):
        super().write(spec, key, value, pools, slot_mapping)
        if spec.mla:
            Right.write(self, spec, key, value, pools, slot_mapping)

class ForgetsTheSecondLaunch(Right):
    def plan(self, spec, batch, reuse=None):
        launch, self.num_plans = super().plan(spec, batch), getattr(self, "num_plans", 0) + 1
        wrong = self.num_plans % 2 == 0
        return lambda query, pools: torch.zeros_like(query) if wrong else launch(query, pools)

class Flat(Right):
    def plan(self, spec, batch, reuse=None):
        launch = super().plan(spec, batch)
        return lambda query, pools: launch(query, pools).flatten(1)

class OutOfMemory(Right):
    def plan(self, spec, batch, reuse=None):
        raise MemoryError("no room for the workspace")

class DeviceOutOfMemory(Right):
    def plan(self, spec, batch, reuse=None):
        def launch(query, pools, out=None):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return launch
"""

WRONG = {
    "SeesOneTokenTooMany": ("past_the_causal_limit", "G18", "want"),
    "ReadsTheNullBlock": ("unowned_bytes and 1q1k_1q15k and values-nan", "G2", "same bits"),
    "WritesPaddingToSlotZero": ("a_write_changes_exactly and 1q1k", "F1", "slots of key"),
    "CopiesKeysOnly": ("a_block_copy and 1q1k", "F1", "slots of value"),
    "CodesWithoutScales": ("attention_over_codes and 1q20k and int8", "Q1", "want"),
    "CodesAreCutOff": ("becomes_the_nearest and 1q20k and int8", "F2", "slots of key"),
    "ScalesStayBehind": ("takes_the_scales and 1q20k and int8", "Q2", "slots of key scales"),
    "WritesLatentValuesToo": ("written_is_read_back and mla", "F2", "slots of key"),
    "Flat": ("past_the_causal_limit and 17q17k", "G18", "it must be"),
    "OutOfMemory": ("past_the_causal_limit and 17q17k", "G18", "MemoryError: no room"),
    "DeviceOutOfMemory": ("past_the_causal_limit and 17q17k", "G18", "RuntimeError: CUDA out of memory"),
    "ForgetsTheSecondLaunch": ("two_runs_give and 1q1k_1q15k", "G5", "same bits"),
}
"""Kernel to the tests it is put under, the law that it breaks there, and what the script says."""

NO_KVPROOF = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].startswith("kvproof"):
            raise ModuleNotFoundError(f"{name} is not installed here")
sys.meta_path.insert(0, Absent())
"""


EACH = """
import contextlib, io, json, runpy, sys, traceback
def show(script, *arguments):
    said, sys.argv = io.StringIO(), [script, *arguments]
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else print(end.code) or 1
        except Exception:
            code = print(traceback.format_exc()) or 1
    return code, said.getvalue()
json.dump([show(*arguments) for arguments in json.loads(sys.argv[1])], sys.stdout)
"""


def run(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False)


def judge(folder: Path, impl: str, chosen: str, results: str, *more: str) -> subprocess.CompletedProcess[str]:
    options = ["-k", chosen, "-q", "-p", "no:cacheprovider", *([f"--results={results}"] if results else []), *more]
    return run(folder, "-m", "pytest", "--pyargs", "kvproof_suites.kernel", f"--impl={impl}", "--isolate=no", *options)


def show(folder: Path, *scripts: tuple[str, ...]) -> list[tuple[int, str]]:
    """Run scripts, each with its arguments, as a maintainer upstream would, who has never heard of us."""
    ended = run(folder, "-c", EACH, json.dumps(scripts), PYTHONPATH=str(folder / "site"))
    assert ended.returncode == 0, ended.stderr
    return [(code, said) for code, said in json.loads(ended.stdout)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a user: kernels that import torch only, and a site in which no part of kvproof can be imported."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(KERNELS, encoding="utf-8")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(NO_KVPROOF, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def judged(folder: Path) -> dict[str, dict[str, Any]]:
    """What one run over all wrong kernels left: the records of the tests that are meant, by kernel."""
    chosen = " or ".join(f"({wrong} and {tests})" for wrong, (tests, _, _) in WRONG.items())
    ended = judge(folder, ",".join(f"mine:{wrong}" for wrong in WRONG), chosen, "judged")
    assert ended.returncode == 1, ended.stdout
    (folder / "said").write_text(ended.stdout, encoding="utf-8")
    return {law["implementation"].removeprefix("mine:"): law for law in read_run(folder / "judged").latest("law")}


@pytest.fixture(scope="module")
def shown(folder: Path, judged: dict[str, dict[str, Any]]) -> dict[str, list[tuple[int, str]]]:
    """Kernel to (exit code, what was said) of its script: with itself, and with a right kernel."""
    scripts = {wrong: script_named(law["reason"]) for wrong, law in judged.items() if "script: " in law["reason"]}
    ends = show(folder, *((script, *other) for script in scripts.values() for other in ((), ("mine:Codes",))))
    return {wrong: ends[2 * number : 2 * number + 2] for number, wrong in enumerate(scripts)}


def script_named(story: str) -> str:
    return story.partition("script:  ")[2].partition("\n")[0]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_script_exits_1_with_the_wrong_kernel_and_0_with_a_right_one(
    judged: dict[str, dict[str, Any]], shown: dict[str, list[tuple[int, str]]], wrong: str
) -> None:
    _, law, said = WRONG[wrong]
    assert judged[wrong]["law"] == law
    (code, told), right = shown[wrong]
    assert code == 1, told
    assert said in told
    assert right == (0, "the failure is gone\n")


@pytest.mark.parametrize(
    ("named", "told"), [("nowhere:kernel", "No module named 'nowhere'"), ("mine:Absent", "no attribute 'Absent'")]
)
def test_a_kernel_that_can_not_be_loaded_is_neither_wrong_nor_right(
    folder: Path, judged: dict[str, dict[str, Any]], named: str, told: str
) -> None:
    ended = run(folder, script_named(judged["SeesOneTokenTooMany"]["reason"]), named)
    assert ended.returncode == 125, ended.stderr
    assert ended.stderr.startswith(f"{named} can't be loaded: ")
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("wrong", ["OutOfMemory", "DeviceOutOfMemory"])
def test_running_out_of_memory_is_a_failure_and_not_a_skip(judged: dict[str, dict[str, Any]], wrong: str) -> None:
    assert judged[wrong]["outcome"] == "broken"


def test_nothing_is_written_for_a_kernel_that_is_right(folder: Path) -> None:
    ended = judge(folder, "mine:Right", "past_the_causal_limit", "results-right")
    assert ended.returncode == 0, ended.stdout
    assert not (folder / "results-right" / "repro").exists()


def test_workers_leave_their_scripts_where_the_records_are(folder: Path) -> None:
    pytest.importorskip("xdist")
    ended = judge(folder, "mine:SeesOneTokenTooMany", "past_the_causal_limit", "", "-n", "1")
    (written,) = (folder / "results").iterdir()
    assert {path.name for path in written.iterdir()} == {"results.jsonl", "repro"}, ended.stdout


def test_a_pool_too_large_to_touch_is_told_by_the_blocks_that_a_table_names(tmp_path: Path) -> None:
    import torch

    from kvproof_suites.repro.embed import UNPACK, Data
    from kvproof_suites.repro.recorder import LARGE

    pool = torch.zeros(LARGE // 8 + 1, 2, 1, 4, dtype=torch.float16)
    pool[[5, 70_000]] = torch.randn(2, 2, 1, 4).half()
    pool[9] = 1
    data = Data()
    expression = data.tensor("key", pool, {5, 70_000, -1, 2**40})
    assert data.num_bytes < 200
    names: dict[str, object] = {"torch": torch, "DEVICE": "cpu"}
    exec(f"import base64, zlib\n{UNPACK}\n{data.source()}\nfound = {expression}", names)
    found = names["found"]
    assert isinstance(found, torch.Tensor)
    assert found.shape == pool.shape
    assert torch.equal(found[[5, 70_000]], pool[[5, 70_000]])
    assert not found[9].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn", "int8"])
def test_a_tensor_comes_back_bit_for_bit_in_its_own_strides(dtype: str) -> None:
    import torch

    from kvproof_suites.repro.embed import UNPACK, Data

    stored = torch.randint(0, 256, (3, 2, 4, 8), dtype=torch.uint8).view(getattr(torch, dtype)).transpose(1, 2)
    data = Data()
    expression = data.tensor("key", stored)
    assert data.tensor("again", stored) == expression
    names: dict[str, object] = {"torch": torch, "DEVICE": "cpu"}
    exec(f"import base64, zlib\n{UNPACK}\n{data.source()}\nfound = {expression}", names)
    found = names["found"]
    assert isinstance(found, torch.Tensor)
    assert found.stride() == stored.stride()
    assert torch.equal(found.contiguous().view(torch.uint8), stored.contiguous().view(torch.uint8))
