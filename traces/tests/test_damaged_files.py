"""Whatever is done to a file, reading it gives requests in order or an error that names a line: nothing else."""

from __future__ import annotations

import random
import re

import pytest

from kvproof_traces import FORMATS, REASONS, SAMPLES, TraceError, describe, stream

VALUE = re.compile(rb'(?<=[:,\[ ])\s*("[^"]*"|-?[\d.]+|null|\[[^\[\]]*\])')
JUNK = (
    *(b"null", b"-1", b"0", b"1e999", b"9" * 30, b'"x"', b"[]", b"{}", b"true", b"NaN", b"1.5", b'"\\ud800"', b"[[1]]"),
    *(b"\xff", b",", b"\n", b"\r\n", b'"', b"\0", b"[", b"}", b"4", b"\xd9\xa4"),
)


def a_byte(rng, data):
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def cut_off(rng, data):
    return data[: rng.randrange(len(data))] or data


def inserted(rng, data):
    place = rng.randrange(len(data))
    return data[:place] + rng.choice(JUNK) + data[place:]


def another_value(rng, data):
    found = list(VALUE.finditer(data))
    if not found:
        return inserted(rng, data)
    old = rng.choice(found)
    return data[: old.start(1)] + rng.choice(JUNK) + data[old.end(1) :]


def lines_swapped(rng, data):
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


DAMAGES = (a_byte, cut_off, inserted, another_value, another_value, lines_swapped)
OPTIONS = {"bytes_per_token": 4.0, "output_tokens": 5, "hash_block_size": 2}


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_a_damaged_file_gives_requests_or_an_error_with_a_reason(tmp_path, sample):
    rng, path, original = random.Random(sample), tmp_path / "trace", (SAMPLES / sample).read_bytes()
    for _ in range(40):
        data = original
        for _ in range(rng.randrange(1, 4)):
            data = rng.choice(DAMAGES)(rng, data)
        path.write_bytes(data)
        check(path, data, skip_bad=rng.random() < 0.5, format=rng.choice([None, None, *FORMATS]), **OPTIONS)


def check(path, data, **options):
    rows, refusal = None, None
    try:
        rows = stream(path, **options)
        requests = list(rows)
    except TraceError as error:
        refusal = error
    if refusal is not None:
        assert (refusal.reason in REASONS, refusal.line >= 1) == (True, True), data
        return
    assert rows.rows_read == len(requests) + sum(rows.dropped.values()), data
    assert set(rows.dropped) <= set(REASONS), data
    if requests:
        describe(requests)  # refuses what is out of order
