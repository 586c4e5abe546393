"""An environment of its own is found, and one that is not as its lock says is told with what mends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof_impls import environments
from kvproof_impls.built_in import BUILT_IN


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment ``peer`` with one package, as pip leaves it, and a lock beside it."""
    environment = tmp_path / ".venvs" / "peer"
    installed = environment / "lib" / "python3.11" / "site-packages" / "Some_Peer-1.2.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: Some_Peer\nVersion: 1.2\n")
    (environment / "bin").mkdir()
    (environment / "bin" / "python").touch()
    (tmp_path / "impls" / "envs").mkdir(parents=True)
    monkeypatch.setattr(environments, "CLONE", tmp_path)
    return environment


def lock(made: Path, text: str) -> None:
    (made.parents[1] / "impls" / "envs" / "peer.txt").write_text(text)


def test_an_environment_is_found_below_the_clone_and_below_the_working_directory(made, monkeypatch):
    assert environments.python_of("peer") == made / "bin" / "python"
    monkeypatch.setattr(environments, "CLONE", Path("nowhere"))
    assert environments.python_of("peer") is None
    monkeypatch.chdir(made.parents[1])
    assert environments.python_of("peer") == made / "bin" / "python"


def test_an_environment_as_locked_differs_in_nothing_however_a_name_is_spelt(made):
    lock(made, "# why\nsome.peer==1.2  # pinned\n\n")
    assert environments.mismatch("peer") is None


@pytest.mark.parametrize(
    ("text", "told"), [("some-peer==1.3", "has some-peer 1.2, and its lock says 1.3"), ("other==2", "lacks other")]
)
def test_what_differs_from_the_lock_is_told_with_what_mends_it(made, text, told):
    lock(made, text)
    found = environments.mismatch("peer")
    assert found is not None
    assert told in found
    assert found.endswith("make env NAME=peer")


def test_a_line_of_a_lock_that_pins_nothing_is_refused_by_its_number(made):
    lock(made, "some-peer==1.2\nother>=2\n")
    with pytest.raises(ValueError, match=r"peer.txt: line 2: 'other>=2' is no name==version"):
        environments.mismatch("peer")


def test_every_environment_of_the_registry_has_a_lock_that_can_be_read():
    named = {entry.environment for entry in BUILT_IN.values() if entry.environment}
    assert named
    for environment in named:
        pinned = environments.locked(environments.lock_of(environment))
        assert {"torch", "pytest", "hypothesis", "numpy"} <= set(pinned), environment
