"""``kvproof size`` answers as vLLM's start-up log does: capacity in tokens and maximum concurrency, last."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kvproof_suites import cli

NUMBERS = ["--num-layers=32", "--num-kv-heads=8", "--head-dim=128", "--max-model-len=8192"]
CONFIG = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def size(*arguments):
    return CliRunner().invoke(cli.main, ["size", *map(str, arguments)])


def sized(*arguments):
    shown = size(*arguments, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def config_file(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    return path


def test_numbers_give_bytes_blocks_tokens_and_concurrency():
    found = sized(*NUMBERS, "--gpu-memory=80", "--weights=15")
    assert found["bytes_per_token"] == 2 * 32 * 8 * 128 * 2 == 131_072
    assert found["bytes_per_block"] == 16 * 131_072
    assert found["num_gpu_blocks"] == int((0.92 * 80 - 15) * 2**30 / (16 * 131_072))
    assert found["capacity_tokens"] == 16 * found["num_gpu_blocks"]
    assert found["max_concurrency"] == pytest.approx(found["num_gpu_blocks"] / 512)


def test_the_last_lines_are_capacity_and_concurrency():
    *_, capacity, concurrency = size(*NUMBERS, "--weights=15").stdout.splitlines()
    assert capacity == "GPU KV cache size\t480,048 tokens"
    assert concurrency == "Maximum concurrency for 8,192 tokens a request\t58.60x"


def test_a_config_gives_the_same_as_its_numbers(tmp_path):
    assert sized(config_file(tmp_path), "--weights=15") == sized(*NUMBERS, "--weights=15")


@pytest.mark.parametrize(
    ("flag", "field", "factor"),
    [
        ("--kv-cache-dtype=fp8", "bytes_per_token", 0.5),
        ("--block-size=32", "bytes_per_block", 2),
        ("--tensor-parallel-size=2", "bytes_per_token", 0.5),
        ("--max-model-len=4096", "max_concurrency", 2),
    ],
)
def test_each_flag_does_what_it_does_in_vllm(tmp_path, flag, field, factor):
    config = config_file(tmp_path)
    assert sized(config, "--weights=15", flag)[field] == factor * sized(config, "--weights=15")[field]


def test_memory_that_is_taken_leaves_less(tmp_path):
    config = config_file(tmp_path)
    before = sized(config, "--weights=15")["num_gpu_blocks"]
    for flag in ("--activations=2", "--cuda-graphs=2", "--weights=17"):
        assert before - sized(config, "--weights=15", flag)["num_gpu_blocks"] == 2 * 2**30 // (16 * 131_072)
    assert sized(config, "--weights=15", "--gpu-memory-utilization=0.5")["num_gpu_blocks"] < before
    assert sized(config, "--weights=15", "--swap-space=4")["num_swap_blocks"] == 4 * 2**30 // (16 * 131_072)


def test_weights_come_from_the_index_of_a_sharded_checkpoint(tmp_path):
    config = config_file(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 15 * 2**30}}))
    assert sized(config) == sized(config, "--weights=15")


def test_the_dtype_of_the_model_is_the_default(tmp_path):
    assert sized(config_file(tmp_path, torch_dtype="float32"), "--weights=15")["bytes_per_token"] == 2 * 131_072


def test_a_request_that_does_not_fit_is_told():
    told = size(*NUMBERS, "--weights=15", "--max-model-len=1000000")
    assert told.exit_code == 0
    assert told.stderr == "not one request of 1,000,000 tokens fits; lower --max-model-len\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--num-layers, --num-kv-heads, --head-dim missing: give the numbers, or a config.json"),
        ([number for number in NUMBERS if "max-model-len" not in number], "--max-model-len is missing"),
        (["--max-model-len=1", "--num-layers=2", "--weights=1"], "--num-kv-heads, --head-dim missing"),
        (NUMBERS, "--weights is missing"),
        ([*NUMBERS, "--weights=90"], "no room for a KV block"),
        ([*NUMBERS, "--weights=1", "--kv-cache-dtype=fp5"], "unknown kv-cache-dtype 'fp5'"),
        ([*NUMBERS, "--weights=1", "--gpu-memory-utilization=1.5"], "utilisation must lie in (0, 1]"),
        (["nowhere.json"], "nowhere.json: No such file or directory"),
    ],
)
def test_a_mistake_is_named_and_exits_with_4(arguments, said):
    told = size(*arguments)
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr
    assert told.stderr.count("\n") <= 2


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not JSON"), ("[]", "holds a list, not an object"), ("{}", "field 'num_hidden_layers'")],
)
def test_a_config_that_can_not_be_used_is_named(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text)
    told = size(tmp_path / "config.json", "--weights=1")
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr


def test_a_model_is_described_once(tmp_path):
    told = size(config_file(tmp_path), "--weights=1", "--head-dim=64")
    assert told.exit_code == cli.USAGE_ERROR
    assert "both describe the model" in told.stderr


def test_sizing_does_not_wait_for_torch():
    probe = (
        f"import sys; sys.argv = ['kvproof', 'size', '--weights=1', *{NUMBERS}]; from kvproof_suites.cli import main\n"
        "try: main()\nfinally: print({'torch', 'kvproof_impls'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout.endswith("set()\n")
