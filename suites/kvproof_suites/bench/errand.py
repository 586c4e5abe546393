"""One contest on a machine of a cluster: a pytest in this process, which serves for nothing else, and its reports."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvproof_suites.exit_codes import NOTHING_VERIFIED

RAN_THROUGH = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, NOTHING_VERIFIED)
LAST_WORDS = 15
"""Lines of a pytest that did not."""


@dataclass(frozen=True)
class Errand:
    """What all contests of a run have in common."""

    words: tuple[str, ...]
    """Options of pytest."""
    files: Mapping[str, bytes]
    """That the words name, by their names."""
    device: str
    environment: Mapping[str, Any]
    """Of the machine that judged the laws: they stand for no other."""


def run(errand: Errand, tests: Sequence[str]) -> dict[str, Any]:
    """{"reports": as pytest serializes them, with the names in ``tests`` for node ids}, or {"failed": why}."""
    if told := elsewhere(errand):
        return {"failed": told}
    reports, said = Reports(), io.StringIO()
    with tempfile.TemporaryDirectory(prefix="kvproof-") as folder, chdir(folder):
        for name, content in errand.files.items():
            Path(name).write_bytes(content)
        words = ["--pyargs", *tests, *errand.words, "--kvproof-results=run", "-q", "-p", "no:cacheprovider"]
        with redirect_stdout(said), redirect_stderr(said):
            status = pytest.main(words, plugins=[reports])
    if status not in RAN_THROUGH:
        last = "\n".join(said.getvalue().strip().splitlines()[-LAST_WORDS:])
        return {"failed": f"pytest ended with {int(status)}:\n{last}"}
    return {"reports": reports.serialized}


def elsewhere(errand: Errand) -> str | None:
    """How this machine differs from the one that judged; the repository that a process was started in may."""
    from kvproof_suites.environment import describe

    here = describe(errand.device)
    told = [
        f"{name} {here[name]}, and {known} where the laws were judged"
        for name, known in errand.environment.items()
        if name != "git_commit" and here[name] != known
    ]
    return f"another kind of machine: {'; '.join(told)}" if told else None


class Reports:
    """A plugin that keeps the reports of a run."""

    def __init__(self) -> None:
        self.serialized: list[dict[str, Any]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from kvproof_suites.select import importable_id

        self.config = session.config
        self.names = {item.nodeid: importable_id(item) for item in session.items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.serialized.append(data | {"nodeid": self.names[report.nodeid]})
