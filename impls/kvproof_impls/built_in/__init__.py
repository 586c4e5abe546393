"""The built-in implementations, each an entry that is read before anything of it is imported."""

from __future__ import annotations

from dataclasses import replace

from kvproof_impls.built_in.entry import Entry
from kvproof_impls.built_in.others import OTHERS
from kvproof_impls.built_in.others_on_gpus import OTHERS_ON_GPUS
from kvproof_impls.built_in.ours import OURS

__all__ = ["BUILT_IN", "Entry"]

BUILT_IN: dict[str, Entry] = {
    **OURS,
    **{name: replace(entry, third_party=True) for name, entry in OTHERS.items()},
    **{name: replace(entry, third_party=True, needs_cuda=True) for name, entry in OTHERS_ON_GPUS.items()},
}
