"""Opens a trace whether it is plain, gzip or Zstandard, told apart by its first bytes and not by its name."""

from __future__ import annotations

import gzip
import importlib
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
CHUNK_BYTES = 1 << 17
ZSTD_CHUNK_BYTES = 1 << 10
"""Packed, at a time: a block of 4 bytes may stand for 128 KiB, so that this is 32 MiB at most."""


class Truncated(ValueError):
    """A compressed file that ends too early or is damaged."""


class MissingCodec(ValueError):
    """A compressed file for which the library is not installed. The text says how to get it."""


def open_bytes(path: str | Path) -> IO[bytes]:
    """The content of ``path``, uncompressed as it is read, in constant memory.

    Raises:
        MissingCodec: a Zstandard file, without zstandard. Truncated: later, while reading.
        ValueError: a pipe or the like, of which looking at the start would lose it.
        OSError: no such file.
    """
    mode = os.stat(path).st_mode  # before it is opened: a named pipe would wait for a writer
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{path}: is no regular file, and is read more than once; save it to one")
    with open(path, "rb") as file:
        magic = file.read(4)
    codec = _zstandard(path) if magic == ZSTD_MAGIC else None
    file = open(path, "rb")  # noqa: SIM115 - closed with what is returned
    if magic.startswith(GZIP_MAGIC):
        return io.BufferedReader(_Unpacked(file, _gzip_chunks(file)), CHUNK_BYTES)
    if codec is not None:
        return io.BufferedReader(_Unpacked(file, _zstd_chunks(file, codec)), CHUNK_BYTES)
    return file


@contextmanager
def writing(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write to that appears whole or not at all; compressed when its name ends in ``.gz`` or ``.zst``.

    The same content gives the same bytes every time. A device or a pipe is written to as it is, and of a symbolic link
    the file that it names is what is replaced.

    Raises:
        MissingCodec: ``.zst`` without zstandard.
    """
    final = Path(path)
    if final.exists() and not (final.is_file() or final.is_dir()):
        with _packing(final, final.suffix) as file:
            yield file
        return
    final = final.resolve() if final.is_symlink() else final
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        with _packing(partial, final.suffix) as file:
            yield file
        partial.replace(final)
    except OSError as error:
        if error.filename == str(partial):
            error.filename = str(final)  # what was asked for, not what we made of it
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _packing(path: Path, suffix: str) -> Iterator[Any]:
    codec = _zstandard(path) if suffix == ".zst" else None
    with open(path, "wb") as file:
        if suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield packed
        elif codec is not None:
            with codec.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False) as packed:
                yield packed
        else:
            yield file


def _zstandard(path: str | Path) -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise MissingCodec(f"{path} needs the library for Zstandard: pip install 'kvproof[zstd]'") from None


def _gzip_chunks(file: IO[bytes]) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        try:
            while chunk := unpacked.read(CHUNK_BYTES):
                yield chunk
        except EOFError:
            raise Truncated("the gzip stream ends too early") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise Truncated(f"the gzip stream is damaged ({error})") from None


def _zstd_chunks(file: IO[bytes], zstandard: Any) -> Iterator[bytes]:
    """By frames: the library's own stream reader takes a cut-off frame for the end of the file."""
    decoder, packed = None, b""
    while packed or (packed := file.read(ZSTD_CHUNK_BYTES)):
        decoder = decoder or zstandard.ZstdDecompressor().decompressobj()
        try:
            chunk = decoder.decompress(packed)
        except zstandard.ZstdError as error:
            raise Truncated(f"the Zstandard stream is damaged ({error})") from None
        packed = decoder.unused_data
        decoder = None if decoder.eof else decoder
        if chunk:
            yield chunk
    if decoder is not None:
        raise Truncated("the Zstandard stream ends too early")


class _Unpacked(io.RawIOBase):
    """A raw stream over chunks of any size."""

    def __init__(self, file: IO[bytes], chunks: Iterator[bytes]) -> None:
        self._file, self._chunks, self._rest = file, chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        taken = self._rest[: len(buffer)]
        self._rest = self._rest[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def close(self) -> None:
        self._file.close()
        super().close()
