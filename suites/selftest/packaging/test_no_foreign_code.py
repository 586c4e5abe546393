"""Nothing in the packages makes code of data: read from the source, so that a branch no test reaches counts too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from selftest.packaging.test_floors import SHELVES

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "telnetlib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
FORBIDDEN_ATTRIBUTES = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "runpy.run_path"}
LOADERS = {"torch.load", "numpy.load", "np.load", "jit.load"}

IMPORTS_BY_NAME = {
    "impls/kvproof_impls/registry.py": "what --impl names: it is the code to be judged",
    "impls/kvproof_impls/checkout.py": "a checkout that the user names in the environment, for its adapter",
    "impls/kvproof_impls/sglang_library.py": "constants of the adapter",
    "kernels/kvproof_kernels/aot_peers.py": "constants",
    "impls/kvproof_impls/mini_sglang.py": "a constant",
    "reports/kvproof_reports/extras.py": "constants: jinja2, plotly, mlflow",
    "suites/kvproof_suites/cli/__init__.py": "our own commands, from a table",
    "suites/kvproof_suites/expectations.py": "the exception of an entry of --expect, a file of the user's own",
    "suites/kvproof_suites/bench/gpu_state.py": "a constant: pynvml",
    "traces/kvproof_traces/compressed.py": "a constant: zstandard",
}
"""Where a module is imported by a name that is computed, and whose name it is. None of them comes out of a results
file, a trace, a history, a profile or a model's configuration."""


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def faults(source: str) -> Iterator[str]:
    """What in ``source`` could make code of data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [node.module or ""]
        else:
            named = []
        yield from (f"{node.lineno}: import {name}" for name in named if name.split(".")[0] in FORBIDDEN_MODULES)
        if isinstance(node, ast.Call):
            yield from (f"{node.lineno}: {what}" for what in faults_of_call(node))


def faults_of_call(node: ast.Call) -> Iterator[str]:
    name, keywords = dotted(node.func), {word.arg: word.value for word in node.keywords}
    if name in FORBIDDEN_CALLS | FORBIDDEN_ATTRIBUTES:
        yield name
    if any(name.endswith(loader) for loader in LOADERS):
        only = keywords.get("weights_only")
        if not (isinstance(only, ast.Constant) and only.value is True):
            yield f"{name} without weights_only=True"
    shell = keywords.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        yield f"{name} with shell="
    if name.endswith("Environment") and "autoescape" not in keywords and "jinja2" in name:
        yield f"{name} without autoescape"


def modules() -> list[Path]:
    return sorted(path for package, shelf in SHELVES.items() for path in (shelf / package).rglob("*.py"))


def test_no_module_makes_code_of_data() -> None:
    found = [f"{path.name}:{fault}" for path in modules() for fault in faults(path.read_text(encoding="utf-8"))]
    assert len(modules()) > 300, "the packages were looked through"
    assert found == []


def test_modules_are_imported_by_a_computed_name_only_where_it_is_said_whose_name_it_is() -> None:
    root = next(iter(SHELVES.values())).parent
    found = {
        str(path.relative_to(root))
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and dotted(node.func).endswith("import_module")
    }
    assert found == set(IMPORTS_BY_NAME)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from yaml import load",
        "eval(text)",
        "exec(text)",
        "compile(text, '', 'exec')",
        "import torch\ntorch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "import subprocess\nsubprocess.run(line, shell=True)",
        "import os\nos.system(line)",
        "jinja2.Environment(loader=loader)",
    ],
)
def test_what_would_make_code_of_data_is_seen(source: str) -> None:
    assert list(faults(source)) != []


@pytest.mark.parametrize(
    "source", ["torch.compile(f)", "re.compile(x)", "torch.load(p, weights_only=True)", "run([a])"]
)
def test_what_would_not_is_left_alone(source: str) -> None:
    assert list(faults(source)) == []
