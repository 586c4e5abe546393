"""The judge's side of a worker: start it, hand it case after case, watch it, end it and what it has started."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvproof_suites.isolation import death, folders, processes, wire
from kvproof_suites.isolation.death import Death
from kvproof_suites.isolation.watch import Watch, reserves

POLL_SECONDS = 0.1
START_SECONDS = 300
"""For imports, and once more for the collection of the tests."""
END_SECONDS = 20
"""For the fixtures of a session to end, before the worker is ended by force."""
LAST_WORDS = 20_000
"""Bytes of its standard error that are read after its death."""
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""What torch compiles lies in the temporary folder otherwise, and would be compiled anew by each worker."""


@dataclass(frozen=True)
class Limits:
    case_seconds: float
    memory_bytes: int | None = None
    """Of a worker and its children; None: until the machine has next to nothing left."""
    folders: tuple[Path, ...] = ()
    """On whose disks some room must stay."""


class Worker:
    """One process after the other: what has died is started anew for the next case."""

    def __init__(
        self, python: Path, arguments: Sequence[str], folder: Path, limits: Limits, shows_output: bool = False
    ) -> None:
        """
        Args:
            arguments: of pytest.
            folder: the working directory.
            shows_output: what it prints goes where this process prints.
        """
        self.python, self.arguments, self.folder, self.limits = python, list(arguments), folder, limits
        self.output = None if shows_output else subprocess.DEVNULL
        self.num_deaths = 0
        self.launch()

    def launch(self) -> None:
        """Start a process; what it has loaded is told by ``hello``."""
        self.token = secrets.token_hex(8)
        self.temporary, self.held = folders.make()
        self.sock, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        command = [str(self.python), "-m", "kvproof_suites.isolation.serve", str(theirs.fileno()), *self.arguments]
        with theirs:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.errors,
                start_new_session=True,
            )
        self.session: int | None = self.process.pid
        """Until it is ended: another may have that id later."""
        reserved = reserves([*self.limits.folders, self.folder, self.temporary])
        self.watch = Watch(self.process.pid, self.token, self.limits.memory_bytes, reserved)
        self.is_ready = self.end_is_told = False

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        if self.python == Path(sys.executable):  # a clone that is not installed is found by its folders alone
            inherited["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        kept = inherited.get(INDUCTOR) or f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
        return inherited | {processes.TOKEN: self.token, "TMPDIR": str(self.temporary), INDUCTOR: kept}

    def hello(self) -> wire.Message:
        """What the worker has loaded.

        Raises:
            Death: before that; its last words say why.
        """
        return self._answer(START_SECONDS)

    def run(self, case: str) -> wire.Message:
        """The reports of one case, by its ``importable_id``.

        Raises:
            Death: in its middle, or at the start of a worker that followed a dead one.
        """
        if self.process.poll() is not None:
            self._bury()
            self.num_deaths += 1
            self.launch()
            self.hello()
        if not self.is_ready:
            self._answer(START_SECONDS)
            self.is_ready = True
        number = secrets.token_hex(8)
        try:
            wire.send(self.sock, {"run": case, "number": number})
        except OSError:
            raise self._death() from None
        answer = self._answer(self.limits.case_seconds)
        if answer.get("number") != number:
            raise self._end(death.CRASHED, "crashed: it sent an answer to no question")
        return answer

    def close(self) -> int:
        """Let it end its session; its exit code. One in the middle of a case, or that died in one, is told already."""
        if self.end_is_told:
            self._bury()
            return 0
        try:
            wire.send(self.sock, {"finish": True})
            self.process.wait(END_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self._bury()
        return self.process.returncode

    def kill(self) -> None:
        """End the worker and everything that was started by it; what it kept for a while goes as well."""
        self._end_processes()
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.end_is_told = True

    def _end_processes(self) -> None:
        """Those that it has started first: once it is gone, nothing tells whose they are."""
        processes.end(self.token, self.session)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.session = None

    def _bury(self) -> None:
        self.kill()
        self.sock.close()
        self.errors.close()
        os.close(self.held)

    def _answer(self, seconds: float) -> wire.Message:
        deadline, self.end_is_told = time.monotonic() + seconds, True
        while not select.select([self.sock], [], [], POLL_SECONDS)[0]:
            if self.process.poll() is not None:
                raise self._death()
            if (excess := self.watch.excess()) is not None:
                raise self._end(*excess)
            if time.monotonic() > deadline:
                raise self._end(death.TIMED_OUT, f"timed out: no answer for {seconds:g} s, then it was ended")
        try:
            message = wire.receive(self.sock, deadline)
        except wire.WireError as error:
            raise self._end(death.CRASHED, f"crashed: it sent {error}") from None
        except TimeoutError:
            raise self._end(death.TIMED_OUT, f"timed out: after {seconds:g} s it had sent half a message") from None
        if message is None:
            raise self._death()
        self.end_is_told = False
        return message

    def _death(self) -> Death:
        """Of a worker that has ended, or is about to; one that only closed its end is ended."""
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return self._end(death.CRASHED, "crashed: it closed the connection to its judge and lived on")
        self._end_processes()
        return death.by_exit(code, self._last_words())

    def _end(self, status: str, told: str) -> Death:
        self.kill()
        return Death(status, told, self._last_words())

    def _last_words(self) -> str:
        size = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, size - LAST_WORDS))
        return death.own_words(self.errors.read().decode(errors="replace"))
