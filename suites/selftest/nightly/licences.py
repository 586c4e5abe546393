"""``python -m selftest.nightly.licences``: the licence of every package of constraints.txt that is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
CLASSIFIER = "License :: OSI Approved ::"


class Licence(NamedTuple):
    package: str
    version: str
    text: str
    """An SPDX expression where the package gives one; else its own words, the first line; empty for none."""


def licences() -> Iterator[Licence]:
    for package in re.findall(r"^[\w.-]+", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE):
        try:
            found = metadata.metadata(package)
        except metadata.PackageNotFoundError:
            continue
        classified = [text.partition(CLASSIFIER)[2].strip() for text in found.get_all("Classifier") or []]
        told = [found.get("License-Expression"), *filter(None, classified), found.get("License")]
        text = next(filter(None, told), "")
        yield Licence(package, found["Version"], text.strip().splitlines()[0] if text.strip() else "")


if __name__ == "__main__":
    for one in licences():
        print(f"{one.package}=={one.version}: {one.text or 'not told'}")
