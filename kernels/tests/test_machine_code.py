"""What is counted in SASS and in AMD's assembly: loads of K and V by width, tensor cores, local memory."""

from __future__ import annotations

import inspect

import pytest

from kvproof_kernels import attention, machine_code, steps
from kvproof_kernels.machine_code import MachineCode, UnreadableCode, lines_of, load_lines, read_code

ROWS = frozenset({("decode.py", 84)})
SASS = """
	//## File "/somewhere/decode.py", line 65
        /*04d0*/                   LDG.E R16, desc[UR18][R16.64] ;
	//## File "/somewhere/steps.py", line 18 inlined at "/somewhere/decode.py", line 83
	//## File "/somewhere/decode.py", line 83
        /*04e0*/                   LDG.E R16, desc[UR18][R16.64] ;
	//## File "/somewhere/steps.py", line 32 inlined at "/somewhere/decode.py", line 84
	//## File "/somewhere/decode.py", line 84
        /*0480*/               @P1 LDG.E.128 R24, desc[UR18][R10.64] ;
        /*10d0*/                   LDGSTS.E.BYPASS.128 [R77], desc[UR22][R36.64], P1 ;
        /*10e0*/              @!P1 LDG.E.64 R24, desc[UR18][R10.64] ;
        /*10f0*/                   LDG.E.U16 R24, desc[UR18][R10.64] ;
        /*1100*/                   LDGDEPBAR ;
        /*1110*/                   HFMA2.MMA R24, -RZ, RZ, 0, 0 ;
        /*1120*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
	//## File "/somewhere/steps.py", line 50
        /*1130*/              @UP0 UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4] ;
        /*1140*/                   HGMMA.64x32x16.F32 R24, gdesc[UR8] ;
        /*1150*/                   STL [R1], R4 ;
        /*1160*/               @P0 LDL.64 R4, [R1+0x8] ;
        /*1170*/                   STS.128 [R4], R8 ;
"""
AMD = """
	.loc	1 56 16                         ; decode.py:56:16
	s_load_dwordx4 s[12:15], s[0:1], 0x28
	global_load_dword v1, v0, s[2:3]
	.loc	2 32 12 is_stmt 0               ; steps.py:32:12 @[ decode.py:84:13 ]
	global_load_dwordx4 v[2:5], v[0:1], off
	buffer_load_dwordx2 v[2:3], v0, s[0:3], 0 offen
	buffer_load_ubyte v2, v0, s[0:3], 0 offen
	v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
	scratch_store_dword off, v1, off
"""


@pytest.fixture
def disassembled(monkeypatch):
    monkeypatch.setattr(machine_code, "_disassemble", lambda cubin: cubin)


def test_sass_is_counted(disassembled):
    code = read_code({"cubin": SASS}, ROWS)
    assert code == MachineCode({2: 1, 8: 1, 16: 2}, tensor_cores=3, local_memory=2)


def test_amd_assembly_is_counted():
    code = read_code({"amdgcn": AMD}, ROWS)
    assert code == MachineCode({1: 1, 8: 1, 16: 1}, tensor_cores=1, local_memory=1)


def test_code_without_instructions_is_an_error(disassembled):
    with pytest.raises(UnreadableCode, match="no instruction"):
        read_code({"cubin": ".headerflags"}, ROWS)
    with pytest.raises(UnreadableCode, match="no instruction"):
        read_code({"amdgcn": ""}, ROWS)


def test_a_disassembler_that_fails_is_an_error():
    with pytest.raises(UnreadableCode, match="nvdisasm failed with"):
        read_code({"cubin": b"no machine code"}, ROWS)


def test_a_function_has_its_own_lines_and_those_that_call_it():
    lines = lines_of(steps.gather_rows, attention.paged_attention_kernel)
    own, callers = (inspect.getsource(module).splitlines() for module in (steps, attention))
    assert "".join(own[line - 1] for file, line in sorted(lines) if file == "steps.py").count("def ") == 1
    calls = [callers[line - 1] for file, line in sorted(lines) if file == "attention.py"]
    assert sum("gather_rows(" in line for line in calls) >= 3  # keys, the rest of the keys, values
    assert not any("gather_scales(" in line for line in calls)


def test_a_function_that_is_not_called_is_an_error():
    with pytest.raises(UnreadableCode, match="walk_block_table calls no gather_rows"):
        lines_of(steps.gather_rows, steps.walk_block_table)


def test_the_loads_through_a_pointer_are_found():
    source = inspect.getsource(steps).splitlines()
    (line,) = load_lines(steps.walk_block_table, "block_table")
    assert "tl.load(block_table" in source[line[1] - 1]


def test_a_pointer_that_nothing_is_loaded_through_is_an_error():
    with pytest.raises(UnreadableCode, match="walk_block_table loads nothing through key_pool"):
        load_lines(steps.walk_block_table, "key_pool")
