"""What a compiled kernel's instructions say: how wide K and V are loaded, tensor cores, local memory.

SASS is read with the disassembler in Triton's wheel, AMD's assembly as the compiler leaves it. Both tell for each
instruction which source line it was made from, and from where that was inlined, so that the loads of K and V are told
from those of block tables and lengths.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

Line = tuple[str, int]
"""(file name without folders, line)."""
Instruction = tuple[frozenset[Line], str]
"""(the source line that it was made from and those that this was inlined at, opcode)."""

SASS_PLACE = re.compile(r'"([^"]+)", line (\d+)')
SASS_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\S+)")
AMD_PLACE = re.compile(r"([^\s:]+):(\d+):\d+")
AMD_OPCODE = re.compile(r"\s+([a-z]+_\w+)\s")

LOADS = re.compile(r"LDG(?:STS)?\b|(?:global|buffer|flat)_load_")
TENSOR_CORES = re.compile(r"[HIQDB]MMA\b|[HIQB]GMMA\b|UTC[A-Z]*MMA\b|v_s?mfmac?_")
LOCAL_MEMORY = re.compile(r"(?:LDL|STL)\b|scratch_(?:load|store)_")
WIDTHS = {
    **dict.fromkeys(("U8", "S8", "ubyte", "sbyte"), 1),
    **dict.fromkeys(("U16", "S16", "ushort", "sshort", "short"), 2),
    **dict.fromkeys(("64", "dwordx2"), 8),
    **dict.fromkeys(("128", "dwordx4"), 16),
    "dword": 4,
    "dwordx3": 12,
    "256": 32,
}
"""Bytes a thread, by a part of the opcode; a load of SASS that has none of them takes 4."""


class UnreadableCode(RuntimeError):
    """The machine code, or what it has to be compared with, can't be read."""


@dataclass(frozen=True)
class MachineCode:
    """Counts of instructions in the text of a kernel, not of how often they run."""

    row_loads: Mapping[int, int]
    """Bytes a thread loads at once: instructions that load rows of K and V so."""
    tensor_cores: int
    local_memory: int
    """Accesses to a thread's own memory, which lies in the chip's main memory: spills and indexed arrays."""


def read_code(asm: Mapping[str, Any], row_lines: frozenset[Line]) -> MachineCode:
    """Read the machine code among the forms of a compiled kernel; ``row_lines`` are those that load K and V.

    Raises:
        UnreadableCode: there are no instructions in it.
    """
    code = list(_sass(_disassemble(asm["cubin"])) if "cubin" in asm else _amd(asm["amdgcn"]))
    if not code:
        raise UnreadableCode("the disassembler shows no instruction")
    rows = Counter(_width(op) for lines, op in code if lines & row_lines and LOADS.match(op))
    return MachineCode(dict(sorted(rows.items())), _matches(TENSOR_CORES, code), _matches(LOCAL_MEMORY, code))


def lines_of(function: Any, *callers: Any) -> frozenset[Line]:
    """All lines of a Triton function, and those on which others call it.

    Where versions of Triton differ: some mark what is inlined with its own line alone, some with the caller's as well,
    and then not always with the right one of its own.

    Raises:
        UnreadableCode: one of ``callers`` does not call it.
    """
    own = range(function.starting_line_number, function.starting_line_number + len(function.raw_src))
    name = function.fn.__name__
    calls = (_found(caller, f"calls no {name}", _calls(caller, name)) for caller in callers)
    return frozenset((_file(function), line) for line in own).union(*calls)


def load_lines(function: Any, *pointers: str) -> frozenset[Line]:
    """The lines of every ``load`` in a Triton function whose address is made from one of the named arguments.

    Raises:
        UnreadableCode: there is none, so that nothing could be told about what is loaded there.
    """
    through = (
        call
        for call in _calls(function, "load")
        if {node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)} & set(pointers)
    )
    return _found(function, f"loads nothing through {', '.join(pointers)}", through)


def _calls(function: Any, name: str) -> Iterator[ast.Call]:
    """Calls of ``name(...)`` or ``module.name(...)``."""
    for node in ast.walk(ast.parse(textwrap.dedent("".join(function.raw_src)))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == name:
            yield node


def _found(function: Any, wrong: str, calls: Iterable[ast.Call]) -> frozenset[Line]:
    above = function.starting_line_number - 1
    lines = [
        (_file(function), above + line) for call in calls for line in range(call.lineno, (call.end_lineno or 0) + 1)
    ]
    if not lines:
        raise UnreadableCode(f"{function.fn.__name__} {wrong}")
    return frozenset(lines)


def _file(function: Any) -> str:
    return Path(inspect.getfile(function.fn)).name


def _disassemble(cubin: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", "-gi", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UnreadableCode(f"nvdisasm failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _sass(text: str) -> Iterator[Instruction]:
    """Each run of lines that name places holds for the instructions behind it."""
    places: list[tuple[str, str]] = []
    seen = True
    for line in text.splitlines():
        if line.lstrip().startswith("//## File"):
            places, seen = ([] if seen else places) + SASS_PLACE.findall(line), False
        elif found := SASS_OPCODE.search(line):
            seen = True
            yield _lines(places), found[1]


def _amd(text: str) -> Iterator[Instruction]:
    """A directive names the places, in words behind it, of the instructions that follow."""
    places: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith(".loc"):
            places = AMD_PLACE.findall(line)
        elif found := AMD_OPCODE.match(line):
            yield _lines(places), found[1]


def _lines(places: Iterable[tuple[str, str]]) -> frozenset[Line]:
    return frozenset((Path(file).name, int(line)) for file, line in places)


def _matches(pattern: re.Pattern[str], code: Iterable[Instruction]) -> int:
    return sum(bool(pattern.match(op)) for _, op in code)


def _width(op: str) -> int:
    parts = re.split(r"[._]", op)
    return next((WIDTHS[part] for part in parts if part in WIDTHS), 4)
