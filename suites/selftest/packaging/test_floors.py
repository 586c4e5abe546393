"""Imports only point down: suites > {reports, impls} > {traces, kernels, reference}. Read from the source, so that an
import inside a function counts as well."""

import ast
from pathlib import Path

import pytest

from kvproof_impls.built_in import BUILT_IN

ROOT = Path(__file__).parents[3]
FLOOR = {
    "kvproof_suites": 2,
    "kvproof_reports": 1,
    "kvproof_impls": 1,
    "kvproof_traces": 0,
    "kvproof_kernels": 0,
    "kvproof_reference": 0,
}
DYNAMIC_IMPORTS = {"import_module", "__import__"}
SHELVES = {package: ROOT / package.removeprefix("kvproof_") for package in FLOOR}
ADAPTERS = {
    target.partition(":")[0] for entry in BUILT_IN.values() for target in (entry.allocator, entry.kernel) if target
}


def imports(source, package):
    """Dotted names that the source imports: "a.b" for ``from a import b``; relative ones start at ``package``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in DYNAMIC_IMPORTS:
            yield from (given.value for given in node.args[:1] if isinstance(given, ast.Constant))


def upward(source, package):
    """Imports of ours from ``package`` that do not point to a lower floor."""
    home = package.split(".")[0]
    ours = {name.split(".")[0] for name in imports(source, package)} & set(FLOOR)
    return sorted(name for name in ours - {home} if FLOOR[name] >= FLOOR[home])


def adapters_among(names):
    names = list(names)
    return sorted(adapter for adapter in ADAPTERS if any(f"{name}.".startswith(f"{adapter}.") for name in names))


def names_an_adapter(source, package):
    """Adapters that the source imports or spells out in a string."""
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    spelled = [text.partition(":")[0] for text in strings if isinstance(text, str)]
    return adapters_among([*imports(source, package), *spelled])


def modules(package):
    """(path, dotted package that holds it) of each module."""
    folder = SHELVES[package] / package
    for path in sorted(folder.rglob("*.py")):
        yield path, ".".join(path.parent.relative_to(SHELVES[package]).parts)


@pytest.mark.parametrize("package", FLOOR)
def test_imports_only_point_down(package):
    found = {str(path.relative_to(ROOT)): upward(path.read_text(), holder) for path, holder in modules(package)}
    assert len(found) > 1, f"{package} has no modules to read"
    assert not {path: names for path, names in found.items() if names}


def test_the_oracle_is_imported_by_its_own_adapter_only():
    knowing = {
        path.name
        for path, holder in modules("kvproof_impls")
        if any(name.split(".")[0] == "kvproof_reference" for name in imports(path.read_text(), holder))
    }
    assert knowing == {"reference.py"}


def of_another_implementation(adapters, module):
    """An implementation is a file, or a package of its own: contiguous.py, paged/."""
    return [adapter for adapter in adapters if adapter.split(".")[1] != module.split(".")[1]]


def test_no_implementation_imports_another():
    found = {
        path.name: of_another_implementation(adapters_among(imports(path.read_text(), holder)), f"{holder}.{path.stem}")
        for path, holder in modules("kvproof_impls")
    }
    assert not {path: adapters for path, adapters in found.items() if adapters}


@pytest.mark.parametrize(
    ("module", "another"),
    [("paged_python.pool", False), ("paged_python", False), ("paged.pool", True), ("torch", True)],
)
def test_an_implementation_may_have_several_files(module, another):
    assert bool(of_another_implementation(["kvproof_impls.paged_python"], f"kvproof_impls.{module}")) is another


def test_the_suites_know_implementations_from_the_registry_alone():
    found = {
        str(path.relative_to(ROOT)): names_an_adapter(path.read_text(), holder)
        for path, holder in modules("kvproof_suites")
    }
    assert not {path: names for path, names in found.items() if names}


def test_each_adapter_of_the_registry_is_a_file():
    places = {adapter: SHELVES["kvproof_impls"] / adapter.replace(".", "/") for adapter in ADAPTERS}
    assert not [
        adapter
        for adapter, place in places.items()
        if not (place.with_suffix(".py").exists() or (place / "__init__.py").exists())
    ]


def test_a_shelf_is_not_a_package():
    assert not [
        str(path)
        for shelf in SHELVES.values()
        for path in (shelf / "__init__.py", shelf / "tests" / "__init__.py")
        if path.exists()
    ]


@pytest.mark.parametrize(
    ("source", "package", "found"),
    [
        ("import kvproof_impls.contract", "kvproof_kernels", ["kvproof_impls"]),
        ("def f():\n    from kvproof_suites import cli", "kvproof_reports", ["kvproof_suites"]),
        ("from kvproof_reports.records import read_run", "kvproof_impls", ["kvproof_reports"]),
        ("import importlib\nimportlib.import_module('kvproof_traces')", "kvproof_reference", ["kvproof_traces"]),
        ("from . import budget\nfrom .. import b\nimport math", "kvproof_reference.attention", []),
        ("from kvproof_kernels.decode import launch", "kvproof_impls", []),
    ],
)
def test_an_arrow_that_points_up_or_sideways_is_seen(source, package, found):
    assert upward(source, package) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from kvproof_impls.paged_python import PagedAllocator", ["kvproof_impls.paged_python"]),
        ("from kvproof_impls import paged_python", ["kvproof_impls.paged_python"]),
        ("load('kvproof_impls.paged_python:PagedAllocator')", ["kvproof_impls.paged_python"]),
        ("from kvproof_impls import registry", []),
        ("from kvproof_impls.contract import PagedBatch", []),
    ],
)
def test_an_adapter_that_is_named_is_seen(source, found):
    assert names_an_adapter(source, "kvproof_suites") == found


def test_the_page_of_peers_names_every_implementation_that_is_not_ours():
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert [name for name, entry in BUILT_IN.items() if entry.third_party and f"`{name}`" not in page] == []
