"""A JSON list is read element by element, and a broken one is refused at the line where it breaks."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest

from kvproof_traces import TraceError
from kvproof_traces.json_array import array_elements

VALUES = [{"a": [1, {"b": "]},{"}], "c": 'ü\\"'}, [], 12, "x", None, True, {"long": "y" * 300_000}, -1.5]


@pytest.mark.parametrize("indent", [None, 2])
def test_elements_come_as_a_whole_parse_would_give_them(tmp_path, indent):
    path = tmp_path / "list"
    path.write_text(json.dumps(VALUES, indent=indent, ensure_ascii=False))
    assert [value for _, value in array_elements(path)] == VALUES


def test_an_element_is_known_by_the_line_it_starts_on(tmp_path):
    path = tmp_path / "list"
    path.write_text('\n[\n1,\n\n{"a":\n2},\n3]\n')
    assert list(array_elements(path)) == [(3, 1), (5, {"a": 2}), (7, 3)]


def test_an_empty_list_has_no_elements(tmp_path):
    (tmp_path / "list").write_text(" [ ] \n")
    assert list(array_elements(tmp_path / "list")) == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[", "[1", "[1,", "[1,]", "[1 2]", "[1]2", '[{"a": 1, "a": 2}]', "[NaN]", '["cut', "[" * 100_000]
)
def test_what_is_no_list_is_refused(tmp_path, text):
    (tmp_path / "list").write_text(text)
    with pytest.raises(TraceError, match=":1: file: "):
        list(array_elements(tmp_path / "list"))


def test_a_byte_that_is_no_utf8_is_refused(tmp_path):
    (tmp_path / "list").write_bytes(b'["\xff"]')
    with pytest.raises(TraceError, match="is not UTF-8"):
        list(array_elements(tmp_path / "list"))


def test_a_compressed_list_that_was_cut_off_is_refused(tmp_path):
    packed = gzip.compress(json.dumps(VALUES).encode())
    (tmp_path / "list").write_bytes(packed[:-20])
    with pytest.raises(TraceError, match="the gzip stream ends too early"):
        list(array_elements(tmp_path / "list"))


def test_one_line_of_many_elements_needs_the_memory_of_a_few(tmp_path):
    path = tmp_path / "list"
    with gzip.open(path, "wt") as file:
        file.write("[" + ",".join('{"text": "' + "z" * 1000 + '"}' for _ in range(20_000)) + "]")
    tracemalloc.start()
    assert sum(1 for _ in array_elements(path)) == 20_000  # 20 MB
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000
