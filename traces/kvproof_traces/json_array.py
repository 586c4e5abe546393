"""A JSON list read element by element, so that a file of gigabytes needs the memory of one element."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvproof_traces.compressed import CHUNK_BYTES, Truncated, open_bytes
from kvproof_traces.json_rows import STRICT
from kvproof_traces.lines import TraceError

BLANK = " \t\r\n"
MAX_ELEMENT_CHARS = 1 << 24
"""As of a line: an element is parsed in one piece."""


def array_elements(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield (line that the element starts on, element).

    Raises:
        TraceError: not a JSON list, or one that is cut off; nothing can be read past it.
    """
    text = _Text(path)
    text.skip("[", "give a JSON list of requests")
    while text.peek() != "]":
        yield text.line, text.element()
        if text.peek() == ",":
            text.take()
            if text.peek() == "]":
                raise text.refused("has a comma before its end", "remove it")
        elif text.peek() != "]":
            raise text.refused("lacks a comma between two elements", "a file may be cut off or joined: mend it")
    text.take()
    if text.peek():
        raise text.refused("goes on after the list", "give one JSON list")


class _Text:
    """The file's characters, read as far as they are needed."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.line = path, 1
        self._chunks = self._read()
        self._buffer, self._at = "", 0

    def _read(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        with open_bytes(self.path) as file:
            try:
                while raw := file.read(CHUNK_BYTES):
                    yield decoder.decode(raw)
                yield decoder.decode(b"", final=True)
            except Truncated as error:
                raise self.refused(str(error), "get the whole file again") from None
            except UnicodeDecodeError:
                raise self.refused("is not UTF-8", "save it as UTF-8") from None

    def _more(self) -> bool:
        """Twice as much as before, so that an element is not tried again for each chunk."""
        wanted = max(CHUNK_BYTES, len(self._buffer) - self._at)
        got: list[str] = []
        while wanted > 0 and (chunk := next(self._chunks, None)) is not None:
            got.append(chunk)
            wanted -= len(chunk)
        self._buffer = self._buffer[self._at :] + "".join(got)
        self._at = 0
        return bool(got)

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in BLANK:
                self.line += self._buffer[self._at] == "\n"
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def take(self) -> None:
        self._at += 1

    def skip(self, wanted: str, cure: str) -> None:
        if self.peek() != wanted:
            raise self.refused(f"does not start with {wanted}", cure)
        self.take()

    def element(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = STRICT.raw_decode(self._buffer, self._at)
            except RecursionError:
                raise self.refused("is nested too deeply", "give a list of requests") from None
            except json.JSONDecodeError as error:
                if len(self._buffer) - self._at > MAX_ELEMENT_CHARS or not self._more():
                    what = f"holds an element that is not JSON ({error.msg})"
                    raise self.refused(what, "the file may be cut off: mend it") from None
                continue
            except ValueError as error:
                raise self.refused(f"holds an element that is refused ({error})", "mend it") from None
            if end == len(self._buffer) and self._more():  # a number may go on
                continue
            self.line += self._buffer.count("\n", self._at, end)
            self._at = end
            return value

    def refused(self, what: str, cure: str) -> TraceError:
        return TraceError(self.path, self.line, "file", what, cure)
