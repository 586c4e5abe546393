"""``--ray``: the benchmarks of a session, contest by contest on the machines of a cluster, and their reports here.

To the rest of the session it looks as if each had run in this process: records, exit code and ``--resume`` are what
they are without a cluster. A contest is never divided, because what is compared takes turns in one process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproof_reports.records import FILE_NAME, RunWriter
from kvproof_reports.schema import COMMON
from kvproof_suites import options
from kvproof_suites.bench import errand, ray_cluster
from kvproof_suites.bench.contests import entrant_of
from kvproof_suites.bench.standing import laws_of_run
from kvproof_suites.environment import describe
from kvproof_suites.exit_codes import INTERNAL_ERROR
from kvproof_suites.isolation.isolated import forwarded
from kvproof_suites.select import importable_id, is_benchmark

PASSED_ON = (
    *("impl", "isolate", "timeout", "max-memory", "python", "tier", "seed"),
    *("bench", "points", "block-sizes", "tables", "threads"),
)
CARRIED = ("profile", "model", "churned")
"""Options that may name a file of this machine."""


class Spread:
    """Registered as a plugin when ``--ray`` is given."""

    def __init__(self, config: pytest.Config, device: str, folder: Path) -> None:
        """
        Raises:
            pytest.UsageError: no cluster to spread over, or options that can't be meant together with one.
        """
        if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
            raise pytest.UsageError("--ray spreads the benchmarks by itself; leave -n out")
        self.config, self.folder = config, folder
        self.device, self.environment = device, describe(device)
        self.address = options.value(config, "ray")
        try:
            self.needed = ray_cluster.resources_of_call(self.address, device)
        except ray_cluster.ClusterError as error:
            raise pytest.UsageError(str(error)) from None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Laws as ever, and then the benchmarks."""
        if self.config.option.collectonly:
            return (yield)
        contests = contests_of([item for item in session.items if is_benchmark(item)])
        session.items[:] = [item for item in session.items if not is_benchmark(item)]
        result = yield
        if contests:
            self.send_out(session, contests)
        return result

    def send_out(self, session: pytest.Session, contests: Sequence[Sequence[pytest.Item]]) -> None:
        tests = [[importable_id(item) for item in contest] for contest in contests]
        lost = []
        for place, number, answer in ray_cluster.spread(self.address, errand.run, self.errand(), tests, **self.needed):
            if "failed" not in answer:
                self.log(contests[place], answer)
            else:
                self.tell(f"{title_of(contests[place])}: try {number} of {ray_cluster.MOST_TRIES}: {answer['failed']}")
                lost += [place] if number == ray_cluster.MOST_TRIES else []
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
        if lost:
            told = f"{len(lost)} of {len(tests)} contests could not be timed; --resume tries them again"
            pytest.exit(told, returncode=INTERNAL_ERROR)

    def errand(self) -> errand.Errand:
        words = [word for name in PASSED_ON for word in forwarded(name, options.value(self.config, name))]
        files = {}
        for name in CARRIED:
            value = options.value(self.config, name)
            if value and Path(value).is_file():
                value = f"{name}{Path(value).suffix}"
                files[value] = Path(options.value(self.config, name)).read_bytes()
            words += forwarded(name, value)
        if laws := self.laws():
            files["laws.jsonl"] = laws
            words.append("--kvproof-verified-by=laws.jsonl")
        words.append(f"--kvproof-device={self.device}")
        return errand.Errand(tuple(words), files, self.device, self.environment)

    def laws(self) -> bytes:
        """Those that the rows of this session go by, as a results file."""
        named = options.value(self.config, "verified-by")
        laws = [law for path in (self.folder, named) if path for law in laws_of_run(Path(path))]
        if not laws:
            return b""
        with tempfile.TemporaryDirectory() as folder:
            writer = RunWriter(folder)
            for law in laws:
                writer.write("law", **{name: value for name, value in law.items() if name not in COMMON})
            return Path(folder, FILE_NAME).read_bytes()

    def log(self, contest: Sequence[pytest.Item], answer: ray_cluster.Answer) -> None:
        """As if the tests had run here, one after the other."""
        machine = f"{self.environment['gpu'] or self.environment['cpu']}, node {answer['node'][:8]}"
        for item in contest:
            own = {"nodeid": item.nodeid, "location": item.location}
            item.ihook.pytest_runtest_logstart(**own)
            for data in answer["reports"]:
                if data["nodeid"] == importable_id(item):
                    report = item.ihook.pytest_report_from_serializable(config=self.config, data=data | own)
                    mark(report, machine)
                    item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(**own)

    def tell(self, text: str) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"kvproof: {text}", yellow=True)


def contests_of(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """What is timed together; of tests without a cell, those of one function and share."""
    found: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        entrant = entrant_of(item)
        found.setdefault(entrant[1].contest if entrant else _alone(item), []).append(item)
    return list(found.values())


def title_of(contest: Sequence[pytest.Item]) -> str:
    entrant = entrant_of(contest[0])
    return entrant[1].title if entrant else contest[0].name


def _alone(item: pytest.Item) -> Hashable:
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return (getattr(item, "originalname", item.name), params.get("share"))


def mark(report: pytest.TestReport, machine: str) -> None:
    """Let each row tell where it was measured."""
    rows: Any = dict(report.user_properties).get("kvproof_records", ())
    for row in rows:
        row["machine"] = machine
