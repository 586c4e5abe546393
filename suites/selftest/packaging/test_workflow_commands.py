"""Every command of a workflow exists: make's targets, kvproof's commands with their options, pip's options and extras.

A renamed option would show on a machine with a GPU only, in the night after the change."""

from __future__ import annotations

import copy
import functools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from kvproof_suites.cli import main
from kvproof_suites.options import TIERS
from selftest.packaging.scripts import commands

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
GATE = ROOT / ".github" / "workflows" / "gate.yml"
SHELL = {"cat", "cd", "echo", "exit", "set", "test"}
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
INPUT = re.compile(r"\$\{\{ inputs\.([\w-]+) \}\}")
IF_GIVEN = re.compile(r"\$\{\{ inputs\.[\w-]+ && '([^']*)' \|\| '[^']*' \}\}")
SECRET = re.compile(r"\$\{\{ secrets\.[\w-]+ \}\}")
SAMPLES = {"impl": "triton", "baseline": "baselines/triton.jsonl", "rules": "rules.toml"}
"""Of inputs whose default is nothing."""


def read(path: Path) -> dict[str, Any]:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def check(command: list[str]) -> None:
    """A command of ours or of a tool that we know, given as it can be given; anything else is an error."""
    program, *arguments = command
    name = Path(program).name
    if name == "kvproof":
        bind(arguments)
    elif name == "make":
        need_target(*arguments)
    elif name == "pip":
        need_pip(arguments)
    elif "/" in program:
        assert os.access(ROOT / program, os.X_OK), f"{program} is no program of this repository"
    elif name.startswith("python"):
        assert arguments[:2] == ["-m", "venv"], f"{command}: only `python -m venv` is known here"
    else:
        assert name in SHELL, f"{name} is no command that is known here"


def bind(arguments: list[str]) -> None:
    """What click makes of the arguments. Files are not looked for: they come to be on the machine."""
    assert "$" not in " ".join(arguments), f"{arguments}: a variable that is not set"
    root = click.Context(main, info_name="kvproof")
    command = main.get_command(root, arguments[0])
    assert command is not None, f"kvproof has no command {arguments[0]!r}"
    context = click.Context(command, info_name=arguments[0], parent=root)
    values, left, _ = command.make_parser(context).parse_args(list(arguments[1:]))
    for parameter in map(copy.copy, command.params):
        if isinstance(parameter.type, click.Path):
            parameter.type = click.Path()
        _, left = parameter.handle_parse_result(context, values, left)
    assert not left, f"kvproof {arguments[0]} takes no {left}"


def need_target(target: str) -> None:
    rules = re.findall(r"^([\w ./$()-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert target in " ".join(rules).split(), f"the Makefile has no target {target!r}"


def need_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    for option, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if option.startswith("-"):
            assert option in pip_options(), f"pip install has no option {option!r}"
        if option == "--constraint":
            assert (ROOT / following).is_file(), f"--constraint {following}: no such file"
        for extra in extras_of(option):
            assert extra in EXTRAS, f"kvproof has no extra {extra!r}"


def extras_of(requirement: str) -> list[str]:
    match = re.match(r"(?:kvproof|\.)\[([\w,-]+)\]", requirement)
    return match[1].split(",") if match else []


@functools.cache
def pip_options() -> set[str]:
    told = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--help"], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"(?<!\S)--?[a-z][\w-]*", told.stdout))


def steps(workflow: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """(script, environment) of each step that runs one, as if every input and secret were given."""
    inputs = (workflow["on"].get("workflow_call") or {}).get("inputs", {})
    given = {name: str(one.get("default") or SAMPLES.get(name, "")) for name, one in inputs.items()}
    for job in workflow["jobs"].values():
        for step in job.get("steps", ()):
            written = {**workflow.get("env", {}), **job.get("env", {}), **step.get("env", {})}
            if "run" in step:
                yield step["run"], {name: evaluate(str(text), given) for name, text in written.items()}


def evaluate(text: str, given: Mapping[str, str]) -> str:
    text = INPUT.sub(lambda match: given[match[1]], text)
    return SECRET.sub("sqlite:///mlflow.db", IF_GIVEN.sub(r"\1", text))


def scripts() -> Iterator[tuple[str, str, dict[str, str]]]:
    for path in WORKFLOWS:
        for number, (script, environment) in enumerate(steps(read(path))):
            yield f"{path.name}-{number}", script, environment
    yield ".ci/run", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), {}
    shown = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8").splitlines()
    yield "docs/ci.md", "\n".join(line for line in shown if line.startswith("kvproof ")), {}


@pytest.mark.parametrize(("script", "environment"), [pytest.param(*given, id=name) for name, *given in scripts()])
def test_every_command_exists_and_takes_what_it_is_given(script: str, environment: dict[str, str]) -> None:
    found = commands(script, environment)
    assert found
    for command in found:
        check(command)


def run_step(name: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a step as GitHub does, in a folder with the files that it may write to."""
    (script,) = (step["run"] for step in read(GATE)["jobs"]["judge"]["steps"] if step.get("name") == name)
    written = {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    path = folder / "step.sh"
    path.write_text(script)
    given = {**os.environ, **written, **environment}
    return subprocess.run(["bash", "-e", path], cwd=folder, env=given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", [pytest.param(given[1], id=given[0]) for given in scripts()])
def test_the_shell_can_read_every_script(script: str) -> None:
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False).stderr == ""


@pytest.mark.parametrize("impl", ["triton", "my_package.attention:kernel", "a,b", "x`touch seen`$(touch seen)"])
def test_the_results_have_a_name_that_an_artefact_may_have(tmp_path: Path, impl: str) -> None:
    assert run_step("Name the results", tmp_path, IMPL=impl).returncode == 0
    assert re.fullmatch(r"name=gate-[A-Za-z0-9-]+\n", (tmp_path / "output").read_text())
    assert not (tmp_path / "seen").exists()


def test_the_summary_is_the_report_where_there_is_one(tmp_path: Path) -> None:
    assert run_step("Summary", tmp_path, RUN="run").returncode == 0
    assert not (tmp_path / "summary").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.md").write_text("# conforms\n")
    assert run_step("Summary", tmp_path, RUN="run").returncode == 0
    assert (tmp_path / "summary").read_text() == "# conforms\n"


def test_code_of_a_fork_ends_red_and_says_what_to_do(tmp_path: Path) -> None:
    ended = run_step("Refuse the code of a fork", tmp_path)
    assert ended.returncode == 1
    assert ended.stdout.startswith("::error::")


def test_the_gate_judges_first_and_compares_then() -> None:
    (job,) = read(GATE)["jobs"].values()
    scripts = " ".join(step.get("run", "") for step in job["steps"])
    assert 0 < scripts.index("kvproof run ") < scripts.index("kvproof gate ")


def test_what_our_own_calls_install_exists() -> None:
    calls = [job for path in WORKFLOWS for job in read(path)["jobs"].values() if "with" in job]
    assert calls
    for job in calls:
        for row in job["strategy"]["matrix"]["include"]:
            for text in (job["with"]["kvproof"], row["requirements"]):
                need_pip(["install", *text.replace("${{ matrix.build }}", row.get("build", "")).split()])


def test_the_tiers_that_can_be_chosen_by_hand_are_all_there_are() -> None:
    chosen = read(ROOT / ".github" / "workflows" / "gpu.yml")["on"]["workflow_dispatch"]["inputs"]["tier"]
    assert tuple(chosen["options"]) == TIERS


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("kvproof jugde --impl=triton", "no command 'jugde'"),
        ("kvproof run --impll=triton", "No such option"),
        ("kvproof run --tier=$TIER", "'huge' is not one of"),
        ("kvproof run --seed=many", "'many' is not a valid integer"),
        ("kvproof run more", "takes no"),
        ("kvproof run --seed=1 $SED", "not set"),
        ("kvproof compare", "Missing argument"),
        ("kvproof run ${TIER:+--tiers=$TIER}", "No such option"),
        ("test -f x || make tests", "no target 'tests'"),
        ("pip install --no-build-isolated .", "no option '--no-build-isolated'"),
        ("pip install --constraint \\\n pins.txt .", "no such file"),
        ("pip install .[flash_attn]", "no extra 'flash_attn'"),
        (".ci/runs > log", "no program of this repository"),
        ("echo; kvprof run", "no command that is known here"),
        ("python3 -m pip install .", "only `python -m venv`"),
    ],
)
def test_a_command_that_can_not_run_is_seen(script: str, told: str) -> None:
    *before, last = commands(script, {"TIER": "huge"})
    for command in before:
        check(command)
    with pytest.raises((AssertionError, click.ClickException)) as seen:
        check(last)
    error = seen.value
    assert told in (error.format_message() if isinstance(error, click.ClickException) else str(error))
