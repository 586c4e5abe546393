"""Texts that a stranger's code has had a hand in, made such that a file, a database and a terminal can take them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

MOST_CHARACTERS = 200_000
"""Of one text of a record: even with each of them as two escapes, some fit into the longest line that is read."""
NOT_SHOWN = ("Cc", "Cf", "Cs")
"""Categories of Unicode: controls, of which a terminal obeys some; formats, which turn text round; surrogates."""


def storable(value: Any) -> Any:
    """What JSON holds, with lone surrogates as escapes: JSON can tell them, UTF-8 and so all that is made of it not."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {storable(name): storable(entry) for name, entry in value.items()}
    return [storable(entry) for entry in value] if isinstance(value, list) else value


def shortened(value: Any) -> Any:
    """What JSON holds, with no text beyond MOST_CHARACTERS: of a longer one the start, the end, and what is missing."""
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        return f"{value[:half]}\n... ({len(value) - 2 * half:,} characters are left out) ...\n{value[-half:]}"
    if isinstance(value, Mapping):
        return {name: shortened(entry) for name, entry in value.items()}
    return [shortened(entry) for entry in value] if isinstance(value, list) else value


def visible(text: str) -> str:
    """``text`` for a terminal: what would steer it, rather than be seen, as an escape. Lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in NOT_SHOWN:
        return character
    return character.encode("unicode_escape").decode("ascii")
