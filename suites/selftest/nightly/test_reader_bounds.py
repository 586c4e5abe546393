"""Readers stay within memory and time: lines without an end, files that unpack to gigabytes, sizes that can't be."""

from __future__ import annotations

import gzip
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvproof_reports import content
from kvproof_reports.records import RecordError, read_run
from kvproof_reports.validate import MOST_FAULTS
from kvproof_suites.histories import HistoryError, read_history
from kvproof_traces import TablesError, TraceError, load, read_tables, stream
from kvproof_traces.safetensors import read_integers
from selftest.nightly.readers import HEADER, READERS, FileReader

GIB = 1 << 30
MOST_MEMORY = 200 << 20
"""The largest limit of a reader is 64 MiB of bytes, which are decoded once and split in two at most."""
MOST_SECONDS = 60
"""Of a busy machine; alone it is about a second."""


@contextmanager
def bounded() -> Iterator[None]:
    tracemalloc.start()
    start = time.monotonic()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        seconds = time.monotonic() - start
    finally:
        tracemalloc.stop()
    print(f"peak {peak / 2**20:.1f} MiB, {seconds:.2f} s")
    assert peak < MOST_MEMORY
    assert seconds < MOST_SECONDS


def hole(path: Path, start: bytes, size: int = 2 * GIB) -> Path:
    """A file of ``size`` bytes that takes no room on the disk: the start, then zeros without a line's end."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


def bomb(path: Path, start: bytes, repeated: bytes, size: int = 2 * GIB) -> Path:
    """A gzip file of some megabytes that unpacks to ``size`` bytes."""
    part = gzip.compress(repeated * ((1 << 20) // len(repeated)))
    path.write_bytes(gzip.compress(start) + part * (size >> 20))
    assert path.stat().st_size < size / 200
    return path


TEXTS = [reader for reader in READERS if reader.name != "x.safetensors"]
"""The other one has no lines, and what stands behind its tensors is none of its business."""


@pytest.mark.parametrize("reader", TEXTS, ids=lambda reader: reader.name)
def test_two_gigabytes_without_a_line_end_are_refused_and_not_held(reader: FileReader, tmp_path: Path) -> None:
    first = reader.example.partition(b"\n")[0]
    with bounded(), pytest.raises(reader.raises):
        reader.read(hole(tmp_path / reader.name, b"[" if first.startswith(b"[") else first))


@pytest.mark.parametrize("reader", [one for one in READERS if "told" not in one.name], ids=lambda one: one.name)
def test_a_file_that_never_began_is_refused(reader: FileReader, tmp_path: Path) -> None:
    with bounded(), pytest.raises(reader.raises):
        reader.read(hole(tmp_path / reader.name, b""))


@pytest.mark.parametrize(
    "start", [b'{"timestamp": 0, "x": "', b'[{"conversations": "', b""], ids=["line", "list", "csv"]
)
def test_a_small_trace_that_unpacks_to_one_line_of_gigabytes_is_refused(start: bytes, tmp_path: Path) -> None:
    with bounded(), pytest.raises(TraceError):
        load(bomb(tmp_path / "trace.gz", start, b"a"))


def test_a_zstandard_frame_of_gigabytes_is_unpacked_a_little_at_a_time(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    part = packer.compress(b'{"timestamp": 0, "x": "')
    (tmp_path / "trace.zst").write_bytes(part + b"".join(packer.compress(bytes(1 << 20)) for _ in range(1024)))
    with bounded(), pytest.raises(TraceError):
        load(tmp_path / "trace.zst")


@pytest.mark.parametrize("repeated", [b"a", b" "], ids=["junk", "blanks"])
def test_packed_results_that_unpack_to_one_line_of_gigabytes_are_refused(repeated: bytes, tmp_path: Path) -> None:
    bomb(tmp_path / "results.jsonl.gz", b"{", repeated)
    with bounded(), pytest.raises(RecordError, match="longer than"):
        read_run(tmp_path)


def test_packed_results_of_too_many_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_LINES", 1 << 16)
    bomb(tmp_path / "results.jsonl.gz", b"", b"\n")
    with bounded(), pytest.raises(RecordError, match="more than a run can have written"):
        read_run(tmp_path)


def test_a_file_of_faults_is_told_up_to_a_number_of_them(tmp_path: Path) -> None:
    bomb(tmp_path / "results.jsonl.gz", b"", b"x\n")
    with bounded(), pytest.raises(RecordError) as told:
        read_run(tmp_path)
    assert len(str(told.value).splitlines()) == MOST_FAULTS + 1


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


SIZES: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "pool of a history": (
        read_history,
        HistoryError,
        '{"kvproof_history": 2, "num_blocks": 1000000000, "block_size": 16}\n',
    ),
    "block of a history": (
        read_history,
        HistoryError,
        '{"kvproof_history": 2, "num_blocks": 8, "block_size": 1000000000}\n',
    ),
    "block of a table": (
        read_tables,
        TablesError,
        '{"block_size": 1000000000, "num_blocks": 9, "block_tables": [[0]], "context_lens": [1]}',
    ),
    "pool of a table": (
        read_tables,
        TablesError,
        '{"block_size": 16, "num_blocks": 1000000000, "block_tables": [[0]], "context_lens": [1]}',
    ),
}


@pytest.mark.parametrize("what", SIZES)
def test_a_size_of_a_billion_is_refused_before_anything_is_made_of_it(what: str, tmp_path: Path) -> None:
    read, error, text = SIZES[what]
    with bounded(), pytest.raises(error):
        read(written(tmp_path / "file", text))


def test_a_table_that_names_a_block_twice_at_its_end_takes_no_square_of_its_length(tmp_path: Path) -> None:
    blocks = [*range(200_000), 199_999]
    tables = {"block_size": 1, "num_blocks": 300_000, "block_tables": [blocks], "context_lens": [1]}
    with bounded(), pytest.raises(TablesError, match="block 199999 appears twice"):
        read_tables(written(tmp_path / "tables.json", str(tables).replace("'", '"')))


@pytest.mark.parametrize("offsets", [b"[0, 999999999999999]", b"[8, 0]", b"[-8, 0]", b"[9999999999, 9999999999]"])
def test_tensors_that_lie_outside_of_their_file_are_refused(offsets: bytes, tmp_path: Path) -> None:
    header = HEADER.replace(b"[0, 12]", offsets)
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    with bounded(), pytest.raises(ValueError, match="holds no integer tensor"):
        read_integers(tmp_path / "x", "kv_indptr")


def test_a_header_longer_than_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(struct.pack("<Q", 2**64 - 1) + HEADER)
    with bounded(), pytest.raises(ValueError, match="are allowed"):
        read_integers(tmp_path / "x", "kv_indptr")


def test_ten_to_the_ninth_tokens_in_a_row_are_a_number_and_no_memory(tmp_path: Path) -> None:
    row = '{"timestamp": 0, "input_length": 1000000000, "output_length": 1000000000, "hash_ids": [1]}\n'
    with bounded(), pytest.raises(TraceError, match="hash_ids"):
        list(stream(written(tmp_path / "x.jsonl", row), format="mooncake"))
