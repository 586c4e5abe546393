"""Integer tensors of a safetensors file: a length in eight bytes, a JSON header, then the data."""

from __future__ import annotations

import json
import struct
from pathlib import Path

FORMATS = {"I32": "i", "I64": "q", "U32": "I", "U64": "Q"}
MAX_HEADER_BYTES = 100_000_000


def read_integers(path: Path, name: str) -> tuple[int, ...]:
    """The values of tensor ``name``, flat.

    Raises:
        ValueError: no such tensor, one that holds no integers, or a file that is damaged.
        OSError: no such file.
    """
    with path.open("rb") as file:
        try:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(size, MAX_HEADER_BYTES)))
            entry = header[name]
            kind, (start, end) = FORMATS[entry["dtype"]], entry["data_offsets"]
            file.seek(8 + size + start)
            data = file.read(end - start)
            return struct.unpack(f"<{(end - start) // struct.calcsize(kind)}{kind}", data)
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path.name} holds no integer tensor {name!r} ({type(error).__name__}: {error})"
            ) from None
