"""RELIABILITY.md names tests that exist, one at least for each fault."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if re.match(r"\| (?!fault \|)", line)]
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST.findall(TEXT))))
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in functions_of(ROOT / path)


def test_every_fault_has_four_cells_and_the_last_names_its_tests() -> None:
    assert ROWS
    for row in ROWS:
        cells = row.strip("|").split(" | ")
        assert len(cells) == 4, row
        assert TEST.search(cells[3]), row
