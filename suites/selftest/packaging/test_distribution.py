"""The wheel and the sdist are complete, and the installed wheel judges an implementation from an empty folder."""

import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHELVES = ("reference", "kernels", "traces", "impls", "reports", "suites")
EXTRAS = {
    "compiled",
    "triton",
    "mlflow",
    "ray",
    "report",
    "zstd",
    "flash-attn",
    "flashinfer",
    "vllm",
    "sglang",
    "transformers",
    "dev",
}
NOT_OURS = ("__pycache__", ".pyc")


def run(*command, cwd, **options):
    env = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH", "COV"))}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=120, **options
    )


def files_under(folder, base):
    return {
        path.relative_to(base).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not any(mark in path.as_posix() for mark in NOT_OURS)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(sdist, wheel); the wheel is built from the sdist, so that the sdist is proven to suffice."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built[1]) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_every_file_of_the_six_packages_and_nothing_else(wheel):
    expected = set()
    for shelf in SHELVES:
        expected |= files_under(ROOT / shelf / f"kvproof_{shelf}", ROOT / shelf)
    shipped = {name for name in wheel if ".dist-info/" not in name}
    assert shipped == expected
    assert "kvproof_suites/cli/template_kernel.py" in shipped


def test_the_wheel_carries_licence_command_and_plugin(wheel):
    info = {name.partition(".dist-info/")[2]: text for name, text in wheel.items() if ".dist-info/" in name}
    assert b"Apache License" in info["licenses/LICENSE"]
    entry_points = info["entry_points.txt"].decode()
    assert "kvproof = kvproof_suites.cli:main" in entry_points
    assert "[pytest11]\nkvproof = kvproof_suites.plugin" in entry_points


def test_the_metadata_names_every_extra_and_keeps_the_base_small(wheel):
    (text,) = (text for name, text in wheel.items() if name.endswith(".dist-info/METADATA"))
    told = email.message_from_bytes(text)
    assert set(told.get_all("Provides-Extra")) == EXTRAS
    base = {line.split(">")[0] for line in told.get_all("Requires-Dist") if "extra ==" not in line}
    assert base == {"click", "hypothesis", "numpy", "packaging", "pytest", "pytest-benchmark", "rich", "torch"}
    assert (told["License-Expression"], told["Requires-Python"]) == ("Apache-2.0", ">=3.11")


def test_the_sdist_holds_every_shelf_with_its_tests_and_what_builds_it(built):
    with tarfile.open(built[0]) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"pyproject.toml", "LICENSE", "README.md", "Makefile", "constraints.txt", "CHANGELOG.md"}
    for shelf in SHELVES:
        expected |= files_under(ROOT / shelf, ROOT)
    assert expected <= shipped
    assert not [name for name in shipped if name.startswith((".venv", "results", "mlruns", "mlflow.db", ".git/"))]


def lend_packages(folder, left_out):
    """Links to the running environment's packages, without kvproof and ``left_out``.

    A second torch and Triton would cost minutes and gigabytes and show nothing about our wheel. A .pth file puts the
    folder of links on the path. Python does not execute .pth files that it finds there, so that our editable install
    can't sneak in and the wheel is what answers.
    """
    folder.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(
            package.name.lower().lstrip("_").startswith(name) for name in ("kvproof", "editable_impl", *left_out)
        ):
            (folder / package.name).symlink_to(package)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A function of the packages to leave out, to the ``bin`` folder of a fresh environment with our wheel."""

    def install(left_out=()):
        home = tmp_path_factory.mktemp("installed")
        venv.create(home / "venv", with_pip=False)
        python = home / "venv" / "bin" / "python"
        purelib = sysconfig.get_path("purelib", vars={"base": str(home / "venv")})
        Path(purelib, "lent.pth").write_text(f"{lend_packages(home / 'lent', left_out)}\n")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet"]
        done = run(*pip, built[1], cwd=home)
        assert done.returncode == 0, done.stderr
        return python.parent

    return install


def judge(bin_folder, cwd, *arguments):
    command = [bin_folder / "python", "-m", "pytest", "--pyargs", "kvproof_suites", "-q", "-p", "no:cacheprovider"]
    return run(*command, *arguments, cwd=cwd)


def test_the_installed_wheel_judges_from_an_empty_folder(installed, tmp_path):
    bin_folder = installed()
    where = run(bin_folder / "python", "-c", "import kvproof_suites; print(kvproof_suites.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(bin_folder.parent)), where.stderr

    told = judge(bin_folder, tmp_path, "--impl=torch", "--tier=smoke", "-k", "needle or census")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "verdict: conforms" in told.stdout
    assert len(list(tmp_path.glob("results/*/results.jsonl"))) == 1

    listed = run(bin_folder / "kvproof", "list", cwd=tmp_path)
    assert "torch\tkernel\t" in listed.stdout


def test_without_the_extra_triton_the_missing_line_is_named(installed, tmp_path):
    told = judge(installed(left_out=("triton",)), tmp_path, "--impl=triton")
    assert told.returncode == 4
    assert "pip install 'kvproof[triton]'" in told.stderr + told.stdout
    assert "Traceback" not in told.stderr + told.stdout


def test_with_the_extra_triton_runs_from_an_empty_folder(installed, tmp_path):
    told = judge(installed(), tmp_path, "--impl=triton", "--tier=smoke", "-k", "past_the_causal_limit")
    assert told.returncode == 0, told.stdout + told.stderr
