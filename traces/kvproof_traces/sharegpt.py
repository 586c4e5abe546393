"""Files of text without times: ShareGPT's JSON list of conversations, and vLLM's ``custom`` JSON Lines of prompts."""

from __future__ import annotations

from typing import Any

from kvproof_traces.json_array import array_elements
from kvproof_traces.json_rows import check_fields, parse_object
from kvproof_traces.lines import TraceError, raw_lines
from kvproof_traces.reading import Reader, Source, build_request
from kvproof_traces.request import Request
from kvproof_traces.text_lengths import TextLengths

NO_TIMES = "the file has no arrival times: every request arrives at 0"
ASKS, ANSWERS = ("human", "user"), ("gpt", "chatgpt", "bing", "bard", "assistant", "model")
CUSTOM_FIELDS = ("prompt", "output_tokens")


def open_sharegpt(source: Source) -> Reader:
    """The first two turns of each conversation: what a person asks, and the answer. No conversation is left out for
    its length, as serving benchmarks do."""
    path, lengths = source.path, TextLengths(source)
    source.note(NO_TIMES)
    source.note("the first question of a conversation is the prompt, the first answer the output")
    rows = ((line, (index, item)) for index, (line, item) in enumerate(array_elements(path)))

    def parse(number: int, row: tuple[int, Any]) -> Request:
        index, item = row
        ask, answer = _turns(source, number, index, item)
        values = {
            "request_id": f"r{index}",
            "arrival_ms": 0.0,
            "num_prompt_tokens": lengths.of(number, f"[{index}].conversations[0].value", ask),
            "num_output_tokens": lengths.of(number, f"[{index}].conversations[1].value", answer),
        }
        names = {
            "num_prompt_tokens": f"[{index}].conversations[0].value",
            "num_output_tokens": f"[{index}].conversations[1].value",
        }
        return build_request(path, number, names, values)

    return Reader(rows, parse)


def _turns(source: Source, number: int, index: int, item: Any) -> tuple[Any, Any]:
    field, cure = f"[{index}].conversations", 'give {"conversations": [{"from": "human", "value": "..."}, ...]}'
    turns = item.get("conversations") if type(item) is dict else None
    if type(turns) is not list or not all(type(turn) is dict for turn in turns[:2]):
        raise TraceError(source.path, number, field, "is no list of turns", cure)
    sides = [turn.get("from") for turn in turns[:2]]
    if len(turns) < 2 or sides[0] not in ASKS or sides[1] not in ANSWERS:
        what = f"starts with {', '.join(map(repr, sides)) or 'nothing'}, not with a question and its answer"
        raise TraceError(source.path, number, field, what, "skip or remove it", reason="too few turns")
    return turns[0].get("value"), turns[1].get("value")


def open_custom(source: Source) -> Reader:
    """One prompt a line; its output length is ``output_tokens`` of the row, else the option of that name."""
    path, lengths = source.path, TextLengths(source)
    names = {"num_prompt_tokens": "prompt", "num_output_tokens": "output_tokens"}
    source.note(NO_TIMES)

    def parse(number: int, raw: bytes) -> Request:
        row = parse_object(path, number, raw)
        check_fields(path, number, row, required=("prompt",), known=CUSTOM_FIELDS)
        values = {
            "request_id": f"r{number - 1}",
            "arrival_ms": 0.0,
            "num_prompt_tokens": lengths.of(number, "prompt", row["prompt"]),
            "num_output_tokens": lengths.output(number, row, "output_tokens"),
        }
        return build_request(path, number, names, values)

    return Reader(raw_lines(path), parse)
