"""Lines of a trace file, each with its number, and the error that names one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kvproof_traces.compressed import Truncated, open_bytes

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_LINE_BYTES = 1 << 24
"""Of one row: a prompt of a million tokens takes a third of it, as text or as hash ids. A file without a line's end
would be held in memory whole."""


class TraceError(ValueError):
    """A line of a trace that can't be read. The text is ``file:line: field: what is wrong; what to do``.

    ``reason`` is the name of the check, a key of ``kvproof_traces.REASONS``, under which a skipped row is counted.
    """

    def __init__(
        self, file: str | Path, line: int, field: str, what: str, cure: str, *, reason: str = "malformed"
    ) -> None:
        super().__init__(f"{file}:{line}: {field}: {what}; {cure}")
        self.file, self.line, self.field, self.what, self.cure = str(file), line, field, what, cure
        self.reason = reason

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, int, str, str, str], dict[str, str]]:
        # Exceptions are pickled with their one-string args, which this constructor would refuse.
        return type(self), (self.file, self.line, self.field, self.what, self.cure), {"reason": self.reason}


def raw_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, bytes without the line's end) of a file that may be compressed.

    Both line ends are accepted, as is a last line without one, and a byte order mark before the first.

    Raises:
        TraceError: a compressed file that ends too early or is damaged, or a line of more than ``MAX_LINE_BYTES``.
    """
    number = 0
    with open_bytes(path) as file:
        try:
            for number, raw in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), start=1):
                if len(raw) > MAX_LINE_BYTES:
                    what = f"is longer than {MAX_LINE_BYTES:,} bytes"
                    raise TraceError(path, number, "line", what, "give one request a line")
                if number == 1:
                    raw = raw.removeprefix(BYTE_ORDER_MARK)
                yield number, raw.removesuffix(b"\n").removesuffix(b"\r")
        except Truncated as error:
            raise TraceError(path, number + 1, "file", str(error), "get the whole file again") from None


def line_text(path: str | Path, number: int, raw: bytes) -> str:
    """The text of one line.

    Raises:
        TraceError: a line that is not UTF-8, or empty: in a log of one request a line, an empty one is a loss.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} of the line is not UTF-8"
        raise TraceError(path, number, "line", what, "save the file as UTF-8") from None
    if not text or text.isspace():
        cure = "remove the line, or put the lost request back"
        raise TraceError(path, number, "line", "is empty", cure, reason="empty line")
    return text
