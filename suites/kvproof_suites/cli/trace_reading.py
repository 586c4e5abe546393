"""How the commands of ``kvproof trace`` read a file: the options, the errors, and a sign of life."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kvproof_traces import Request, Stream

F = TypeVar("F", bound=Callable[..., Any])
AT_LEAST_ONE = click.IntRange(min=1)
PATH = click.Path(path_type=Path)
QUIET_SECONDS, EVERY = 2.0, 4096

OF_THE_LIBRARY = {"format": "--format", "name": "--like", "rows": "--rows", "times": "--seconds"}
OF_THE_LIBRARY |= {name: f"--{name.replace('_', '-')}" for name in ("bytes_per_token", "output_tokens")}
"""How an option is called by whoever refuses it."""

OPTIONS = (
    click.option("--format", help="Name of the format; without it, found from the content."),
    click.option("--skip-bad", is_flag=True, help="Count bad rows by reason instead of refusing the file."),
    click.option("--hash-block-size", type=AT_LEAST_ONE, help="Tokens a hash id names, where the file does not say."),
    click.option("--bytes-per-token", type=float, help="Estimates the lengths of texts; no tokenizer is run."),
    click.option("--output-tokens", type=AT_LEAST_ONE, help="Output length of rows that give none."),
)


def reading_options(command: F) -> F:
    """The options that every command has which reads a trace; they arrive as keywords of ``opened``."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@contextmanager
def told() -> Iterator[None]:
    """A fault of a file or of an option, told in a line instead of a traceback."""
    from kvproof_traces import TraceError

    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads the pipe has seen enough
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from None
    except TraceError as error:
        raise click.ClickException(str(error)) from None
    except ValueError as error:
        name, colon, what = str(error).partition(":")
        raise click.ClickException(f"{OF_THE_LIBRARY.get(name, name)}{colon}{what}") from None


def opened(path: Path, **options: Any) -> Stream:
    """The trace, to be read once. To be used and read inside ``told``."""
    from kvproof_traces import stream

    return stream(path, **options)


def watched(requests: Iterable[Request]) -> Iterator[Request]:
    """The same requests; a person who waits for more than two seconds sees how many there were."""
    start, shown = monotonic(), False
    is_watched = sys.stderr.isatty()
    for number, request in enumerate(requests, start=1):
        yield request
        if is_watched and number % EVERY == 0 and monotonic() - start > QUIET_SECONDS:
            click.echo(f"\r{number:,} requests ...", nl=False, err=True)
            shown = True
    if shown:
        click.echo("\r\x1b[K", nl=False, err=True)
