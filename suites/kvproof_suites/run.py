"""One run of the laws: which implementations, which tests, what became of each, and the exit code."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kvproof_impls.registry import Implementation
from kvproof_suites import checks, failures, memory, options, summary
from kvproof_suites.environment import describe
from kvproof_suites.exit_codes import INTERNAL_ERROR, LAW_BROKEN, NOTHING_VERIFIED
from kvproof_suites.expectations import EXPECTED, apply_expectations
from kvproof_suites.isolation.isolated import isolate
from kvproof_suites.laws import LAWS
from kvproof_suites.outcome import NOT_RUN, REFUSED
from kvproof_suites.repro.recorder import RecordedKernel
from kvproof_suites.select import arrange, implementation_of, is_benchmark, law_of


class LawRun:
    """Registered as a plugin when ``--impl`` is given; the process that controls the run writes the records."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        worker: dict[str, Any] = getattr(config, "workerinput", {})
        serves = config.getoption("kvproof_serve")
        chosen = worker.get("kvproof_folder") or options.value(config, "results")
        self.folder = Path(chosen or Path("results", checks.run_name()))
        self.writes_records = not worker and not serves and not config.option.collectonly
        self.isolated = isolate(config, self.folder)
        # Of a worker's judge, which may be one of pytest-xdist's workers, there is the variable that it has inherited.
        turn = worker.get("workerid") or (os.environ.get("PYTEST_XDIST_WORKER") if serves else None)
        self.device = checks.choose_device(options.value(config, "device"), turn)
        checks.check_numbers(config)
        self.implementations = self.load()
        self.kernels = {name: RecordedKernel(impl.kernel) for name, impl in self.here.items() if impl.kernel}
        if options.value(config, "bench"):
            from kvproof_suites.bench.planning import check_plan

            check_plan(config, self.device, self.kernels)
        self.laws: list[dict[str, Any]] = []
        self.num_benchmarks = 0
        self.num_crashes = 0
        self.is_added = False
        """Whether the folder held records of an earlier session."""
        self.started = time.monotonic()

    def load(self) -> dict[str, Implementation]:
        """While workers load theirs, this process loads its own."""
        names = checks.names_of(options.value(self.config, "impl"))
        here = {name: checks.load_implementation(name) for name in names if name not in self.isolated.workers}
        return {name: here.get(name) or self.isolated.implementation(name) for name in names}

    @property
    def here(self) -> dict[str, Implementation]:
        """What is judged in this process."""
        return {name: impl for name, impl in self.implementations.items() if name not in self.isolated.workers}

    def pytest_report_header(self) -> list[str]:
        names = ", ".join(f"{impl.name} ({impl.provides})" for impl in self.implementations.values())
        elsewhere = ", ".join(self.isolated.workers)
        added = ", added to what is there" if self.is_added else ""
        return [
            f"kvproof: {names}",
            *([f"kvproof: in workers of their own: {elsewhere}"] if elsewhere else []),
            f"kvproof: device {self.device}, tier {options.value(self.config, 'tier')}, "
            f"seed {options.value(self.config, 'seed')}, results {self.folder}{added}",
        ]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """pytest-xdist's workers keep their scripts where the controller keeps the records."""
        node.workerinput["kvproof_folder"] = str(self.folder)

    def pytest_sessionstart(self) -> None:
        if not self.writes_records:
            return
        from kvproof_reports.records import RunWriter

        self.claim = checks.claim_folder(self.folder)
        self.is_added = os.fstat(self.claim).st_size > 0
        self.writer = RunWriter(self.folder)
        self.write(
            "session",
            implementations=[
                {
                    "name": impl.name,
                    "version": impl.version,
                    "provides": impl.provides,
                    "summary": checks.summary_of(impl.name),
                }
                for impl in self.implementations.values()
            ],
            tier=options.value(self.config, "tier"),
            seed=options.value(self.config, "seed"),
            device=self.device,
            command=["pytest", *self.config.invocation_params.args],
            environment=describe(self.device),
        )

    def write(self, kind: str, **fields: Any) -> None:
        """Append a record. A full disk ends no run: what it doesn't take goes with the next, or is told at the end."""
        try:
            self.writer.write(kind, **fields)
        except OSError as error:
            self.not_written = error

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        given = [Path(path) for path in options.value(self.config, "expect")]
        apply_expectations(items, self.implementations, given, self.config.args, options.value(self.config, "tier"))
        arrange(self.config, items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for kernel in self.kernels.values():
            kernel.start(recording=law_of(item) is not None and not is_benchmark(item))
        self.counts_peak = memory.start_peak(self.device)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.when == "call" and law_of(item) is not None:
            held = memory.peaks(self.device, self.counts_peak)
            item.user_properties += [(f"kvproof_{name}", num_bytes) for name, num_bytes in held.items()]
        report = yield
        if report.failed and call.excinfo is not None:
            failures.rewrite(item, call.excinfo, report, self.keep(item, call.excinfo.value))
        elif report.failed and EXPECTED in item.stash:
            failures.tell_unexpected_pass(item, item.stash[EXPECTED], report)
        return report

    def keep(self, item: pytest.Item, error: BaseException) -> list[str]:
        """Write what repeats a failure into the folder of the run; lines that say where it is."""
        from kvproof_suites.repro.keep import keep

        name = implementation_of(item)
        if law_of(item) is None or name is None:
            return []
        return keep(item, error, self.kernels.get(name), self.implementations[name].version, self.device, self.folder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.writes_records:
            return
        properties: dict[str, Any] = dict(report.user_properties)
        self.num_crashes += report.when == "???"  # how pytest-xdist reports a worker that died
        for record in properties.get("kvproof_records", ()) if report.when == "teardown" else ():
            self.write("benchmark", **record)
            self.num_benchmarks += record["timed"]
        if "kvproof_law" in properties and (outcome := outcome_of(report)) is not None:
            self.record_law(report, properties, *outcome)

    def record_law(
        self, report: pytest.TestReport, properties: dict[str, Any], outcome: str, reason: str | None
    ) -> None:
        law = properties["kvproof_law"]
        seen = {} if outcome in ("refused", "not_run") else properties
        record = {
            "law": law,
            "sentence": LAWS[law].sentence,
            "test": report.nodeid,
            "implementation": properties["kvproof_implementation"],
            "outcome": outcome,
            "reason": reason,
            "status": properties.get("kvproof_status"),
            "case": properties.get("kvproof_case"),
            "seconds": round(report.duration, 4),
            "error_to_bound": seen.get("kvproof_error_to_bound"),
            "peak_bytes": seen.get("kvproof_peak_bytes"),
            "peak_device_bytes": seen.get("kvproof_peak_device_bytes"),
        }
        self.laws.append(record)
        self.write("law", **record)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self.writes_records:
            return
        bad_ends = self.num_crashes + len(self.isolated.left)
        counts = Counter(record["outcome"] for record in self.laws) + Counter(error=bad_ends)
        least = options.value(self.config, "min-verified")
        nothing = not counts["verified"] and not self.num_benchmarks
        if nothing and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = NOTHING_VERIFIED
        elif (bad_ends or counts["verified"] < least) and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = LAW_BROKEN
        self.verdict = summary.verdict(counts, self.num_benchmarks, int(session.exitstatus), least)
        self.write(
            "end",
            exit_code=int(session.exitstatus),
            verdict=self.verdict,
            counts=dict(counts),
            seconds=round(time.monotonic() - self.started, 2),
        )
        if self.writer.appender.waiting and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = INTERNAL_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.writes_records:
            return
        for line in self.isolated.left:
            terminalreporter.write_line(line, red=True)
        summary.print_summary(terminalreporter, self.laws, self.verdict, self.folder)
        if self.writer.appender.waiting:
            terminalreporter.write_line(summary.not_written(self.writer.appender, self.not_written), red=True)
        if (uri := options.value(self.config, "mlflow")) is not None:
            terminalreporter.write_line(f"kvproof: MLflow: {sent_to_mlflow(self.folder, uri)}")

    def pytest_unconfigure(self) -> None:
        if hasattr(self, "claim"):
            os.close(self.claim)


def sent_to_mlflow(folder: Path, uri: str) -> str:
    """What became of it, in a line: nothing there may change how the run ends."""
    from kvproof_reports.extras import MissingExtra
    from kvproof_reports.mlflow_sink import log_run
    from kvproof_reports.records import RecordError

    try:
        return log_run(folder, tracking_uri=uri).message
    except (MissingExtra, RecordError) as error:
        return f"left out: {error}"


def outcome_of(report: pytest.TestReport) -> tuple[str, str | None] | None:
    """(outcome, reason) of a finished test; None while it is still under way."""
    # Not ``longreprtext``: of pytest-xdist's workers it begins with the path of their interpreter.
    text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr or "")
    if report.failed:
        stale = text.startswith(failures.STALE)
        return ("broken" if report.when == "call" and not stale else "error"), text
    if report.skipped:
        return skipped_outcome(report, text.removeprefix("Skipped: "))
    return ("verified", None) if report.when == "call" else None


def skipped_outcome(report: pytest.TestReport, text: str) -> tuple[str, str]:
    if hasattr(report, "wasxfail"):
        return "known_broken", report.wasxfail.removeprefix("reason: ")
    if text.startswith(REFUSED):
        return "refused", text.removeprefix(REFUSED)
    return "not_run", text.removeprefix(NOT_RUN)
