"""``kvproof simulate`` says what policies, block sizes and watermarks would make of traffic."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof_suites import cli
from kvproof_traces import SAMPLES, generate_like, write_native

SMALL = ["--num-requests=400", "--num-slots=15700", "--max-model-len=2048"]
ROOFLINE = ["alpaca", "--gpu=h100", "--kv-bytes-per-token=1"]
MODEL = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}


def simulate(*arguments):
    return CliRunner().invoke(cli.main, ["simulate", *map(str, arguments)])


def simulated(*arguments):
    shown = simulate(*arguments, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def test_each_combination_of_block_size_and_watermark_is_a_row():
    rows = simulated("sharegpt", *SMALL, "--block-size=16,64", "--watermark=0,0.1")
    assert [(row["block_size"], row["watermark"]) for row in rows] == [(16, 0), (16, 0.1), (64, 0), (64, 0.1)]
    assert rows[0]["token_share"] > rows[2]["token_share"]
    assert rows[0]["num_preemptions"] > rows[1]["num_preemptions"]


def test_a_contiguous_policy_is_one_row():
    rows = simulated("sharegpt", *SMALL, "--policy=contiguous-max,paged", "--block-size=16,32")
    assert [row["policy"] for row in rows] == ["contiguous-max", "paged", "paged"]
    assert all(row["num_finished"] + row["num_rejected"] == 400 for row in rows)
    shares = ["token_share", "reserved_share", "internal_share", "external_share"]
    assert all(sum(row[share] for share in shares) == pytest.approx(1) for row in rows)


def test_the_table_leaves_out_what_did_not_happen():
    header, line = simulate("sharegpt", *SMALL, "--watermark=0.2").stdout.splitlines()
    assert header.split("\t")[:4] == ["policy", "block", "watermark", "mean seqs"]
    assert line.split("\t")[:3] == ["paged", "16", "0.2"]
    assert "hit rate" not in header
    assert "TTFT" not in header


def test_it_counts_what_a_replay_through_an_allocator_counts(tmp_path):
    trace = tmp_path / "chat.jsonl"
    write_native(trace, generate_like("azure-conv", 120, seed=3))
    (row,) = simulated(trace, "--num-slots=32000")
    replay = ["replay", trace, "--allocator=textbook", "--limit=120", "--num-blocks=2000", "--json"]
    (replayed,) = json.loads(CliRunner().invoke(cli.main, list(map(str, replay))).stdout)
    for name in ("num_finished", "num_rejected", "num_preemptions"):
        assert row[name] == replayed[name]
    assert row["mean_running_seqs"] == pytest.approx(replayed["mean_running"])
    assert row["peak_running_seqs"] == replayed["peak_running"]
    assert row["num_preemptions"] > 0


def test_it_finds_the_prefixes_that_an_allocator_finds(tmp_path):
    trace = tmp_path / "agents.jsonl"
    write_native(trace, generate_like("agent", 150, seed=1))
    sizes = ["--block-size=512", "--max-num-seqs=8", "--json"]
    (row,) = simulated(trace, "--prefix-cache", "--num-slots=153600", *sizes[:2])
    replay = ["replay", trace, "--allocator=paged-python", "--num-blocks=300", *sizes]
    (replayed,) = json.loads(CliRunner().invoke(cli.main, list(map(str, replay))).stdout)
    assert row["prefix_hit_rate"] == pytest.approx(replayed["hit_rate"])
    assert row["mean_running_seqs"] == pytest.approx(replayed["mean_running"])
    (roomy,) = simulated(trace, "--prefix-cache", "--num-slots=4096000", *sizes[:2])
    assert 0.1 < row["prefix_hit_rate"] < roomy["prefix_hit_rate"]  # some were evicted


def test_a_roofline_gives_latencies(tmp_path):
    model = tmp_path / "config.json"
    model.write_text(json.dumps(MODEL))
    timed = ["azure-conv", "--num-requests=300", f"--model={model}", "--weights=15"]
    (h100,) = simulated(*timed, "--gpu=h100")
    (a100,) = simulated(*timed, "--gpu=a100-80")
    # 15 GiB of weights a step at 3.35 and 2.039 TB/s is 4.8 and 7.9 ms at least.
    assert 15 * 2**30 / 3.35e9 < h100["tpot_ms"]["p50"] < a100["tpot_ms"]["p50"]
    assert 0 < h100["ttft_ms"]["p50"] < a100["ttft_ms"]["p50"]
    assert h100["kv_bytes_per_token"] == 131_072


def test_prefixes_are_shared_within_an_adapter():
    rate = [
        simulated("rag", "--num-requests=200", "--prefix-cache", "--num-slots=500000", "--max-num-seqs=8", *adapters)[0]
        for adapters in ([], ["--adapters=4"])
    ]
    assert rate[0]["prefix_hit_rate"] > rate[1]["prefix_hit_rate"] > 0


def test_samples_and_beams_save_blocks():
    (samples,) = simulated("alpaca", "--num-requests=300", "--samples=4")
    (beams,) = simulated("alpaca", "--num-requests=300", "--beams=4", "--replacement-rate=0.5")
    assert 0 < samples["sharing_saving"] < beams["sharing_saving"] < 3 / 4


def test_swapping_moves_bytes():
    swap = ["--preemption=swap", "--num-host-blocks=200", "--kv-bytes-per-token=1000"]
    (row,) = simulated("sharegpt", *SMALL, *swap)
    assert row["swapped_bytes"] == 16_000 * row["num_swapped_blocks"] > 0


def test_bad_rows_are_counted_and_a_compressed_file_is_read(tmp_path):
    packed = tmp_path / "dirty.csv.gz"
    packed.write_bytes(gzip.compress((SAMPLES / "azure_dirty.csv").read_bytes()))
    told = simulate(packed, "--skip-bad", "--json")
    assert told.exit_code == 0
    assert "dropped" in told.stderr
    assert json.loads(told.stdout)[0]["num_requests"] > 0


def test_a_file_of_which_no_row_is_kept_is_refused(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n")
    told = simulate(path, "--skip-bad")
    assert told.exit_code == cli.USAGE_ERROR
    assert "bad.csv holds no request that could be kept" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere is neither a file nor made-up traffic, which there is: sharegpt,"),
        (["nowhere.csv"], "nowhere.csv: No such file"),
        ([SAMPLES / "azure_dirty.csv"], "azure_dirty.csv:3: TIMESTAMP: "),
        (["alpaca", "--policy=pagd"], "--policy: unknown 'pagd'; known are paged, contiguous-max"),
        (["alpaca", "--policy=contiguous-max"], "--max-model-len: missing"),
        (["alpaca", "--policy=contiguous-oracle", "--max-num-seqs=0"], "--max-num-seqs: 0 is not"),
        (["alpaca", "--block-size=16,x"], "--block-size: '16,x' is not a list of numbers"),
        (["alpaca", "--block-size="], "--policy, --block-size and --watermark: give at least one"),
        (["alpaca", "--watermark=1"], "--watermark: 1.0 is not a share"),
        (["alpaca", "--admission=any"], "--admission: unknown 'any'; known are stop, skip, smallest"),
        (["alpaca", "--token-budget=100"], "--token-budget: 100 tokens a step are fewer than max_num_seqs (256)"),
        (["alpaca", "--window=100", "--prefix-cache"], "--window: is not simulated together with prefix_cache"),
        (["alpaca", "--window=100", "--samples=2"], "--window: request r0 has 2 branches"),
        (["mooncake-chat", "--prefix-cache", "--block-size=24", "--num-slots=999999"], "--block-size: 24 and the 512"),
        (["alpaca", "--beams=4"], "--replacement-rate is missing"),
        (["alpaca", "--beams=4", "--samples=2"], "--samples and --beams both"),
        (["alpaca", "--step-ms=0"], "--step-ms: 0.0 is not a duration"),
        (["alpaca", "--step-ms=inf"], "--step-ms: inf is not a duration"),
        (["alpaca", "--step-ms=1e-9"], "--step-ms: 1e-09 is not a duration"),
        (["alpaca", "--beams=4", "--replacement-rate=inf"], "--replacement-rate: inf is not in 0 to 1,000"),
        (["alpaca", "--beams=4", "--replacement-rate=nan"], "--replacement-rate: nan is not in 0 to 1,000"),
        (["alpaca", "--replacement-rate=0.5"], "--replacement-rate is for --beams"),
        (["alpaca", "--num-gpus=4"], "--num-gpus is for --gpu, which is missing"),
        (["alpaca", "--weights=15", "--step-ms=5"], "--weights is for --gpu, which is missing"),
        ([*ROOFLINE, "--weights=nan"], "--weights: nan is not above 0 and finite"),
        ([*ROOFLINE, "--weights=1e300"], "--weights: 1e+300 is not above 0 and finite"),
        ([*ROOFLINE, "--weights=15", "--params=-1"], "--params: -1.0 is not above 0 and finite"),
        ([*ROOFLINE, "--weights=15", "--params=inf"], "--params: inf is not above 0 and finite"),
        (["alpaca", "--rate=1e12"], "--rate, requests_per_second: 1e+12 is not in 1e-06 to 1e+06"),
        (["alpaca", "--rate=nan"], "--rate, requests_per_second: nan is not in"),
        (["alpaca", "--step-ms=5", "--gpu=h100"], "--step-ms and --gpu both"),
        (["alpaca", "--gpu=h300"], "--gpu: unknown 'h300'; known are a100-80, h100"),
        (["alpaca", "--gpu=h100"], "--gpu needs --model or --kv-bytes-per-token"),
        (["alpaca", "--gpu=h100", "--kv-bytes-per-token=1"], "--weights is missing"),
        (["alpaca", "--gpu=h100", "--kv-bytes-per-token=1", "--weights=0"], "--weights: 0 is not above 0"),
        ([SAMPLES / "azure.csv", "--rate=3"], "--rate is for made-up traffic"),
    ],
)
def test_a_mistake_is_told_with_the_option_and_exits_with_4(arguments, said):
    told = simulate(*arguments)
    assert told.exit_code == cli.USAGE_ERROR, told.output
    assert said in told.stderr
    assert told.stderr.count("\n") <= 2
    assert "Traceback" not in told.stderr
    assert Path.cwd().as_posix() not in told.stderr or str(arguments[0]).startswith("/")
