"""``kvproof paper`` computes what it prints, misses what is missed, and asserts nothing that can't be."""

import dataclasses
import heapq
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof_suites import cli
from kvproof_suites.paper import composition, prefix_hits, sections, sharing, worked_example
from kvproof_suites.paper.allocators import make
from kvproof_suites.paper.claim import EXACT, Claim, Computed, at_least, at_most, judge, percent, points
from kvproof_suites.paper.lengths import ALPACA, MAX_MODEL_LEN, SHAREGPT, requests
from kvproof_suites.paper.page import section_markdown
from kvproof_suites.paper.sections import SECTIONS
from kvproof_traces import SAMPLES, Request
from kvproof_traces.simulation import Pool, Scheduler, simulate

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "paper.md"
REAL_TRACES = ROOT.parent / "shared" / "traces"
WITHOUT_FILES = [section for section in SECTIONS if not section.reads_files]


def paper(*arguments):
    return CliRunner().invoke(cli.main, ["paper", *map(str, arguments)])


def markdown(section, folder=None):
    computed = section.compute(folder)
    return section_markdown(section, judge(section.claims, computed), computed.charts)


@pytest.mark.parametrize("section", WITHOUT_FILES, ids=lambda section: section.name)
def test_the_page_of_the_documentation_says_what_is_computed(section):
    assert markdown(section) in PAGE.read_text()


def test_the_page_says_what_is_computed_from_the_real_traces():
    if not all((REAL_TRACES / name).exists() for name in prefix_hits.MOONCAKE.values()):
        pytest.skip("Mooncake's traces are not beside the checkout, in ../shared/traces")
    (section,) = (section for section in SECTIONS if section.name == "prefix-hits")
    text = markdown(section, REAL_TRACES)
    assert text in PAGE.read_text()
    assert "| missed |" not in text


def test_every_chart_of_the_page_is_there():
    named = {line.split("(")[1].rstrip(")") for line in PAGE.read_text().splitlines() if line.startswith("![")}
    assert len(named) == 5
    assert all((PAGE.parent / name).stat().st_size > 10_000 for name in named)


def test_no_figure_on_the_page_is_missed_and_none_was_left_out():
    text = PAGE.read_text()
    assert "| missed" not in text
    assert "| not run" not in text
    assert all(f"## {section.title}\n" in text for section in SECTIONS)


def test_figures_that_may_not_be_asserted_are_not():
    claims = {claim.key: claim for section in SECTIONS for claim in section.claims}
    unreachable = {"paged tokens", "ShareGPT 6"} | {key for key in claims if " beams " in key}
    assert len(unreachable) == 7
    for key in unreachable:
        assert claims[key].tolerance is None
        assert claims[key].why


@pytest.mark.parametrize(
    ("tolerance", "published", "ours", "holds"),
    [
        (EXACT, 13, 13, True),
        (EXACT, 13, 14, False),
        (points(3), 20.4, 23.4, True),
        (points(3), 20.4, 23.5, False),
        (points(3), 20.4, 17.3, False),
        (percent(5), 100, 105, True),
        (percent(5), 100, 94.9, False),
        (points(1), 16.2, (15.1, 15.3), True),
        (points(1), 16.2, (15.0, 15.1), False),
        (points(0), 16.2, (15.0, 17.0), True),
        (at_least(50), None, (50, 60), True),
        (at_least(50), None, (49, 60), False),
        (at_most(50), 40, 50, True),
        (at_most(50), 40, 50.1, False),
        (at_most(50), None, (49, 51), False),
    ],
)
def test_a_tolerance_holds_up_to_its_edge(tolerance, published, ours, holds):
    assert tolerance.holds(published, ours) is holds


def test_a_tolerance_without_a_published_figure_is_an_error():
    with pytest.raises(ValueError, match="±3 points needs a published figure"):
        points(3).holds(None, 1)


def test_a_figure_without_a_claim_and_a_claim_without_a_figure_are_errors():
    claim = Claim("a", "?", 1, "?", EXACT)
    with pytest.raises(KeyError, match="no claim names"):
        judge([claim], Computed({"a": 1, "b": 2}))
    with pytest.raises(KeyError, match="a"):
        judge([claim], Computed({}))


def with_claims(monkeypatch, name, change):
    """The section ``name`` alone, each of its claims changed."""
    (section,) = (section for section in SECTIONS if section.name == name)
    changed = dataclasses.replace(section, claims=tuple(change(claim) for claim in section.claims))
    monkeypatch.setattr(sections, "SECTIONS", (changed,))


def test_one_missed_figure_exits_with_1_and_is_named(monkeypatch):
    with_claims(
        monkeypatch, "chat", lambda claim: dataclasses.replace(claim, published=8) if claim.key == "pow2" else claim
    )
    told = paper()
    assert told.exit_code == cli.LAW_BROKEN
    assert [line.split("\t")[4] for line in told.stdout.splitlines()[1:]] == ["holds", "missed", "holds"]
    assert "1 missed" in told.stderr


def test_all_that_holds_exits_with_0():
    told = paper("worked-example", "kv-bytes", "chat")
    assert told.exit_code == cli.CONFORMS
    assert told.stderr.endswith("\n16 holds\n")


def test_a_reason_is_told_once_and_referred_to_by_letter():
    told = paper("chat")
    assert told.stdout.count("\texact (a)\tholds\t") == 3
    assert told.stderr.startswith("(a) the pool / 2,048.\n")


def test_without_the_traces_their_figures_are_not_run_and_nothing_is_verified():
    told = paper("prefix-hits")
    assert told.exit_code == cli.NOTHING_VERIFIED
    assert told.stdout.count("\tnot run (a)\t") == told.stdout.count("\tnot run (b)\t") == 4
    assert "(a) needs mooncake_conversation_trace.jsonl in --traces." in told.stderr


def test_another_file_under_the_name_of_a_trace_is_missed(tmp_path):
    shutil.copy(SAMPLES / "mooncake.jsonl", tmp_path / "mooncake_conversation_trace.jsonl")
    told = paper("prefix-hits", "--traces", tmp_path)
    assert told.exit_code == cli.LAW_BROKEN
    assert "conversation: requests\t12,031\t" in told.stdout


def test_a_broken_trace_is_told_with_file_line_and_field(tmp_path):
    (tmp_path / "mooncake_synthetic_trace.jsonl").write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 0, "hash_ids": [1]}\n'
    )
    told = paper("prefix-hits", "--traces", tmp_path)
    assert told.exit_code == cli.USAGE_ERROR
    assert "mooncake_synthetic_trace.jsonl:1: output_length" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compositon"], "did you mean 'composition'?"),
        (["--traces=nowhere"], "'nowhere' does not exist"),
        (["chat", "--write=nowhere/page.md"], "nowhere/page.md: No such file or directory"),
    ],
)
def test_a_mistake_is_named_and_exits_with_4(arguments, said):
    told = paper(*arguments)
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr


def test_json_holds_each_figure_with_its_verdict():
    figures = json.loads(paper("worked-example", "--json").stdout)["figures"]
    assert [figure["ours"] for figure in figures] == [4, 11, 13, 118, 14, 15]
    assert {figure["verdict"] for figure in figures} == {"holds"}


def test_plots_open_without_a_network(tmp_path):
    pytest.importorskip("plotly")
    told = paper("sharing", "--plots", tmp_path / "plots")
    assert told.exit_code == cli.CONFORMS
    (path,) = (tmp_path / "plots").iterdir()
    text = path.read_text()
    assert path.name == "paper-beams.html"
    assert "6 beams (at most 83.3)" in text
    assert '<script src="http' not in text


@pytest.mark.parametrize("lengths", [SHAREGPT, ALPACA])
def test_lengths_have_the_published_means_and_end_with_the_model(lengths):
    each = requests(lengths, 2_000)
    assert sum(r.num_prompt_tokens for r in each) / 2_000 == pytest.approx(lengths.mean_prompt_tokens, rel=0.01)
    assert sum(r.num_output_tokens for r in each) / 2_000 == pytest.approx(lengths.mean_output_tokens, rel=0.01)
    assert max(r.num_prompt_tokens + r.num_output_tokens for r in each) <= MAX_MODEL_LEN


def mean_sequences(policy, each):
    """By the allocator that is under the laws, from one end of a request to the next."""
    allocator = make(f"contiguous-{policy}", composition.NUM_SLOTS, 1, MAX_MODEL_LEN)
    step, num_seq_steps, running, waiting = 0, 0, [], list(enumerate(each))[::-1]
    while waiting or running:
        while waiting:
            seq, request = waiting[-1]
            num_tokens = request.num_prompt_tokens + request.num_output_tokens
            try:
                allocator.allocate(seq, range(request.num_prompt_tokens), max_tokens=num_tokens)
            except MemoryError:
                break
            heapq.heappush(running, (step + request.num_output_tokens, seq))
            waiting.pop()
        num_seq_steps += len(running) * (running[0][0] - step)
        step = running[0][0]
        while running and running[0][0] == step:
            allocator.free(heapq.heappop(running)[1])
    return num_seq_steps / step


@pytest.mark.parametrize("policy", composition.ORCA)
def test_the_allocators_under_the_laws_serve_as_many_as_the_simulation_says(policy):
    each = requests(SHAREGPT, 2_000)
    pool = Pool(composition.NUM_SLOTS, f"contiguous-{policy}", max_model_len=MAX_MODEL_LEN)
    told = simulate(each, pool, Scheduler(max_num_seqs=composition.NUM_SLOTS)).mean_running_seqs
    assert mean_sequences(policy, each) == pytest.approx(told, rel=0.01)


def test_a_saving_at_the_end_is_counted_by_hand():
    each = [Request("a", 0.0, 40, 8), Request("b", 0.0, 15, 17)]
    # Without sharing 2·(3 + 2) blocks; shared are two complete blocks of the first prompt.
    assert sharing.saving_at_the_end(each, 2) == pytest.approx(2 / 10)


def test_whoever_may_pass_over_a_misfit_admits_more():
    allocators = [make("paged-python", 8, 1) for _ in range(2)]
    assert worked_example.num_admitted(allocators[0], [4, 5, 4]) == 1
    assert worked_example.num_admitted(allocators[1], [4, 5, 4], skips=True) == 2
