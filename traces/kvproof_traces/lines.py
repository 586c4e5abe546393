"""Lines of a trace file, each with its number, and the error that names one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TraceError(ValueError):
    """A line of a trace that can't be read. The text is ``file:line: field: what is wrong; what to do``."""

    def __init__(self, file: str | Path, line: int, field: str, what: str, cure: str) -> None:
        super().__init__(f"{file}:{line}: {field}: {what}; {cure}")
        self.file, self.line, self.field, self.what, self.cure = str(file), line, field, what, cure

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, int, str, str, str]]:
        # Exceptions are pickled with their one-string args, which this constructor would refuse.
        return type(self), (self.file, self.line, self.field, self.what, self.cure)


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its end).

    Both line ends are accepted, as is a last line without one, and a byte order mark before the first.

    Raises:
        TraceError: a line that is not UTF-8, or empty: in a log of one request a line, an empty one is a loss.
    """
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1:
                raw = raw.removeprefix(BYTE_ORDER_MARK)
            raw = raw.removesuffix(b"\n").removesuffix(b"\r")
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                what = f"byte {error.start + 1} of the line is not UTF-8"
                raise TraceError(path, number, "line", what, "save the file as UTF-8") from None
            if not text.strip():
                raise TraceError(path, number, "line", "is empty", "remove the line, or put the lost request back")
            yield number, text
