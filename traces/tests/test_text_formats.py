"""ShareGPT and vLLM's custom prompts hold text: lengths are a declared estimate or the file is refused."""

from __future__ import annotations

import json

import pytest

from kvproof_traces import SAMPLES, TraceError, detect, load
from kvproof_traces.reading import MissingOption


def conversation(*turns):
    return {"id": "x", "conversations": [{"from": side, "value": text} for side, text in turns]}


def write(path, value):
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize("name", ["sharegpt.json", "vllm_custom.jsonl"])
def test_without_a_stand_in_for_the_tokenizer_no_length_is_made_up(name):
    with pytest.raises(MissingOption, match="bytes_per_token: the file holds text and no lengths"):
        load(SAMPLES / name, output_tokens=3, skip_bad=True)


def test_the_sharegpt_sample_has_one_conversation_that_starts_with_the_wrong_side():
    trace = load(SAMPLES / "sharegpt.json", bytes_per_token=4, skip_bad=True)
    assert (trace.format, trace.rows_read, trace.dropped) == ("sharegpt", 2, {"too few turns": 1})
    # 24 and 26 bytes.
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in trace.requests] == [(6, 7)]
    assert trace.notes[0] == "the file has no arrival times: every request arrives at 0"
    assert "UTF-8 bytes of the text / 4" in trace.notes[2]


def test_bytes_are_counted_and_not_characters(tmp_path):
    path = write(tmp_path / "trace", [conversation(("user", "ü" * 6), ("assistant", "x" * 6))])
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in load(path, bytes_per_token=3).requests] == [(4, 2)]


@pytest.mark.parametrize(
    ("item", "field", "reason"),
    [
        (conversation(("human", "a")), "[1].conversations", "too few turns"),
        (conversation(("gpt", "a"), ("human", "b")), "[1].conversations", "too few turns"),
        (conversation(("human", "a"), ("gpt", "")), "[1].conversations[1].value", "no output"),
        (conversation(("human", ""), ("gpt", "a")), "[1].conversations[0].value", "no prompt"),
        (conversation(("human", 3), ("gpt", "a")), "[1].conversations[0].value", "malformed"),
        ({"id": "x"}, "[1].conversations", "malformed"),
        ("text", "[1].conversations", "malformed"),
    ],
)
def test_a_bad_conversation_is_named_by_its_place_in_the_list(tmp_path, item, field, reason):
    path = write(tmp_path / "trace", [conversation(("human", "a"), ("gpt", "b")), item])
    with pytest.raises(TraceError) as caught:
        load(path, bytes_per_token=4)
    assert (caught.value.field, caught.value.reason) == (field, reason)


def test_the_custom_sample_has_one_row_with_a_length_of_its_own():
    path = SAMPLES / "vllm_custom.jsonl"
    assert detect(path) == "vllm-custom"
    trace = load(path, bytes_per_token=4, output_tokens=64)
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in trace.requests] == [(5, 64), (4, 9)]
    assert any("given 64 tokens" in note for note in trace.notes)


def test_a_custom_row_without_an_output_length_asks_for_one():
    with pytest.raises(MissingOption, match="line 1 has no output_tokens"):
        load(SAMPLES / "vllm_custom.jsonl", bytes_per_token=4)
