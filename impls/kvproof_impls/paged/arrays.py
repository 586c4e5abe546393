"""Who holds the arrays, and their addresses: they grow, are replaced, and are copied in here alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof_impls.paged.layout import State, grown
from kvproof_impls.paged.places import places_of
from kvproof_impls.paged.sequences import TOO_NARROW


class Arrays:
    """The base of our allocator, which calls compiled code with addresses.

    ``copy.deepcopy`` and pickle give an allocator with arrays of its own; a shallow copy is refused.
    """

    _made_anew = frozenset({"_places", "_num_blank", "_num_evictable"})
    """Attributes that are made from ``_state``, and copied to nobody."""

    def __init__(self, state: State, num_seqs: int, max_blocks: int) -> None:
        self._state = state
        self._free_rows: list[int] = []
        self._reshape(grown(state, num_seqs, max_blocks))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._made_anew}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        """Raises TypeError when another version, with another layout, wrote what is read."""
        self.__dict__.update(attributes)
        self._state = State(*(array.copy() for array in self._state))  # pickle may hand over those of the original
        self._reshape(self._state)

    def __copy__(self) -> Any:
        raise TypeError("two allocators can't share one pool; copy.deepcopy gives one with a pool of its own")

    def _call(self, function: Callable[..., int], *arguments: Any) -> int:
        """A compiled function that says when the tables are too narrow for what it does."""
        while (result := function(self._places, *arguments)) == TOO_NARROW:
            self._widen()
        return result

    def _widen(self) -> None:
        num_seqs, max_blocks = self._state.tables.shape
        self._reshape(grown(self._state, num_seqs, 2 * max_blocks))

    def _add_rows(self) -> None:
        num_seqs, max_blocks = self._state.tables.shape
        self._reshape(grown(self._state, 2 * num_seqs, max_blocks))

    def _reshape(self, state: State) -> None:
        """Other arrays from now on, of other sizes."""
        self._free_rows += range(len(state.sequences) - 1, len(self._state.sequences) - 1, -1)
        self._replace(state)

    def _replace(self, state: State) -> None:
        """Other arrays from now on, of the same sizes wherever the step tensors have one."""
        self._state, self._places = state, places_of(state)
        self._num_blank, self._num_evictable = state.pool["num_blank"], state.pool["num_evictable"]
