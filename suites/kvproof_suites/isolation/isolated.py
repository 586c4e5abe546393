"""The judge's plugin: hands cases of isolated implementations to their workers, and tells what became of them."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproof_impls.registry import Implementation
from kvproof_suites import failures, options
from kvproof_suites.checks import names_of
from kvproof_suites.expectations import EXPECTED
from kvproof_suites.interrupts import end_by_a_machine_as_by_a_person
from kvproof_suites.isolation import folders
from kvproof_suites.isolation.answers import read_answer, require_loaded
from kvproof_suites.isolation.choice import pythons
from kvproof_suites.isolation.death import CRASHED, DEVICE_ERROR, Death
from kvproof_suites.isolation.worker import Limits, Worker
from kvproof_suites.select import implementation_of, importable_id, law_of

CASE_SECONDS = 300.0
MOST_DEATHS = 25
"""Of the workers of one implementation, each of which takes seconds to start; its other cases are given up then."""
FORWARDED = (
    *("device", "tier", "seed", "churned", "expect"),
    *("bench", "profile", "points", "block-sizes", "tables", "model", "threads", "verified-by", "resume"),
)


class Elsewhere:
    """Stands for a half of an implementation that a worker has; nothing here may call it."""


class Isolated:
    """Workers by the names of their implementations."""

    def __init__(self, config: pytest.Config, folder: Path, pythons: dict[str, Path]) -> None:
        """
        Args:
            pythons: the interpreter of each isolated implementation.
        """
        self.config = config
        self.left: list[str] = []
        """What is to be told of workers that ended badly after their last case."""
        shared = config.invocation_params.dir, limits_of(config, folder), config.option.capture == "no"
        self.workers = {
            name: Worker(python, arguments(config, name, folder), *shared) for name, python in pythons.items()
        }
        for worker in self.workers.values():
            atexit.register(worker.kill)  # whatever ends this process before the session does

    def implementation(self, name: str) -> Implementation:
        """What the worker has loaded, its halves named and not here.

        Raises:
            pytest.UsageError: it can't be loaded; its own words.
        """
        try:
            told = self.workers[name].hello()
            require_loaded(told)
        except Death as death:
            self.close()
            raise pytest.UsageError(why_not_started(name, death)) from None
        halves: dict[str, Any] = {half: Elsewhere() for half in told["provides"].split(" + ")}
        known = told["expectations"]
        return Implementation(name, version=told["version"], expectations=Path(known) if known else None, **halves)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if (name := implementation_of(item)) not in self.workers:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self.reports(item, self.workers[name]):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        # What the test before, which ran here, had kept for this one, which did not, ends before the next.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def reports(self, item: pytest.Item, worker: Worker) -> Iterable[pytest.TestReport]:
        started = time.time()
        if worker.num_deaths >= MOST_DEATHS:
            told = f"given up: the worker of {implementation_of(item)} has died {worker.num_deaths} times"
            return [report_of(item, Death(CRASHED, told), started)]
        try:
            answer = worker.run(importable_id(item))
            reports = read_answer(item, answer)
        except Death as death:
            worker.kill()
            return [report_of(item, death, started)]
        if answer.get("device_error"):
            tell_device_error(reports, answer["device_error"])
            worker.kill()
        return reports

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """pytest-timeout's alarm would end the judge, and here it is the worker that is waited for."""
        return True if implementation_of(item) in self.workers else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        for name, code in self.close().items():
            if code != 0:
                self.left.append(f"{name}: its worker ended with exit code {code}, after its last case")

    def close(self) -> dict[str, int]:
        return {name: worker.close() for name, worker in self.workers.items()}


def isolate(config: pytest.Config, folder: Path) -> Isolated:
    """The workers of a run, started, and registered as a plugin of it; none where a debugger is asked for."""
    way = options.value(config, "isolate")
    way = "no" if way == "auto" and config.option.usepdb else way
    named = names_of(options.value(config, "impl"))
    folders.remove_left()
    isolated = Isolated(config, folder, pythons(named, way, options.value(config, "python")))
    config.pluginmanager.register(isolated, "kvproof-isolated")
    if isolated.workers:
        end_by_a_machine_as_by_a_person()
    return isolated


def limits_of(config: pytest.Config, folder: Path) -> Limits:
    """``--timeout`` belongs to pytest-timeout where that is installed, and means the same."""
    seconds = options.value(config, "timeout") or config.getoption("timeout", None) or CASE_SECONDS
    gigabytes = options.value(config, "max-memory")
    return Limits(float(seconds), int(gigabytes * 1e9) if gigabytes else None, (folder,))


def arguments(config: pytest.Config, name: str, folder: Path) -> list[str]:
    """Of a pytest that collects the same tests under the same node ids, and of whose own plugins none is in the way."""
    ini = ["-c", str(config.inipath)] if config.inipath else []
    words = [*config.args, *ini, f"--rootdir={config.rootpath}", f"--tb={config.option.tbstyle}", "-o", "addopts="]
    words += [f"--import-mode={config.getoption('importmode')}", "-W", "default", "-q"]
    words += [word for plugin in ("cacheprovider", "xdist", "timeout") for word in ("-p", f"no:{plugin}")]
    words += ["--pyargs"] if config.option.pyargs else []
    words += ["-s"] if config.option.capture == "no" else []
    words += ["--benchmark-disable"] if benchmark_is_off(config) else []
    words += [f"--kvproof-impl={name}", "--kvproof-isolate=no", "--kvproof-serve", f"--kvproof-results={folder}"]
    return words + [word for option in FORWARDED for word in forwarded(option, options.value(config, option))]


def forwarded(option: str, value: Any) -> Sequence[str]:
    if value is True:
        return [f"--kvproof-{option}"]
    values = value if isinstance(value, list) else [value]
    return [f"--kvproof-{option}={one}" for one in values if one is not None and one is not False]


def benchmark_is_off(config: pytest.Config) -> bool:
    return bool(getattr(getattr(config, "_benchmarksession", None), "disabled", False))


def report_of(item: pytest.Item, death: Death, started: float) -> pytest.TestReport:
    first = f"{law_of(item) or item.name}: {death.told}"
    words = f"\n\n  its last words:\n{failures.indent(death.last_words)}" if death.last_words else ""
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=failures.story(item, first, f"{first}{words}\n\n{failures.footer(item, [])}"),
        when="call",
        duration=time.time() - started,
        start=started,
        stop=time.time(),
        user_properties=[*item.user_properties, ("kvproof_status", death.status)],
    )
    if (entry := item.stash.get(EXPECTED, None)) and entry.raises == death.status:
        report.outcome = "skipped"  # type: ignore[assignment]
        report.wasxfail = f"reason: {entry.told}"
    return report


def tell_device_error(reports: Sequence[pytest.TestReport], told: str) -> None:
    for report in reports:
        if report.failed:
            report.user_properties.append(("kvproof_status", DEVICE_ERROR))
            report.sections.append(("kvproof", f"the device is lost, and the worker was started anew: {told}"))


def why_not_started(name: str, death: Death) -> str:
    """A usage error of the worker's pytest is the user's, and told in its own words."""
    lines = [line.removeprefix("ERROR: ") for line in death.last_words.splitlines() if line]
    if any(line.startswith("ERROR: ") for line in death.last_words.splitlines()):
        return "\n".join(lines)
    last = "\n  ".join(lines[-5:]) or "it wrote nothing"
    return f"{name}: its worker died at the start: {death.told}\n  {last}"
