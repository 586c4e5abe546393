"""Small random workloads with everything that a request may have."""

from __future__ import annotations

import random

from kvproof_traces import Request


def drawn(seed, *, num_requests=30, samples=1, shared=False, hash_block_size=4):
    """For a pool of 24 to 60 blocks of 4."""
    rng, arrival, fresh = random.Random(seed), 0.0, 1000
    for index in range(num_requests):
        arrival += rng.choice((0.0, 1.0, 7.0))
        prompt, output = rng.randint(1, 40), rng.randint(1, 30)
        ids = ()
        if shared and rng.random() < 0.8:
            length, family = -(-prompt // hash_block_size), rng.randrange(3)
            num_common = rng.randint(0, length)
            ids = tuple(100 * family + place for place in range(num_common))
            ids += tuple(range(fresh, fresh + length - num_common))
            fresh += length
        abort = rng.randrange(output) if rng.random() < 0.15 else None
        yield Request(
            f"r{index}",
            arrival,
            prompt,
            output,
            hash_ids=ids,
            hash_block_size=hash_block_size,
            num_samples=rng.randint(1, samples),
            abort_after=abort,
        )
