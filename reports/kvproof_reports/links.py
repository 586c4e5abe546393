"""Public reports and addresses within a text, found so that a page can link to them."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FOUND = re.compile(r"(?P<url>https://[^\s<>\"'`)\]}]+[^\s<>\"'`)\]}.,;:])|\b(?P<repo>[\w.-]+/[\w.-]+)#(?P<number>\d+)")


def linked(text: str) -> Iterator[tuple[str, str]]:
    """Pieces of ``text`` in order, each with the address it leads to, "" for none. Only https, and owner/name#number on
    GitHub; joined, the pieces are ``text``."""
    start = 0
    for match in _FOUND.finditer(text):
        yield text[start : match.start()], ""
        url = match["url"] or f"https://github.com/{match['repo']}/issues/{match['number']}"
        yield match[0], url
        start = match.end()
    yield text[start:], ""
