"""Tiles that ``make tune`` tries, and which of them compile to code that the ahead-of-time gate would let pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from kvproof_kernels.chips import CHIPS
from kvproof_kernels.resources import Resources, Variant, compile_variant, complaint
from kvproof_kernels.tiles import Configuration, Form, tile_for
from kvproof_kernels.tuned import Tile, Tuned, table
from kvproof_kernels.variants import attention_variant

ROWS = {"few": (16,), "many": (32, 64, 128)}
TOKENS = (16, 32, 64, 128)
WARPS = (4, 8)
STAGES = {"few": (2, 3, 4), "many": (2, 3)}
MOST_ACCUMULATORS = 128
"""Registers a thread for the output alone: of 255, so that twice as many always spill."""
SMALLEST_TILE = 2048
"""Elements of K a tile below which a program does more look-ups than loads."""
LARGEST_TILE = 2**14
"""Elements of K a tile above which two stages of K and V exceed every chip's shared memory in 16 bits."""


def candidates(kind: str, form: Form, backend: str) -> list[Configuration]:
    """The tile of ``tiles.py`` first, then all that could do better, by the bounds above."""
    default = tile_for(kind, form, backend)
    others = (with_tile(default, tile) for tile in tiles_around(kind, default))
    return [default, *(other for other in others if other != default)]


def tiles_around(kind: str, default: Configuration) -> Iterator[Tile]:
    for block_m, block_n, warps, stages in product(ROWS[kind], TOKENS, WARPS, STAGES[kind]):
        accumulators = block_m * default.block_d // (32 * warps)
        if accumulators <= MOST_ACCUMULATORS and SMALLEST_TILE <= block_n * default.block_d <= LARGEST_TILE:
            yield Tile(block_m, block_n, warps, stages)


def with_tile(configuration: Configuration, tile: Tile) -> Configuration:
    return replace(configuration, **tile._asdict())


def tile_of(configuration: Configuration) -> Tile:
    return Tile(*(getattr(configuration, name) for name in Tile._fields))


def compiled(kind: str, form: Form, configuration: Configuration, target: str) -> tuple[Resources, str | None]:
    """What a candidate takes of a chip, compiled ahead of time, and why it is out of the question, if it is."""
    variant = variant_with(kind, form, configuration, target)
    resources = compile_variant(variant, target)
    return resources, complaint(resources, variant)


def variant_with(kind: str, form: Form, configuration: Configuration, target: str) -> Variant:
    """As the launcher specialises ``form`` on this chip, with another tile."""
    chosen = attention_variant(kind, form, target)
    return replace(chosen, constants=configuration.constants, options=configuration.compiler_options)


def tuned_variants(target: str) -> Iterator[Variant]:
    """What the committed table adds to what a launch can choose on this chip: for the ahead-of-time gate.

    Group size and block size are arguments at run time: lines that differ in nothing else are one variant.
    """
    seen: set[tuple[object, ...]] = set()
    for entry in table().values():
        what = (entry.key.rows, entry.key.form, entry.tile)
        if entry.key.arch == target and what not in seen:
            seen.add(what)
            yield tuned_variant(entry)


def tuned_variant(entry: Tuned) -> Variant:
    key, tile = entry.key, entry.tile
    default = tile_for(key.rows, key.form, CHIPS[key.arch].target.backend)
    variant = variant_with(key.rows, key.form, with_tile(default, tile), key.arch)
    told = f"{tile.block_m} by {tile.block_n}, {tile.num_warps} warps, {tile.num_stages} stages"
    return replace(variant, case=f"{variant.case}, tuned: {told}")
