"""``kvproof new``: a kernel file to start from, which already runs."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click

TEMPLATE = "template_kernel.py"


@click.command(short_help="A template kernel to start from.")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
def command(path: Path) -> None:
    """Write a template kernel to PATH; "-" prints it.

    The template obeys every law as it stands: replace its arithmetic by your own launch and run again.

    \b
    kvproof new my_kernel.py
    pytest --pyargs kvproof_suites --impl=my_kernel:factory
    """
    text = resources.files("kvproof_suites.cli").joinpath(TEMPLATE).read_text(encoding="utf-8")
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise click.UsageError(f"{path.name} can't be imported: name it like my_kernel.py")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{path} exists and is not overwritten") from None
    except OSError as error:
        raise click.UsageError(f"{path} can't be written: {error.strerror}") from None
    where = "" if path.parent == Path() else f"cd {path.parent} && "
    click.echo(f"wrote {path}; judge it:\n{where}pytest --pyargs kvproof_suites --impl={path.stem}:factory")
