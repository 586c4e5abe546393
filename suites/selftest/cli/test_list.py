"""``kvproof list`` says what can be judged here, and why the rest can't."""

import json

import pytest
from click.testing import CliRunner

from kvproof_impls import registry
from kvproof_impls.built_in import BUILT_IN
from kvproof_suites import cli


def listed(*arguments):
    shown = CliRunner().invoke(cli.main, ["list", *arguments])
    assert shown.exit_code == 0, shown.output
    return shown.output


@pytest.fixture
def few(monkeypatch):
    """Those that the tests look at: to load all of them takes as long as their libraries take."""
    monkeypatch.setattr(registry, "names", lambda: ["reference", "torch", "paged", "flashinfer"])


def rows():
    return {row["name"]: row for row in json.loads(listed("--json"))}


def test_every_known_implementation_is_listed_with_what_it_provides():
    found = rows()
    assert set(BUILT_IN) <= set(found)
    assert found["reference"]["provides"] == "allocator + kernel"
    assert found["flashinfer"]["provides"] == "kernel"


def test_a_missing_package_is_the_state_with_the_line_that_mends_it(few):
    row = rows()["flashinfer"]
    assert row["available"] is False
    assert row["state"] == "unavailable: needs flashinfer: pip install 'kvproof[flashinfer]'"


def test_what_is_called_available_was_really_loaded(monkeypatch, few):
    loaded = registry.Implementation("paged", allocator=lambda num_blocks, block_size: None, version="9.9")

    def load(name):
        if name != "paged":
            raise registry.ImplementationError(f"{name} failed to import\nOSError: torn")
        return loaded

    monkeypatch.setattr(registry, "load", load)
    found = rows()
    assert (found["paged"]["available"], found["paged"]["version"]) == (True, "9.9")
    assert found["torch"]["state"] == "unavailable: torch failed to import: OSError: torn"


def test_the_table_has_a_line_for_each(few):
    lines = listed().splitlines()
    assert len(lines) == 1 + len(registry.names())
