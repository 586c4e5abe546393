"""Which blocks the branches of a request share, as a tree of runs of blocks."""

from __future__ import annotations

from collections.abc import Collection


class Run:
    """Consecutive logical blocks with the same owners. ``owners`` counts branches and runs that go on from here."""

    __slots__ = ("end", "owners", "parent", "start")

    def __init__(self, parent: Run | None, start: int, end: int, owners: int) -> None:
        self.parent, self.start, self.end, self.owners = parent, start, end, owners


class Branches:
    """Each branch ends in an open run of its own, up to its last block; a fork closes the parent's and opens two."""

    def __init__(self, branches: Collection[int], num_prompt_blocks: int) -> None:
        """``num_prompt_blocks`` full ones, which all share; each branch has written since."""
        root = Run(None, 0, num_prompt_blocks, len(branches))
        self._open = {branch: Run(root, num_prompt_blocks, 0, 1) for branch in branches}

    def fork(self, parent: int, child: int, context: int, block_size: int) -> tuple[int, bool]:
        """Share all of ``parent``, of ``context`` tokens, with ``child``.

        Gives the blocks that sharing saves now: those that the child alone had, or all when it is new; and whether it
        is. That the two write into a shared last block next is the caller's to count.
        """
        num_full, num_blocks = context // block_size, -(-context // block_size)
        is_new = child not in self._open
        num_saved = num_blocks if is_new else self._give_up(child, num_blocks)
        run = self._open[parent]
        if num_full > run.start:
            shared = Run(run.parent, run.start, num_full, 2)
            self._open[parent] = Run(shared, num_full, 0, 1)
        else:
            assert run.parent is not None
            shared = run.parent
            shared.owners += 1
        self._open[child] = Run(shared, num_full if num_full > run.start else run.start, 0, 1)
        return num_saved, is_new

    def _give_up(self, branch: int, num_blocks: int) -> int:
        """Blocks that nobody else owns."""
        run: Run | None = self._open[branch]
        assert run is not None
        num_freed = num_blocks - run.start
        while (run := run.parent) is not None:
            run.owners -= 1
            if run.owners:
                break
            num_freed += run.end - run.start
        return num_freed
