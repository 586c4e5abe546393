"""Lengths of files that hold text: a declared estimate, because a tokenizer is a model's own and none is run here."""

from __future__ import annotations

import math
from typing import Any

from kvproof_traces.lines import TraceError
from kvproof_traces.reading import Source


class TextLengths:
    """Token counts of texts and of missing outputs, by the options that the caller gave."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def of(self, number: int, field: str, text: Any) -> int:
        """UTF-8 bytes / ``bytes_per_token``, rounded up; 0 for an empty text.

        Raises:
            TraceError: no text.
            MissingOption: the option is not given.
        """
        if type(text) is not str:
            raise TraceError(self.source.path, number, field, f"{text!r} is not a text", "give a string")
        ratio = self.source.need("bytes_per_token", "the file holds text and no lengths, and no tokenizer is run")
        self.source.note(f"lengths are estimated: UTF-8 bytes of the text / {ratio:g}, no tokenizer was run")
        return math.ceil(len(text.encode("utf-8", "surrogatepass")) / ratio)

    def output(self, number: int, row: dict[str, Any], field: str) -> Any:
        """The row's own output length, else the one given for all.

        Raises:
            MissingOption: neither.
        """
        if field in row:
            return row[field]
        given = self.source.need("output_tokens", f"line {number} has no {field}, and there is none for all")
        self.source.note(f"rows without an output length are given {given} tokens")
        return given
