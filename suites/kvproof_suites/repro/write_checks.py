"""What a script says of a cache write and of a block copy, as the text of the functions that say it."""

from __future__ import annotations

WRITES = '''
def check_write(kernel, spec, key, value, pools, slots):
    """A write stores its tokens in their slots, in 8 bits the nearest code of each number, and changes nothing else."""
    parts = [("key", key, pools.key, spec.k_scale, pools.key_scale)]
    parts += [] if spec.mla else [("value", value, pools.value, spec.v_scale, pools.value_scale)]
    before = [(pool.clone(), scales if scales is None else scales.clone()) for _, _, pool, _, scales in parts]
    kernel.write(spec, key, value, pools, slots)
    for (name, rows, pool, one, scales), (old, old_scales) in zip(parts, before):
        check_untouched(name, pool, old, slots)
        if scales is not None and scales.dim() == 1 and not same(scales, old_scales):
            sys.exit(f"WRONG  the scales a head of {name} were changed")
        if scales is not None and scales.dim() > 1:
            check_untouched(f"{name} scales", scales, old_scales, slots)
        for row, slot in zip(rows, slots.tolist()):
            if slot >= 0:
                at = (slot // pool.shape[1], slot % pool.shape[1])
                scale = one if scales is None else scales if scales.dim() == 1 else scales[at]
                if not stored(row, pool[at], scale, spec.kv_scales == "token"):
                    sys.exit(f"WRONG  slots of {name} do not hold what was sent, block {at[0]} slot {at[1]}")


def stored(row, codes, scale, made):
    """Whether ``codes`` [heads, dim] are what a row becomes; ``made``: the write has made ``scale`` [heads] of it."""
    if codes.dtype == row.dtype:
        return same(codes, row)
    row, scale = row.double(), torch.as_tensor(scale).double()[..., None]
    if made:
        wanted = row.abs().amax(-1, keepdim=True) / 127
        near = (scale - wanted).abs() <= wanted * 2**-22
        if not (near | (scale.isnan() & wanted.isnan()) | ((wanted == 0) & scale.isfinite())).all():
            return False
        row, scale = row.where(wanted > 0, 0), scale.where(wanted > 0, 1)
    if codes.dtype != torch.int8:
        limit = torch.finfo(codes.dtype).max
        return same(codes, (row / scale).clamp(-limit, limit).float().to(codes.dtype))
    wanted, codes = (row / scale).clamp(-127, 127), codes.double().clamp(min=-127)
    odd = ((wanted - wanted.trunc()).abs() == 0.5) & (codes % 2 == 1)
    return bool((wanted.isnan() | (((codes - wanted).abs() <= 0.5 + 2**-16) & ~odd)).all())


def check_copy(kernel, pools, copies):
    """A copy changes its destinations, and nothing else."""
    parts = {"key": pools.key, "value": pools.value, "key scales": pools.key_scale, "value scales": pools.value_scale}
    parts = {name: part for name, part in parts.items() if part is not None}
    wanted = {name: part.clone() for name, part in parts.items()}
    for name in (name for name, part in parts.items() if part.dim() > 1):
        for source, destination in copies:
            wanted[name][destination] = parts[name][source]
    kernel.copy_blocks(pools, copies)
    for name, part in parts.items():
        check_untouched(name, part, wanted[name], torch.tensor([]))


def check_untouched(name, after, before, slots):
    written, size = set(slots.tolist()), after.shape[1] if after.dim() > 1 else 1
    places = [(b, s) for b in range(len(after)) for s in range(size) if b * size + s not in written]
    wrong = [at for at in places if not same(after[at[: after.dim()]], before[at[: after.dim()]])]
    if wrong:
        sys.exit(f"WRONG  {len(wrong)} slots of {name}, the first is block {wrong[0][0]} slot {wrong[0][1]}")
'''
