"""SPEC.md, the table of laws and the tests agree."""

from __future__ import annotations

import ast
from pathlib import Path

from kvproof_suites.cli.laws import as_markdown
from kvproof_suites.laws import LAWS
from selftest.wrong import allocators, kernels

ROOT = Path(__file__).parent.parent.parent
SUITES = ROOT / "suites" / "kvproof_suites"
MARKER = "a test holds the two equal -->"


def laws_named_by_tests() -> set[str]:
    """Every id in a ``pytest.mark.law(...)`` of a test module."""
    calls = [
        node
        for path in SUITES.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "law"
    ]
    return {argument.value for call in calls for argument in call.args if isinstance(argument, ast.Constant)}


def test_the_document_prints_the_table_of_laws() -> None:
    written = (ROOT / "SPEC.md").read_text(encoding="utf-8").partition(MARKER)[2]
    assert written.strip() == as_markdown(list(LAWS.values())).strip(), (
        "SPEC.md is out of date: replace what follows the marker with the output of `kvproof laws --markdown`"
    )


def test_every_law_has_a_test() -> None:
    assert set(LAWS) <= laws_named_by_tests()


def test_every_law_has_a_wrong_implementation_that_it_must_catch() -> None:
    caught = {wrong.law for wrong in (*kernels.WRONG.values(), *allocators.WRONG.values())}
    assert set(LAWS) <= caught, f"no wrong implementation for {sorted(set(LAWS) - caught)}"
