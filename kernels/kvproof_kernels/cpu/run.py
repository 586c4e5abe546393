"""What one thread does: take the next work item until there are none."""

from __future__ import annotations

from typing import Any

from kvproof_kernels.cpu.compiling import compiled
from kvproof_kernels.cpu.finish import finish, keep_part, merge_parts
from kvproof_kernels.cpu.memory import count_up
from kvproof_kernels.cpu.work import attend_item

NEXT, FAILED = 0, 1
"""The first counters: the next item, and 1 + the sequence whose table is wrong. One a group follows: parts done."""


@compiled
def run(
    problem: Any,
    formats: Any,
    items: Any,
    groups: Any,
    context_lens: Any,
    query_starts: Any,
    counters: Any,
    queries: Any,
    slopes: Any,
    sinks: Any,
    out: Any,
    lse: Any,
    scratch: Any,
    parts_out: Any,
    parts_state: Any,
) -> None:
    """``items`` and ``groups`` as ``lay_out`` gives them, ``groups`` with the first of its places in ``parts_out``
    [parts, rows, value_dim] and ``parts_state`` [parts, 2, rows]. Each thread has a ``scratch`` of its own."""
    while True:
        index = count_up(counters.ctypes.data + 8 * NEXT)
        if index >= len(items):
            return
        item = items[index]
        start, end = query_starts[item[0]], query_starts[item[0] + 1]
        position = context_lens[item[0]] - (end - start) + item[1]
        head_rows = -(-item[2] * problem.group_size // 4) * 4
        if not attend_item(problem, item, position, queries[start:end], slopes, scratch, formats):
            counters[FAILED] = 1 + item[0]
            return
        num_parts, first_part = groups[item[7]]
        if num_parts > 1:
            place = first_part + item[8]
            keep_part(item, head_rows, scratch, parts_out[place], parts_state[place])
            if count_up(counters.ctypes.data + 8 * (FAILED + 1 + item[7])) < num_parts - 1:
                continue
            places = slice(first_part, first_part + num_parts)
            merge_parts(item, head_rows, scratch, parts_out[places], parts_state[places])
        finish(problem, item, head_rows, scratch, sinks, out[start:end], lse[start:end], formats)
