"""``kvproof replay`` drives allocators with a trace and leaves churned block tables behind."""

import json

import pytest
from click.testing import CliRunner

from kvproof_suites import cli, memory
from kvproof_suites.cli import replaying
from kvproof_traces import SAMPLES, read_tables

SMALL = ["--num-blocks=512", "--limit=20"]


def replay(*arguments):
    return CliRunner().invoke(cli.main, ["replay", *map(str, arguments)])


def test_paging_wastes_less_and_serves_more_than_reserving_the_maximum():
    shown = replay(*SMALL, "--json")
    paged, *reserving = json.loads(shown.stdout)
    assert [row["implementation"] for row in (paged, *reserving)] == replaying.ALLOCATORS.split(",")
    assert paged["num_finished"] + paged["num_rejected"] <= paged["num_requests"] == 20
    assert all(paged["waste"] < contiguous["waste"] for contiguous in reserving)
    assert all(paged["mean_running"] > contiguous["mean_running"] for contiguous in reserving)


def test_without_a_trace_the_made_up_sample_is_replayed():
    (row,) = json.loads(replay("--impl=paged", "--json").stdout)
    assert row["trace"] == "a made-up sample"


def test_the_table_has_a_line_for_each_allocator():
    lines = replay(SAMPLES / "azure.csv", *SMALL).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["allocator", *replaying.ALLOCATORS.split(",")]


def test_a_pool_whose_bookkeeping_has_no_room_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 100_000_000)
    told = replay("--num-blocks=4000000")
    assert told.exit_code == cli.USAGE_ERROR
    assert told.stderr == (
        "kvproof: --num-blocks: 4,000,000 blocks, with 32 bytes of bookkeeping each, take 0.1 GB, and 0.1 GB are free\n"
    )


def test_the_tables_left_behind_are_written(tmp_path):
    path = tmp_path / "churned.json"
    told = replay(*SMALL, f"--churned={path}")
    assert "paged left behind" in told.stderr
    tables = read_tables(path)
    assert (tables.block_size, tables.num_blocks) == (16, 512)
    assert len(tables.block_tables) > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.csv"], "nowhere.csv: No such file or directory"),
        ([SAMPLES / "azure_dirty.csv"], "azure_dirty.csv:3: TIMESTAMP: "),
        (["--impl=torch"], "torch provides no allocator"),
        (["--impl=pagd"], "Did you mean 'paged'?"),
        (["--format=xls"], "unknown trace format 'xls'"),
        (["--block-size=0"], "0 is not in the range 1<=x<=2147483647"),
        (["--num-blocks=3000000000"], "3000000000 is not in the range 1<=x<=2147483647"),
        (["--impl="], "--impl names nothing"),
        (["--record=h.jsonl", "--churned=./h.jsonl"], "--churned would overwrite h.jsonl, which is --record"),
        ([*SMALL, "--churned=nowhere/churned.json"], "nowhere/churned.json: No such file or directory"),
    ],
)
def test_a_mistake_is_named_and_exits_with_4(arguments, said):
    told = replay(*arguments)
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr
    assert told.stderr.count("\n") <= 2
    assert "Traceback" not in told.stderr


def test_a_trace_is_not_overwritten_by_what_is_recorded(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes((SAMPLES / "native.jsonl").read_bytes())
    (tmp_path / "link.jsonl").symlink_to(trace)
    for option in (f"--record={trace}", f"--churned={tmp_path / 'link.jsonl'}"):
        told = replay(trace, *SMALL, "--impl=paged-python", option)
        assert told.exit_code == cli.USAGE_ERROR
        assert "which is TRACE; give another file" in told.stderr
    assert trace.read_bytes() == (SAMPLES / "native.jsonl").read_bytes()


def test_an_option_that_a_history_has_no_use_for_is_named_as_it_was_given(tmp_path):
    history = tmp_path / "h.jsonl"
    assert replay(*SMALL, "--impl=paged-python", f"--record={history}").exit_code == cli.CONFORMS
    assert "which has no use for --json\n" in replay(history, "--json").stderr


def test_an_allocator_that_fails_is_named_and_exits_with_1(tmp_path, monkeypatch):
    source = (
        "from kvproof_impls import registry\n"
        "class Broken(registry.load('paged').allocator):\n"
        "    def append(self, seq, tokens):\n"
        "        raise KeyError('lost')\n"
        "def factory():\n"
        "    return {'allocator': Broken}\n"
    )
    (tmp_path / "broken_blocks.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    told = replay(*SMALL, "--impl=broken_blocks:factory")
    assert told.exit_code == cli.LAW_BROKEN
    assert told.stderr == "the replay broke off in broken_blocks:factory: KeyError: 'lost'\n"
    history = tmp_path / "h.jsonl"
    told = replay(*SMALL, "--impl=broken_blocks:factory", f"--record={history}")
    assert told.stderr.splitlines()[1] == f"what led there is in {history}: kvproof replay {history}"
    assert replay(history, "--impl=broken_blocks:factory").exit_code == cli.LAW_BROKEN
    assert replay(history, "--impl=paged-python").exit_code == cli.CONFORMS


@pytest.mark.parametrize("sample", ["native.jsonl", "mooncake.jsonl", "azure.csv"])
@pytest.mark.parametrize("num_blocks", [260, 2_000])
def test_one_call_a_step_and_single_calls_give_the_same_figures(sample, num_blocks):
    shown = replay(SAMPLES / sample, "--impl=paged,paged-python", "--json", f"--num-blocks={num_blocks}", "--limit=40")
    compiled, plain = json.loads(shown.stdout)
    told_apart = {"implementation", "allocator_seconds"}
    assert {name for name in plain if compiled[name] != plain[name]} <= told_apart
    assert plain["num_finished"] > 0
