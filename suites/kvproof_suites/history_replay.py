"""A history put through any allocator: under all laws at once, and compared with what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from kvproof_suites.allocator.history import Operation
from kvproof_suites.allocator.shadow import shortened
from kvproof_suites.histories import HistoryError, Source
from kvproof_suites.history_compare import Answer, Replayed, tally
from kvproof_suites.history_players import ABSENT, Bare, Judged, Player, state
from kvproof_suites.outcome import LawBroken

JUDGED_BY = ("num_blocks", "pool_blocks", "block_size", "block_table", "num_free_blocks", "can_allocate")
"""What the laws ask of an allocator between the operations of a history."""


def replay_history(source: Source, make_allocator: Callable[[int, int], Any], judged: bool = True) -> Replayed:
    """Drive a fresh allocator through the history; ``judged``: with the shadow pool, up to the first broken law.

    Raises:
        HistoryError: a fault of the file, or the allocator lacks a capability that the history uses.
    """
    found, played = Replayed(), Play(make_player(source, make_allocator, judged))
    line, operation = 0, None
    first: tuple[int, Operation] | None = None
    try:
        for line, operation in source.operations():
            answer = played.perform(operation)
            if answer is None:
                continue
            differing = tally(found, operation, answer, played.player.allocator.block_size)
            if differing and first is None:
                first = (line, operation)
                found.difference = f"line {line}: {brief(operation)} {differing}"
        line, operation = 0, None
        played.player.finish()
    except LawBroken as broken:
        where = f"line {line}: {brief(operation)}" if operation else "after the last line, freeing every sequence"
        before = "\n".join(state_before(source, make_allocator, judged, line, operation))
        found.broken = f"{where} breaks {told(broken)}\nbefore it\n{before}"
    found.num_operations, found.num_skipped = played.num_operations, played.num_skipped
    if first is not None:
        found.before = list(state_before(source, make_allocator, judged, *first))
    return found


def make_player(source: Source, make_allocator: Callable[[int, int], Any], judged: bool) -> Player:
    allocator = make_allocator(source.num_blocks, source.block_size)
    if not judged:
        return Bare(allocator)
    if missing := [name for name in JUDGED_BY if not hasattr(allocator, name)]:
        raise HistoryError(f"has no {', '.join(missing)}, which every allocator needs to be judged; see BlockAllocator")
    return Judged(allocator, source.late)


class Play:
    """Performs operations as far as they apply, and keeps to the history where the allocator does otherwise."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.num_operations = self.num_skipped = 0
        self.ahead: set[Hashable] = set()
        """Sequences that have the token of a step which failed for others, where steps are made of single calls."""

    def perform(self, operation: Operation) -> Answer | None:
        """None when it was not performed."""
        name = operation.name
        if not self._can(name):
            if name == "commit" or operation.must_raise:
                return None  # nothing to publish without commit, nothing to refuse without the rest
            if self._can(ABSENT.get(name, name)) or ABSENT.get(name) == "commit":
                return self._counted(operation, self._in_single_calls)
            raise HistoryError(f"the history uses {name}, which this allocator does not have")
        if operation.must_raise:
            return self._counted(operation, self._refuse)
        if self.player.applies(operation):
            return self._counted(operation, self._call)
        if operation.raised in ("KeyError", "ValueError") and not self.num_skipped:
            return self._counted(operation, self._refuse)  # the engine made a mistake, and was told
        self.num_skipped += 1
        return None

    def _can(self, name: str) -> bool:
        return callable(getattr(self.player.allocator, name, None))

    def _counted(self, operation: Operation, perform: Callable[[Operation], Any]) -> Answer | None:
        raised = returned = None
        try:
            returned = perform(operation)
        except MemoryError:
            raised = "MemoryError"
        except Skipped:
            self.num_skipped += 1
            return None
        except (HistoryError, LawBroken):
            raise
        except Exception as error:  # of an allocator that nobody judges
            raised = type(error).__name__
        if perform == self._refuse:
            raised, returned = returned, None
        self.num_operations += 1
        answer = Answer(raised, returned, int(self.player.allocator.num_free_blocks()))
        self._keep_to(operation, answer)
        return answer

    def _call(self, operation: Operation) -> Any:
        return self.player.call(operation.name, operation.args)

    def _refuse(self, operation: Operation) -> str:
        error = operation.must_raise or operation.raised
        assert error is not None
        return self.player.refused(error, operation)

    def _in_single_calls(self, operation: Operation) -> Any:
        single, (first, *rest) = ABSENT[operation.name], operation.args
        seqs = [first] if operation.name == "preempt" else first
        if not all(map(self.player.knows, seqs)):
            raise Skipped
        if operation.name != "append_step":
            for seq in seqs if self._can(single) else ():
                self.player.call(single, (seq,))
            return None
        copies: list[Any] = []
        for seq, token in zip(seqs, rest[0], strict=True):
            if seq not in self.ahead:
                copies += self.player.call("append", (seq, [token]))
                self.ahead.add(seq)
        self.ahead.clear()
        return copies

    def _keep_to(self, operation: Operation, answer: Answer) -> None:
        """What the history refused and this allocator took is given back, so that both go on with the same."""
        player, (seq, *_) = self.player, (*operation.args, None)
        if operation.raised != "MemoryError" or answer.raised:
            return
        if operation.name in ("allocate", "fork"):
            player.call("free", (operation.args[1] if operation.name == "fork" else seq,))
        elif operation.name == "swap_in":
            player.call("swap_out", (seq,))
        elif operation.name == "swap_out":
            player.call("swap_in", (seq,))
        elif operation.name in ("append", "append_step") and self._can("truncate"):
            grown = [(seq, len(operation.args[1]))] if operation.name == "append" else [(row, 1) for row in seq]
            for row, num_tokens in grown:
                player.call("truncate", (row, player.length(row) - num_tokens))


class Skipped(Exception):
    """The operation rests on one that was refused."""


def state_before(
    source: Source, make_allocator: Callable[[int, int], Any], judged: bool, line: int, operation: Operation | None
) -> Iterator[str]:
    """Played again up to there: nothing has to be kept of a long history while it runs."""
    play = Play(make_player(source, make_allocator, judged))
    for other, earlier in source.operations():
        if other == line:
            break
        play.perform(earlier)
    named: list[Hashable] = []
    for argument in operation.args if operation else ():
        named += argument if isinstance(argument, list) else [argument]
    yield from state(play.player, named)


def brief(operation: Operation) -> str:
    """The call as code, long lists shortened."""
    args = [shortened(arg) if isinstance(arg, list) else repr(arg) for arg in operation.args]
    return f"{operation.name}({', '.join(args)})"


def told(broken: LawBroken) -> str:
    """The first part of the story; the operations up to here are the history itself."""
    return str(broken).partition("\n  after\n")[0]
