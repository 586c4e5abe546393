"""``kvproof new`` writes a kernel that runs as it is, and overwrites nothing."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from kvproof_impls import AttentionSpec, KVPools, PagedBatch, registry
from kvproof_suites import cli


def new(*arguments):
    return CliRunner().invoke(cli.main, ["new", *map(str, arguments)])


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "my_kernel.py"
    assert new(path).exit_code == 0
    found = importlib.util.spec_from_file_location("my_kernel", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_template_is_a_kernel_to_the_registry(template):
    made = registry.adapt("my_kernel:factory", template.factory)
    assert made.provides == "kernel"


def test_the_template_attends_to_each_sequence_through_its_table(template):
    torch.manual_seed(0)
    spec = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, block_size=3, dtype="float32")
    key, value = torch.randn(2, 6, 3, 2, 8)
    query = torch.randn(3, 4, 8)
    batch = PagedBatch(
        block_tables=torch.tensor([[4, 1], [2, -1]], dtype=torch.int32),
        context_lens=torch.tensor([5, 2], dtype=torch.int32),
        query_start=torch.tensor([0, 2, 3], dtype=torch.int32),
        slot_mapping=torch.full((3,), -1),
        context_lens_host=(5, 2),
        query_lens_host=(2, 1),
    )
    out = template.factory().plan(spec, batch)(query, KVPools(key, value))

    histories = [(torch.cat([key[4], key[1]]), torch.cat([value[4], value[1]])), (key[2], value[2])]
    for row, (seq, visible) in enumerate([(0, 4), (0, 5), (1, 2)]):
        keys, values = (side[:visible].double() for side in histories[seq])
        for head in range(4):
            weights = (keys[:, head // 2] @ query[row, head].double() * spec.scale_value).softmax(0)
            torch.testing.assert_close(out[row, head], (weights @ values[:, head // 2]).float())


UNMASKED = {
    "keys = key_pool[table].flatten(0, 1)[:context_len]": "keys = key_pool[table].flatten(0, 1)",
    "values = value_pool[table].flatten(0, 1)[:context_len]": "values = value_pool[table].flatten(0, 1)",
    "hidden = torch.arange(context_len, ": "hidden = torch.arange(len(keys), ",
}
"""Whole blocks are read and the scores masked: what lies behind the end of a context is multiplied by zero."""


@pytest.mark.parametrize(("edits", "expected"), [({}, "verdict: conforms"), (UNMASKED, "1 broken")])
def test_a_tail_that_is_no_longer_cut_off_breaks_a_law_and_the_template_none(tmp_path, edits, expected):
    text = new("-").output
    for line, edited in edits.items():
        assert text.count(line) == 1
        text = text.replace(line, edited)
    (tmp_path / "edited.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--pyargs", "kvproof_suites.kernel"]
    command += ["-k", "unowned_bytes or given_output", "--kvproof-impl=edited:factory", "--kvproof-results=judged"]
    judged = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert expected in judged.stdout, judged.stdout


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "my_kernel.py"
    path.write_text("mine")
    told = new(path)
    assert (told.exit_code, path.read_text()) == (cli.USAGE_ERROR, "mine")
    assert "exists and is not overwritten" in told.stderr


@pytest.mark.parametrize("name", ["my-kernel.py", "kernel.txt", "3d.py"])
def test_a_name_that_can_not_be_imported_is_refused(tmp_path, name):
    told = new(tmp_path / name)
    assert told.exit_code == cli.USAGE_ERROR
    assert "can't be imported" in told.stderr
    assert not (tmp_path / name).exists()


def test_a_folder_that_is_missing_is_named(tmp_path):
    told = new(tmp_path / "nowhere" / "my_kernel.py")
    assert told.exit_code == cli.USAGE_ERROR
    assert "No such file or directory" in told.stderr


def test_a_dash_prints_it():
    shown = new("-")
    compile(shown.output, "printed", "exec")
    assert "def factory():" in shown.output
