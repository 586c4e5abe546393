"""Integer tensors of a safetensors file: a length in eight bytes, a JSON header, then the data."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

FORMATS = {"I32": "i", "I64": "q", "U32": "I", "U64": "Q"}
MAX_HEADER_BYTES = 1 << 22
MAX_TENSOR_BYTES = 1 << 24
"""Row pointers of a million sequences are half of it."""


def read_integers(path: Path, name: str) -> tuple[int, ...]:
    """The values of tensor ``name``, flat.

    Raises:
        ValueError: no such tensor, one that holds no integers, or a file that is damaged.
        OSError: no such file.
    """
    with path.open("rb") as file:
        try:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size:,} bytes, and {MAX_HEADER_BYTES:,} are allowed")
            entry = json.loads(file.read(size))[name]
            kind, (start, end) = FORMATS[entry["dtype"]], entry["data_offsets"]
            if not 0 <= start <= end <= start + MAX_TENSOR_BYTES or 8 + size + end > os.fstat(file.fileno()).st_size:
                raise ValueError(f"data from {start} to {end}, outside of the file or too long")
            file.seek(8 + size + start)
            data = file.read(end - start)
            return struct.unpack(f"<{(end - start) // struct.calcsize(kind)}{kind}", data)
        except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path.name} holds no integer tensor {name!r} ({type(error).__name__}: {error})"
            ) from None
