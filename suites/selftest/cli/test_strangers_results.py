"""Commands on a stranger's results: what they name is shown, and neither imported, run, written to nor obeyed."""

from __future__ import annotations

import json
import os
import pty
import re
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from kvproof_reports.records import RunWriter
from kvproof_suites.cli.gate_rerun import run_again
from kvproof_suites.exit_codes import USAGE_ERROR
from kvproof_suites.published_folder import names_of_folders
from kvproof_suites.repro.keep import write

RECORD = {
    "schema_version": 2,
    "kind": "law",
    "run_id": "../../escaped",
    "record_id": "/etc/escaped",
    "time_utc": "2026-01-01T00:00:00+00:00",
    "law": "../escaped",
    "sentence": "it holds",
    "test": "escaped::test_it",
    "implementation": "evil_module:factory",
    "outcome": "broken",
    "reason": "../../escaped",
    "seconds": 0.5,
}
WATCHED = """
import sys
seen = []
def hook(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"):
        seen.append((event, str(args)[:80]))
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append(("write", str(args[0])))
sys.addaudithook(hook)
from kvproof_suites.cli import main
try:
    main(["report", "results", "--output=report"], standalone_mode=False)
finally:
    assert "evil_module" not in sys.modules
    print("SEEN", __import__("json").dumps(seen))
"""


def test_a_report_runs_imports_and_reaches_nothing_that_the_results_name(tmp_path: Path) -> None:
    results = tmp_path / "work" / "results"
    results.mkdir(parents=True)
    (results / "results.jsonl").write_text(json.dumps(RECORD) + "\n")
    (tmp_path / "work" / "evil_module.py").write_text("open('ran', 'w')\nfactory = None\n")
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED], cwd=tmp_path / "work", capture_output=True, text=True, check=False, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout.partition("SEEN ")[2])
    written = {Path(what).name for event, what in seen if event == "write" and ".pyc" not in what}
    assert [event for event, _ in seen if event != "write"] == []
    assert {re.sub(r"^\.(.*)-[0-9a-f]{16}$", r"\1", name) for name in written} == {"report.md", "report.html"}
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        f"work/{name}" for name in ("evil_module.py", "results/results.jsonl", "report/report.md", "report/report.html")
    }


@pytest.mark.parametrize("name", ["../x:kernel", "/tmp/x", "a/b", "..", ".", "a\\b", ""])
def test_an_implementation_whose_name_would_leave_the_folder_of_results_is_refused(name: str) -> None:
    with pytest.raises(click.UsageError, match="can't name a folder"):
        names_of_folders([name])


@pytest.mark.parametrize("name", ["torch", "package.module:factory", "my-kernel"])
def test_other_names_are_folders(name: str) -> None:
    assert names_of_folders([name]) == [name]


@pytest.mark.parametrize("test", ["-pevil_module", "--rootdir=/tmp", "evil_module::test_it", "", "/tmp/test_it.py"])
def test_a_rerun_takes_no_word_of_the_results_for_an_option_or_a_module_of_theirs(test: str, tmp_path: Path) -> None:
    unsettled = [SimpleNamespace(after={"test": test}, where="a cell")]
    with pytest.raises(click.ClickException, match="is no test of kvproof_suites"):
        run_again(unsettled, [], tmp_path)  # type: ignore[arg-type]


def test_a_law_that_is_called_like_a_path_leaves_nothing_outside_of_the_run(tmp_path: Path) -> None:
    class Item:
        nodeid = "x::test"

        def get_closest_marker(self, name: str) -> object:
            return pytest.mark.law("../../../escaped").mark

    kept = write(tmp_path / "run", Item(), "py", "text")  # type: ignore[arg-type]
    assert kept.parent == tmp_path / "run" / "repro"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eltr\x9b31m[/bold]\t"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\u202eltr\x9b31m[/bold]"
BENCHMARK = {
    "group": "allocator",
    "operation": "append",
    "block_size": 16,
    "device": "cpu",
    "timed": True,
    "verified": True,
    "median_ms": 2.0,
    "q1_ms": 1.9,
    "q3_ms": 2.1,
    "num_samples": 5,
}


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "hostile", "hostile"),
        ("compare", "--implementations", "hostile"),
        ("gate", "--allow-other-machine", "--baseline=hostile/results.jsonl", "--output=gate", "hostile"),
        ("gate", "--allow-other-machine", "--baseline=hostile/results.jsonl", "--impl=no", "hostile"),
    ],
)
@pytest.mark.parametrize("columns", ["", "20", "400"], ids=["pipe", "narrow", "wide"])
def test_names_of_a_stranger_are_seen_on_a_terminal_and_do_not_steer_it(
    tmp_path: Path, command: tuple[str, ...], columns: str
) -> None:
    for name in ("first", "second"):
        RunWriter(tmp_path / "hostile").write("benchmark", **BENCHMARK, implementation=name + HOSTILE)
    words = [sys.executable, "-c", "from kvproof_suites.cli import main; main()", *command]
    shown, told = shown_by(words, tmp_path, columns)
    assert "fault of kvproof itself" not in told, told
    text = re.sub(r"\s", "", re.sub("\x1b\\[[0-9;]*m", "", shown) + told)  # rich's own colours, and its folds
    assert SHOWN in text
    assert [character for character in text if not character.isprintable()] == []


def shown_by(words: list[str], folder: Path, columns: str) -> tuple[str, str]:
    """Standard output, on a terminal of so many columns or else a pipe, and standard error."""
    environment = {**os.environ, "TERM": "xterm", **({"COLUMNS": columns} if columns else {})}
    given: dict[str, Any] = {"cwd": folder, "env": environment, "stderr": subprocess.PIPE, "text": True}
    if not columns:
        ended = subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=120, **given)
        return ended.stdout, ended.stderr
    leader, follower = pty.openpty()
    with open(leader, encoding="utf-8", newline="") as terminal:
        run = subprocess.Popen(words, stdout=follower, **given)
        os.close(follower)
        shown = ""
        with suppress(OSError):  # how Linux says that the other end is closed
            while chunk := terminal.readline():
                shown += chunk
        assert run.stderr is not None
        return shown, run.communicate(timeout=120)[1]


@pytest.mark.parametrize("trap", ["link", "pipe"])
@pytest.mark.parametrize(
    ("command", "written"),
    [
        (("report", "strange"), ("report.html", "report.md")),
        (("gate", "--allow-other-machine", "--baseline=strange", "strange"), ("gate.json", "gate.junit.xml")),
    ],
)
def test_what_lies_in_a_strangers_folder_is_replaced_and_not_written_through(
    tmp_path: Path, command: tuple[str, ...], written: tuple[str, ...], trap: str
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    RunWriter(tmp_path / "strange").write("benchmark", **BENCHMARK, implementation="paged")
    for name in written:
        path = tmp_path / "strange" / name
        os.mkfifo(path) if trap == "pipe" else path.symlink_to(mine)
    words = [sys.executable, "-c", "from kvproof_suites.cli import main; main()", *command]
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True, timeout=60)
    assert mine.read_text() == "mine"
    assert all(stat.S_ISREG((tmp_path / "strange" / name).lstat().st_mode) for name in written)
    assert {path.name for path in (tmp_path / "strange").iterdir()} == {"results.jsonl", *written}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("report", "x" * 300), "can't be read: File name too long"),
        (("compare", "/proc/self/mem"), "/proc/self/mem: can't be read: Input/output error"),
        (("report", "strange", "--output=/proc/nowhere"), "/proc/nowhere: No such file or directory; --output names"),
    ],
)
def test_what_can_not_be_read_or_written_is_told_in_a_line(tmp_path: Path, command: tuple[str, ...], told: str) -> None:
    RunWriter(tmp_path / "strange").write("benchmark", **BENCHMARK, implementation="paged")
    words = [sys.executable, "-c", "from kvproof_suites.cli import main; main()", *command]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == USAGE_ERROR
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
