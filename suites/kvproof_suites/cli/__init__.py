"""The command line: ``kvproof``. A command's module is imported when it is needed, and torch only inside a command."""

from __future__ import annotations

import errno
import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Never

import click

from kvproof_suites.exit_codes import (
    CONFORMS,
    INTERNAL_ERROR,
    INTERRUPTED,
    LAW_BROKEN,
    NOTHING_VERIFIED,
    USAGE_ERROR,
)
from kvproof_suites.interrupts import end_by_a_machine_as_by_a_person

__all__ = [
    "CONFORMS",
    "INTERNAL_ERROR",
    "INTERRUPTED",
    "LAW_BROKEN",
    "NOTHING_VERIFIED",
    "USAGE_ERROR",
    "main",
]

COMMANDS = {
    "run": "run",
    "sweep": "sweep",
    "list": "list_impls",
    "laws": "laws",
    "replay": "replay",
    "simulate": "simulate",
    "trace": "trace",
    "compare": "compare",
    "gate": "gate",
    "new": "new",
    "size": "size",
    "paper": "paper",
    "report": "report",
    "log": "log",
}
"""Command to its module in this package, which holds it as ``command``."""


class LazyGroup(click.Group):
    """Commands by name, imported on demand; exit codes that mean what the laws' exit codes mean."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name]}").command
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Never:
        """click would exit with 2 for a usage error and 1 for anything else, which here mean other things."""
        end_by_a_machine_as_by_a_person()
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            sys.exit(_explain(error))
        except click.Abort:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except SystemExit:
            sys.exit(CONFORMS)  # how click ends when whoever reads the pipe has seen enough; nothing was judged
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                click.echo(f"kvproof: {error.strerror}", err=True)
                sys.exit(USAGE_ERROR)
            traceback.print_exc()
            click.echo("This is a fault of kvproof itself, not of what it judged.", err=True)
            sys.exit(INTERNAL_ERROR)
        sys.exit(status or CONFORMS)


def _explain(error: click.ClickException) -> int:
    """One or two lines: what was wrong, and where help is. Who gave nothing at all gets the help itself."""
    from kvproof_reports.texts import visible

    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # since click 8.2
        click.echo(error.format_message(), err=True)
        return USAGE_ERROR
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "kvproof"
    click.echo(f"{command}: {visible(error.format_message())}", err=True)
    if isinstance(error, click.UsageError):
        click.echo(f"`{command} --help` shows the options and examples.", err=True)
    return USAGE_ERROR


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvproof", message="%(prog)s %(version)s")
def main() -> None:
    """Proves that a paged KV cache is right, and measures how fast it is.

    \b
    kvproof list                            what can be judged here, and why the rest can't
    kvproof run --impl=triton               laws, benchmark, log and report in one go
    kvproof new my_kernel.py                a kernel to start from
    pytest --pyargs kvproof_suites --impl=my_kernel:factory

    \b
    Exit codes: 0 conforms, 1 a law is broken, 2 interrupted, 3 internal error, 4 usage error, 5 nothing was verified.
    """
