"""Tensors as text in a script: small ones as lists, others packed; strides are kept, since a kernel may read them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable

import torch

from kvproof_suites.repro.recorder import LARGE

LISTED = 2_000
"""Integers up to this number are written as a list that a person can read."""
WIDTH = 112


class Data:
    """The packed tensors of a script, by name; one text for each tensor, however often it is used."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.texts.values()))

    def ints(self, tensor: torch.Tensor) -> str:
        """An expression for index data, as a list where it is short and packed."""
        if tensor.numel() > LISTED or not tensor.is_contiguous():
            return self.tensor("index", tensor)
        return f"torch.tensor({tensor.tolist()}, dtype={tensor.dtype}, device=DEVICE)"

    def tensor(self, name: str, tensor: torch.Tensor, blocks: Iterable[int] = ()) -> str:
        """An expression for ``tensor``. Of a pool too large to touch, only ``blocks`` are packed; the rest is 0."""
        shape = f"{tuple(tensor.shape)}, {tensor.stride()}, {tensor.dtype}"
        if tensor.numel() <= LARGE:
            return f"tensor({self._name(name, tensor)!r}, {shape})"
        named = sorted({block for block in blocks if 0 <= block < tensor.shape[0]})
        part = tensor[torch.tensor(named, device=tensor.device)]
        return f"tensor({self._name(name, part)!r}, {shape}, blocks={named})"

    def _name(self, name: str, tensor: torch.Tensor) -> str:
        if id(tensor) not in self._names:
            free = next(n for n in (name, *(f"{name}_{i}" for i in range(2, 1000))) if n not in self.texts)
            self._names[id(tensor)] = free
            self._kept.append(tensor)  # ids are only good while the tensor lives
            self.texts[free] = pack(tensor)
        return self._names[id(tensor)]

    def source(self) -> str:
        entries = [f'    "{name}": """\n{wrap(text)}""",\n' for name, text in self.texts.items()]
        return "DATA = {\n" + "".join(entries) + "}\n"


def pack(tensor: torch.Tensor) -> str:
    """Base 85 of the compressed elements in order, without a character that a string would have to escape."""
    flat = tensor.detach().cpu().contiguous().flatten()
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return base64.b85encode(zlib.compress(raw, 9)).decode("ascii")


def wrap(text: str) -> str:
    return "".join(f"{text[start : start + WIDTH]}\n" for start in range(0, len(text), WIDTH))


UNPACK = '''
def tensor(name, shape, stride, dtype, blocks=None):
    """The tensor packed in DATA; ``blocks``: only these are stored, the others are 0 and their memory is untouched."""
    raw = zlib.decompress(base64.b85decode("".join(DATA[name].split())))
    stored = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if 0 not in shape else 0
    found = torch.zeros(span, dtype=dtype, device=DEVICE).as_strided(shape, stride)
    if blocks is None:
        found.copy_(stored.view(shape))
    else:
        found[torch.tensor(blocks)] = stored.view(len(blocks), *shape[1:]).to(DEVICE)
    return found
'''
