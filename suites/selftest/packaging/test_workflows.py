"""The workflows are valid, safe to run for strangers' pull requests, and short to call; offline, by GitHub's schema, by
zizmor and by hadolint."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
GATE = GITHUB / "workflows" / "gate.yml"
PINNED = re.compile(r"uses: (?:\$/\S+|\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$")
TYPES = {"string": str, "number": int, "boolean": bool}

HEAD = """
name: bad
on: pull_request
concurrency: {group: bad, cancel-in-progress: true}
"""
JOB = """
jobs:
  job:
    name: job
    runs-on: ubuntu-24.04
    timeout-minutes: 5
    steps:
"""
PERMISSIONS = "permissions: {contents: read}"
CHECKOUT = """
      - uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2
        with: {persist-credentials: false}
"""
RIGHT = HEAD + PERMISSIONS + JOB + CHECKOUT
WRONG = {
    "unpinned-uses": RIGHT.replace("@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2", "@v6"),
    "template-injection": RIGHT + "      - run: echo ${{ github.event.pull_request.title }}\n",
    "excessive-permissions": RIGHT.replace(PERMISSIONS, ""),
    "artipacked": RIGHT.replace("persist-credentials: false", "fetch-depth: 1"),
    "dangerous-triggers": RIGHT.replace("on: pull_request", "on: pull_request_target"),
    "concurrency-limits": RIGHT.replace("concurrency: {group: bad, cancel-in-progress: true}", ""),
}


def tool(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [Path(sysconfig.get_path("scripts"), name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def valid(schema: str, *paths: Path) -> str:
    """What is wrong, or nothing."""
    ended = tool("check-jsonschema", "--builtin-schema", schema, *paths)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def findings(path: Path) -> list[str]:
    ended = tool("zizmor", "--offline", "--no-config", "--persona=pedantic", "--quiet", "--format=json", path)
    return sorted({finding["ident"] for finding in json.loads(ended.stdout)})


def read(text: str) -> dict[str, Any]:
    return YAML(typ="safe").load(text)


def test_github_can_read_the_workflows() -> None:
    assert WORKFLOWS
    assert not valid("vendor.github-workflows", *WORKFLOWS)
    assert not valid("vendor.dependabot", GITHUB / "dependabot.yml")


def test_no_job_runs_without_an_end() -> None:
    assert not valid("custom.github-workflows-require-timeout", *WORKFLOWS)


def test_nothing_is_found_by_a_pedantic_eye() -> None:
    assert findings(GITHUB) == []


def test_every_action_is_named_by_its_commit_and_its_version() -> None:
    used = [line.strip(" -") for path in WORKFLOWS for line in path.read_text().splitlines() if "uses: " in line]
    assert used
    assert [line for line in used if not PINNED.match(line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_the_repository_and_nothing_else(path: Path) -> None:
    workflow = read(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert not [name for name, job in workflow["jobs"].items() if "permissions" in job]


def test_a_strangers_pull_request_starts_nothing_on_our_gpus() -> None:
    started = {
        path.name for path in WORKFLOWS if any("pull_request" in event for event in read(path.read_text())["on"])
    }
    assert started == {"ci.yml"}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_found(tmp_path: Path, mistake: str) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(RIGHT)
    assert findings(path) == []
    path.write_text(WRONG[mistake])
    assert findings(path) == [mistake]


@pytest.mark.parametrize(
    ("right", "wrong"), [("runs-on:", "run-on:"), ("with: {", "with: [{}, "), ("timeout-minutes: 5", "")]
)
def test_a_slip_of_the_pen_is_found(tmp_path: Path, right: str, wrong: str) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(RIGHT.replace(right, wrong))
    assert valid("vendor.github-workflows", path) or valid("custom.github-workflows-require-timeout", path)


def called_by_others() -> str:
    """The workflow that docs/ci.md shows to people with a kernel of their own."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    return text


def test_another_repository_gates_its_kernel_in_ten_lines(tmp_path: Path) -> None:
    text = called_by_others().replace("COMMIT", "0" * 40)
    path = tmp_path / "kernel.yml"
    path.write_text(text)
    assert len(text.splitlines()) <= 10
    assert not valid("vendor.github-workflows", path)
    assert set(findings(path)) <= {"anonymous-definition", "concurrency-limits"}


def calls() -> list[Any]:
    ours = [job for path in WORKFLOWS for job in read(path.read_text())["jobs"].values()]
    return [*ours, *read(called_by_others())["jobs"].values()]


def test_who_calls_the_gate_gives_what_it_takes() -> None:
    takes = read(GATE.read_text())["on"]["workflow_call"]
    callers = [job for job in calls() if "uses" in job]
    assert len(callers) == 2
    for job in callers:
        assert job["uses"].partition("@")[0].endswith("/.github/workflows/gate.yml")
        given = job["with"]
        assert {name for name, one in takes["inputs"].items() if one.get("required")} <= set(given)
        computed = {name for name, value in given.items() if str(value).startswith("${{")}
        types = {name: TYPES[takes["inputs"][name]["type"]] for name in given}
        assert [name for name in set(given) - computed if not isinstance(given[name], types[name])] == []
        assert set(job.get("secrets", ())) <= set(takes["secrets"])


def test_who_names_no_kvproof_gets_the_one_of_the_commit_that_is_called() -> None:
    (install,) = (step for step in read(GATE.read_text())["jobs"]["judge"]["steps"] if step.get("name") == "Install")
    (form,) = re.findall(r"format\('([^']+)'", install["env"]["KVPROOF"])
    wanted = Requirement(form.format("https://example.org", "owner/kvproof", "0" * 40))
    assert (wanted.name, wanted.url) == ("kvproof", f"git+https://example.org/owner/kvproof@{'0' * 40}")
    assert wanted.extras == {"compiled", "mlflow", "report", "triton"}
    assert " " not in form, "the shell would take it for two"


def test_the_image_of_the_runner_is_built_from_named_bases_and_files_that_are_there() -> None:
    told = tool("hadolint", "--no-color", GITHUB / "Dockerfile")
    assert told.returncode == 0, told.stdout
    text = (GITHUB / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(bases) == 2
    assert [base for base in bases if not re.fullmatch(r"\S+:[\w.-]+@sha256:[0-9a-f]{64}", base)] == []
    copied = re.findall(r"^COPY (?!--from)\S+ (\S+)", text, re.MULTILINE)
    assert copied == ["constraints.txt"]
    assert (ROOT / "constraints.txt").is_file()
