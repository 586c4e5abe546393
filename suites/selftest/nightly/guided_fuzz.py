"""``python -m selftest.nightly.guided_fuzz FOLDER [-max_total_time=600]``: every reader, guided by the branches that a
file reaches. FOLDER holds what was found interesting, and begins with the examples; options are libFuzzer's.

Any exception that a reader does not document ends it, and the file that did it is left behind. Needs atheris, which
nothing else does: ``make fuzz`` installs it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kvproof_traces", "kvproof_reports", "kvproof_reference"]):
    from selftest.nightly.readers import READERS

PLACES = [Path(tempfile.mkdtemp(), reader.name) for reader in READERS]
"""In memory or on disk, as TMPDIR says; a name of its own each, since some readers look at it."""


def one(data: bytes) -> None:
    """The first byte says which reader."""
    if not data:
        return
    place = data[0] % len(READERS)
    PLACES[place].write_bytes(data[1:])
    try:
        READERS[place].read(PLACES[place])
    except READERS[place].raises:
        pass


def main(arguments: list[str]) -> None:
    corpus = Path(arguments[0])
    corpus.mkdir(parents=True, exist_ok=True)
    for place, reader in enumerate(READERS):
        (corpus / reader.name).write_bytes(bytes([place]) + reader.example)
    atheris.Setup([sys.argv[0], *arguments[1:], str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:] or [".hypothesis/fuzz"])
