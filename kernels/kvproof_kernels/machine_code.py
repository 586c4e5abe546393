"""What a compiled kernel's instructions say: how wide K and V are loaded, tensor cores, local memory.

SASS is read with the disassembler in Triton's wheel, AMD's assembly as the compiler leaves it. Both tell for each
instruction which source line it was made from, inlined functions included, so that the loads of K and V are told from
those of block tables and lengths.
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
Instruction = tuple[Line, str]
"""(the source line that it was made from, opcode)."""

SASS = re.compile(
    r'//## File "(?P<file>[^"]+)", line (?P<line>\d+)|/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<op>[A-Z]\S+)'
)
AMD = re.compile(
    r'\s*(?:\.file\s+(?P<id>\d+) (?:"[^"]*" )?"(?P<file>[^"]+)"|\.loc\s+(?P<at>\d+) (?P<line>\d+)|(?P<op>[a-z]+_\w+)\s)'
)

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
    rows = Counter(_width(op) for line, op in code if line in row_lines and LOADS.match(op))
    return MachineCode(dict(sorted(rows.items())), _matches(TENSOR_CORES, code), _matches(LOCAL_MEMORY, code))


def lines_of(function: Any) -> frozenset[Line]:
    """All lines of a Triton function: a value that it loads and returns may be marked with the line of ``return``."""
    source, first = inspect.getsourcelines(function.fn)
    return frozenset((_file(function), first + offset) for offset in range(len(source)))


def load_lines(function: Any, *pointers: str) -> frozenset[Line]:
    """The lines of every ``load`` in a Triton function whose address is made from one of the named arguments.

    Raises:
        UnreadableCode: there is none, so that nothing could be told about what is loaded there.
    """
    source, first = inspect.getsourcelines(function.fn)
    lines = frozenset(
        (_file(function), first - 1 + line)
        for call in _calls(textwrap.dedent("".join(source)), "load")
        if {node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)} & set(pointers)
        for line in range(call.lineno, (call.end_lineno or call.lineno) + 1)
    )
    if not lines:
        raise UnreadableCode(f"{function.fn.__name__} loads nothing through {', '.join(pointers)}")
    return lines


def _file(function: Any) -> str:
    return Path(inspect.getfile(function.fn)).name


def _calls(source: str, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def _disassemble(cubin: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", "-g", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UnreadableCode(f"nvdisasm failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _sass(text: str) -> Iterator[Instruction]:
    line: Line = ("", 0)
    for found in SASS.finditer(text):
        if found["op"]:
            yield line, found["op"]
        else:
            line = Path(found["file"]).name, int(found["line"])


def _amd(text: str) -> Iterator[Instruction]:
    line: Line = ("", 0)
    files: dict[str, str] = {}
    for found in map(AMD.match, text.splitlines(keepends=True)):
        if found and found["op"]:
            yield line, found["op"]
        elif found and found["id"]:
            files[found["id"]] = Path(found["file"]).name
        elif found:
            line = files[found["at"]], int(found["line"])


def _matches(pattern: re.Pattern[str], code: Iterable[Instruction]) -> int:
    return sum(bool(pattern.match(op)) for _, op in code)


def _width(op: str) -> int:
    parts = re.split(r"[._]", op)
    return next((WIDTHS[part] for part in parts if part in WIDTHS), 4)
