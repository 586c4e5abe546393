"""Modules of a checkout: its packages' own ``__init__`` is never run, and other calls than expected are refused."""

import sys

import pytest

from kvproof_impls.checkout import module_below, require_call


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A package whose own import fails, as it does without CUDA."""
    folder = tmp_path / "an_engine"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('needs CUDA')\n")
    (folder / "manager.py").write_text("def allocate(seq, num_tokens): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "an_engine"
    for name in [name for name in sys.modules if name.partition(".")[0] == "an_engine"]:
        del sys.modules[name]


def test_a_module_is_imported_without_its_package(engine):
    assert module_below(engine, "manager", "an engine").__name__ == "an_engine.manager"


@pytest.mark.parametrize("package", ["no_such_engine", "no_such.engine"])
def test_without_a_checkout_it_says_what_to_do(package):
    with pytest.raises(ImportError, match=f"no {package} on the import path; put a checkout of an engine there"):
        module_below(package, "manager", "an engine")


def test_a_call_that_takes_something_else_is_refused_with_both_lists(engine):
    allocate = module_below(engine, "manager", "an engine").allocate
    require_call(allocate, ("seq", "num_tokens"), "an engine abc1234")
    with pytest.raises(ImportError, match=r"takes \(seq, num_tokens\) .* abc1234, where it takes \(seq\)"):
        require_call(allocate, ("seq",), "an engine abc1234")
