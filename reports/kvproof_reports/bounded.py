"""Small files that are read whole, such as TOML and ``config.json``: no more of them than can be meant."""

from __future__ import annotations

from pathlib import Path

TOML_BYTES = 1 << 18
"""Of a file that a person writes. Python's parser takes quadratic time for a key of many dots: seconds here."""
JSON_BYTES = 1 << 26
"""Of what a program writes: the index of the largest sharded checkpoint has 9 MB."""


def read_text(path: Path, max_bytes: int) -> str:
    """The UTF-8 text of ``path``, without a byte order mark, and with line ends as they are in Python.

    Raises:
        OSError: no such file.
        ValueError: longer than ``max_bytes``, or not UTF-8.
    """
    with path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise ValueError(f"is longer than {max_bytes:,} bytes, which can't be meant")
    return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
