"""Whatever a file holds, a reader takes it whole or raises the error that it documents: a few files every day, many in
the nightly tier."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selftest.nightly.readers import READERS, FileReader

NIGHTLY = bool(os.environ.get("KVPROOF_NIGHTLY"))
EXAMPLES = settings(
    max_examples=2000 if NIGHTLY else 25,
    derandomize=not NIGHTLY,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

VALUE = re.compile(rb'(?<=[:,=\[ ])\s*("[^"\n]*"|-?[\d.]+|null|true|false|\[[^\[\]\n]*\]|\{[^{}\n]*\})')
JUNK = (
    *(b"null", b"-1", b"0", b"1.5", b"1e999", b"-1e999", b"NaN", b"nan", b"-inf", b"Infinity", b"true", b"false"),
    *(b"9" * 30, b"9" * 400, b"9" * 5000, b"1000000000", b'"x"', b'""', b'"../../x"', b'"\\ud800"', b'"\\u0000"'),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"{}", b"[[1]]", b"[null]", b"[{}]", b"[1, true]", b'{"a": {}}'),
    *(b"\0", b"\xff", b"\xd9\xa4", b"\r", b"\r\n", b"\n", b"\xef\xbb\xbf", b",", b'"', b"}", b"]", b"=", b"a.a=1\n"),
)


@st.composite
def damaged(draw: st.DrawFn, example: bytes) -> bytes:
    """The example with values put in the place of others, bytes put in or taken out, or an end that is missing."""
    data = example
    for _ in range(draw(st.integers(1, 3))):
        places = [match.span(1) for match in VALUE.finditer(data)]
        start, end = draw(st.sampled_from(places)) if places and draw(st.booleans()) else (0, 0)
        if not end:
            start = draw(st.integers(0, len(data)))
            end = draw(st.sampled_from([start, min(start + 1, len(data)), len(data)]))
        data = data[:start] + draw(st.sampled_from(JUNK) | st.binary(max_size=8)) + data[end:]
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + data


def read(reader: FileReader, path: Path, data: bytes) -> object:
    """What the reader gives; None where it refuses. Any other exception is the failure that is looked for."""
    path.write_bytes(data)
    try:
        return reader.read(path)
    except reader.raises:
        return None


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_damaged_file_is_read_whole_or_refused_by_the_documented_error(reader: FileReader, tmp_path: Path) -> None:
    @EXAMPLES
    @given(damaged(reader.example) | st.binary(max_size=200))
    def judge(data: bytes) -> None:
        read(reader, tmp_path / reader.name, data)

    judge()


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk[:12]))
def test_no_value_in_any_place_breaks_a_reader(junk: bytes, tmp_path: Path) -> None:
    for reader in READERS:
        for place in [match.span(1) for match in VALUE.finditer(reader.example)][: None if NIGHTLY else 6]:
            read(reader, tmp_path / reader.name, reader.example[: place[0]] + junk + reader.example[place[1] :])


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_byte_order_mark_and_other_line_ends_change_nothing(reader: FileReader, tmp_path: Path) -> None:
    if reader.name == "x.safetensors":
        return  # no text
    path = tmp_path / reader.name
    plain = read(reader, path, reader.example)
    marked = read(reader, path, b"\xef\xbb\xbf" + reader.example.replace(b"\r", b"").replace(b"\n", b"\r\n"))
    assert marked == plain


def test_what_a_reader_does_not_document_is_seen(tmp_path: Path) -> None:
    """The fuzz on a reader that lets a RecursionError through."""
    import json

    careless = FileReader("x.json", lambda path: json.loads(path.read_bytes()), (ValueError,), b'{"a": 1}')
    with pytest.raises(RecursionError):
        read(careless, tmp_path / "x.json", b"[" * 100_000)
