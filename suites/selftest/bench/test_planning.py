"""From a profile and options to cells: every combination once, and each mistake told where it was made."""

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from kvproof_suites.bench.cells import Cell
from kvproof_suites.bench.heads import Heads, heads_of_model, parse_heads
from kvproof_suites.bench.planning import OPERATIONS, STEPS, make_plan, require_some_support
from kvproof_suites.bench.points import parse_point
from kvproof_suites.bench.profiles import SHIPPED, ProfileError, parse_profile, read_profile

TWO = """
[[attention]]
points = ["2q1s40", "q8_q1s30", "q8"]
heads = ["4/2", "mla8"]
head_dims = [16]
block_sizes = [8, 16]
tables = ["dense", "shuffled"]
caches = ["cold", "hot"]
modes = ["eager", "graph"]
"""
ONE = '[[attention]]\npoints = ["2q1s40"]\n'


@pytest.fixture
def plan(tmp_path):
    def make(text=TWO, device="cpu", **given):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return make_plan(device, profile=str(path), **given)

    return make


def test_every_combination_is_a_cell_once_and_cells_of_a_contest_lie_together(plan):
    cells = plan(TWO + TWO).kernels
    assert len(cells) == len(set(cells)) == 3 * 2 * 2 * 2 * 2
    contests = [cell.contest for cell in cells]
    assert sum(a != b for a, b in pairwise(contests)) == len(set(contests)) - 1
    assert {cell.group for cell in cells} == {"decode", "prefill", "mixed"}


def test_graphs_are_for_gpus(plan):
    assert {cell.mode for cell in plan().kernels} == {"eager"}
    assert {cell.mode for cell in plan(device="cuda").kernels} == {"eager", "graph"}


def test_the_type_goes_by_the_device(plan):
    assert {cell.heads.dtype for cell in plan(ONE).kernels} == {"float32"}
    assert {cell.heads.dtype for cell in plan(ONE, device="cuda:1").kernels} == {"bfloat16"}


def test_options_take_the_place_of_what_the_profile_says(plan):
    (cell,) = plan(ONE, points="3q1s50", block_sizes="64", tables="churned").kernels
    assert (str(cell.point), cell.block_size, cell.table) == ("3q1s50", 64, "churned")
    cells = plan('[[write]]\npoints = ["q20"]\n', points="q1s8", block_sizes="8,32", tables="dense").kernels
    told = {(cell.group, str(cell.point), cell.block_size, cell.table) for cell in cells}
    decode = {("decode", "q1s8", size, "dense") for size in (8, 32)}
    assert told == decode | {("write", "q20", size, "shuffled") for size in (8, 32)}


def test_work_of_the_host_has_cells_of_its_own(plan):
    found = plan("[allocator]\nblock_sizes = [16]\n[step_tensors]\nbatches = [4]\nblock_sizes = [8]\n[serving]\n")
    assert [cell.operation for cell in found.cells("allocator")] == list(OPERATIONS)
    assert [(cell.operation, cell.block_size, cell.batch) for cell in found.cells("step_tensors")] == [
        (operation, 8, 4) for operation in STEPS
    ]
    assert found.shares == (0.0, 0.3)
    assert plan(ONE).cells("allocator") == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SHIPPED)
def test_the_profiles_that_ship_have_cells_for_every_benchmark(name, device):
    found = make_plan(device, profile=name)
    assert {cell.group for cell in found.kernels} == {"decode", "prefill", "mixed", "write", "copy"}
    assert found.cells("allocator")
    assert found.cells("step_tensors")
    assert found.shares


def test_full_holds_the_whole_grid():
    cells = make_plan("cuda", profile="full").kernels
    decode = [cell for cell in cells if cell.group == "decode"]
    assert {len(cell.point.seqs) for cell in decode} >= {1, 8, 32, 128}
    assert {max(cell.point.context_lens) for cell in decode} >= {1024, 4096, 16384, 65536}
    assert {(cell.heads.num_q_heads, cell.heads.num_kv_heads) for cell in decode} == {
        (32, 32),
        (32, 8),
        (64, 8),
        (128, 1),
    }
    assert {cell.heads.head_dim for cell in decode} == {64, 128, 256, 576}
    assert {cell.heads.stored_dtype for cell in decode} == {"float16", "bfloat16", "float8_e4m3fn"}
    assert {cell.block_size for cell in decode} == {1 << i for i in range(9)}
    assert {cell.table for cell in decode} == {"dense", "identity", "shuffled", "churned", "shared-prefix"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[attention]]\npoint = ["q1s8"]\n', "attention[0].point: unknown key; did you mean 'points'?"),
        ('[[atention]]\npoints = ["q1s8"]\n', "atention: unknown key; did you mean 'attention'?"),
        ('[attention]\npoints = ["q1s8"]\n', "attention: is a list of tables: write [[attention]]"),
        ("[[attention]]\n", "attention[0].points: is missing; such as"),
        (ONE + 'block_sizes = ["16"]\n', "attention[0].block_sizes: ['16'] is not a list of whole numbers from 1"),
        (ONE + "block_sizes = [0]\n", "attention[0].block_sizes: [0] is not a list of whole numbers from 1"),
        (ONE + "tables = []\n", "attention[0].tables: [] is not a list of texts with at least one"),
        (ONE + "tables = 'dense'\n", "attention[0].tables: 'dense' is not a list"),
        ("seconds = 0\n" + ONE, "seconds: 0 is not a number of seconds above 0"),
        ("seconds = true\n" + ONE, "seconds: True is not a number"),
        ("", "file: names nothing to time"),
        ("[serving]\nblock_sizes = [16]\n", "serving.block_sizes: unknown key; known: shares"),
        ("[serving]\nshares = ['a']\n", "serving.shares: ['a'] is not a list of numbers"),
        ("what", "is not TOML"),
    ],
)
def test_a_slip_in_a_profile_is_told_with_file_and_field(text, said):
    with pytest.raises(ProfileError) as error:
        parse_profile(text, "mine.toml", "mine")
    assert str(error.value).startswith("mine.toml: ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('points = ["8q1s1m"]', "attention[0]: '8q1s1m' is not <count>q<query>s<context>"),
        ('points = ["q8"]\nheads = ["32"]', "heads '32': give query and key heads as 32/8, or mla128"),
        ('points = ["q8"]\nheads = ["9/2"]', "num_q_heads (9) must be a multiple"),
        ('points = ["q8"]\ndtypes = ["fp16"]', "dtype 'fp16': one of float16"),
        ('points = ["q8"]\nkv_dtypes = ["fp8"]', "kv_dtype 'fp8': one of"),
        ('points = ["q8"]\ntables = ["shufled"]', "tables: 'shufled' is not one of dense"),
        ('points = ["q8"]\ncaches = ["warm"]', "caches: 'warm' is not one of cold, hot"),
        ('points = ["q8"]\nmodes = ["lazy"]', "modes: 'lazy' is not one of eager, graph"),
    ],
)
def test_a_value_that_means_nothing_is_told_with_its_sweep(plan, line, said):
    with pytest.raises(ProfileError) as error:
        plan(f"[[attention]]\n{line}\n")
    assert said in str(error.value)
    assert "profile mine: attention[0]" in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"profile": "smal.toml"},
            "smal.toml: No such file or directory; give one of quick, paper, full, or a TOML file",
        ),
        ({"points": "8q1s1m"}, "--points: '8q1s1m' is not <count>q<query>s<context>"),
        ({"points": ","}, "--points: names nothing"),
        ({"tables": "shufled"}, "--tables: tables: 'shufled' is not one of dense, identity"),
        ({"block_sizes": "16,x"}, "--block-sizes: 'x' is not a whole number from 1"),
        ({"block_sizes": "0"}, "--block-sizes: '0' is not a whole number from 1"),
        ({"threads": "0"}, "--threads: '0' is not a whole number from 1"),
        ({"model": "nowhere.json"}, "--model: nowhere.json: No such file"),
    ],
)
def test_a_slip_in_an_option_is_told_by_its_name(given, said):
    with pytest.raises(ProfileError) as error:
        make_plan("cpu", **given)
    assert str(error.value).startswith(said)


def test_a_launch_has_as_many_threads_as_asked_for():
    assert (make_plan("cpu").threads, make_plan("cpu", threads="1").threads) == (None, 1)


def test_a_block_size_that_nothing_supports_is_told_and_one_that_something_supports_is_not(plan):
    chosen = plan(ONE, block_sizes="7,16")
    picky = SimpleNamespace(unsupported=lambda spec: "16 only" if spec.block_size != 16 else None)
    anything = SimpleNamespace(unsupported=lambda spec: None)
    with pytest.raises(ProfileError, match="--block-sizes: 7: nothing in this run supports it"):
        require_some_support(chosen, {"picky": picky})
    require_some_support(chosen, {"picky": picky, "anything": anything})
    require_some_support(chosen, {})


def test_a_model_gives_its_heads_dims_and_type(plan, tmp_path):
    config = {"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"torch_dtype": "float16"}))
    found = plan(TWO, model=str(path)).kernels
    assert {cell.heads for cell in found} == {Heads(16, 2, 64, "float16")}
    assert len(found) == len(set(found))
    assert plan(TWO, model=str(path)).num_layers == 4


def test_a_model_with_a_latent_has_one_key_head_for_its_whole_width():
    config = {"num_hidden_layers": 4, "num_attention_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert heads_of_model(config, "cuda") == (Heads(16, 1, 576, "bfloat16", value_dim=512, mla=True), 4)


def test_latent_heads_are_those_of_deepseek():
    assert parse_heads("mla128", 64, "float16", None, "cpu") == Heads(128, 1, 576, "float16", value_dim=512, mla=True)


def test_a_cell_is_named_by_what_is_unusual():
    cell = Cell("decode", parse_point("8q1s1k"), Heads(32, 8, 128), 16)
    assert str(cell) == "8q1s1k-h32x8-d128-float32-b16-shuffled"
    hot = replace(cell, cache="hot", mode="graph", heads=replace(cell.heads, kv_dtype="int8"))
    assert str(hot) == "8q1s1k-h32x8-d128-float32-kv_int8-b16-shuffled-hot-graph"


def test_quick_is_the_default():
    assert make_plan("cpu") == make_plan("cpu", profile="quick")
    assert read_profile("quick").name == "quick"
