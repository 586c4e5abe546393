"""Who gets a worker, and which interpreter runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvproof_impls import environments, registry
from kvproof_impls.built_in import BUILT_IN, Entry
from kvproof_suites.isolation import choice
from kvproof_suites.isolation.probe import probe

HERE = Path(sys.executable)
PEER = {"peer": Entry("a peer", allocator="peer:Allocator", third_party=True, environment="peer")}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of ``peer``, empty."""
    python = tmp_path / ".venvs" / "peer" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(environments, "CLONE", tmp_path)
    monkeypatch.setattr(choice, "BUILT_IN", BUILT_IN | PEER)
    return python


def test_what_is_not_of_this_repository_is_isolated():
    assert choice.pythons(["torch", "paged", "mine:kernel"], "auto", []) == {"mine:kernel": HERE}


def test_all_of_them_are_or_none_where_that_is_asked_for():
    assert choice.pythons(["torch", "mine:kernel"], "all", []) == {"torch": HERE, "mine:kernel": HERE}
    assert choice.pythons(["torch", "mine:kernel"], "no", []) == {}


def test_an_environment_that_was_made_is_used_unless_another_interpreter_is_named(made):
    assert choice.pythons(["peer"], "auto", []) == {"peer": made}
    assert choice.pythons(["peer"], "auto", [f"peer={HERE}"]) == {"peer": HERE}
    assert choice.pythons(["peer", "mine:k"], "auto", [str(HERE)]) == {"peer": HERE, "mine:k": HERE}


def test_an_environment_that_is_not_as_locked_is_refused(made):
    lock = environments.lock_of("peer")
    lock.parent.mkdir(parents=True)
    lock.write_text("peer==1.0\n")
    with pytest.raises(pytest.UsageError, match=r"peer is unavailable: .venvs/peer lacks peer.*make env NAME=peer"):
        choice.pythons(["peer"], "auto", [])


@pytest.mark.parametrize(
    ("given", "told"),
    [("other=/bin/python", "'other' is not in --impl; one of torch, mine:kernel"), ("/no/python", "is no interpreter")],
)
def test_an_interpreter_that_is_none_or_nobodys_is_refused(given, told):
    with pytest.raises(pytest.UsageError, match=told):
        choice.pythons(["torch", "mine:kernel"], "auto", [given])


def test_a_probe_tells_what_is_loaded_why_it_is_not_and_how_it_died():
    assert probe("paged-python", HERE)["provides"] == "allocator"
    with pytest.raises(registry.ImplementationError, match="Did you mean 'paged'"):
        probe("pagd", HERE)
    with pytest.raises(registry.ImplementationError, match="left by itself with exit code 7"):
        probe("selftest.isolation.dies_at_import:kernel", HERE)
