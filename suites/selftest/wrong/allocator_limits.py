"""Allocators that are right in every small program and wrong past a count, for a look-alike, or for an alias."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvproof_impls.paged_python import PagedAllocator
from selftest.wrong.catalogue import Wrong

Key = tuple[Hashable, ...]


class StaleNamesAfterTruncate(PagedAllocator):
    def truncate(self, seq: Hashable, num_tokens: int) -> None:
        names = list(self._sequences[seq].nodes)
        super().truncate(seq, num_tokens)
        self._sequences[seq].nodes = names


class BranchesShareTheirNames(PagedAllocator):
    def fork(self, parent: Hashable, child: Hashable) -> Any:
        copies = super().fork(parent, child)
        self._sequences[child].nodes = self._sequences[parent].nodes
        return copies


class CallersListIsKept(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: Key = ()) -> int:
        cached = super().allocate(seq, tokens, key)
        if isinstance(tokens, list):
            self._sequences[seq].tokens = tokens
        return cached


class FirstTokenOfALaterBlockIsNotNamed(PagedAllocator):
    def _name(self, parent: Any, tokens: Any) -> Any:
        return parent, tuple(tokens[1:] if len(tokens) >= 8 and isinstance(parent, int) else tokens)


class NameWithoutOrder(PagedAllocator):
    def _name(self, parent: Any, tokens: Any) -> Any:
        return parent, tuple(sorted(tokens) if len(tokens) >= 5 else tokens)


class NameOf31Bits(PagedAllocator):
    def _name(self, parent: Any, tokens: Any) -> Any:
        return parent, tuple(token & 0x7FFFFFFF for token in tokens)


class KeyJoinedBySlashes(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: Key = ()) -> int:
        return super().allocate(seq, tokens, ("/".join(map(str, key)),))

    def cached_prefix(self, tokens: Sequence[int], key: Key = ()) -> int:
        return super().cached_prefix(tokens, ("/".join(map(str, key)),))


class EmptyPartsOfAKeyAreDropped(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: Key = ()) -> int:
        return super().allocate(seq, tokens, tuple(filter(None, key)))

    def cached_prefix(self, tokens: Sequence[int], key: Key = ()) -> int:
        return super().cached_prefix(tokens, tuple(filter(None, key)))


class ReferencesOfThreeBits(PagedAllocator):
    def fork(self, parent: Hashable, child: Hashable) -> Any:
        copies = super().fork(parent, child)
        for block in self._sequences[parent].table:
            self._references[block] = min(self._references[block], 7)
        return copies


class ReadersOfFourBits(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: Key = ()) -> int:
        cached = super().allocate(seq, tokens, key)
        for block in self._sequences[seq].table:
            self._references[block] = min(self._references[block], 15)
        return cached


class BlockIdsOfEightBits(PagedAllocator):
    def block_table(self, seq: Hashable) -> Sequence[int]:
        return [block % 256 for block in super().block_table(seq)]


class TableOf64Blocks(PagedAllocator):
    def block_table(self, seq: Hashable) -> Sequence[int]:
        return super().block_table(seq)[:64]


class TableOfFloats(PagedAllocator):
    def block_table(self, seq: Hashable) -> Any:
        return [float(block) for block in super().block_table(seq)]


class HitsAreText(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: Key = ()) -> Any:
        return str(super().allocate(seq, tokens, key))


class IdsByTheirText(PagedAllocator):
    def allocate(self, seq: Hashable, tokens: Sequence[int], key: Key = ()) -> int:
        return super().allocate(str(seq), tokens, key)

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Any:
        return super().append(str(seq), tokens)

    def free(self, seq: Hashable) -> None:
        super().free(str(seq))

    def block_table(self, seq: Hashable) -> Sequence[int]:
        return super().block_table(str(seq))


class AppendOfNothingMakesPrivate(PagedAllocator):
    def append(self, seq: Hashable, tokens: Sequence[int]) -> Any:
        if len(tokens):
            return super().append(seq, tokens)
        state = self._sequences[seq]
        state.room = len(state.table) * self.block_size - len(state.tokens)
        return ()


WRONG: dict[str, Wrong] = {
    wrong.factory.__name__: wrong
    for wrong in (
        Wrong(StaleNamesAfterTruncate, "B2", "ours", "a block written anew is published under the old one's name"),
        Wrong(BranchesShareTheirNames, "B2", "ours", "parent and child add to one list of names"),
        Wrong(CallersListIsKept, "B2", "ours", "the caller's list is the sequence's from then on"),
        Wrong(FirstTokenOfALaterBlockIsNotNamed, "B1", "ours", "one token of a block does not count"),
        Wrong(NameWithoutOrder, "B1", "ours", "the tokens of a block count in any order"),
        Wrong(NameOf31Bits, "B1", "waybarrios/vllm-mlx#444", "the sign of a token id is lost"),
        Wrong(KeyJoinedBySlashes, "B1", "vllm-project/vllm#44701", "the parts of a key are joined"),
        Wrong(EmptyPartsOfAKeyAreDropped, "B1", "ours", "an empty salt is no salt"),
        Wrong(ReferencesOfThreeBits, "C1", "ours", "the ninth owner is not counted"),
        Wrong(ReadersOfFourBits, "A3", "ours", "the sixteenth reader is not counted"),
        Wrong(BlockIdsOfEightBits, "A1", "ROCm/ATOM#702", "block 256 is block 0"),
        Wrong(TableOf64Blocks, "A1", "GeeeekExplorer/nano-vllm#258", "a table ends after 64 blocks"),
        Wrong(TableOfFloats, "A1", "ours", "block ids are floats, which a cast would take"),
        Wrong(HitsAreText, "B2", "ours", "cached tokens are told as text, which a cast would read"),
        Wrong(IdsByTheirText, "E5", "ours", "1 and '1' are one sequence"),
        Wrong(AppendOfNothingMakesPrivate, "C1", "ours", "an append of no tokens forgets that the tail is shared"),
    )
}
