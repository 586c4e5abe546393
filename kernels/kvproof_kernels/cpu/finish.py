"""From maxima, sums and unnormalised outputs to results: one part of a context alone, or several merged.

Parts i with (m, l, o) merge to m' = max m_i, l' = Σ e^(m_i − m')·l_i, o' = Σ e^(m_i − m')·o_i (flash-decoding), in the
order of the parts, whichever was done last. A sink is one more logit without a value. A row that saw nothing gives 0,
and an LSE of −inf.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from kvproof_kernels.cpu.compiling import inlined
from kvproof_kernels.cpu.elements import place_of
from kvproof_kernels.cpu.scratch import MAXIMUM, SUM

FLOAT = types.float32
INFINITY = np.float32(np.inf)


@inlined
def keep_part(item: Any, head_rows: Any, scratch: Any, part_out: Any, part_state: Any) -> None:
    """``part_out`` float32 [rows, value_dim], ``part_state`` float32 [2, rows]: m and l."""
    for row in range((item[4] - item[3]) * head_rows):
        part_state[0, row], part_state[1, row] = scratch.state[MAXIMUM, row], scratch.state[SUM, row]
        for d in range(part_out.shape[1]):
            part_out[row, d] = scratch.out[row, d]


@inlined
def merge_parts(item: Any, head_rows: Any, scratch: Any, parts_out: Any, parts_state: Any) -> None:
    """All parts of a group, [parts, rows, value_dim] and [parts, 2, rows], into ``scratch``."""
    for row in range((item[4] - item[3]) * head_rows):
        highest = -INFINITY
        for part in range(len(parts_out)):
            highest = max(highest, parts_state[part, 0, row])
        base = highest if highest > -INFINITY else FLOAT(0)
        total = FLOAT(0)
        scratch.out[row, :] = 0
        for part in range(len(parts_out)):
            factor = FLOAT(math.exp(parts_state[part, 0, row] - base))
            total += factor * parts_state[part, 1, row]
            for d in range(parts_out.shape[2]):
                scratch.out[row, d] += factor * parts_out[part, row, d]
        scratch.state[MAXIMUM, row], scratch.state[SUM, row] = highest, total


@inlined
def finish(problem: Any, item: Any, head_rows: Any, scratch: Any, sinks: Any, out: Any, lse: Any, formats: Any) -> None:
    """Divide and store. ``out`` float32 [rows, num_q_heads, value_dim] and ``lse`` [rows, num_q_heads] from the
    sequence's first query row on."""
    first_row, num_rows, first_head, end_head, group = item[1], item[2], item[3], item[4], problem.group_size
    for head in range(end_head - first_head):
        for member in range(num_rows * group):
            row, query_row = head * head_rows + member, first_row + member // group
            query_head = (first_head + head) * group + member % group
            highest, total = scratch.state[MAXIMUM, row], scratch.state[SUM, row]
            factor = FLOAT(1)
            if problem.has_sinks:
                base = max(highest, sinks[query_head])
                factor = FLOAT(math.exp(highest - base))
                total = total * factor + FLOAT(math.exp(sinks[query_head] - base))
                highest = base
            lse[query_row, query_head] = highest + FLOAT(math.log(total)) if total != 0 else -INFINITY
            factor = problem.value_scale * factor / total if total != 0 else FLOAT(0)
            for d in range(problem.value_dim):
                out[query_row, query_head, d] = scratch.out[row, place_of(d, formats.value)] * factor
