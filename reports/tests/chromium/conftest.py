"""A real browser, driven through its debugging pipe with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

AT_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Puts two pipes at the numbers where the browser expects them, and becomes the browser."""

SECONDS = 60
"""For one command; a busy machine of two cores needs some."""


class Browser:
    """One process. It reads commands from its file descriptor 3 and answers on 4, each message ended by a zero byte."""

    def __init__(self, program: str, profile: Path) -> None:
        (theirs_in, self.to), (self.back, theirs_out) = os.pipe(), os.pipe()
        command = [sys.executable, "-c", AT_3_AND_4, str(theirs_in), str(theirs_out), program, *FLAGS]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.unread, self.events = 0, b"", []

    def call(self, method: str, session: str | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and wait for its answer; events meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _read(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.back], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{method}: no answer within {SECONDS} s"
            got = os.read(self.back, 1 << 16)
            assert got, f"{method}: the browser has gone, exit code {self.process.poll()}"
            self.unread += got
        message, _, self.unread = self.unread.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        os.close(self.to)
        os.close(self.back)
        self.process.terminate()
        self.process.wait(timeout=SECONDS)


class Tab:
    """A page on its own, with what it complained about and what it asked a network for."""

    def __init__(self, browser: Browser, *, width: int = 1180, dark: bool = False, javascript: bool = True) -> None:
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScriptExecutionDisabled", value=not javascript)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.media(dark=dark)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def media(self, *, dark: bool = False, kind: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=kind, features=[scheme])

    def open(self, path: Path) -> Tab:
        """Load a file, and wait until its script has drawn everything."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + SECONDS
        while self.js("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < deadline, f"{path} did not load within {SECONDS} s"
            time.sleep(0.05)
        self.js("window.ready")
        return self

    def js(self, expression: str) -> Any:
        """The value of ``expression``, a promise's once it is kept. An exception in it fails the test."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """With the mouse, where the element is; what lies over it would get the click."""
        box = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def choose(self, selector: str, words: str) -> None:
        """The option of a <select> that says ``words``."""
        found = self.js(
            f"(() => {{ const s = document.querySelector({json.dumps(selector)}); const o = [...s.options].find("
            f"o => o.text === {json.dumps(words)}); if (!o) return [...s.options].map(o => o.text).join();"
            " s.value = o.value; s.dispatchEvent(new Event('change', {bubbles: true})); return true })()"
        )
        assert found is True, f"{selector} offers {found}"

    def complaints(self) -> list[Any]:
        """Errors and warnings on the console, and exceptions."""
        self.js("1")
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        told = [e["params"] for e in mine if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        said = [e["params"] for e in mine if e["method"] == "Runtime.consoleAPICalled"]
        return told + [call for call in said if call["type"] in ("error", "warning", "assert")]

    def requests(self) -> list[str]:
        """Addresses of everything that was asked for, the file itself included."""
        self.js("1")
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [e["params"]["request"]["url"] for e in mine if e["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(
            f"not run: no browser is installed (looked for {', '.join(NAMES)}; Debian: apt-get install chromium)"
        )
    running = Browser(program, tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture
def tab(browser):
    """tab(width=..., dark=..., javascript=...) -> Tab"""
    opened: list[Tab] = []

    def open_tab(**options: Any) -> Tab:
        opened.append(Tab(browser, **options))
        return opened[-1]

    yield open_tab
    for one in opened:
        one.close()
