"""``python -m kvproof_suites.isolation.serve FD ARGUMENTS``: the worker, a pytest that runs what it is told to."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvproof_suites.isolation import processes, untouched, wire
from kvproof_suites.plugin import RUN
from kvproof_suites.select import importable_id

PR_SET_PDEATHSIG = 1
FORK_SECONDS = 2.0
"""For a forked child to come out of the implementation, or to end."""
MOST_CAPTURED = 100_000
"""Characters of each captured stream that go back with a report: the end of them."""


class Server:
    """A plugin: after the collection it runs the tests that the judge names, and sends their reports."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.forks = Forks()
        self.reports: list[dict[str, Any]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self.config = config
        law_run = config.pluginmanager.get_plugin(RUN)
        assert law_run is not None, "a worker is started with --kvproof-impl"
        (loaded,) = law_run.implementations.values()
        wire.send(
            self.sock,
            {
                "version": loaded.version,
                "provides": loaded.provides,
                "expectations": str(loaded.expectations) if loaded.expectations else None,
            },
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        places = {importable_id(item): place for place, item in enumerate(session.items)}
        wire.send(self.sock, {"ready": len(places)})
        while (request := wire.receive(self.sock)) is not None and "run" in request:
            place = places.get(request["run"])
            answer = {"unknown": request["run"]} if place is None else self.run(session, place)
            wire.send(self.sock, answer | {"number": request["number"]})
        session._setupstate.teardown_exact(None)
        return True

    def run(self, session: pytest.Session, place: int) -> wire.Message:
        item = session.items[place]
        follows = session.items[(place + 1) % len(session.items)]
        self.reports = []
        # The test before guessed which one would follow; what it kept for that one ends here.
        session._setupstate.teardown_exact(item)
        # What follows is not known. Any other test keeps the fixtures of the session, and none of this test's own.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=follows if follows is not item else None)
        failed = any(report["outcome"] == "failed" for report in self.reports)
        return {
            "reports": self.reports,
            "device_error": device_error() if failed else None,
            "went_on": self.forks.went_on(),
            "replaced": untouched.replaced(),
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.forks.end_child()
        report.sections = [(title, text[-MOST_CAPTURED:]) for title, text in report.sections]
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))


class Forks:
    """Who forks has two of everything, the connection to the judge included: the child is ended when it goes on."""

    def __init__(self) -> None:
        self.pid, self.num_seen = os.getpid(), 0
        self.shared = mmap.mmap(-1, 1)
        os.register_at_fork(after_in_parent=self._count)

    def _count(self) -> None:
        self.num_seen += 1

    def end_child(self) -> None:
        if os.getpid() != self.pid:
            self.shared[0] = 1
            os._exit(0)

    def went_on(self) -> bool:
        """Whether a child came out of the implementation; one that was forked in this case is waited for."""
        deadline = time.monotonic() + FORK_SECONDS
        while self.num_seen and not self.shared[0] and time.monotonic() < deadline and self._has_children():
            time.sleep(0.02)
        self.num_seen = 0
        return bool(self.shared[0])

    def _has_children(self) -> bool:
        return len(processes.of_worker(os.environ.get(processes.TOKEN, ""), os.getsid(0))) > 1


def die_with_the_judge() -> None:
    """On Linux: who is killed can't end what it has started. Elsewhere a worker ends when it next reads."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spare_the_machine() -> None:
    """No core files, which may have the size of its memory; and whoever has to be killed for memory, it is this one."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def device_error() -> str | None:
    """What the device says after a failure: an error of it stays, and every case after it would fail as well."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def main() -> int:
    die_with_the_judge()
    spare_the_machine()
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    status = pytest.main(sys.argv[2:], plugins=[Server(sock)])
    return 0 if status == pytest.ExitCode.TESTS_FAILED else int(status)  # the judge has been told of each failure


if __name__ == "__main__":
    sys.exit(main())
