"""The table of measured tiles: read once, refused where it is faulty, and obeyed for exactly what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvproof_kernels import tuned
from kvproof_kernels.geometry import Geometry
from kvproof_kernels.plan import configuration_for
from kvproof_kernels.tiles import Form, tile_for
from kvproof_kernels.tuned import Key, Place, Tile, Tuned, read_table, write_table

FORM = Form(128, 128, torch.bfloat16, torch.bfloat16)
PLACE = Place("sm_90", group_size=4, block_size=16)
ENTRY = Tuned(Key.of(PLACE, "few", FORM), Tile(16, 128, 8, 3), speedup=1.08)
LINE = dict(tuned.entries_of(ENTRY))


@pytest.fixture
def measured(monkeypatch):
    """A table of one line."""
    monkeypatch.setattr(tuned, "table", lambda: {ENTRY.key: ENTRY})


def test_what_was_measured_is_chosen(measured):
    chosen = tile_for("few", FORM, "cuda", PLACE)
    assert (chosen.block_m, chosen.block_n, chosen.num_warps, chosen.num_stages) == ENTRY.tile
    default = tile_for("few", FORM, "cuda")
    assert chosen == replace(default, block_n=128, num_warps=8, num_stages=3)


@pytest.mark.parametrize(
    ("place", "rows", "form"),
    [
        (replace(PLACE, arch="sm_80"), "few", FORM),
        (replace(PLACE, group_size=8), "few", FORM),
        (replace(PLACE, block_size=32), "few", FORM),
        (PLACE, "many", FORM),
        (PLACE, "few", replace(FORM, dtype=torch.float16, kv_dtype=torch.float16)),
        (PLACE, "few", replace(FORM, kv_dtype=torch.int8)),
        (PLACE, "few", replace(FORM, head_dim=112, value_dim=112)),
        (PLACE, "few", replace(FORM, value_dim=64)),
        (PLACE, "few", replace(FORM, options=True)),
        (PLACE, "few", replace(FORM, kv_dtype=torch.int8, token_scales=True)),
    ],
)
def test_what_was_not_measured_runs_as_before(measured, place, rows, form):
    assert tile_for(rows, form, "cuda", place) == tile_for(rows, form, "cuda")


def test_a_table_comes_back_as_it_was_written(tmp_path):
    others = [
        replace(ENTRY, key=replace(ENTRY.key, block_size=128)),
        replace(ENTRY, key=replace(ENTRY.key, head_dim=576, value_dim=512, mla=True), speedup=1.5),
    ]
    write_table(tmp_path / "tuned.toml", [others[1], others[0], ENTRY])
    read = read_table(tmp_path / "tuned.toml")
    assert list(read.values()) == [ENTRY, *others]
    assert read[others[1].key].key.form == Form(576, 512, torch.bfloat16, torch.bfloat16, mla=True)


def test_the_committed_table_is_as_the_writer_leaves_it(tmp_path):
    write_table(tmp_path / "tuned.toml", read_table(tuned.TABLE).values())
    assert (tmp_path / "tuned.toml").read_text() == tuned.TABLE.read_text()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"block_n": 48}, r"tile 1: block_n 48: a power of two from 16"),
        ({"block_m": 8}, r"tile 1: block_m 8: a power of two from 16"),
        ({"num_warps": 3}, r"tile 1: num_warps 3, num_stages 3"),
        ({"num_stages": 0}, r"tile 1: num_warps 8, num_stages 0"),
        ({"rows": "some"}, r"tile 1: rows 'some': few or many"),
        ({"dtype": "float17"}, r"tile 1: dtype 'float17': torch does not know it"),
        ({"colour": "red"}, r"tile 1: unknown field colour"),
        ({"arch": None}, r"tile 1: lacks arch"),
    ],
)
def test_a_faulty_line_is_refused_by_name(tmp_path, changed, told):
    line = {name: value for name, value in {**LINE, **changed}.items() if value is not None}
    text = ", ".join(f"{name} = {tuned.in_toml(value)}" for name, value in line.items())
    (tmp_path / "tuned.toml").write_text(f"tiles = [{{ {text} }}]")
    with pytest.raises(ValueError, match=r"tuned\.toml: " + told):
        read_table(tmp_path / "tuned.toml")


def test_two_tiles_for_the_same_are_refused(tmp_path):
    text = tuned.line_of(ENTRY)
    (tmp_path / "tuned.toml").write_text(f"tiles = [\n{text}\n{text}\n]")
    with pytest.raises(ValueError, match=r"tile 2: .* has a tile already"):
        read_table(tmp_path / "tuned.toml")


@pytest.mark.parametrize(("capability", "arch"), [((8, 0), "sm_80"), ((9, 0), "sm_90"), ((10, 3), "sm_103")])
def test_a_chip_is_named_as_the_compiler_names_it(monkeypatch, capability, arch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert tuned.arch_of(torch.device("cuda")) == arch


def test_a_launch_tells_the_table_where_it_runs(measured, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    geometry = Geometry(32, 8, 128, 128, 16, torch.bfloat16, torch.bfloat16, 128**-0.5)
    assert configuration_for(geometry, 4, torch.device("cuda")).block_n == ENTRY.tile.block_n
    assert configuration_for(replace(geometry, block_size=32), 4, torch.device("cuda")) == tile_for("few", FORM, "cuda")


def test_the_interpreter_asks_no_table(measured):
    geometry = Geometry(32, 8, 128, 128, 16, torch.bfloat16, torch.bfloat16, 128**-0.5)
    assert configuration_for(geometry, 4, torch.device("cpu")) == tile_for("few", FORM, "interpreter")
