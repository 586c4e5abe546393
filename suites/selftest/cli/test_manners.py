"""What every command has in common: quick help, exit codes, errors in a line or two, plain text in a pipe."""

import os
import pty
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof_suites import cli
from kvproof_suites.cli import terminal

RUN = [sys.executable, "-c", "from kvproof_suites.cli import main; main()"]


def kvproof(*arguments, **options):
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)


def test_help_is_quick_and_imports_nothing_heavy():
    probe = "import sys; sys.argv = ['kvproof', '--help']; from kvproof_suites.cli import main\n"
    probe += "try: main()\nfinally: print('heavy:', {'torch', 'mlflow', 'plotly', 'pytest', 'rich'} & set(sys.modules))"
    before = cpu_seconds_of_children()
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout.endswith("heavy: set()\n")
    assert cpu_seconds_of_children() - before < 0.5


def cpu_seconds_of_children():
    """Not the clock on the wall, which on a busy machine measures the neighbours."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_each_command_shows_an_example_in_its_help(name):
    shown = CliRunner().invoke(cli.main, [name, "--help"])
    assert shown.exit_code == cli.CONFORMS
    assert f"kvproof {name}" in shown.output.split("\n", 1)[1], shown.output


@pytest.mark.parametrize("group", [[], ["trace"]])
def test_each_command_is_told_in_a_line_that_is_not_cut_off(group):
    shown = CliRunner().invoke(cli.main, [*group, "--help"], env={"COLUMNS": "60"}).output
    commands = shown.partition("Commands:\n")[2].splitlines()
    assert len(commands) >= 5
    assert not [line for line in commands if line.endswith("...")]


@pytest.mark.parametrize("group", [[], ["trace"]])
def test_without_a_command_the_help_is_shown_as_it_is(group):
    told = CliRunner().invoke(cli.main, group)
    assert (told.exit_code, told.stdout) == (cli.USAGE_ERROR, "")
    assert told.stderr == CliRunner().invoke(cli.main, [*group, "--help"]).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lst"], "No such command 'lst'"),
        (["list", "--jsn"], "No such option '--jsn'"),
        (["new"], "Missing argument 'PATH'"),
    ],
)
def test_a_usage_error_is_told_in_two_lines_and_exits_with_4(arguments, said):
    told = kvproof(*arguments)
    assert told.returncode == cli.USAGE_ERROR
    assert said in told.stderr
    assert told.stderr.count("\n") == 2
    assert told.stdout == ""


def test_a_fault_of_ours_exits_with_3_and_shows_where(monkeypatch):
    def broken():
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("kvproof_impls.registry.names", broken)
    told = CliRunner().invoke(cli.main, ["list"])
    assert told.exit_code == cli.INTERNAL_ERROR
    assert "ZeroDivisionError: of ours" in told.stderr


def test_control_c_exits_with_2(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("kvproof_impls.registry.names", interrupted)
    told = CliRunner().invoke(cli.main, ["list"])
    assert (told.exit_code, told.stderr.strip()) == (cli.INTERRUPTED, "interrupted")


LONG = """
import subprocess
from kvproof_impls import registry
from kvproof_suites.cli import main
registry.names = lambda: (print("begun", flush=True), subprocess.run(["sleep", "1000031"]))
main(["list"])
"""


def test_a_machine_that_ends_a_command_ends_what_it_has_started():
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"begun\n"
        while not (started := commands_with(b"1000031")):
            time.sleep(0.05)
        run.terminate()
        assert (run.wait(30), run.stderr.read().strip()) == (cli.INTERRUPTED, b"interrupted")
    assert started
    assert commands_with(b"1000031") == []


def commands_with(word):
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [command for command in commands if word in command.split(b"\0")]


def on_a_terminal(*arguments, **environment):
    """What the command writes when standard output is a terminal."""
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", **environment}
    env = {name: value for name, value in env.items() if name != "NO_COLOR" or name in environment}
    subprocess.run([*RUN, *arguments], stdout=follower, stderr=subprocess.DEVNULL, check=True, env=env, timeout=120)
    os.close(follower)
    shown = b""
    while chunk := _read(leader):
        shown += chunk
    os.close(leader)
    return shown.decode()


def _read(leader):
    try:
        return os.read(leader, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def test_a_terminal_gets_a_coloured_table_a_pipe_gets_tabs():
    shown, piped = on_a_terminal("list"), kvproof("list").stdout
    assert "\x1b[" in shown
    assert "─" in shown
    assert "\x1b[" not in piped
    assert piped.splitlines()[0] == "name\tprovides\tversion\tstate\tsummary"


def test_no_color_is_honoured():
    shown = on_a_terminal("list", NO_COLOR="1")
    assert "─" in shown
    assert not any(f"\x1b[{colour}m" in shown for colour in range(30, 48))


def test_a_reader_that_has_seen_enough_is_no_broken_law():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody_reads:
        ended = subprocess.run(
            [*RUN, "laws"], stdout=nobody_reads, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert (ended.returncode, ended.stderr) == (cli.CONFORMS, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_no_fault_of_ours():
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([*RUN, "laws"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert ended.returncode == cli.USAGE_ERROR
    assert ended.stderr == "kvproof: No space left on device\n"


def test_without_a_standard_output_nothing_fails():
    ended = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *RUN, "list"], stderr=subprocess.PIPE, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (cli.CONFORMS, "")


def test_a_table_that_a_terminal_has_no_room_for_is_shown_row_by_row():
    table = ["simulate", "alpaca", "--num-requests=50", "--block-size=16,64"]
    narrow, wide = on_a_terminal(*table, COLUMNS="40"), on_a_terminal(*table)
    assert "…" not in narrow + wide
    assert "─" in wide
    assert [line.split()[-1] for line in narrow.splitlines() if line.startswith("block")] == ["16", "64"]
    assert all(len(line) <= 40 for line in narrow.splitlines() if ":" in line)


def test_row_by_row_what_is_empty_is_left_away(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    terminal.show_table(("name", "version", "state"), [("first", "", "available"), ("second", None, "away")])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line] == ["name: first", "state: available", "name: second", "state: away"]
