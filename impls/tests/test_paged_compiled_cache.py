"""Where the compiled allocator keeps its machine code: never where that of another version of its source lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

import kvproof_impls

SCRIPT = "from kvproof_impls.paged import entries as e; print(e.commit._cache.cache_path or 'in memory')"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the package whose own folder takes no compiled code."""
    package = tmp_path / "site" / "kvproof_impls"
    shutil.copytree(Path(kvproof_impls.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "paged" / "__pycache__").write_text("a file, so that nobody can make a folder of this name")
    return package


def cache_path(package: Path, **environment: str) -> str:
    """Where a new process that imports ``package`` keeps the code of one compiled function."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(package.parent)} | environment
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(package.parent)!r}); {SCRIPT}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_source_that_changed_is_compiled_anew_in_the_users_cache_too(installed: Path, tmp_path: Path) -> None:
    """Numba itself looks at the time and size of one file, which an installer may set to constants."""
    home = str(tmp_path / "cache")
    before = cache_path(installed, XDG_CACHE_HOME=home, NUMBA_CACHE_DIR="")
    with (installed / "paged" / "sequences.py").open("a") as source:
        source.write("# another version\n")
    after = cache_path(installed, XDG_CACHE_HOME=home, NUMBA_CACHE_DIR="")
    assert before.startswith(home)
    assert after.startswith(home)
    assert before != after


def test_the_folder_that_numba_is_given_is_used(installed: Path, tmp_path: Path) -> None:
    assert cache_path(installed, NUMBA_CACHE_DIR=str(tmp_path / "given")).startswith(str(tmp_path / "given"))


def test_without_any_folder_it_is_compiled_in_memory(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "below")
    assert cache_path(installed, XDG_CACHE_HOME=nowhere, HOME=nowhere, NUMBA_CACHE_DIR="") == "in memory"


def test_without_compilation_the_way_out_is_told(installed: Path) -> None:
    with pytest.raises(AssertionError, match="use paged-python"):
        cache_path(installed, NUMBA_DISABLE_JIT="1")
