"""Texts that a stranger's code has had a hand in, made such that a file, a database and a terminal can take them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

MOST_CHARACTERS = 200_000
"""Of one text of a record: even with each of them as two escapes, some fit into the longest line that is read."""
NOT_SHOWN = ("Cc", "Cf", "Cs")
"""Categories of Unicode: controls, of which a terminal obeys some; formats, which turn text round; surrogates."""


def storable(value: Any) -> Any:
    """What JSON holds, with lone surrogates as escapes: JSON can tell them, UTF-8 and so all that is made of it not."""
    return _with_each(value, _encodable)


def shortened(value: Any) -> Any:
    """What JSON holds, with no text beyond MOST_CHARACTERS: of a longer one the start, the end, and what is missing."""
    return _with_each(value, _cut)


def _with_each(value: Any, changed: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, Mapping):
        return {_with_each(name, changed): _with_each(entry, changed) for name, entry in value.items()}
    return [_with_each(entry, changed) for entry in value] if isinstance(value, list) else value


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half:,} characters are left out) ...\n{text[-half:]}"


def visible(text: str) -> str:
    """``text`` for a terminal: what would steer it, rather than be seen, as an escape. Lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in NOT_SHOWN:
        return character
    return character.encode("unicode_escape").decode("ascii")
