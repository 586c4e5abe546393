"""Compressed traces are read directly, told apart by their bytes, and a cut-off one is refused."""

from __future__ import annotations

import gzip
import os
import sys
import threading

import pytest

from kvproof_traces import SAMPLES, MissingCodec, TraceError, Workload, generate, load, native_lines, write_native

zstandard = pytest.importorskip("zstandard", reason="needs the extra: pip install 'kvproof[zstd]'")

TEXT = (SAMPLES / "native.jsonl").read_bytes()
PLAIN = load(SAMPLES / "native.jsonl").requests
COMPRESS = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor(write_checksum=True).compress}


@pytest.mark.parametrize("kind", COMPRESS)
def test_the_name_says_nothing_about_the_compression(tmp_path, kind):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(COMPRESS[kind](TEXT))
    assert load(path).requests == PLAIN


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("name", ["azure_mm.csv", "sharegpt.json", "bailian.jsonl"])
def test_every_kind_of_file_may_be_compressed(tmp_path, kind, name):
    path = tmp_path / "trace"
    path.write_bytes(COMPRESS[kind]((SAMPLES / name).read_bytes()))
    options = {"bytes_per_token": 4, "skip_bad": True}
    assert load(path, **options).requests == load(SAMPLES / name, **options).requests


@pytest.mark.parametrize("kind", COMPRESS)
def test_frames_one_after_the_other_are_one_file(tmp_path, kind):
    path, half = tmp_path / "trace", TEXT.index(b"\n", len(TEXT) // 2) - 7
    path.write_bytes(COMPRESS[kind](TEXT[:half]) + COMPRESS[kind](TEXT[half:]))
    assert load(path).requests == PLAIN


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("cut", [1, 4, 200])
def test_a_file_that_was_cut_off_is_refused_and_not_half_loaded(tmp_path, kind, cut):
    path = tmp_path / "trace"
    path.write_bytes(COMPRESS[kind](TEXT)[:-cut])
    with pytest.raises(TraceError, match=r"file: the .* stream (ends too early|is damaged)"):
        load(path, format="native")


@pytest.mark.parametrize(("kind", "place"), [("gz", -6), ("zst", -2)])
def test_a_damaged_file_is_refused(tmp_path, kind, place):
    path, packed = tmp_path / "trace", bytearray(COMPRESS[kind](TEXT))
    packed[place] ^= 1  # of the checksum: damage elsewhere may show in a row first
    path.write_bytes(packed)
    with pytest.raises(TraceError, match=r"file: the .* stream is damaged \("):
        load(path, format="native")


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz", "trace.jsonl.zst"])
def test_what_is_written_compressed_comes_back_and_is_the_same_every_time(tmp_path, name):
    requests = generate(Workload(num_requests=200))
    (tmp_path / "again").mkdir()
    assert write_native(tmp_path / name, requests) == write_native(tmp_path / "again" / name, requests) == 200
    assert load(tmp_path / name).requests == requests
    assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_file_whose_writing_broke_off_is_not_left_behind(tmp_path):
    def broken():
        yield from generate(Workload(num_requests=2))
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_native(tmp_path / "trace.jsonl.gz", broken())
    assert not list(tmp_path.iterdir())


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    path = tmp_path / "trace.zst"
    path.write_bytes(COMPRESS["zst"](TEXT))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingCodec, match=r"pip install 'kvproof\[zstd\]'"):
        load(path)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_native(pipe, PLAIN)
    reader.join(timeout=5)
    assert read == [b"".join(line.encode() for line in native_lines(PLAIN))]
    assert pipe.is_fifo()


def test_of_a_symbolic_link_the_file_that_it_names_is_replaced(tmp_path):
    path, link = tmp_path / "trace.jsonl", tmp_path / "link.jsonl"
    path.write_text("old")
    link.symlink_to(path)
    write_native(link, PLAIN)
    assert link.is_symlink()
    assert load(path).requests == PLAIN
