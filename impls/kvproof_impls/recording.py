"""Records what an allocator does, in anybody's engine, as a history that ``kvproof replay`` puts any allocator through.

.. code-block:: python

    from kvproof_impls import recorded

    allocator = recorded(BlockManager(num_blocks=4096, block_size=16), "history.jsonl")

The rest of the engine stays as it is. When it goes wrong, the file says how.
"""

from __future__ import annotations

import inspect
import json
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvproof_impls.history import FIELDS, QUESTIONS, encoded, head, plain

ASKED = (*QUESTIONS, "num_free_blocks", "cached_prefix")
"""Methods that change nothing: they are passed on, and not recorded."""


def recorded(allocator: Any, path: str | Path) -> Any:
    """``allocator``, with every operation and what came of it written to ``path``, which is made anew.

    What the allocator has the result has as well, and what it lacks is absent. An operation is written before it is
    made, and its result after it: of a process that dies inside, the last line ends where that happened. Nothing is
    kept in memory. One thread at a time, as for the allocator itself.

    Raises:
        ValueError: sequences live in the allocator already, so that the history would lack its beginning.
        OSError: ``path`` can't be written.
    """
    used = allocator.num_blocks - allocator.num_free_blocks()
    if used:
        raise ValueError(
            f"{used} of {allocator.num_blocks} blocks are in use; wrap an allocator before its first sequence comes"
        )
    return Recorded(allocator, path)


class Recorded:
    """See ``recorded``. An operation raises TypeError, and is not made, when an id can't be written as JSON."""

    def __init__(self, allocator: Any, path: str | Path) -> None:
        self.__wrapped__ = allocator
        # Unbuffered: what was written stays when the process is killed.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        weakref.finalize(self, os.close, self._file)
        self._rows: list[Any] = []
        self._rows_text = "[]"
        self._write(json.dumps(head(allocator)) + "\n")
        for name in FIELDS.keys() - set(QUESTIONS):
            if callable(method := getattr(allocator, name, None)):
                setattr(self, name, self._recording(name, method, positions(name, method)))
        for name in ("num_blocks", "pool_blocks", "block_size", *ASKED):  # for isinstance with the contract's protocol
            if hasattr(allocator, name):
                setattr(self, name, getattr(allocator, name))

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("one recorder writes one history; copy __wrapped__ and give it a recorder of its own")

    def _recording(self, name: str, method: Callable[..., Any], fields: Sequence[str]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._write(self._told(name, fields, args, named))
            try:
                returned = method(*args, **named)
            except BaseException as error:
                self._write(self._ending("raised", type(error).__name__))
                raise
            self._write(self._ending("returned", plain(returned)))
            return returned

        return call

    def _told(self, name: str, fields: Sequence[str], args: tuple[Any, ...], named: dict[str, Any]) -> str:
        """The operation with its arguments, without the closing brace."""
        given = [*zip(fields, args, strict=False), *named.items()]
        unknown = [field for field, _ in given if field not in FIELDS[name]]
        if unknown or len(given) < len(args) + len(named):
            what = ", ".join(unknown) or f"{len(args)} arguments"
            raise TypeError(f"a history has no field for {what} of {name}; it knows {', '.join(FIELDS[name])}")
        text = f'{{"op": "{name}"'
        for field, value in given:
            text += f', "{field}": {self._rows_of(value) if field == "seqs" else json.dumps(encoded(field, value))}'
        return text

    def _rows_of(self, seqs: Sequence[Any]) -> str:
        """Made once for as long as the batch is stable."""
        if (rows := list(seqs)) != self._rows:
            self._rows_text = json.dumps(encoded("seqs", rows))
            self._rows = rows
        return self._rows_text

    def _ending(self, field: str, value: Any) -> str:
        return f', "{field}": {json.dumps(value)}, "free": {int(self.__wrapped__.num_free_blocks())}}}\n'

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._file, data) :]


def positions(name: str, method: Callable[..., Any]) -> list[str]:
    """Names of the arguments by position: the contract's, and past those the method's own."""
    contract = [field for field in FIELDS[name] if field not in ("max_tokens", "items")]
    try:
        own = list(inspect.signature(method).parameters)
    except (TypeError, ValueError):  # a compiled method may not tell
        own = []
    return [*contract, *own[len(contract) :]]
