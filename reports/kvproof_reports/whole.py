"""A file that is there whole or not at all, and is never written through what lies there under its name."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """In place of what is there: a folder of a stranger's may hold a link to a file of yours, or a pipe.

    Raises:
        OSError: it can't be written; what was there stays.
    """
    part = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with part.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
