"""The file that carries block tables from a replay to a kernel: exact, and checked both ways."""

from __future__ import annotations

import json

import pytest

from kvproof_traces import BlockTables, TablesError, read_tables, write_tables

TABLES = BlockTables(block_size=4, num_blocks=8, block_tables=((7, 2, 5), (7, 3)), context_lens=(9, 5))
DATA = {"block_size": 4, "num_blocks": 8, "block_tables": [[7, 2, 5], [7, 3]], "context_lens": [9, 5]}


def test_tables_come_back_equal(tmp_path):
    write_tables(tmp_path / "churned.json", TABLES)
    assert read_tables(tmp_path / "churned.json") == TABLES
    assert json.loads((tmp_path / "churned.json").read_text()) == DATA


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"block_size": 0}, "block_size"),
        ({"num_blocks": "8"}, "num_blocks"),
        ({"num_blocks": True}, "num_blocks"),
        ({"block_tables": {}}, "block_tables"),
        ({"block_tables": [[7, 2, 5], 3]}, "block_tables[1]"),
        ({"block_tables": [[7, 2, 8], [7, 3]]}, "block_tables[0][2]"),
        ({"block_tables": [[7, 2, -1], [7, 3]]}, "block_tables[0][2]"),
        ({"block_tables": [[7, 2, 5], [7, 3.0]]}, "block_tables[1][1]"),
        ({"block_tables": [[7, 2], [7, 3]]}, "block_tables[0]"),
        ({"block_tables": [[7, 2, 7], [7, 3]]}, "block_tables[0]"),
        ({"context_lens": [9]}, "context_lens"),
        ({"context_lens": [9, 0]}, "context_lens[1]"),
        ({"context_lens": [9, None]}, "context_lens[1]"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_bad_file_names_the_field(tmp_path, change, field):
    path = tmp_path / "churned.json"
    path.write_text(json.dumps({**DATA, **change}))
    with pytest.raises(TablesError) as caught:
        read_tables(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}: {field}: ")


@pytest.mark.parametrize("field", list(DATA))
def test_a_missing_field_is_named(tmp_path, field):
    path = tmp_path / "churned.json"
    path.write_text(json.dumps({name: value for name, value in DATA.items() if name != field}))
    with pytest.raises(TablesError, match=f": {field}: is missing"):
        read_tables(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_what_is_no_object_is_refused(tmp_path, text):
    path = tmp_path / "churned.json"
    path.write_text(text)
    with pytest.raises(TablesError, match=": file: "):
        read_tables(path)


def test_bad_tables_are_not_written(tmp_path):
    with pytest.raises(TablesError, match="context_lens"):
        write_tables(tmp_path / "churned.json", BlockTables(4, 8, ((1,),), (5, 6)))
    assert not (tmp_path / "churned.json").exists()
