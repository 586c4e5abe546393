"""``kvproof list`` says what can be judged here, and why the rest can't."""

import json

from click.testing import CliRunner

from kvproof_impls import registry
from kvproof_impls.built_in import BUILT_IN
from kvproof_suites import cli


def listed(*arguments):
    shown = CliRunner().invoke(cli.main, ["list", *arguments])
    assert shown.exit_code == 0, shown.output
    return shown.output


def rows():
    return {row["name"]: row for row in json.loads(listed("--json"))}


def test_every_known_implementation_is_listed_with_what_it_provides():
    found = rows()
    assert set(BUILT_IN) <= set(found)
    assert found["reference"]["provides"] == "allocator + kernel"
    assert found["flashinfer"]["provides"] == "kernel"


def test_a_missing_package_is_the_state_with_the_line_that_mends_it(monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    row = rows()["flash-attn"]
    assert row["available"] is False
    assert row["state"] == "unavailable: needs flash_attn: pip install 'kvproof[flash-attn]'"


def test_what_is_called_available_was_really_loaded(monkeypatch):
    loaded = registry.Implementation("paged", allocator=lambda num_blocks, block_size: None, version="9.9")

    def load(name):
        if name != "paged":
            raise registry.ImplementationError(f"{name} failed to import\nOSError: torn")
        return loaded

    monkeypatch.setattr(registry, "load", load)
    found = rows()
    assert (found["paged"]["available"], found["paged"]["version"]) == (True, "9.9")
    assert found["torch"]["state"] == "unavailable: torch failed to import: OSError: torn"


def test_the_table_has_a_line_for_each():
    lines = listed().splitlines()
    assert len(lines) == 1 + len(registry.names())
