"""Random histories against a plain model: every sequence reads its own tokens back through its table, always."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvproof_reference.allocator import ReferenceAllocator

TOKENS = st.lists(st.integers(0, 1), max_size=9)  # two tokens only: equal prefixes are common
KEYS = st.sampled_from([(), ("salt",)])


class AllocatorMachine(RuleBasedStateMachine):
    """``model`` holds each sequence's key and tokens, ``pool`` what was written to each slot: a token's identity,
    which is its key and its whole prefix."""

    @initialize(num_blocks=st.integers(1, 7), block_size=st.integers(1, 4))
    def build(self, num_blocks, block_size):
        self.allocator = ReferenceAllocator(num_blocks, block_size)
        self.pool = {}
        self.model = {}
        self.num_named = 0

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.model)))

    def name(self):
        self.num_named += 1
        return self.num_named

    def write(self, seq, start):
        key, tokens = self.model[seq]
        for position in range(start, len(tokens)):
            self.pool[self.allocator.slot_index(seq, position)] = (key, tuple(tokens[: position + 1]))

    @rule(tokens=TOKENS, key=KEYS)
    def allocate(self, tokens, key):
        seq, promised = self.name(), self.allocator.can_allocate(len(tokens))
        expected = self.allocator.cached_prefix(tokens, key)
        try:
            cached = self.allocator.allocate(seq, tokens, key)
        except MemoryError:
            assert not promised
            return
        assert cached == expected
        assert promised or cached
        self.model[seq] = (key, list(tokens))
        self.write(seq, cached)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), tokens=TOKENS)
    def append(self, data, tokens):
        seq = self.pick(data)
        old = self.model[seq][1]
        try:
            copies = self.allocator.append(seq, tokens)
        except MemoryError:
            return
        size = self.allocator.block_size
        for source, destination in copies:
            for offset in range(size):
                self.pool[destination * size + offset] = self.pool.get(source * size + offset)
        start = len(old)
        old.extend(tokens)
        self.write(seq, start)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def fork(self, data):
        parent, child = self.pick(data), self.name()
        assert self.allocator.fork(parent, child) == []
        key, tokens = self.model[parent]
        self.model[child] = (key, list(tokens))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def commit(self, data):
        self.allocator.commit(self.pick(data))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data):
        seq = self.pick(data)
        tokens = self.model[seq][1]
        length = data.draw(st.integers(0, len(tokens)))
        self.allocator.truncate(seq, length)
        del tokens[length:]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data):
        seq = self.pick(data)
        self.allocator.free(seq)
        del self.model[seq]

    @rule()
    def reset(self):
        self.allocator.reset_prefix_cache()

    @invariant()
    def every_sequence_reads_its_own_tokens(self):
        for seq, (key, tokens) in self.model.items():
            for position in range(len(tokens)):
                found = self.pool[self.allocator.slot_index(seq, position)]
                assert found == (key, tuple(tokens[: position + 1]))

    @invariant()
    def no_invariant_is_broken(self):
        assert self.allocator.check() == []

    def teardown(self):
        for seq in self.model:
            self.allocator.free(seq)
        assert self.allocator.num_free_blocks() == self.allocator.num_blocks


def test_random_histories_keep_every_invariant():
    run_state_machine_as_test(
        AllocatorMachine,
        settings=settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True, database=None),
    )
